import json
from pathlib import Path

import pytest

from tests.vllm.diagnosis import shapes
from tests.vllm.diagnosis.test_logs import EXPECTED
from workers.vllm.diagnosis import Diagnoser, catalog
from workers.vllm.diagnosis_rules import RULES
from workers.vllm.diagnosis_words import words_of
from workers.vllm.diagnosis_wrappers import CONSEQUENCES

# The messages by which each cause shows itself, in the wordings of several versions and libraries.
WORDINGS = [
    (row["code"], getattr(shapes, row["shape"]), row["message"])
    for row in json.loads((Path(__file__).parent / "wordings.json").read_text())
]


def diagnose(log: str, exit_code: int | None = None):
    diagnoser = Diagnoser()
    diagnoser.feed_bytes(log.encode())
    diagnoser.close()
    return diagnoser.result(exit_code)


@pytest.mark.parametrize(
    ("code", "shape", "message"), WORDINGS, ids=[f"{code}-{i}" for i, (code, _, _) in enumerate(WORDINGS)]
)
def test_each_wording_leads_to_its_cause_whatever_stands_around_it(code, shape, message):
    log = shape(message)
    # A hang at the start of NCCL is told by silence: there is no exit code yet.
    diagnosis = diagnose(log, None if message.endswith("nccl==2.27.5") else 1)
    assert diagnosis.code == code, (diagnosis.code, diagnosis.message, diagnosis.also)
    lines = log.split("\n")
    assert diagnosis.evidence
    for evidence in diagnosis.evidence:
        assert evidence.text == lines[evidence.line - 1].rstrip()
    shown = " ".join(evidence.text for evidence in diagnosis.evidence)
    assert any(part.strip()[:60] in shown for part in message.split("\n") if part.strip())


def test_every_code_has_a_wording_or_a_real_log():
    assert {code for code, _, _ in WORDINGS} | set(EXPECTED.values()) == set(catalog())


def test_codes_of_rules_are_in_the_catalog():
    assert {rule.code for rule in RULES} <= set(catalog())
    assert {code for cause, others in CONSEQUENCES.items() for code in (cause, *others)} <= set(catalog())


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"\bfoo bar: (?P<x>\S+)", ("foo bar: ",)),
        (r"a literal \(dot\.\) and \d+ more", ("a literal (dot.) and ",)),
        (r"[Aa]ddress in use|[Errno]x|\[Errno 98\]", ("ddress in use", "[Errno 98]")),
        (r"colou?r scheme", ("r scheme",)),
        (r"(?:one|two) of them|three{2,3} of", (" of them", "thre")),
        (r".{0,30}last", ("last",)),
    ],
)
def test_the_fixed_words_of_a_pattern_are_found(pattern, words):
    if "[Errno]x" in pattern:
        with pytest.raises(ValueError, match="no fixed text"):
            words_of(pattern)
    else:
        assert words_of(pattern) == words

import json
import re
from pathlib import Path
from typing import Any

import pytest

from workers.vllm.diagnosis import Diagnoser, diagnose_file

LOGS = Path(__file__).parent / "logs"
EXPECTED: dict[str, str] = json.loads((LOGS / "expected.json").read_text())


@pytest.mark.parametrize(("name", "code"), EXPECTED.items(), ids=[name.removesuffix(".log") for name in EXPECTED])
def test_a_real_log_leads_to_its_cause(name, code):
    diagnosis = diagnose_file(LOGS / name)
    assert diagnosis.code == code
    assert diagnosis.also == ()
    lines = (LOGS / name).read_bytes().decode().split("\n")
    assert diagnosis.evidence
    assert [evidence.line for evidence in diagnosis.evidence] == sorted(
        evidence.line for evidence in diagnosis.evidence
    )
    for evidence in diagnosis.evidence:
        assert evidence.text == lines[evidence.line - 1].rstrip()


@pytest.mark.parametrize("name", EXPECTED)
def test_reading_line_by_line_and_in_odd_pieces_gives_the_same(name):
    data = (LOGS / name).read_bytes()
    whole = diagnose_file(LOGS / name)
    by_line, in_pieces = Diagnoser(), Diagnoser()
    for line in data.splitlines(keepends=True):
        by_line.feed(line)
    for start in range(0, len(data), 997):
        in_pieces.feed_bytes(data[start : start + 997])
    in_pieces.close()
    assert by_line.result() == whole
    assert in_pieces.result() == whole
    assert by_line.line_count == in_pieces.line_count == len(data.splitlines())


MORE = LOGS.parent / "more"
MORE_EXPECTED: dict[str, dict[str, Any]] = json.loads((MORE / "expected.json").read_text())


@pytest.mark.parametrize("name", MORE_EXPECTED)
def test_real_logs_of_other_failures_lead_to_their_cause(name):
    """Made with vLLM 0.32 on a CPU, as those in `logs`, but by failures that those don't have."""
    expected = MORE_EXPECTED[name]
    for exit_code in (None, expected["exit_code"]):
        diagnosis = diagnose_file(MORE / name, exit_code)
        assert diagnosis.code == expected["code"], diagnosis
        assert diagnosis.also == ()
    lines = re.sub(r"\x1b\[[\d;]*m", "", (MORE / name).read_bytes().decode(errors="replace")).split("\n")
    assert diagnosis.evidence
    for evidence in diagnosis.evidence:
        assert evidence.text == lines[evidence.line - 1].rstrip()

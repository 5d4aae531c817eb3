"""Logs full of errors: they are read by what is still wanted, quickly, and say the same as when each line is read."""

import time
from pathlib import Path
from random import Random

import pytest

from tests.vllm.diagnosis.test_wordings import WORDINGS
from workers.vllm import diagnosis_facts
from workers.vllm.diagnosis import Diagnoser

LOGS = sorted(path for folder in ("logs", "more") for path in (Path(__file__).parent / folder).glob("*.log"))


def read(data: bytes, monkeypatch: pytest.MonkeyPatch, *, crowded: bool):
    """The diagnosis of a log that comes in pieces of some lines: each is taken for crowded, or every line is read."""
    monkeypatch.setattr(diagnosis_facts, "_READ_CLOSELY", 0 if crowded else 1_000_000)
    monkeypatch.setattr(diagnosis_facts, "rare_stems", lambda _block, _stems: None if crowded else {})
    diagnoser = Diagnoser()
    lines = data.splitlines(keepends=True)
    for at in range(0, len(lines), 5):
        diagnoser.feed_bytes(b"".join(lines[at : at + 5]))
    diagnoser.close()
    return diagnoser.result(1)


@pytest.mark.parametrize("path", LOGS, ids=[path.stem for path in LOGS])
def test_a_real_log_says_the_same_when_its_pieces_are_taken_for_crowded(path, monkeypatch):
    data = path.read_bytes()
    assert read(data, monkeypatch, crowded=True) == read(data, monkeypatch, crowded=False)


def test_each_wording_says_the_same_when_its_lines_are_taken_for_crowded(monkeypatch):
    for code, shape, message in WORDINGS:
        data = shape(message).encode()
        assert read(data, monkeypatch, crowded=True) == read(data, monkeypatch, crowded=False), (code, message)


def errors(size_bytes: int) -> bytes:
    random = Random(6)
    words = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 10))) for _ in range(5000)]
    lines, size = [], 0
    while size < size_bytes:
        number = len(lines)
        said = " ".join(random.choices(words, k=8))
        lines.append(f"(EngineCore_DP0 pid={number}) {words[number % 5000].title()}Error: {said}\n")
        size += len(lines[-1])
    return "".join(lines).encode()


def test_errors_that_never_repeat_take_no_longer_than_others_and_hide_no_cause():
    """A twentieth of a hundred megabytes, in CPU time; reading each line took ten times as long."""
    crowd = errors(5_000_000)
    diagnoser = Diagnoser()
    start = time.process_time()
    for at in range(0, len(crowd), 1 << 20):
        diagnoser.feed_bytes(crowd[at : at + (1 << 20)])
    assert time.process_time() - start < 1.5
    first = diagnoser.result(1)
    diagnoser.feed_bytes(crowd[:500_000] + b"ValueError: No available memory for the cache blocks.\n" + crowd[:500_000])
    last = diagnoser.result(1)
    assert (first.code, last.code) == ("unknown", "kv_cache.no_blocks")
    assert last.evidence[0].line == (crowd + crowd[:500_000]).count(b"\n") + 1


def failed_requests(count: int) -> bytes:
    line = '(APIServer pid=9) INFO:     10.0.{0}.{1}:{2} - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error\n'
    return "".join(line.format(n % 250, n % 90, 1024 + n) for n in range(count)).encode()


def test_what_a_log_repeats_is_passed_over_at_once_and_hides_no_cause():
    """Five megabytes that differ in numbers alone, in CPU time; searching all of them for words took thirty times as long."""
    crowd = failed_requests(50_000)
    diagnoser = Diagnoser()
    diagnoser.feed_bytes(failed_requests(5_000))
    start = time.process_time()
    for at in range(0, len(crowd), 1 << 20):
        diagnoser.feed_bytes(crowd[at : at + (1 << 20)])
    assert time.process_time() - start < 0.8
    diagnoser.feed_bytes(crowd[:500_000].rpartition(b"\n")[0] + b"\nMemoryError: Unable to allocate 2 GiB\n" + crowd)
    assert diagnoser.result(1).code == "memory.out_of_memory"


def test_what_was_passed_over_counts_again_once_it_is_of_interest_again():
    """The start that succeeds takes back what an exception before it said; the same words after it are the failure."""
    said = b"ERROR 11-30 10:00:00 [core.py:1] ValueError: some 7 words that nobody knows Error:\n"
    diagnoser = Diagnoser()
    diagnoser.feed_bytes(failed_requests(9_000))
    for _ in range(3):
        diagnoser.feed_bytes(said * 5_000)
    assert diagnoser.result(1).code == "unknown"
    diagnoser.feed_bytes(b"INFO:     Application startup complete.\n" + failed_requests(500))
    before = diagnoser.line_count
    diagnoser.feed_bytes(said * 5_000)
    found = diagnoser.result(1)
    assert found.message.startswith("ValueError: some 7 words")
    assert before < found.evidence[-1].line

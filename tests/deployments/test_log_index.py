"""Any line of a log is found by its number, and the lines that match are found whatever the log's length."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.deployments import log_index
from console.deployments.log_index import LogIndex, Match

BOUNDED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

LOG = """\
(APIServer pid=7) INFO 11-29 14:02:11 [api.py:1] starting
(EngineCore pid=9) WARNING 11-29 14:02:12 [core.py:2] a warning
Loading: 10%\rLoading: 100%
(EngineCore pid=9) ERROR 11-29 14:02:13 [core.py:3] EngineCore failed to start.
(EngineCore pid=9) ERROR 11-29 14:02:13 [core.py:3] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-29 14:02:13 [core.py:3] something went wrong
[… 12 bytes were dropped on the host: the log passed its cap …]
torch.OutOfMemoryError: CUDA out of memory
RuntimeError: Engine core initialization failed. See root cause above.
DEBUG 11-29 14:02:14 [x.py:1] a detail
"""


def indexed(path: Path, text: str | bytes = LOG) -> LogIndex:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    index = LogIndex(path)
    index.count()
    while not index.sort():
        pass
    return index


def found(index: LogIndex, **wanted: str) -> list[int]:
    return [one for piece in index.matches(Match(**wanted)) for one in piece]


def test_levels_processes_gaps_and_text_find_their_lines(tmp_path: Path) -> None:
    index = indexed(tmp_path / "log")
    assert found(index) == list(range(10))
    assert found(index, level="error") == [3, 4, 5, 6, 7, 8]
    assert found(index, level="warning") == [1, 3, 4, 5, 6, 7, 8]
    assert found(index, level="info") == list(range(9))
    assert found(index, process="APIServer") == [0, 6]
    assert found(index, process="-") == [2, 6, 7, 8, 9]
    assert found(index, process="Nobody") == [6]
    assert found(index, text="cuda OUT") == [7]
    assert found(index, text="a", level="error", process="EngineCore") == [3, 4, 6]


def test_the_first_exception_is_the_cause_not_what_only_says_that_something_failed(tmp_path: Path) -> None:
    summary = indexed(tmp_path / "log").summary()
    assert summary["first"] == 7
    assert summary["processes"] == ["APIServer", "EngineCore"] or set(summary["processes"]) == {
        "APIServer",
        "EngineCore",
    }
    assert (summary["gaps"], summary["warnings"], summary["lines"]) == (1, 1, 10)


def test_without_an_exception_the_first_error_is_the_cause(tmp_path: Path) -> None:
    assert indexed(tmp_path / "log", "\n".join(LOG.split("\n")[:6]) + "\n").summary()["first"] == 5
    assert indexed(tmp_path / "none", "INFO 11-29 14:02:11 [a.py:1] fine\n").summary()["first"] is None


@BOUNDED
@given(lines=st.lists(st.text("aé\t ", max_size=20), max_size=60), piece=st.integers(8, 60), first=st.integers(0, 70))
def test_any_line_is_found_by_its_number(tmp_path: Path, lines: list[str], piece: int, first: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_index, "PIECE_BYTES", piece)
        index = indexed(tmp_path / "log", "".join(f"{line}\n" for line in lines))
        assert index.lines(0, 100) == lines
        assert index.lines(first, 5) == lines[first : first + 5]
        picked = list(range(0, len(lines), 7))
        assert index.picked(picked) == lines[::7]
        offset = len("".join(f"{line}\n" for line in lines[:first]).encode())
        assert index.lines_before(offset) == min(first, len(lines))


@BOUNDED
@given(lines=st.lists(st.text("ab\t ", max_size=9), max_size=60), piece=st.integers(8, 60), cut=st.integers(0, 400))
def test_a_growing_log_is_sorted_as_if_it_had_been_read_at_once(
    tmp_path: Path, lines: list[str], piece: int, cut: int
) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_index, "PIECE_BYTES", piece)
        path = tmp_path / "log"
        index = indexed(path, data[:cut])
        path.write_bytes(data)
        assert index.count() == len(lines)
        while not index.sort():
            pass
        assert found(index, text="a") == [at for at, line in enumerate(lines) if "a" in line]
        assert found(index) == list(range(len(lines)))


def test_a_log_that_was_cut_back_is_read_anew(tmp_path: Path) -> None:
    index = indexed(tmp_path / "log")
    (tmp_path / "log").write_text("one\ntwo")
    assert index.count() == 1
    assert index.lines(0, 9) == ["one", "two"]


def test_a_very_long_line_is_shown_in_part_and_says_so(tmp_path: Path) -> None:
    index = indexed(tmp_path / "log", b"x" * 300_000 + b"\nend\n")
    first, second = index.lines(0, 2)
    assert first.endswith("bytes …]")
    assert len(first) < 20_000
    assert second == "end"
    assert index.lines(1, 1) == ["end"]


def test_a_log_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    index = LogIndex(tmp_path / "none")
    assert (index.count(), index.sort(), found(index)) == (0, True, [])

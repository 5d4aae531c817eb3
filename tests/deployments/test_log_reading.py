"""Reading a log by byte offset."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.deployments import log_reading

BOUNDED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@BOUNDED
@given(text=st.text(max_size=300), limit=st.integers(4, 40), cuts=st.lists(st.integers(0, 1200), max_size=4))
def test_pieces_of_a_growing_log_join_to_the_log(tmp_path: Path, text: str, limit: int, cuts: list[int]) -> None:
    path, data = tmp_path / "log", text.encode()
    got, at, stored = "", 0, 0
    path.write_bytes(b"")
    for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        with path.open("ab") as file:
            file.write(data[stored:cut])
        stored = max(stored, cut)
        while piece := log_reading.read_piece(path, at, limit=limit):
            assert piece.offset == at
            assert piece.end > at
            got, at = got + piece.text, piece.end
    assert got == text
    assert at == len(data)


@BOUNDED
@given(data=st.binary(max_size=300), limit=st.integers(4, 40))
def test_any_bytes_are_read_to_the_end(tmp_path: Path, data: bytes, limit: int) -> None:
    path, at, got = tmp_path / "log", 0, ""
    path.write_bytes(data)
    while piece := log_reading.read_piece(path, at, limit=limit, final=True):
        at, got = piece.end, got + piece.text
    assert at == len(data)
    assert got == data.decode("utf-8", "replace")


def test_a_log_that_is_not_there_yet_has_nothing(tmp_path: Path) -> None:
    assert log_reading.read_piece(tmp_path / "none", 0) is None
    assert log_reading.start_of_tail(tmp_path / "none") == 0
    assert log_reading.stored_bytes(tmp_path / "none") == 0

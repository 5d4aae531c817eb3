"""The part file: what its journal remembers through kills and reboots, and that its hash is always that of the bytes."""

import hashlib
import multiprocessing
import os
import random
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.weights import download_part
from workers.weights.download_part import PartBusyError, PartClosedError, PartFile, Span, StaleSpanError, discard_part

PIECE = 64


def open_part(folder: Path, size: int, **digests: str) -> PartFile:
    return PartFile(folder / "blob", size, piece=PIECE, **digests)


def fill(part: PartFile, span: Span, data: bytes, count: int | None = None) -> None:
    """Write what a connection got: the span's bytes, or the first `count` of them."""
    end = span.end if count is None else min(span.end, span.position + count)
    part.write(span, memoryview(data)[span.position : end])


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(0, 40 * PIECE), seed=st.integers(0, 2**32), connections=st.integers(1, 5), kills=st.integers(0, 4)
)
def test_whatever_order_bytes_come_in_and_whenever_it_ends_each_is_fetched_once(
    tmp_path_factory: pytest.TempPathFactory, size: int, seed: int, connections: int, kills: int
) -> None:
    folder = tmp_path_factory.mktemp("part")
    draw = random.Random(seed)
    data = draw.randbytes(size)
    part, fetched = open_part(folder, size), 0
    spans: list[Span] = []
    while not part.complete:
        if len(spans) < connections and (span := part.claim(connections, draw.choice([PIECE, 7 * PIECE]))):
            assert all(span.end <= other.position or span.position >= other.end for other in spans)
            spans.append(span)
            continue
        span = draw.choice(spans)
        count = min(draw.randint(1, 2 * PIECE), span.end - span.position)
        fill(part, span, data, count)
        fetched += count
        if span.position == span.end or draw.random() < 0.1:
            part.release(span)
            spans.remove(span)
        if kills and draw.random() < 0.1:
            kills -= 1
            spans.clear()
            part.close()  # no more than what the kernel does for a process that is killed
            part = open_part(folder, size)
            part.hash_what_is_there(lambda: None)
    assert fetched == size
    assert part.digest(lambda: None) == hashlib.sha256(data).hexdigest()
    part.finish(folder / "blob")
    assert (folder / "blob").read_bytes() == data
    assert [path.name for path in folder.iterdir()] == ["blob"]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_after_a_reboot_only_what_was_synced_counts(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    folder, draw, size = tmp_path_factory.mktemp("boot"), random.Random(seed), 20 * PIECE
    data = draw.randbytes(size)
    part = open_part(folder, size)
    first = part.claim(2, draw.choice([PIECE, 5 * PIECE]))
    assert first
    fill(part, first, data, draw.randint(1, first.end))
    part.sync()
    synced = part.received
    if second := part.claim(2, 5 * PIECE):
        fill(part, second, data)
    part.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download_part, "_boot_id", lambda: "another boot")
        again = open_part(folder, size)
        assert again.received == synced
        again.close()
        assert open_part(folder, size).received == synced


def test_a_journal_that_is_garbage_or_of_another_file_counts_for_nothing(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4
    for spoil in (b"", b"{}", b"\xff" * 1200, b"[]".ljust(1024) + bytes(8 * 16)):
        part = open_part(tmp_path, len(data))
        span = part.claim(1, 1 << 20)
        assert span
        fill(part, span, data)
        part.close()
        (tmp_path / "blob.part.ranges").write_bytes(spoil)
        again = open_part(tmp_path, len(data))
        assert again.received == 0
        again.discard()
    part = open_part(tmp_path, len(data))
    part.close()
    assert open_part(tmp_path, len(data) + 1).received == 0


def test_a_part_that_lost_its_end_is_believed_only_as_far_as_it_goes(tmp_path: Path) -> None:
    part = open_part(tmp_path, 4 * PIECE)
    for _piece in range(4):
        span = part.claim(1, PIECE)
        assert span
        fill(part, span, bytes(4 * PIECE))
    part.close()
    os.truncate(tmp_path / "blob.part", PIECE + 10)
    assert open_part(tmp_path, 4 * PIECE).received == PIECE + 10


def test_one_file_is_fetched_by_one_download_and_a_dead_ones_lock_is_free(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def hold() -> None:
        part = open_part(tmp_path, 100)
        theirs.send(part.received)
        signal.pause()

    process = context.Process(target=hold)
    process.start()
    ours.recv()
    with pytest.raises(PartBusyError):
        open_part(tmp_path, 100)
    with pytest.raises(PartBusyError):
        discard_part(tmp_path / "blob.part")
    process.kill()
    process.join()
    open_part(tmp_path, 100).close()
    assert discard_part(tmp_path / "blob.part") >= 0
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_for_a_span_of_an_earlier_beginning_or_after_the_end(tmp_path: Path) -> None:
    part = open_part(tmp_path, 4 * PIECE)
    old = part.claim(1, PIECE)
    assert old
    part.empty()
    with pytest.raises(StaleSpanError):
        fill(part, old, bytes(4 * PIECE))
    part.release(old)
    assert not part.extend(old)
    assert part.received == 0
    new = part.claim(1, PIECE)
    assert new
    part.close()
    with pytest.raises(PartClosedError):
        fill(part, new, bytes(4 * PIECE))


def test_small_files_have_gits_own_digest(tmp_path: Path) -> None:
    # `printf 'hello\n' | git hash-object --stdin`
    part = open_part(tmp_path, 6, git_oid="ce013625030ba8dba906f756967f9e9ca394464a")
    span = part.claim(1, PIECE)
    assert span
    fill(part, span, b"hello\n")
    assert part.digest(lambda: None) == "ce013625030ba8dba906f756967f9e9ca394464a"

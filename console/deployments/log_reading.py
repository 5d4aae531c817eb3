"""Reading an attempt's stored log by byte offset, so that a reader who was cut off goes on exactly where they were."""

import asyncio
import codecs
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

PIECE_BYTES = 256 * 1024
"""Most that is read at once."""
TAIL_BYTES = 128 * 1024
"""How much of a large log is shown at first."""


@dataclass(frozen=True)
class Piece:
    """Decoded bytes `offset` to `end` (exclusive) of a log."""

    offset: int
    end: int
    text: str


def stored_bytes(path: Path) -> int:
    """Size of the stored log in bytes; 0 if nothing has come in yet."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def read_piece(path: Path, offset: int, *, limit: int = PIECE_BYTES, final: bool = False) -> Piece | None:
    """Read what is stored from `offset` on, at most `limit` bytes; None if there is nothing new.

    A multibyte character is never split: the bytes of an incomplete one at the end are held back until the rest is
    there, or until `final` says that nothing more will come. Bytes that are no UTF-8 become U+FFFD.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(limit)
            at_end = not file.read(1)
    except FileNotFoundError:
        return None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=final and at_end)
    end = offset + len(data) - len(decoder.getstate()[0])
    return Piece(offset, end, text) if end > offset else None


def start_of_tail(path: Path, *, keep: int = TAIL_BYTES) -> int:
    """Offset of the first whole line in the last `keep` bytes; 0 for a log that is not longer than that."""
    size = stored_bytes(path)
    if size <= keep:
        return 0
    return _start_of_next_line(path, size - keep, limit=keep)


async def chunks(path: Path, size: int) -> AsyncIterator[bytes]:
    """The first `size` bytes of a log, piece by piece: it may grow meanwhile, and a download has a fixed length."""
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while size > 0 and (data := await asyncio.to_thread(file.read, min(PIECE_BYTES, size))):
            size -= len(data)
            yield data
    finally:
        file.close()


def _start_of_next_line(path: Path, offset: int, *, limit: int) -> int:
    with path.open("rb") as file:
        # The byte before counts too: `offset` may be the start of a line already.
        file.seek(offset - 1, os.SEEK_SET)
        newline = file.read(limit).find(b"\n")
    return offset if newline < 0 else offset + newline

"""HAProxy's access log as an outbox: read from an offset on, its beginning given back once it is stored."""

import ctypes
import logging
import os
from pathlib import Path
from uuid import uuid4

logger = logging.getLogger(__name__)

PUNCH_BYTES = 8 * 1024 * 1024
_KEEP_SIZE_AND_PUNCH_HOLE = 0x01 | 0x02


class LogFile:
    """One file to which HAProxy appends."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def size(self) -> int:
        """Its length in bytes, holes among them."""
        return self._path.stat().st_size if self._path.exists() else 0

    def read(self, offset: int, most_bytes: int) -> tuple[bytes, int, int]:
        """Whole lines from an offset on: they, where they begin, and where the next ones do."""
        try:
            with self._path.open("rb") as file:
                # A file of its own after all: someone removed the old one.
                begin = offset if file.seek(0, os.SEEK_END) >= offset else 0
                begin = _first_data(file.fileno(), begin)
                file.seek(begin)
                data = file.read(most_bytes)
        except FileNotFoundError:
            return b"", offset, offset
        whole = data.rfind(b"\n") + 1
        return data[:whole], begin, begin + whole

    def forget(self, end: int) -> None:
        """Give back the room of what is stored; the file's length, and so all offsets, stay."""
        if end < PUNCH_BYTES:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        with self._path.open("rb+") as file:
            length = ctypes.c_long(end - end % 4096)
            if libc.fallocate(file.fileno(), _KEEP_SIZE_AND_PUNCH_HOLE, ctypes.c_long(0), length):
                logger.info(
                    "this filesystem can't cut holes; the access log grows: %s", os.strerror(ctypes.get_errno())
                )

    def identity(self) -> str:
        """A name that only this file has: where it was removed and begun anew, offsets mean something else."""
        marker = self._path.with_suffix(".id")
        known, _space, of_inode = marker.read_text().partition(" ") if marker.exists() else ("", "", "")
        return known if known and of_inode == str(self._inode()) else self.begin_anew()

    def begin_anew(self) -> str:
        """Give it another name."""
        made, marker = uuid4().hex, self._path.with_suffix(".id")
        draft = marker.with_suffix(".id.new")
        draft.write_text(f"{made} {self._inode()}")
        draft.replace(marker)
        return made

    def _inode(self) -> int:
        return self._path.stat().st_ino if self._path.exists() else 0


def _first_data(descriptor: int, offset: int) -> int:
    """Where something stands from an offset on: what was given back already is not there for one who asks for it again."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError:
        return offset

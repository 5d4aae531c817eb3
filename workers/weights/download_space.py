"""Disk space that downloads have promised each other: two of them never count on the same free bytes.

Each running download has a file in the cache that says how much it still needs, locked by its process. A file whose lock
is free belongs to a process that has ended and counts for nothing, so that there is nothing to clean up by hand.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

KEPT_FREE_BYTES = 256 << 20
"""Left to everybody else on the disk."""


class NotEnoughSpaceError(Exception):
    """The files don't fit. All numbers are bytes; `promised` is what other running downloads still need."""

    def __init__(self, folder: Path, *, needed: int, free: int, promised: int) -> None:
        others = f", {_gigabytes(promised)} of it promised to other downloads" if promised else ""
        super().__init__(f"{_gigabytes(needed)} are needed in {folder}, {_gigabytes(free)} are free{others}")
        self.needed, self.free, self.promised = needed, free, promised


class Reservation:
    """A promise of free bytes, as long as this process lives; lower it while the bytes arrive."""

    def __init__(self, path: Path, file: int) -> None:
        self._path, self._file = path, file

    def lower_to(self, needed: int) -> None:
        """Say how many bytes are still to come."""
        content = json.dumps({"pid": os.getpid(), "needed": needed}).encode().ljust(64)
        os.pwrite(self._file, content, 0)

    def release(self) -> None:
        """Give the rest back."""
        self._path.unlink(missing_ok=True)
        os.close(self._file)


def reserve(cache: Path, needed: int) -> Reservation:
    """Promise `needed` bytes of the disk that holds `cache`. Raises `NotEnoughSpaceError`."""
    # huggingface_hub takes every other folder of the cache for a repository's, and complains.
    folder = cache / ".locks" / "slipway-reservations"
    folder.mkdir(parents=True, exist_ok=True)
    with _deciding(folder):
        promised = sum(_promises(folder))
        free = free_bytes(cache)
        if needed and needed + promised + KEPT_FREE_BYTES > free:
            raise NotEnoughSpaceError(cache, needed=needed, free=max(0, free - KEPT_FREE_BYTES), promised=promised)
        path = folder / f"{uuid4()}.json"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        fcntl.flock(file, fcntl.LOCK_EX)
        reservation = Reservation(path, file)
        reservation.lower_to(needed)
    return reservation


def free_bytes(folder: Path) -> int:
    """Bytes that can still be written on the disk that holds `folder`."""
    return shutil.disk_usage(folder).free


@contextmanager
def _deciding(folder: Path) -> Iterator[None]:
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _promises(folder: Path) -> Iterator[int]:
    """What each living download still needs; the files of those that have ended are removed."""
    for path in folder.glob("*.json"):
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield _needed(file)
        else:
            path.unlink(missing_ok=True)
        finally:
            os.close(file)


def _needed(file: int) -> int:
    try:
        return int(json.loads(os.pread(file, 4096, 0))["needed"])
    except (ValueError, KeyError, TypeError):
        return 0


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"

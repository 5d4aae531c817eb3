"""A file that is being fetched: its bytes, a journal of what is there, and the hash of the part that is complete.

The journal is a table with two numbers per piece of the file. `written` is how many bytes of the piece the kernel has; it
is exact after kill -9, because the kernel keeps what was written. `safe` is how many are on the disk; only they count
after a reboot, which the kernel's boot id tells. Both tables are updated in place, so the journal never grows.

The lock on the part is the kernel's: it ends with the process that holds it, and nobody ever has to delete it.
"""

import fcntl
import hashlib
import json
import os
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PIECE_BYTES = 4 << 20
PART_ENDING = ".part"
JOURNAL_ENDING = ".part.ranges"
_HEADER_BYTES = 1024
_READ_BYTES = 1 << 20


class PartBusyError(Exception):
    """Another process, or another download of this one, fetches this file now; the message names it."""


class PartClosedError(Exception):
    """The download of this file has been given up; nothing more is written."""


class StaleSpanError(Exception):
    """The file was begun anew since the span was claimed; nothing was written."""


@dataclass(slots=True)
class Span:
    """Bytes `position` to `end` (exclusive) of a file, claimed by one connection; void once the file is begun anew."""

    position: int
    end: int
    first_piece: int
    beginning: int


def new_hash(*, sha256: str, git_oid: str, size: int) -> Any:
    """The hash that the file's digest is made with; a git object id is sha1 over a short header and the bytes."""
    if not sha256 and git_oid:
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return hashlib.sha256()


class PartFile:
    """One file of known size, written at any offset by several threads. Raises `PartBusyError` if it is taken."""

    def __init__(self, blob: Path, size: int, *, sha256: str = "", git_oid: str = "", piece: int = PIECE_BYTES) -> None:
        self.size = size
        self._new_hash: Callable[[], Any] = lambda: new_hash(sha256=sha256, git_oid=git_oid, size=size)
        self._path = blob.with_name(blob.name + PART_ENDING)
        self._journal_path = blob.with_name(blob.name + JOURNAL_ENDING)
        self._piece = piece
        self._pieces = -(-size // piece)
        # Guards the claims and counts. Nobody holds it while reading or writing: that would make all others wait.
        self._lock = threading.Condition(threading.Lock())
        self._writers = 0
        self._hash_lock = threading.Lock()
        self._closed = False
        self._beginning = 0
        self._file = self._take()
        try:
            self._journal = os.open(self._journal_path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self.etag = ""
                self.resumed = self._load()
            except BaseException:
                os.close(self._journal)
                raise
        except BaseException:
            os.close(self._file)  # with it the lock
            raise
        self.received = self.resumed
        self._start_over()

    def _take(self) -> int:
        """Open and lock the part. The file may have been renamed between both: then it is another one."""
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                raise PartBusyError(f"another download of {self._path.name.removesuffix(PART_ENDING)[:12]}") from None
            try:
                same = self._path.stat().st_ino == os.fstat(file).st_ino
            except FileNotFoundError:
                same = False
            if same:
                return file
            os.close(file)

    # -- the journal -------------------------------------------------------------------------------------------------

    def _load(self) -> int:
        """Read the journal; returns how many bytes are there. What can't be trusted counts as not there."""
        self._written = array("I", bytes(4 * self._pieces))
        raw = os.pread(self._journal, _HEADER_BYTES + 8 * self._pieces, 0)
        header = _header(raw[:_HEADER_BYTES])
        fits = len(raw) == _HEADER_BYTES + 8 * self._pieces
        if fits and header.get("size") == self.size and header.get("piece") == self._piece:
            table = array("I", raw[_HEADER_BYTES:])
            same_boot = header.get("boot") == _boot_id()
            self.etag = str(header.get("etag") or "")
            counts = table[: self._pieces] if same_boot else table[self._pieces :]
            there = os.fstat(self._file).st_size
            for number, count in enumerate(counts):
                begin = number * self._piece
                self._written[number] = max(0, min(count, self._length(number), there - begin))
        else:
            os.ftruncate(self._file, 0)
        self._store()
        return sum(self._written)

    def _store(self) -> None:
        """Write the whole journal anew, for this boot. What is there is synced first, so all of it counts as safe.

        The header comes last: whoever is killed half-way leaves the old boot's header, under which only `safe` counts.
        """
        os.fdatasync(self._file)
        table = self._written.tobytes()
        os.pwrite(self._journal, table + table, _HEADER_BYTES)
        os.ftruncate(self._journal, _HEADER_BYTES + 8 * self._pieces)
        os.pwrite(self._journal, self._header(), 0)

    def _header(self) -> bytes:
        header = {"size": self.size, "piece": self._piece, "boot": _boot_id(), "etag": self.etag[:300]}
        return json.dumps(header).encode().ljust(_HEADER_BYTES)

    def remember_etag(self, etag: str) -> None:
        """Keep the tag under which the source has this file, to notice after a restart that it has changed."""
        with self._lock:
            self._check_open()
            self.etag = etag
            os.pwrite(self._journal, self._header(), 0)

    def sync(self) -> None:
        """Bring what is written to the disk, so that a power cut takes only what came later."""
        with self._lock:
            if self._closed:
                return
            table = self._written.tobytes()
            file, journal = os.dup(self._file), os.dup(self._journal)
        try:
            os.fdatasync(file)
            os.pwrite(journal, table, _HEADER_BYTES + 4 * self._pieces)
        finally:
            os.close(file)
            os.close(journal)

    # -- claims ------------------------------------------------------------------------------------------------------

    def _start_over(self) -> None:
        self._claimed = bytearray(self._pieces)
        self._first_open = 0
        self._front = 0
        self._hashed = 0
        self._hash = self._new_hash()

    def _length(self, number: int) -> int:
        return min(self._piece, self.size - number * self._piece)

    def _is_full(self, number: int) -> bool:
        return self._written[number] == self._length(number)

    @property
    def complete(self) -> bool:
        """True when every byte is there."""
        return self.received == self.size

    def has_work(self) -> bool:
        """True if a connection could claim something."""
        with self._lock:
            return not self._closed and self._next_open() < self._pieces

    def _next_open(self) -> int:
        while self._first_open < self._pieces and (self._claimed[self._first_open] or self._is_full(self._first_open)):
            self._first_open += 1
        return self._first_open

    def claim(self, connections: int, most_bytes: int) -> Span | None:
        """Claim the first missing bytes: less towards the end, so that all `connections` finish together."""
        with self._lock:
            self._check_open()
            first = self._next_open()
            if first >= self._pieces:
                return None
            left = -(-(self.size - self.received) // self._piece)
            most = max(1, min(most_bytes // self._piece, left // (2 * connections)))
            last = first
            while last + 1 < self._pieces and last + 1 - first < most and self._is_untouched(last + 1):
                last += 1
            for number in range(first, last + 1):
                self._claimed[number] = 1
            start = first * self._piece + self._written[first]
            return Span(start, min((last + 1) * self._piece, self.size), first, self._beginning)

    def _is_untouched(self, number: int) -> bool:
        return not self._claimed[number] and self._written[number] == 0

    def extend(self, span: Span) -> bool:
        """Claim the piece behind a span too, for a source that sends more than it was asked for."""
        with self._lock:
            following = span.end // self._piece
            if self._is_void(span) or span.end >= self.size or not self._is_untouched(following):
                return False
            self._claimed[following] = 1
            span.end = min(span.end + self._piece, self.size)
            return True

    def release(self, span: Span) -> None:
        """Give back what a connection has not fetched."""
        with self._lock:
            if self._is_void(span):
                return
            for number in range(span.first_piece, -(-span.end // self._piece)):
                self._claimed[number] = 0
            self._first_open = min(self._first_open, span.first_piece)

    def _is_void(self, span: Span) -> bool:
        return self._closed or span.beginning != self._beginning

    # -- bytes -------------------------------------------------------------------------------------------------------

    def write(self, span: Span, data: memoryview) -> None:
        """Write at the span's position and move it on. Raises OSError (a full disk) with nothing counted as written."""
        while data:
            number = span.position // self._piece
            room = (number + 1) * self._piece - span.position
            with self._lock:
                self._check_open()
                if span.beginning != self._beginning:
                    raise StaleSpanError
                self._writers += 1
            count = 0
            try:
                written = os.pwrite(self._file, data[:room], span.position)
                slot = (self._written[number] + written).to_bytes(4, "little")
                os.pwrite(self._journal, slot, _HEADER_BYTES + 4 * number)
                count = written
            finally:
                with self._lock:
                    self._written[number] += count
                    self.received += count
                    self._writers -= 1
                    self._lock.notify_all()
            self._hash_on(span.position, data[:count])
            span.position += count
            data = data[count:]

    def _contiguous(self) -> int:
        """How many bytes from the beginning on are there without a gap."""
        while self._front < self._pieces and self._is_full(self._front):
            self._front += 1
        if self._front >= self._pieces:
            return self.size
        return self._front * self._piece + self._written[self._front]

    def _hash_on(self, position: int, data: memoryview) -> None:
        """Hash what has just come if it is next in turn; then what came before its turn, which the page cache has."""
        if not self._hash_lock.acquire(blocking=False):
            return
        try:
            if self._hashed == position:
                self._hash.update(data)
                self._hashed += len(data)
            if self._contiguous() > self._hashed:
                self._catch_up(lambda: None)
        finally:
            self._hash_lock.release()

    def _catch_up(self, check: Callable[[], None]) -> None:
        while (end := self._contiguous()) > self._hashed:
            check()
            with self._lock:
                self._check_open()
                file = self._file
            block = os.pread(file, min(_READ_BYTES, end - self._hashed), self._hashed)
            if not block:
                raise OSError(f"{self._path} has become shorter while it was being fetched")
            self._hash.update(block)
            self._hashed += len(block)

    def hash_what_is_there(self, check: Callable[[], None]) -> None:
        """Hash the beginning that an earlier process fetched; `check` raises when this must not go on."""
        with self._hash_lock:
            self._catch_up(check)

    def digest(self, check: Callable[[], None]) -> str:
        """Hex digest of the complete file."""
        with self._hash_lock:
            self._catch_up(check)
            return str(self._hash.hexdigest())

    # -- the end -----------------------------------------------------------------------------------------------------

    def finish(self, blob: Path) -> None:
        """Make it the blob: on the disk, under its final name, in one step."""
        with self._lock:
            self._check_open()
            os.fsync(self._file)
            self._path.replace(blob)
            self._journal_path.unlink(missing_ok=True)
            _sync_directory(blob.parent)
            self._close()

    def discard(self) -> None:
        """Remove it: it is not needed."""
        with self._hash_lock, self._lock:
            self._check_open()
            self._path.unlink(missing_ok=True)
            self._journal_path.unlink(missing_ok=True)
            self._close()

    def empty(self) -> None:
        """Forget every byte: what was fetched is not what it should be."""
        with self._hash_lock, self._lock:
            self._check_open()
            self._beginning += 1
            self._lock.wait_for(lambda: not self._writers)
            self._check_open()
            os.ftruncate(self._file, 0)
            self._written = array("I", bytes(4 * self._pieces))
            self.received = 0
            self.etag = ""
            self._start_over()
            self._store()

    def close(self) -> None:
        """Let go of it and keep what is there. Threads that still write get a `PartClosedError`."""
        with self._hash_lock, self._lock:
            self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            # A closed number may soon be another file's: first everybody has to be through.
            self._lock.wait_for(lambda: not self._writers)
            os.close(self._file)
            os.close(self._journal)

    def _check_open(self) -> None:
        if self._closed:
            raise PartClosedError


def discard_part(part: Path) -> int:
    """Remove a part and its journal; returns the bytes that were freed. Raises `PartBusyError` if it is being fetched."""
    file = os.open(part, os.O_RDWR)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PartBusyError(f"{part.name} is being fetched") from None
        freed = os.fstat(file).st_blocks * 512
        part.with_name(part.name.removesuffix(PART_ENDING) + JOURNAL_ENDING).unlink(missing_ok=True)
        part.unlink(missing_ok=True)
    finally:
        os.close(file)
    return freed


def _header(raw: bytes) -> dict[str, Any]:
    try:
        header = json.loads(raw)
    except ValueError:
        return {}
    return header if isinstance(header, dict) else {}


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

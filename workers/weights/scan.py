"""Reads a model's files, each byte once: header, digests and (if asked) numbers from the same pass, on all cores.

Files are read, never mapped: a file that shrinks under a mapping kills the process with SIGBUS, a read only comes back short.
"""

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from workers.weights.layout import Entry
from workers.weights.safetensors import LENGTH_BYTES, LFS_POINTER, Header, HeaderError, header_length, parse_header
from workers.weights.values import ValueFacts, ValueReader, remarkable

# Small enough to stay in a core's cache between reading and hashing, large enough that the calls don't show.
PIECE_BYTES = 1 << 20
MOST_KEPT_BYTES = 256 << 20

Progress = Callable[[int, int, str], None]


@dataclass(slots=True)
class Scan:
    """What one pass over one file gave."""

    entry: Entry
    header: Header | None = None
    # (finding code, message without the file's name)
    problems: list[tuple[str, str]] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    values: list[ValueFacts] = field(default_factory=list)
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What is wanted of one file."""

    entry: Entry
    algorithms: frozenset[str]
    keep: bool = False
    values: bool = False

    @property
    def whole(self) -> bool:
        """Whether every byte must be read, not just the header."""
        return bool(self.algorithms) or self.keep or self.values


class _Hashes:
    def __init__(self, algorithms: Iterable[str], size: int) -> None:
        self._running = {name: self._start(name, size) for name in algorithms}

    @staticmethod
    def _start(name: str, size: int) -> "hashlib._Hash":
        if name != "git":
            return hashlib.new(name, usedforsecurity=False)
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)

    def update(self, data: bytes | memoryview) -> None:
        for running in self._running.values():
            running.update(data)

    def done(self) -> dict[str, str]:
        return {name: running.hexdigest() for name, running in self._running.items()}


def scan_files(jobs: list[Job], *, progress: Progress | None = None) -> dict[str, Scan]:
    """Run all jobs on all cores; `progress(bytes done, bytes in total, file)` is called from worker threads."""
    total = sum(job.entry.size for job in jobs if job.whole)
    meter = _Meter(total, progress)
    # The largest first, so that the last core isn't left alone with a whole shard.
    ordered = sorted(jobs, key=lambda job: -job.entry.size)
    workers = min(len(os.sched_getaffinity(0)), max(1, len(jobs)))
    if workers == 1 or not any(job.algorithms or job.values for job in jobs):
        scans = [_scan(job, meter) for job in ordered]
    else:
        with ThreadPoolExecutor(workers, thread_name_prefix="verify") as pool:
            try:
                scans = list(pool.map(lambda job: _scan(job, meter), ordered))
            except BaseException:
                meter.stop()  # Ctrl-C: nobody waits for the rest of a shard of many gigabytes.
                raise
    return {scan.entry.name: scan for scan in scans}


class _StoppedError(Exception):
    """The verification was given up while files were being read."""


class _Meter:
    """Adds up what all threads have read, and ends them when nobody wants to know any more."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress = total, progress
        self._done = 0
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def add(self, count: int, file: str) -> None:
        if self._stopped:
            raise _StoppedError
        if self._progress is None:
            return
        with self._lock:
            self._done += count
            self._progress(self._done, self._total, file)


def _scan(job: Job, meter: _Meter) -> Scan:
    scan = Scan(job.entry)
    try:
        # O_NONBLOCK: a pipe put in the file's place since it was listed must not hang the verification.
        descriptor = os.open(job.entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        scan.problems.append(("file.unreadable", f"can't be opened: {error.strerror}"))
        return scan
    try:
        _read(descriptor, job, scan, meter)
    except OSError as error:
        scan.problems.append(("file.unreadable", f"can't be read: {error.strerror}"))
    finally:
        os.close(descriptor)
    return scan


def _read(descriptor: int, job: Job, scan: Scan, meter: _Meter) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        scan.problems.append(("path.not_regular_file", "is no plain file"))
        return
    size = status.st_size
    hashes = _Hashes(job.algorithms, size)
    read = 0
    if job.entry.name.endswith(".safetensors"):
        read = _read_header(descriptor, job.entry.name, size, scan, hashes)
    if job.whole:
        if read:
            meter.add(read, job.entry.name)
        read += _read_rest(descriptor, job, scan, hashes, meter)
        scan.digests = hashes.done()
        after = os.fstat(descriptor)
        if read != size or (after.st_size, after.st_mtime_ns) != (size, status.st_mtime_ns):
            message = f"changed while it was being read ({size:,} bytes before, {read:,} read)"
            scan.problems.append(("file.changed", message))


def _read_header(descriptor: int, name: str, size: int, scan: Scan, hashes: _Hashes) -> int:
    """Read and parse the header; returns how many bytes were read, all of them hashed."""
    start = _read_exactly(descriptor, LENGTH_BYTES)
    hashes.update(start)
    read = len(start)
    try:
        length = header_length(start, file_bytes=size)
        raw = _read_exactly(descriptor, length)
        hashes.update(raw)
        read += len(raw)
        # A file that shrank since its size was asked has less header than it said.
        scan.header = parse_header(raw, file=name, file_bytes=size) if len(raw) == length else None
        faults = (
            scan.header.faults if scan.header else [("weights.truncated", "became shorter while it was being read")]
        )
        scan.problems.extend(faults)
    except HeaderError as error:
        scan.problems.append((error.code, str(error)))
    return read


def _read_exactly(descriptor: int, count: int) -> bytes:
    pieces = []
    while count > 0:
        piece = os.read(descriptor, count)
        if not piece:
            break
        pieces.append(piece)
        count -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _read_rest(descriptor: int, job: Job, scan: Scan, hashes: _Hashes, meter: _Meter) -> int:
    """Read from the current position to the end; returns the number of bytes."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    values = ValueReader(scan.header.tensors) if job.values and scan.header is not None else None
    buffer = memoryview(bytearray(min(PIECE_BYTES, max(1, job.entry.size))))
    kept = bytearray()
    read = 0
    while count := os.readv(descriptor, [buffer]):
        piece = buffer[:count]
        hashes.update(piece)
        if values is not None:
            values.feed(piece)
        if job.keep and read < MOST_KEPT_BYTES:
            kept += piece
        read += count
        meter.add(count, job.entry.name)
    if job.keep:
        scan.content = bytes(kept)
    if values is not None:
        scan.values = remarkable(values.facts)
    return read


def is_lfs_pointer(content: bytes) -> bool:
    """Whether a file's content is a Git LFS pointer instead of what it stands for."""
    return content.startswith(LFS_POINTER)

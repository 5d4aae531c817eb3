"""Line numbers, levels and processes of a stored log, so that any line of a million is found without reading the others.

One byte is kept for each line and one mark for each piece of the file: about 1.1 MB for a million lines. An index grows with
its log, piece by piece, and lives in memory only: a new process counts the lines again (0.1 s for 100 MB), and finds their
levels when somebody asks for them (two seconds).
"""

import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

PIECE_BYTES = 64 * 1024
MOST_INDEXES = 32
MOST_PROCESSES = 30
LONGEST_LINE_BYTES = 16 * 1024
"""More of one line is not shown: the download has it."""

PLAIN, DEBUG, INFO, WARNING, ERROR, GAP = range(6)
LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR}
_OF_WORD = {b"DEBUG": DEBUG, b"INFO": INFO, b"WARNING": WARNING, b"ERROR": ERROR, b"CRITICAL": ERROR}
_PROCESS_SHIFT = 3
_KIND_MASK = (1 << _PROCESS_SHIFT) - 1

GAP_BEGINS = "[… "
"""How a line begins that says what is missing here (`observations.store_log`)."""
_GAP = GAP_BEGINS.encode()
_TERMINAL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_PROCESS = re.compile(rb"\(([A-Za-z][\w.-]*)(?: pid=\d+)?\) ?")
_HEAD = re.compile(rb"(DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d+)? \[[^\]]+\] ?")
_HEADS = re.compile(
    rb"^(?:\(([A-Za-z][\w.-]*)(?: pid=\d+)?\) ?)?(?:(DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d\d-\d\d )?\d\d:\d\d:\d\d"
    rb"(?:[.,]\d+)? \[[^\]\n]+\])?",
    re.MULTILINE,
)
"""The head of every line of a text: process and level, empty where it has none."""
_RAISED = re.compile(
    rb"(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)|vllm(?: serve)?: error:"
    rb"|Traceback \(most recent call last\)"
)
_ONLY_WHERE = re.compile(rb"Traceback|\s|File \"|During handling|The above exception|\S+ failed to start\.?$")
"""What says that something failed, or where, and not why."""


@dataclass(frozen=True)
class LineFacts:
    """What one line says of itself. `cause` is 0 unless it names why something failed: 1, or 2 for an exception."""

    kind: int
    process: str
    cause: int


def facts_of(raw: bytes) -> LineFacts:
    """Level, process and cause of a line without its newline; a progress bar counts as what it said last."""
    if raw.startswith(_GAP):
        return LineFacts(GAP, "", 0)
    if b"\x1b" in raw:
        raw = _TERMINAL.sub(b"", raw)
    if b"\r" in raw:
        raw = raw.rstrip(b"\r").rsplit(b"\r", 1)[-1]
    process, at = "", 0
    if match := _PROCESS.match(raw):
        process, at = match[1].decode(), match.end()
    if match := _HEAD.match(raw, at):
        kind, at = _OF_WORD[match[1]], match.end()
    else:
        kind = ERROR if _RAISED.match(raw, at) else PLAIN
    return LineFacts(kind, process, _cause(raw[at:]) if kind == ERROR else 0)


def _cause(text: bytes) -> int:
    if not text.strip() or _ONLY_WHERE.match(text):
        return 0
    return 2 if _RAISED.match(text) else 1


@dataclass(frozen=True)
class Match:
    """Which lines are wanted. Empty: all."""

    level: str = ""
    """`info`, `warning` or `error`: lines of this level and above; lines without a level belong to `info`."""
    process: str = ""
    """Name of a process, or `-` for lines that name none."""
    text: str = ""
    """Somewhere in the line, whatever its case."""


class LogIndex:
    """Index of one log. All methods may be called from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._counted_to = 0
        self._marks: list[int] = []
        self._mark_lines: list[int] = []
        self._lines = 0
        self._kinds = bytearray()
        self._sorted_pieces = 0
        self._processes: dict[str, int] = {"": 0}
        self._first: tuple[int, int] | None = None
        self._counts = [0] * 6

    # -- reading the file ----------------------------------------------------------------------------------------------

    def count(self) -> int:
        """Find the lines that are new and return how many whole ones there are: some 0.1 s for a million."""
        with self._lock:
            try:
                size = self.path.stat().st_size
            except FileNotFoundError:
                size = 0
            if size < self._counted_to:  # cut back to what the row says, after a crash of the console
                self._begin_anew()
            if size > self._counted_to:
                with self.path.open("rb") as file:
                    file.seek(self._counted_to)
                    while data := _whole_lines(file):
                        self._marks.append(self._counted_to)
                        self._mark_lines.append(self._lines)
                        self._counted_to += len(data)
                        self._lines += data.count(b"\n")
                        file.seek(self._counted_to)
            return self._lines

    def sort(self, *, pieces: int = 1) -> bool:
        """Find levels and processes of some more pieces; True once those of all counted lines are known."""
        with self._lock:
            if self._sorted_pieces == len(self._marks):
                return True
            with self.path.open("rb") as file:
                for at in range(self._sorted_pieces, min(len(self._marks), self._sorted_pieces + pieces)):
                    end = self._marks[at + 1] if at + 1 < len(self._marks) else self._counted_to
                    file.seek(self._marks[at])
                    self._add(file.read(end - self._marks[at] - 1))
                    self._sorted_pieces = at + 1
            return self._sorted_pieces == len(self._marks)

    def _add(self, data: bytes) -> None:
        """Most lines have a level and are no error: those are read at once, the others one by one."""
        lines = data.split(b"\n")
        is_plain = b"\r" not in data and b"\x1b" not in data
        heads = _HEADS.findall(data) if is_plain else [(b"", b"")] * len(lines)
        codes = {head: self._code(_OF_WORD.get(head[1], PLAIN), head[0].decode()) for head in set(heads)}
        numbers = bytearray(map(codes.__getitem__, heads))
        for at in [at for at, code in enumerate(numbers) if code & _KIND_MASK in (PLAIN, ERROR)]:
            facts = facts_of(lines[at][:LONGEST_LINE_BYTES])
            numbers[at] = self._code(facts.kind, facts.process)
            if facts.cause and (self._first is None or (facts.cause == 2 and self._first[1] == 1)):
                self._first = (len(self._kinds) + at, facts.cause)
        for code in set(numbers):
            self._counts[code & _KIND_MASK] += numbers.count(code)
        self._kinds += numbers

    def _code(self, kind: int, process: str) -> int:
        number = self._processes.get(process)
        if number is None:
            number = len(self._processes) if len(self._processes) <= MOST_PROCESSES else 0
            if number:
                self._processes[process] = number
        return kind | number << _PROCESS_SHIFT

    # -- what it says --------------------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """For the page: whole lines and how many of them are sorted, the first cause of a failure, processes, counts.

        Lines count from 0.
        """
        with self._lock:
            return {
                "lines": self._lines,
                "sorted": len(self._kinds),
                "first": self._first[0] if self._first else None,
                "processes": [name for name in self._processes if name],
                "errors": self._counts[ERROR],
                "warnings": self._counts[WARNING],
                "gaps": self._counts[GAP],
            }

    def lines_before(self, offset: int) -> int:
        """How many lines end before byte `offset`."""
        with self._lock:
            at = bisect_right(self._marks, offset) - 1
            if at < 0:
                return 0
            start, line = self._marks[at], self._mark_lines[at]
        return line + self._read(start, offset - start).count(b"\n")

    def lines(self, first: int, count: int) -> list[str]:
        """The text of `count` lines from line `first` on, the unfinished last one included."""
        found: list[str] = []
        for raw in self._raw_lines(first):
            if len(found) == count:
                break
            found.append(_shown(raw))
        return found

    def _raw_lines(self, first: int) -> Iterator[bytes]:
        with self._lock:
            at = bisect_right(self._mark_lines, first) - 1
            start, line = (self._marks[at], self._mark_lines[at]) if at >= 0 else (0, 0)
        with self.path.open("rb") as file:
            file.seek(start)
            rest = b""
            while data := file.read(PIECE_BYTES):
                *whole, rest = (rest + data).split(b"\n")
                for raw in whole:
                    if line >= first:
                        yield raw
                    line += 1
            if rest and line >= first:
                yield rest

    def picked(self, numbers: Sequence[int]) -> list[str]:
        """The text of some lines, whose numbers rise; lines close to each other are read at once."""
        found: list[str] = []
        at = 0
        while at < len(numbers):
            end = at
            while end + 1 < len(numbers) and numbers[end + 1] - numbers[at] < 400:
                end += 1
            span = self.lines(numbers[at], numbers[end] - numbers[at] + 1)
            base = numbers[at]
            found += [span[one - base] if one - base < len(span) else "" for one in numbers[at : end + 1]]
            at = end + 1
        return found

    def matches(self, wanted: Match) -> Iterator[list[int]]:
        """Numbers of the whole lines that are wanted, a list for each piece of the log, so that others may have a turn."""
        with self._lock:
            marks, lines = list(self._marks), list(self._mark_lines)
            kinds, counted_to = bytes(self._kinds), self._counted_to
            codes = self._codes(wanted)
        if not marks or not codes:
            return
        if not wanted.text:
            pattern = re.compile(b"[" + b"".join(re.escape(bytes([code])) for code in codes) + b"]")
            for start in range(0, len(kinds), 50_000):
                yield [one.start() for one in pattern.finditer(kinds, start, min(len(kinds), start + 50_000))]
            return
        needle = wanted.text.encode().lower()
        allowed = frozenset(codes)
        with self.path.open("rb") as file:
            for start, end, line in zip(marks, [*marks[1:], counted_to], lines, strict=True):
                file.seek(start)
                found = _lines_with(needle, file.read(end - start).lower(), line)
                yield [one for one in found if one < len(kinds) and kinds[one] in allowed]

    def _codes(self, wanted: Match) -> list[int]:
        least = LEVELS.get(wanted.level, PLAIN)
        if wanted.process:
            name = "" if wanted.process == "-" else wanted.process
            numbers = [self._processes[name]] if name in self._processes else []
        else:
            numbers = list(range(MOST_PROCESSES + 2))
        levels = [kind for kind in range(6) if kind >= least or (kind == PLAIN and least <= INFO)]
        # What is missing here is missing for every process.
        return sorted({GAP, *(kind | number << _PROCESS_SHIFT for number in numbers for kind in levels)})

    def _read(self, start: int, count: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                return file.read(count)
        except FileNotFoundError:
            return b""


def _whole_lines(file: BinaryIO) -> bytes:
    """The next piece up to its last newline; empty if there is none."""
    data = file.read(PIECE_BYTES)
    while data and b"\n" not in data and (more := file.read(len(data))):
        data += more  # one line longer than a piece
    return data[: data.rfind(b"\n") + 1]


def _lines_with(needle: bytes, data: bytes, line: int) -> list[int]:
    found: list[int] = []
    at, hit = 0, data.find(needle)
    while hit >= 0:
        line += data.count(b"\n", at, hit)
        found.append(line)
        at = data.find(b"\n", hit)  # one hit in a line is enough
        hit = data.find(needle, at) if at >= 0 else -1
    return found


def _shown(raw: bytes) -> str:
    text = raw[:LONGEST_LINE_BYTES].decode("utf-8", "replace")
    return f"{text} [… +{len(raw) - LONGEST_LINE_BYTES:,} bytes …]" if len(raw) > LONGEST_LINE_BYTES else text


_indexes: OrderedDict[Path, LogIndex] = OrderedDict()
_indexes_lock = Lock()


def index_of(path: Path) -> LogIndex:
    """The index of this log; those that were used least recently are forgotten."""
    with _indexes_lock:
        found = _indexes.pop(path, None) or LogIndex(path)
        _indexes[path] = found
        while len(_indexes) > MOST_INDEXES:
            _indexes.popitem(last=False)
        return found

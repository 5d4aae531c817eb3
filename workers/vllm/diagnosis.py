"""From an engine's log to its root cause: the line that explains a failure, not the last one, which is a wrapper.

`Diagnoser` reads a log while it grows; `diagnose_file` reads a whole one. Both hold a few dozen lines, whatever the
log's length. Codes, titles, fixes and links are in `data/diagnosis.json` and explained in docs/diagnosis.md.
"""

import codecs
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from workers.vllm.diagnosis_facts import Evidence, Facts
from workers.vllm.diagnosis_verdict import verdict

__all__ = ["CatalogEntry", "Diagnoser", "Diagnosis", "Evidence", "catalog", "diagnose_file", "diagnose_stream"]

_CHUNK_BYTES = 1 << 20
# A "line" longer than this is cut; the rest of it up to its end is dropped (it still counts as one line).
_LONGEST_BUFFERED_LINE = 1 << 20


@dataclass(frozen=True)
class CatalogEntry:
    """What is known about a code: a title, what it means, how to tell it, how to fix it, where it was discussed."""

    code: str
    title: str
    meaning: str
    tell: str
    fix: str
    links: tuple[str, ...]


@dataclass(frozen=True)
class Diagnosis:
    """The root cause of what a log shows.

    `code` is stable; `message` is the log's own sentence; `evidence` are the lines that show it, by number from 1;
    `confidence` is 0 to 1 and low wherever only an exit code or a warning speaks for it; `also` are the codes of
    further causes, in order of time. `code` is `healthy` if there is no failure, `unknown` if there is one that no rule
    knows: then the evidence is the first real exception with the lines around it.
    """

    code: str
    title: str
    message: str
    evidence: tuple[Evidence, ...]
    confidence: float
    fix: str
    links: tuple[str, ...]
    also: tuple[str, ...]

    @property
    def is_healthy(self) -> bool:
        """True if the log shows no failure."""
        return self.code == "healthy"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the keys in the documented order."""
        plain = asdict(self)
        return {**plain, **{key: list(plain[key]) for key in ("evidence", "links", "also")}}


@cache
def catalog() -> dict[str, CatalogEntry]:
    """All codes that a diagnosis can have, in the order of the documentation."""
    entries = json.loads((Path(__file__).parent / "data" / "diagnosis.json").read_text(encoding="utf-8"))
    return {
        code: CatalogEntry(code=code, **{**entry, "links": tuple(entry["links"])}) for code, entry in entries.items()
    }


class Diagnoser:
    """Reads a log line by line, or in pieces of any size, while it grows. Never raises for any bytes."""

    def __init__(self) -> None:
        self._facts = Facts()
        self._rest = b""
        self._skipping = False

    @property
    def line_count(self) -> int:
        """Number of whole lines read so far."""
        return self._facts.line_count

    def feed(self, line: bytes | str) -> None:
        """Take the next line, with or without its line end."""
        data = line.encode(errors="replace") if isinstance(line, str) else line
        self._facts.observe(data.removesuffix(b"\n"))

    def feed_bytes(self, data: bytes) -> None:
        """Take the next piece of the log, cut anywhere; an unfinished last line waits for its end."""
        if self._skipping:
            _, end, data = data.partition(b"\n")
            if not end:
                return
            self._skipping = False
        block, end, rest = data.rpartition(b"\n")
        if end:
            self._facts.observe(self._rest + block)
            self._rest = rest
        else:
            self._rest += rest
        if len(self._rest) > _LONGEST_BUFFERED_LINE:
            self._facts.observe(self._rest)
            self._rest, self._skipping = b"", True

    def close(self) -> None:
        """Say that no more comes, so that a last line without an end counts."""
        if self._rest:
            self.feed(self._rest)
            self._rest = b""

    def result(self, exit_code: int | None = None) -> Diagnosis:
        """The diagnosis of what was read so far; more may follow.

        `exit_code` is that of the main process if it ended: negative, or 128 + n, for signal n.
        """
        cause, also = verdict(self._facts, exit_code)
        entry = catalog()[cause.code]
        return Diagnosis(
            code=cause.code,
            title=entry.title,
            message=cause.message,
            evidence=tuple(cause.evidence),
            confidence=cause.confidence,
            fix=" ".join(part for part in (cause.hint, entry.fix) if part),
            links=entry.links,
            also=tuple(code for code in dict.fromkeys(also) if code != cause.code),
        )


def diagnose_stream(stream: BinaryIO, exit_code: int | None = None) -> Diagnosis:
    """Diagnose a whole log from an open binary stream, in any encoding."""
    diagnoser = Diagnoser()
    for piece in _as_utf8(iter(lambda: stream.read(_CHUNK_BYTES), b"")):
        diagnoser.feed_bytes(piece)
    diagnoser.close()
    return diagnoser.result(exit_code)


def diagnose_file(path: Path, exit_code: int | None = None) -> Diagnosis:
    """Diagnose the log in a file. Raises OSError if it can't be read."""
    with path.open("rb") as stream:
        return diagnose_stream(stream, exit_code)


_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)


def _as_utf8(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Re-encode what is in UTF-16 or UTF-32; anything else passes as it is, since every rule looks for ASCII."""
    decoder: codecs.IncrementalDecoder | None = None
    for number, piece in enumerate(pieces):
        if number == 0 and (encoding := _wide_encoding(piece[:4096])):
            decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        yield piece if decoder is None else decoder.decode(piece).encode(errors="replace")


def _wide_encoding(head: bytes) -> str | None:
    for bom, encoding in _BOMS:
        if head.startswith(bom):
            return encoding
    # Without a mark: ASCII in UTF-16 has a zero in every other byte.
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if max(even, odd) > 0.3 * max(1, len(head) // 2) and min(even, odd) < 0.1 * max(even, odd):
        return "utf-16-le" if odd > even else "utf-16-be"
    return None

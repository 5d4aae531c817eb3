"""Which lines of a crowded log are still worth reading: those that hold a word of something not yet known.

A log of errors alone passes every quick look for words that errors share, and reading each of its lines takes a minute
for a hundred megabytes. What decides is far rarer: the fixed words of the rules (`Rule.words`), and until there is one
of each, those of a death, an exception and a complaint. They are searched for in a whole block at once.
"""

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from workers.vllm.diagnosis_rules import RULES, Rule

CROWDED_HITS = 400
"""With fewer suspicious lines in a block, reading them all is quicker than searching for each rule's words."""

DEATH_WORDS = (
    "died",
    "egmentation fault",
    "egfault encountered",
    "Fatal Python",
    "core dumped",
    "terminate called",
    "SIGSEGV received",
    "Aborted",
    "EngineCore encountered",
    "EngineDeadError",
    "MQLLMEngine is already",
)
"""What the lines of `DEATHS` and `DEATH_NOTICES` hold."""

_EXCEPTION_WORDS = (
    *(
        name + end
        for name in (b"Error", b"Exception", b"ExceptionGroup", b"Failure", b"Exit", b"Interrupt")
        for end in (b":", b"\n", b"\r", b'"', b"\\", b"(", b"\x1b")
    ),
    b"Value error, ",
    b"Assertion error, ",
    b"panicked at",
)
# `some.module.error: …`; "error" alone stands in any line.
_LOWER_ENDS = (b"error:", b"error\n", b"error\r", b'error"', b"error\\", b"error\x1b")
_LOWER_EXCEPTION = re.compile(rb"\w\.\w*error(?!\w)")
# What marks a line as an error's: vLLM's (with the month), uvicorn's and torch's headers, and a JSON record's key.
_COMPLAINT_WORDS = (
    *(level + end for level in (b"ERROR", b"CRITICAL") for end in (b" 0", b" 1", b":")),
    *(b"[" + level + end for level in (b"E", b"F") for end in (b"0", b"1", b" ")),
    b'evel"',
    b'evelname"',
    b'everity"',
)

Positions = Mapping[bytes, int]
"""Words, and where each stands first in a block."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader still looks for: causes whose lines would add nothing are `settled`, the rest is None so far."""

    settled: Collection[str] = ()
    death: bool = True
    exception: bool = True
    complaint: bool = True

    def is_more_than(self, earlier: "Wanted") -> bool:
        """Whether something is looked for that wasn't looked for earlier."""
        return (
            any(code not in self.settled for code in earlier.settled)
            or self.death > earlier.death
            or self.exception > earlier.exception
            or self.complaint > earlier.complaint
        )


def rare_stems(block: bytes, stems: Iterable[bytes]) -> Positions | None:
    """Where each of the stems that a block holds stands first.

    None for a crowded block, of which many or long lines hold one, so that a narrower search pays.
    """
    found: dict[bytes, int] = {}
    hits, most = 0, min(CROWDED_HITS, block.count(b"\n") // 4)
    for stem in stems:
        if count := block.count(stem):
            hits += count
            if hits > most:
                return None
            found[stem] = block.find(stem)
    return found


def first_at(block: bytes, words: Iterable[bytes]) -> Positions:
    """Where each of the words that a block holds stands first."""
    return {word: at for word in words if (at := block.find(word)) >= 0}


def narrowed(block: bytes, lines: list[bytes], wanted: Wanted) -> tuple[set[int], tuple[Rule, ...]]:
    """Indexes of the lines that hold a wanted word, and the rules that can match on lines of this block, in order."""
    block += b"\n"  # so that a word with a line's end is found in the last line, too
    vocabulary = _vocabulary(block)
    own = {word for code, words in _WORDS.items() if code not in wanted.settled for word in words}
    held = first_at(block, _likely(own, vocabulary))
    live = tuple(
        rule
        for rule, words in zip(RULES, _WORDS_OF_RULES, strict=True)
        if rule.code in wanted.settled or any(word in held for word in words)
    )
    others = [*(word.encode() for word in DEATH_WORDS if wanted.death)]
    others += [*(_EXCEPTION_WORDS if wanted.exception else ()), *(_COMPLAINT_WORDS if wanted.complaint else ())]
    suspects = lines_with(block, lines, {**held, **first_at(block, _likely(others, vocabulary))})
    if wanted.exception:
        lower = lines_with(block, lines, first_at(block, _likely(_LOWER_ENDS, vocabulary)))
        suspects |= {index for index in lower if _LOWER_EXCEPTION.search(lines[index])}
    return suspects, live


def _vocabulary(block: bytes) -> bytes:
    """Each thing between spaces once, without digits: far shorter than the block, so that most words are missed there."""
    return b" ".join(set(block.translate(None, _DIGITS).split()))


def _likely(words: Iterable[bytes], vocabulary: bytes) -> list[bytes]:
    return [word for word in words if _piece(word) in vocabulary]


@cache
def _piece(word: bytes) -> bytes:
    """The longest part of a word that a vocabulary would hold if its block held the word."""
    return max(word.translate(None, _DIGITS).split(), key=len, default=b"")


def lines_with(block: bytes, lines: list[bytes], words: Positions) -> set[int]:
    """Indexes of the lines, that `block` consists of, that hold one of the words."""
    if not words:
        return set()
    starts = [0, *accumulate([len(line) + 1 for line in lines])]
    found: set[int] = set()
    for word, position in words.items():
        at = position
        while at >= 0:
            index = bisect_right(starts, at) - 1
            found.add(index)
            at = block.find(word, starts[index + 1])
    return found


_DIGITS = b"0123456789"
_WORDS_OF_RULES = [tuple(word.encode() for word in rule.words) for rule in RULES]


def _words_by_code() -> dict[str, tuple[bytes, ...]]:
    words: dict[str, set[bytes]] = {}
    for rule, own in zip(RULES, _WORDS_OF_RULES, strict=True):
        words.setdefault(rule.code, set()).update(own)
    return {code: tuple(sorted(own)) for code, own in words.items()}


_WORDS = _words_by_code()

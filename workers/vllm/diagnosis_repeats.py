"""Lines that a log repeats: told by their shape, which is all but digits and ids, and passed over once read often enough."""

import re
from collections.abc import Sequence

from workers.vllm.diagnosis_lines import LONGEST_LINE

_DIGITS = b"0123456789abcdef"
_READ_OFTEN = 8
_COUNTED = 500
_REMEMBERED_LINES = 50_000
# Milestones, and the sign of a hang, count every time.
_NEVER_OLD = re.compile(rb"startup complete|shutdown triggered|Shutting down|non-default args|block found")


class Repeats:
    """Counts shapes in bounded memory: when it holds too many, it starts anew, and a few lines are read once more."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._old: set[int] = set()

    def is_news(self, line: bytes) -> bool:
        """Whether a line is worth reading; counts it."""
        return self._count(hash(line[:LONGEST_LINE].translate(None, _DIGITS)), line)

    def fresh(self, block: bytes) -> list[int]:
        """Indexes of the lines of a block that aren't old; counts nothing."""
        # The whole block at once: a log of a hundred megabytes may have ten million lines.
        shapes = block.translate(None, _DIGITS).split(b"\n")
        if not self._old:
            return list(range(len(shapes)))
        old = self._old
        return [index for index, shape in enumerate(shapes) if hash(shape) not in old]

    def pass_over(self, lines: Sequence[bytes]) -> None:
        """Count some of the lines that hold nothing of interest: what repeats is among them soon."""
        for line in lines[:: len(lines) // _COUNTED + 1]:
            self.is_news(line)

    def forget(self) -> None:
        """Read everything again, since other things are of interest now."""
        self._times.clear()
        self._old.clear()

    def _count(self, key: int, line: bytes) -> bool:
        if len(self._times) >= _REMEMBERED_LINES:
            self.forget()
        times = self._times[key] = self._times.get(key, 0) + 1
        if times < _READ_OFTEN:
            return True
        if _NEVER_OLD.search(line):
            return True
        self._old.add(key)
        return times == _READ_OFTEN

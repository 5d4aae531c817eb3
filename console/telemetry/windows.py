"""A range of the boards that are read from a Redis stream: at most the day for which such a stream is kept."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from console.common.broker import connection

RANGES = {900: "15 min", 3600: "1 h", 21_600: "6 h", 86_400: "24 h"}
LONGEST_SECONDS = 86_400
MOST_POINTS = 400
_Content = TypeVar("_Content")


@dataclass(frozen=True)
class Window:
    """From `first` to `end`, in seconds since the epoch."""

    first: float
    end: float

    @classmethod
    def last(cls, seconds: int) -> "Window":
        """The last so many seconds."""
        now = time.time()
        return cls(now - seconds, now)

    def step(self, every: int) -> int:
        """Length of a slot in seconds: a multiple of the seconds between two entries, for not too many points."""
        return max(every, -(-int(self.end - self.first) // MOST_POINTS // every) * every)

    def read(self, stream: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """What the stream has of this range, each with the second in which it was written."""
        entries: Any = connection().xrange(stream, str(int(self.first * 1000)), str(int(self.end * 1000)))
        for entry, fields in entries:
            yield int(entry.partition("-")[0]) // 1000, json.loads(fields["d"])

    def slots(self, entries: Iterable[tuple[int, _Content]], *, every: int) -> dict[int, list[_Content]]:
        """Entries by the beginning of their slot."""
        step = self.step(every)
        found: dict[int, list[_Content]] = {}
        for moment, content in entries:
            found.setdefault(moment - moment % step, []).append(content)
        return found

    def board(
        self,
        *,
        step: int,
        moments: Sequence[int],
        groups: Sequence[Mapping[str, Any]],
        marks: Sequence[Mapping[str, Any]],
        empty: Mapping[str, str],
    ) -> dict[str, Any]:
        """The form that a deployment's board has, without what only that one knows."""
        return {
            "span": {"first": int(self.first), "end": int(self.end), "step": step},
            "t": [moment * 1000 for moment in moments],
            "groups": groups,
            "compared": None,
            "totals": [],
            "marks": marks,
            "empty": empty,
        }


def with_gaps(starts: Sequence[int], step: int) -> list[int]:
    """The slots, and an empty moment after each that has no neighbour, so that lines break there."""
    found: list[int] = []
    for start in starts:
        if found and start - found[-1] > 3 * step:
            found.append(found[-1] + step)
        found.append(start)
    return found

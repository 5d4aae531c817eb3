"""Marks on charts: what happened when, to what a board shows. Apps above contribute theirs, as alerts do."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from console.common.models import StateChange
from console.common.states import LOOKS

MOST = 60
"""More marks than this hide the lines; the newest count."""
MARKED: Mapping[str, tuple[str, ...]] = {
    "deployments.deployment": ("deploying", "serving", "degraded", "failed", "stopped"),
    "deployments.instance": ("restarting", "crashed", "unhealthy"),
}
_LONGEST_REASON = 120
_BAD = frozenset({"crashed", "failed", "unhealthy", "degraded"})
Tone = Literal["bad", "warn", "calm"]


@dataclass(frozen=True)
class About:
    """Whose marks are wanted, by primary keys. With `deployments`, `hosts` stands for what is about a host itself."""

    deployments: Collection[int] = ()
    hosts: Collection[int] = ()


@dataclass(frozen=True)
class Mark:
    """One thing that happened. `sign` is drawn at the top of its line; `url` leads to more about it."""

    at: datetime
    kind: str
    text: str
    tone: Tone = "calm"
    sign: str = "▾"
    url: str = ""

    def as_json(self) -> dict[str, Any]:
        """As the page's script takes it; `t` in milliseconds since the epoch."""
        return {
            "t": int(self.at.timestamp() * 1000),
            "kind": self.kind,
            "text": self.text,
            "tone": self.tone,
            "sign": self.sign,
            "url": self.url,
        }


Source = Callable[[About, datetime, datetime], Iterable[Mark]]
_sources: list[Source] = []


def contribute(source: Source) -> None:
    """Register who knows further marks. Called once, from an app's `ready`."""
    if source not in _sources:
        _sources.append(source)


def contributed(about: About, first: float, end: float) -> list[Mark]:
    """What the apps above know of a range; both ends in seconds since the epoch."""
    began, ended = moments_of(first, end)
    return [mark for source in _sources for mark in source(about, began, ended)]


def moves(kind: str, names: Mapping[int, str], states: Sequence[str], first: float, end: float) -> list[Mark]:
    """Moves into one of `states`, of the objects whose names (before the word; may be empty) are given."""
    began, ended = moments_of(first, end)
    changes = StateChange.objects.filter(kind=kind, object_id__in=list(names), after__in=states)
    rows = changes.filter(at__gte=began, at__lte=ended).order_by("-at")[:MOST]
    return [_move(row, names[row.object_id]) for row in rows]


def drawn(marks: Iterable[Mark]) -> list[dict[str, Any]]:
    """The newest ones in the order of time, as the page's script takes them."""
    return [mark.as_json() for mark in sorted(marks, key=lambda mark: mark.at)[-MOST:]]


def moments_of(first: float, end: float) -> tuple[datetime, datetime]:
    """The ends of a range as times; what happens in its last second belongs to it."""
    return datetime.fromtimestamp(first, tz=UTC), datetime.fromtimestamp(end + 1, tz=UTC)


def _move(row: StateChange, name: str) -> Mark:
    text = f"{name} {LOOKS[row.after].word}".strip()
    reason = f": {row.reason[:_LONGEST_REASON]}" if row.reason else ""
    return Mark(row.at, row.after, text + reason, "bad" if row.after in _BAD else "calm")

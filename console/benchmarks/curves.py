"""Runs as points of a curve: for each load the median of its repeats and their spread, measure by measure."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from console.benchmarks.models import Run
from workers.benchmark_payloads import RunNumbers


@dataclass(frozen=True)
class Measure:
    """One number of a run. `higher`: more is better; `main`: shown first and in every table."""

    key: str
    title: str | Promise
    unit: str
    higher: bool
    of: Callable[[RunNumbers], float | None]
    main: bool = False


def _latency(name: str, share: str) -> Callable[[RunNumbers], float | None]:
    def of(numbers: RunNumbers) -> float | None:
        found = numbers.latencies.get(name)
        return getattr(found, share) if found is not None else None

    return of


_TIMES = (
    ("ttft", _("first token")),
    ("tpot", _("time per token")),
    ("itl", _("between tokens")),
    ("e2e", _("whole request")),
)
_SHARES = (
    ("mean", _("mean")),
    ("p50", "p50"),
    ("p75", "p75"),
    ("p90", "p90"),
    ("p95", "p95"),
    ("p99", "p99"),
)
TIME_TITLES = dict(_TIMES)


def _more(key: str, title: str | Promise, unit: str, of: Callable[[RunNumbers], float | None], **more: bool) -> Measure:
    """A measure of which more is better."""
    return Measure(key, title, unit, higher=True, of=of, **more)


MEASURES: dict[str, Measure] = {
    measure.key: measure
    for measure in (
        _more("requests_per_second", _("Requests"), "/s", lambda one: one.requests_per_second, main=True),
        _more("output_tokens_per_second", _("Tokens generated"), "/s", lambda one: one.output_tokens_per_second, main=True),
        _more("total_tokens_per_second", _("Tokens, prompts counted"), "/s", lambda one: one.total_tokens_per_second),
        _more("goodput_per_second", _("Goodput"), "/s", lambda one: one.goodput_per_second, main=True),
        _more("good_share", _("Within the targets"), "%",
              lambda one: None if one.good_share is None else 100 * one.good_share),
        Measure("error_share", _("Failed"), "%", higher=False, of=lambda one: 100 * one.error_share, main=True),
        *(
            Measure(f"{name}_{share}", format_lazy("{} {}", title, word), "ms", higher=False, of=_latency(name, share),
                    main=(name, share) in {("ttft", "p50"), ("ttft", "p95"), ("itl", "p50"), ("e2e", "p95")})
            for name, title in _TIMES
            for share, word in _SHARES
        ),
    )
}  # fmt: skip
MAIN = [measure for measure in MEASURES.values() if measure.main]


@dataclass(frozen=True)
class Value:
    """A measure at one load: the median of the repeats and their spread (highest minus lowest)."""

    median: float
    spread: float
    count: int

    @property
    def share(self) -> float | None:
        """The spread as a share of the median; None where it can't be said."""
        return self.spread / abs(self.median) if self.median and self.count > 1 else None


@dataclass(frozen=True)
class Point:
    """One load."""

    by: str
    load: float
    runs: Sequence[Run]
    told: Sequence[RunNumbers] = field(default_factory=list)

    @cached_property
    def values(self) -> dict[str, Value]:
        """Every measure that its runs tell."""
        return {key: value for key in MEASURES if (value := self._value(key)) is not None}

    def _value(self, key: str) -> Value | None:
        found = [one for numbers in self.told if (one := MEASURES[key].of(numbers)) is not None]
        if not found:
            return None
        return Value(statistics.median(found), max(found) - min(found), len(found))

    def median(self, key: str) -> float | None:
        """The median of a measure; None where nothing tells it."""
        value = self.values.get(key)
        return value.median if value is not None else None

    @property
    def problem(self) -> str:
        """Why a run of this load came to nothing."""
        return next((run.problem for run in self.runs if run.problem), "")

    @property
    def errors(self) -> dict[str, int]:
        """What requests failed with, and how many."""
        found: dict[str, int] = {}
        for one in self.told:
            for text, count in one.errors.items():
                found[text] = found.get(text, 0) + count
        return found


def points(runs: Iterable[Run]) -> list[Point]:
    """The loads in rising order."""
    groups: dict[tuple[str, float], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.by, run.load), []).append(run)
    return [
        Point(by, load, own, [told for run in own if (told := run.told) is not None])
        for (by, load), own in sorted(groups.items())
    ]

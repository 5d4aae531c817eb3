"""Two measurements side by side: how far apart they are, and whether that is more than noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from console.benchmarks.curves import MEASURES, Measure, Point, Value

Verdict = Literal["better", "worse", "noise", "once", "same"]
SMALLEST_SHARE = 0.01
"""Less than one per cent is no difference, however alike the repeats were."""


@dataclass(frozen=True)
class Difference:
    """One measure of two points. `share`: how much more or less the second is, as a share of the first."""

    measure: Measure
    first: Value
    second: Value
    share: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Pair:
    """The same load in both."""

    by: str
    load: float
    differences: dict[str, Difference]


def verdict(measure: Measure, first: Value, second: Value) -> Verdict:
    """Is the second better? `noise`: they differ by no more than repeats of one differ; `once`: nobody can know.

    With repeats on one side only, its spread stands for both.
    """
    apart = abs(second.median - first.median)
    if first.median == second.median:
        return "same"
    if max(first.count, second.count) < 2:
        return "once"
    if apart <= max(first.spread, second.spread, SMALLEST_SHARE * abs(first.median)):
        return "noise"
    return "better" if (second.median > first.median) == measure.higher else "worse"


def difference(key: str, first: Value, second: Value) -> Difference:
    """One measure of both."""
    measure = MEASURES[key]
    share = (second.median - first.median) / first.median if first.median else None
    return Difference(measure, first, second, share, verdict(measure, first, second))


def pairs(first: Sequence[Point], second: Sequence[Point]) -> list[Pair]:
    """The loads that both have, in rising order."""
    others = {(point.by, point.load): point for point in second}
    found = []
    for point in first:
        other = others.get((point.by, point.load))
        if other is not None:
            shared = [key for key in point.values if key in other.values]
            told = {key: difference(key, point.values[key], other.values[key]) for key in shared}
            found.append(Pair(point.by, point.load, told))
    return found

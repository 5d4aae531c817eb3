"""The search for the highest load that meets its targets: geometric until one doesn't, then bisection.

Pure: it is told what was measured and says what to measure next, so that an interrupted sweep goes on where it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from workers.benchmark_payloads import LoadKind, SweepPlan

FACTOR = 2.0
"""Each load is so many times the one before, until one is too much."""
GAIN = 1.05
"""Twice the concurrency should bring at least this much more throughput; otherwise the engine is saturated."""
KEPT_UP = 0.9
"""A rate counts as served when this share of it was completed per second."""
LOWEST_SHARE = 1 / 16
"""So far below the first load it is looked when even that one is too much."""

Ended = Literal["found", "most", "saturated", "errors", "time", "first_too_much"]


@dataclass(frozen=True)
class Measured:
    """One load as its runs showed it (medians). `throughput` is requests per second, `good_share` None: no targets."""

    load: float
    throughput: float
    good_share: float | None
    error_share: float


@dataclass(frozen=True)
class Step:
    """What follows: a load to measure, or (None) the end with the highest good load and why."""

    load: float | None
    best: float | None = None
    ended: Ended | None = None


def next_load(plan: SweepPlan, by: LoadKind, measured: Sequence[Measured], *, seconds: float = 0) -> Step:
    """What to measure after `measured`, in any order; `seconds`: how long it has taken so far."""
    seen = sorted(measured, key=lambda one: one.load)
    good, bad = _split(plan, by, seen)
    best = good[-1].load if good else None
    if not seen:
        return Step(_rounded(by, plan.first))
    if seconds >= plan.budget_seconds:
        return Step(None, best, "time")
    if bad is None:
        return _upwards(plan, by, good)
    if best is None:
        lower = _rounded(by, bad.load / FACTOR)
        if lower >= bad.load or lower < plan.first * LOWEST_SHARE:
            return Step(None, None, _why_bad(plan, bad, "first_too_much"))
        return Step(lower)
    if by == "concurrency" and bad.good_share is None and bad.error_share <= plan.most_errors:
        return Step(None, best, "saturated")  # between the two, nothing but the length of the queue could be found
    middle = _rounded(by, (best + bad.load) / 2)
    if bad.load / best <= 1 + plan.precision or middle in (best, bad.load):
        return Step(None, best, _why_bad(plan, bad, "found"))
    return Step(middle)


def is_good(plan: SweepPlan, by: LoadKind, one: Measured, lower: Sequence[Measured] = ()) -> bool:
    """True if a load meets the targets without errors, and the engine kept up with it. `lower`: loads below it."""
    if one.error_share > plan.most_errors:
        return False
    if one.good_share is not None and one.good_share < plan.good_share:
        return False
    if by == "rate":
        return one.throughput >= KEPT_UP * one.load
    # Only without targets does it matter that more requests at once bring nothing: with them, latency decides.
    return one.good_share is not None or _gains(one, lower)


def _gains(one: Measured, lower: Sequence[Measured]) -> bool:
    """True if it has more throughput than the highest load of at most half its size; or there is none."""
    half = [other for other in lower if other.load * FACTOR <= one.load * 1.01]
    return not half or one.throughput >= GAIN * half[-1].throughput


def _split(plan: SweepPlan, by: LoadKind, seen: Sequence[Measured]) -> tuple[list[Measured], Measured | None]:
    """The good loads below the lowest bad one, and that one."""
    for index, one in enumerate(seen):
        if not is_good(plan, by, one, seen[:index]):
            return list(seen[:index]), one
    return list(seen), None


def _upwards(plan: SweepPlan, by: LoadKind, good: Sequence[Measured]) -> Step:
    best = good[-1].load
    if best >= plan.most:
        return Step(None, best, "most")
    # Twice as many at once with targets still met, and no more throughput: beyond, only the queue grows.
    if by == "concurrency" and not _gains(good[-1], good[:-1]):
        return Step(None, best, "saturated")
    return Step(_rounded(by, min(plan.most, best * FACTOR)))


def _why_bad(plan: SweepPlan, bad: Measured, otherwise: Ended) -> Ended:
    if bad.error_share > plan.most_errors:
        return "errors"
    return "saturated" if bad.good_share is None and otherwise == "found" else otherwise


def _rounded(by: LoadKind, load: float) -> float:
    """Concurrency is whole and at least 1; a rate has three significant digits."""
    return float(max(1, round(load))) if by == "concurrency" else float(f"{load:.3g}")

"""The search for the highest load: against engines whose knee is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.benchmark_payloads import LoadKind, SweepPlan
from workers.vllm.load_search import Measured, Step, next_load


def engine(load: float, by: LoadKind, knee: float, *, targets: bool = True) -> Measured:
    """Serves `knee` requests per second at most (or so many at once in time), and is late with all beyond."""
    if by == "rate":
        return Measured(load, min(load, knee), (1.0 if load <= knee else 0.2) if targets else None, 0.0)
    return Measured(load, min(load, knee), (1.0 if load <= knee else 0.2) if targets else None, 0.0)


def sweep(plan: SweepPlan, by: LoadKind, knee: float, *, targets: bool = True) -> tuple[Step, list[float]]:
    measured: list[Measured] = []
    for _number in range(60):
        step = next_load(plan, by, measured)
        if step.load is None:
            return step, [one.load for one in measured]
        assert step.load not in [one.load for one in measured], "a load is never measured twice"
        measured.append(engine(step.load, by, knee, targets=targets))
    raise AssertionError("it never ended")


@given(st.floats(0.2, 300), st.sampled_from(["rate", "concurrency"]))
def test_it_finds_the_knee_within_its_precision(knee: float, by: LoadKind) -> None:
    plan = SweepPlan(first=1, most=1000, precision=0.1)
    step, loads = sweep(plan, by, knee)
    if step.best is None:
        assert knee < plan.first
        return
    assert step.best <= knee * (1.12 if by == "rate" else 1)
    assert knee <= step.best * 1.13 + (1 if by == "concurrency" else 0)
    assert step.ended == "found"
    assert len(loads) < 25


def test_it_doubles_until_a_load_is_too_much_and_then_halves_what_is_between() -> None:
    _step, loads = sweep(SweepPlan(first=1, most=100, precision=0.1), "concurrency", 11)
    assert loads == [1, 2, 4, 8, 16, 12, 10, 11]


def test_it_ends_at_the_most_that_may_be_asked() -> None:
    step, loads = sweep(SweepPlan(first=1, most=8), "concurrency", 100)
    assert (step.best, step.ended) == (8, "most")
    assert loads == [1, 2, 4, 8]


def test_without_targets_it_ends_where_more_brings_no_more() -> None:
    step, loads = sweep(SweepPlan(first=1, most=64), "concurrency", 6, targets=False)
    assert step.ended == "saturated"
    assert (step.best, loads) == (8, [1, 2, 4, 8, 16])


def test_errors_end_it_and_are_named() -> None:
    measured = [Measured(1, 1, 1.0, 0.0), Measured(2, 2, 1.0, 0.5)]
    step = next_load(SweepPlan(precision=1), "rate", measured)
    assert (step.load, step.best, step.ended) == (None, 1, "errors")


def test_it_ends_when_its_time_is_over_with_what_it_has() -> None:
    measured = [Measured(1, 1, 1.0, 0.0), Measured(2, 2, 1.0, 0.0)]
    step = next_load(SweepPlan(budget_seconds=60), "rate", measured, seconds=61)
    assert (step.load, step.best, step.ended) == (None, 2, "time")


@pytest.mark.parametrize("by", ["rate", "concurrency"])
def test_a_first_load_that_is_too_much_is_gone_below(by: LoadKind) -> None:
    step, loads = sweep(SweepPlan(first=8, most=100, precision=0.2), by, 3)
    assert loads[:3] == [8, 4, 2]
    assert step.best is not None
    assert 2 <= step.best <= 3.3


def test_a_server_that_meets_no_target_at_all_has_no_best_load() -> None:
    step, _loads = sweep(SweepPlan(first=1, most=100), "concurrency", 0.001)
    assert (step.best, step.ended) == (None, "first_too_much")

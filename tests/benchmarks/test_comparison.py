"""What is a difference, and what is noise."""

import pytest

from console.benchmarks.comparison import pairs, verdict
from console.benchmarks.curves import MEASURES, Value, points
from tests.benchmarks.conftest import Stage

TTFT, TOKENS = MEASURES["ttft_p95"], MEASURES["output_tokens_per_second"]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (Value(100, 10, 3), Value(108, 5, 3), "noise"),
        (Value(100, 10, 3), Value(130, 5, 3), "worse"),
        (Value(100, 10, 3), Value(60, 5, 3), "better"),
        (Value(100, 0, 1), Value(1200, 0, 1), "once"),
        (Value(100, 4, 3), Value(1200, 0, 1), "worse"),
        (Value(100, 0, 3), Value(100.5, 0, 3), "noise"),
        (Value(100, 0, 3), Value(100, 0, 3), "same"),
    ],
)
def test_a_difference_inside_the_spread_is_noise(first: Value, second: Value, said: str) -> None:
    assert verdict(TTFT, first, second) == said


def test_more_throughput_is_better_and_more_latency_worse() -> None:
    assert verdict(TOKENS, Value(100, 2, 3), Value(150, 2, 3)) == "better"
    assert verdict(TTFT, Value(100, 2, 3), Value(150, 2, 3)) == "worse"


def test_repeats_become_a_median_with_their_spread(stage: Stage) -> None:
    benchmark = stage.measure()
    for repeat, ttft in ((1, 100.0), (2, 90.0), (3, 130.0)):
        stage.report_run(benchmark, 4, repeat, ttft=ttft)
    (point,) = points(benchmark.runs.all())
    assert point.values["ttft_p50"] == Value(100, 40, 3)
    assert point.values["ttft_p50"].share == pytest.approx(0.4)


def test_only_loads_that_both_have_are_compared(stage: Stage) -> None:
    first, second = stage.measure(), stage.measure()
    stage.report_run(first, 1)
    stage.report_run(first, 4)
    stage.report_run(second, 4, ttft=900.0)
    (pair,) = pairs(points(first.runs.all()), points(second.runs.all()))
    assert pair.load == 4
    assert pair.differences["ttft_p50"].share == pytest.approx(8)
    assert pair.differences["ttft_p50"].verdict == "once"

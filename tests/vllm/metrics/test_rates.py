import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.vllm.histograms import Histogram, added
from workers.vllm.metrics import MetricsSample
from workers.vllm.rates import activity_between

BOUNDS = (0.1, 0.5, 1.0, math.inf)


def sample(at, *, prompt=0.0, ttft=(0.0, 0.0, 0.0, 0.0), **fields):
    return MetricsSample(
        taken_at=at,
        prompt_tokens=prompt,
        time_to_first_token=Histogram(BOUNDS, ttft, sum(ttft)),
        **fields,
    )


def test_rates_are_per_second_and_shares_are_of_the_window():
    earlier = sample(10, prompt=100, prefix_cache_queries=100, prefix_cache_hits=90, finished={"stop": 1.0})
    later = sample(
        14, prompt=300, prefix_cache_queries=300, prefix_cache_hits=140, finished={"stop": 3.0, "length": 2.0}
    )
    activity = activity_between(earlier, later)
    assert activity.seconds == 4
    assert not activity.restarted
    assert activity.prompt_tokens_per_second == 50
    assert activity.prefix_cache_hit_share == 0.25
    assert activity.finished == {"stop": 2, "length": 2}
    assert activity.requests_per_second == 1
    assert activity.generation_tokens_per_second is None
    assert activity.spec_acceptance_share is None


def test_a_restart_counts_from_zero_and_never_backwards():
    earlier = sample(10, prompt=1000, ttft=(5, 6, 7, 8), finished={"stop": 50.0}, started_at=1.0)
    later = sample(12, prompt=30, ttft=(1, 1, 2, 2), finished={"stop": 2.0}, started_at=500.0)
    activity = activity_between(earlier, later)
    assert activity.restarted
    assert activity.prompt_tokens_per_second == 15
    assert activity.finished == {"stop": 2}
    assert activity.time_to_first_token.counts == (1, 1, 2, 2)


def test_a_restart_is_seen_even_if_every_counter_is_higher_than_before():
    activity = activity_between(sample(0, prompt=10, started_at=1.0), sample(2, prompt=50, started_at=9.0))
    assert activity.restarted
    assert activity.prompt_tokens_per_second == 25


def test_a_restart_is_seen_by_a_counter_that_fell_where_no_start_time_is_told():
    activity = activity_between(sample(0, prompt=10), sample(2, prompt=4))
    assert activity.restarted
    assert activity.prompt_tokens_per_second == 2


def test_no_time_has_no_activity():
    assert activity_between(sample(5), sample(5)) is None
    assert activity_between(sample(5), sample(4)) is None


def test_nothing_asked_is_no_share_rather_than_none_hit():
    earlier = sample(0, prefix_cache_queries=5, prefix_cache_hits=5)
    assert activity_between(earlier, replace(earlier, taken_at=1)).prefix_cache_hit_share is None


def test_a_window_of_a_histogram_holds_what_was_observed_in_it():
    before, now = Histogram(BOUNDS, (1, 2, 3, 3), 2.0), Histogram(BOUNDS, (1, 4, 5, 6), 9.0)
    assert now.since(before) == Histogram(BOUNDS, (0, 2, 2, 3), 7.0)
    assert now.since(None) == now
    assert before.since(now) == before
    assert now.since(Histogram((1.0, math.inf), (1, 1), 1.0)) == now


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.0, 0.0), (0.25, 0.05), (0.5, 0.1), (0.75, 0.3), (1.0, 0.5)],
)
def test_quantiles_are_interpolated_inside_their_bucket(share, value):
    assert Histogram(BOUNDS, (2, 4, 4, 4), 1.0).quantile(share) == pytest.approx(value)


def test_a_quantile_beyond_the_last_bound_is_that_bound():
    assert Histogram(BOUNDS, (0, 0, 0, 4), 40.0).quantile(0.5) == 1.0


def test_no_observations_have_no_quantile_and_no_mean():
    empty = Histogram(BOUNDS, (0, 0, 0, 0), 0.0)
    assert empty.quantile(0.5) is None
    assert empty.mean is None
    assert added([]) is None
    assert added([None, None]) is None


def test_merged_percentiles_come_from_merged_buckets():
    # 100 fast answers here and 100 slow ones there: half of all are fast, whatever each side's percentiles are.
    fast, slow = Histogram(BOUNDS, (100, 100, 100, 100), 5.0), Histogram(BOUNDS, (0, 0, 100, 100), 80.0)
    both = added([fast, None, slow])
    assert both.count == 200
    assert both.mean == pytest.approx(0.425)
    assert both.quantile(0.5) == pytest.approx(0.1)
    assert both.quantile(0.75) == pytest.approx(0.75)


def test_different_buckets_are_merged_where_both_know_the_count():
    other = Histogram((0.5, 2.0, math.inf), (1, 2, 3), 5.0)
    assert added([Histogram(BOUNDS, (1, 2, 3, 4), 2.0), other]) == Histogram((0.5, math.inf), (3, 7), 7.0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_a_quantile_lies_in_the_bucket_of_the_real_one(seed, share):
    rng = random.Random(seed)
    bounds = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, math.inf)
    values = sorted(rng.lognormvariate(-2, 0.8) for _ in range(rng.randint(1, 400)))
    parts = [values[::2], values[1::2]]
    merged = added([Histogram(bounds, tuple(sum(v <= b for v in part) for b in bounds), sum(part)) for part in parts])
    real = values[max(0, math.ceil(share * len(values)) - 1)]
    index = next(i for i, bound in enumerate(bounds) if real <= bound)
    lower = bounds[index - 1] if index else 0.0
    assert lower <= merged.quantile(share) <= bounds[index]

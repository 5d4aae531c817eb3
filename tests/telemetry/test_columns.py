"""Frames and columns: nothing is lost on the way into a row and back, and sums are the same whatever the slots."""

import math
import random
from dataclasses import replace

import pytest

from console.telemetry.columns import Columns, of_frames
from console.telemetry.frames import Bounds, Frame, Window, dump, dump_bounds, frame_between, load, load_bounds
from console.telemetry.measures import lines_of, totals
from tests.telemetry.samples import TTFT_BOUNDS, FakeLoad, busy_columns, busy_frames
from workers.vllm.histograms import added
from workers.vllm.metrics import MetricsSample

HOUR = 1_800_000_000 // 3600 * 3600


def same(one: float, other: float) -> bool:
    return one == pytest.approx(other, rel=1e-6) or (math.isnan(one) and math.isnan(other))


def test_a_frame_survives_its_short_form() -> None:
    for frame in busy_frames(50):
        bounds: Bounds = {}
        again = load(dump(frame, bounds), load_bounds(dump_bounds(bounds)).get)
        assert again.grown == frame.grown
        assert again.now == pytest.approx(frame.now, rel=1e-6)
        for name, histogram in frame.histograms.items():
            assert again.histograms[name].buckets == histogram.buckets
            assert again.histograms[name].bounds == histogram.bounds


def test_what_an_engine_does_not_say_stays_unknown_in_a_frame() -> None:
    frame = frame_between(MetricsSample(taken_at=0), MetricsSample(taken_at=1, prompt_tokens=0.0))
    assert frame is not None
    again = load(dump(frame, {}), {}.get)
    assert again.grown == {"prompt_tokens": 0}
    assert again.histograms == {}
    values = lines_of([of_frames([(10, again)])], [10], 1)
    assert values["prompt_tokens"] == [0.0]
    assert values["generation_tokens"] == [None]
    assert values["time_to_first_token.p95"] == [None]


def test_an_hour_survives_packing() -> None:
    columns = busy_columns(HOUR, 3600).regrouped(10)
    again = Columns.unpack(columns.pack(HOUR), HOUR)
    assert again.starts == columns.starts
    assert again.bounds == columns.bounds
    assert set(again.values) == set(columns.values)
    for name, column in columns.values.items():
        assert all(same(one, other) for one, other in zip(again.values[name], column, strict=True)), name


@pytest.mark.parametrize("damaged", [b"", b"junk", busy_columns(HOUR, 60).pack(HOUR)[:-20]])
def test_a_damaged_row_is_a_value_error(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="packed"):
        Columns.unpack(damaged, HOUR)


@pytest.mark.parametrize("step", [10, 60, 900, 3600])
def test_sums_and_percentiles_of_a_range_do_not_depend_on_its_slots(step: int) -> None:
    fine = busy_columns(HOUR, 3600)
    coarse = fine.regrouped(10).regrouped(step)
    one, other = totals([fine]), totals([coarse])
    assert other.requests == one.requests > 0
    assert other.generation_tokens == one.generation_tokens
    assert other.quantile("time_to_first_token", 0.95) == one.quantile("time_to_first_token", 0.95)
    assert max(coarse.values["max.kv_cache_usage"]) == max(fine.values["max.kv_cache_usage"])


def test_percentiles_of_several_instances_are_merged_and_not_averaged() -> None:
    quick, slow = FakeLoad(), FakeLoad()
    before = [load.sample(0) for load in (quick, slow)]
    quick.answer(990, ttft=0.003)
    slow.answer(10, ttft=4.0)
    frames = [frame_between(start, load.sample(1)) for start, load in zip(before, (quick, slow), strict=True)]
    parts = [of_frames([(5, frame)]) for frame in frames if frame is not None]
    values = lines_of(parts, [5], 1)
    whole = added([quick.ttft.read(), slow.ttft.read()])
    assert whole is not None
    assert values["time_to_first_token.p95"] == [whole.quantile(0.95)]
    assert values["time_to_first_token.p95"][0] < 0.01  # the average of both would be over a second
    assert values["generation_tokens"] == [20_000.0]
    assert values["prefix_cache_hit_share"] == [0.25]


def test_a_gap_stays_a_gap() -> None:
    frames = busy_frames(20)
    columns = of_frames([(HOUR + at, frame) for at, frame in enumerate(frames) if not 5 <= at < 15])
    assert columns.regrouped(10).starts == [HOUR, HOUR + 10]
    values = lines_of([columns], [HOUR + 4, HOUR + 7, HOUR + 15], 1)
    assert values["generation_tokens"][0] is not None
    assert values["generation_tokens"][1] is None


def test_what_was_counted_during_a_gap_is_not_lost_and_makes_no_spike() -> None:
    load = FakeLoad()
    first = load.sample(0)
    load.answer(30)
    frame = frame_between(first, load.sample(30))
    assert frame is not None
    columns = of_frames([(HOUR, frame)])
    assert totals([columns]).requests == 30
    assert lines_of([columns], [HOUR], 1)["requests"] == [1.0]


def test_adding_the_same_slots_twice_counts_them_once() -> None:
    columns = busy_columns(HOUR, 60)
    expected = totals([columns]).requests
    columns.extend(busy_columns(HOUR, 60))
    assert totals([columns]).requests == expected


def test_another_versions_buckets_are_merged_at_the_bounds_that_both_have() -> None:
    old = FakeLoad()
    start = old.sample(0)
    old.answer(10, ttft=0.07)
    one = frame_between(start, old.sample(1))
    assert one is not None
    fewer = (0.01, 0.1, 1.0, math.inf)
    new = Frame(1.0, histograms={"time_to_first_token": Window(fewer, 0.1, {1: 2.0})})
    columns = of_frames([(1, one)])
    columns.extend(of_frames([(2, new)]))
    (merged,) = columns.regrouped(10).histograms("time_to_first_token")
    assert merged is not None
    assert merged.bounds == fewer
    assert merged.counts == (0.0, 12.0, 12.0, 12.0)
    assert set(fewer) < set(TTFT_BOUNDS)


def test_a_sliding_window_holds_what_its_seconds_hold() -> None:
    columns = busy_columns(HOUR, 120)
    found = columns.histograms("time_to_first_token", window=30)
    dice = random.Random(3)
    for at in dice.sample(range(120), 20):
        plain = added(columns.between(HOUR + at - 29, HOUR + at + 1).histograms("time_to_first_token"))
        assert plain is not None
        assert found[at] is not None
        assert found[at].counts == pytest.approx(plain.counts)


def test_two_hundred_busy_instances_at_full_retention_stay_under_one_and_a_half_gigabytes() -> None:
    hour = busy_columns(HOUR, 3600)
    fine, coarse = (len(hour.regrouped(step).pack(HOUR)) for step in (10, 60))
    # A row's keys, its header in a page and its two index entries, generously.
    around = 150
    whole = 200 * (25 * (fine + around) + 30 * 24 * (coarse + around))
    assert whole < 1.5e9


def test_a_restart_is_counted() -> None:
    load = FakeLoad()
    load.answer(5)
    before = load.sample(0)
    again = FakeLoad(started_at=2.0)
    again.answer(2)
    frame = frame_between(before, again.sample(1))
    assert frame is not None
    columns = of_frames([(1, frame), (2, replace(frame, restarted=False))])
    assert sum(columns.values["restarts"]) == 1
    assert totals([columns]).requests == 4

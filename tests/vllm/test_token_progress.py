"""Hung or busy: what metrics of an engine say about progress."""

from dataclasses import replace
from typing import Any

import pytest

from workers.vllm.metrics import MetricsSample
from workers.vllm.token_progress import TokenProgress, describe_load, has_work

BUSY = MetricsSample(taken_at=0.0, requests_running=2, requests_waiting=1, generation_tokens=100, kv_cache_usage=0.4)


def stuck_after(*samples: dict[str, Any]) -> float:
    progress = TokenProgress()
    stuck = progress.take(BUSY)
    for number, changes in enumerate(samples, 1):
        stuck = progress.take(replace(BUSY, taken_at=10.0 * number, **changes))
    return stuck


def test_requests_that_run_and_no_counter_that_moves_is_no_progress() -> None:
    assert stuck_after({}, {}, {}) == 30


@pytest.mark.parametrize(
    "moved", [{"generation_tokens": 101}, {"prompt_tokens": 5}, {"kv_cache_usage": 0.41}, {"finished": {"stop": 1}}]
)
def test_any_counter_that_moves_is_progress(moved: dict[str, Any]) -> None:
    assert stuck_after({}, moved, moved) == 10


def test_clients_that_give_up_and_come_again_are_no_progress() -> None:
    assert stuck_after({"requests_running": 5}, {"requests_waiting": 7}, {"requests_running": 2}) == 30


def test_an_idle_or_sleeping_engine_is_never_stuck() -> None:
    assert stuck_after({}, {"requests_running": 0, "requests_waiting": 0}) == 0
    assert stuck_after({"asleep": True}, {"asleep": True}) == 0
    assert not has_work(MetricsSample(taken_at=0.0))


def test_waiting_alone_is_work_too() -> None:
    assert stuck_after({"requests_running": 0}, {"requests_running": 0}) == 20


def test_the_load_is_told_in_words() -> None:
    assert describe_load(BUSY) == "2 requests run, 1 wait, the KV cache is 40% full"

"""What happened between two samples of one instance: rates and shares that survive a restart of the engine."""

from collections.abc import Mapping
from dataclasses import dataclass

from workers.vllm.histograms import Histogram
from workers.vllm.metrics import MetricsSample


@dataclass(frozen=True, slots=True)
class Activity:
    """The time between two samples. None means unknown (no such metric, or nothing to divide by), which is not zero.

    Rates are per second; shares are fractions from 0 to 1; the histograms hold only what was observed in between.
    """

    seconds: float
    restarted: bool
    prompt_tokens_per_second: float | None
    generation_tokens_per_second: float | None
    preemptions_per_second: float | None
    requests_per_second: float | None
    finished: Mapping[str, float]  # number of requests by reason
    admission_rejections: float | None
    prefix_cache_hit_share: float | None
    spec_acceptance_share: float | None
    time_to_first_token: Histogram | None
    inter_token_latency: Histogram | None
    e2e_latency: Histogram | None
    queue_wait: Histogram | None


def activity_between(earlier: MetricsSample, later: MetricsSample) -> Activity | None:
    """What happened from `earlier` to `later`; None if `later` isn't later.

    If the process restarted in between, its counters began again at zero: then what it counted since is all that can be
    known, and what it counted before it ended is lost. A restart shows by its start time or by a counter that fell.
    """
    seconds = later.taken_at - earlier.taken_at
    if seconds <= 0:
        return None
    restarted = _restarted(earlier, later)
    before = MetricsSample(taken_at=earlier.taken_at) if restarted else earlier
    finished = {
        reason: grown
        for reason, count in later.finished.items()
        if (grown := _grown(before.finished.get(reason, 0.0), count)) is not None
    }
    rejections = [
        _grown(before.admission_rejections.get(reason, 0.0), count) or 0.0
        for reason, count in later.admission_rejections.items()
    ]
    return Activity(
        seconds=seconds,
        restarted=restarted,
        prompt_tokens_per_second=_per_second(before.prompt_tokens, later.prompt_tokens, seconds),
        generation_tokens_per_second=_per_second(before.generation_tokens, later.generation_tokens, seconds),
        preemptions_per_second=_per_second(before.preemptions, later.preemptions, seconds),
        requests_per_second=sum(finished.values()) / seconds if later.finished else None,
        finished=finished,
        admission_rejections=sum(rejections) if rejections else None,
        prefix_cache_hit_share=_share(
            _grown(before.prefix_cache_hits, later.prefix_cache_hits),
            _grown(before.prefix_cache_queries, later.prefix_cache_queries),
        ),
        spec_acceptance_share=_share(
            _grown(before.spec_accepted_tokens, later.spec_accepted_tokens),
            _grown(before.spec_draft_tokens, later.spec_draft_tokens),
        ),
        time_to_first_token=_window(before.time_to_first_token, later.time_to_first_token),
        inter_token_latency=_window(before.inter_token_latency, later.inter_token_latency),
        e2e_latency=_window(before.e2e_latency, later.e2e_latency),
        queue_wait=_window(before.queue_wait, later.queue_wait),
    )


def _restarted(earlier: MetricsSample, later: MetricsSample) -> bool:
    if earlier.started_at is not None and later.started_at is not None and later.started_at != earlier.started_at:
        return True
    pairs = [
        (earlier.prompt_tokens, later.prompt_tokens),
        (earlier.generation_tokens, later.generation_tokens),
        (earlier.prefix_cache_queries, later.prefix_cache_queries),
        *((count, later.finished.get(reason)) for reason, count in earlier.finished.items()),
    ]
    return any(before is not None and now is not None and now < before for before, now in pairs)


def _grown(before: float | None, now: float | None) -> float | None:
    """By how much a counter grew; a counter that is new, or fell, began at zero."""
    if now is None:
        return None
    return now if before is None or now < before else now - before


def _per_second(before: float | None, now: float | None, seconds: float) -> float | None:
    grown = _grown(before, now)
    return None if grown is None else grown / seconds


def _share(part: float | None, whole: float | None) -> float | None:
    return min(1.0, part / whole) if part is not None and whole else None


def _window(before: Histogram | None, now: Histogram | None) -> Histogram | None:
    return None if now is None else now.since(before)

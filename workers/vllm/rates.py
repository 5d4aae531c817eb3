"""What happened between two samples of one instance: rates and shares that survive a restart of the engine."""

from collections.abc import Mapping
from dataclasses import dataclass

from workers.vllm.histograms import Histogram
from workers.vllm.metrics import COUNTERS, HISTOGRAMS, MetricsSample


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


@dataclass(frozen=True, slots=True)
class Growth:
    """By how much everything that counts has grown between two samples. A name that is missing is not counted at all."""

    seconds: float
    restarted: bool
    counters: Mapping[str, float]  # by the names of MetricsSample
    finished: Mapping[str, float]  # number of requests by reason
    admission_rejections: Mapping[str, float]  # by reason
    histograms: Mapping[str, Histogram]  # what was observed in between


def growth_between(earlier: MetricsSample, later: MetricsSample) -> Growth | None:
    """By how much the counts grew from `earlier` to `later`; None if `later` isn't later.

    If the process restarted in between, its counters began again at zero: then what it counted since is all that can be
    known, and what it counted before it ended is lost. A restart shows by its start time or by a counter that fell.
    """
    seconds = later.taken_at - earlier.taken_at
    if seconds <= 0:
        return None
    restarted = _restarted(earlier, later)
    before = MetricsSample(taken_at=earlier.taken_at) if restarted else earlier
    counters = {name: _grown(getattr(before, name), getattr(later, name)) for name in COUNTERS}
    windows = {name: _window(getattr(before, name), getattr(later, name)) for name in HISTOGRAMS}
    return Growth(
        seconds=seconds,
        restarted=restarted,
        counters={name: grown for name, grown in counters.items() if grown is not None},
        finished=_grown_by_reason(before.finished, later.finished),
        admission_rejections=_grown_by_reason(before.admission_rejections, later.admission_rejections),
        histograms={name: window for name, window in windows.items() if window is not None},
    )


def activity_between(earlier: MetricsSample, later: MetricsSample) -> Activity | None:
    """What happened from `earlier` to `later` as rates and shares; None if `later` isn't later. See `growth_between`."""
    growth = growth_between(earlier, later)
    if growth is None:
        return None
    counters, seconds = growth.counters, growth.seconds

    def per_second(name: str) -> float | None:
        return counters[name] / seconds if name in counters else None

    rejections = growth.admission_rejections.values()
    return Activity(
        seconds=seconds,
        restarted=growth.restarted,
        prompt_tokens_per_second=per_second("prompt_tokens"),
        generation_tokens_per_second=per_second("generation_tokens"),
        preemptions_per_second=per_second("preemptions"),
        requests_per_second=sum(growth.finished.values()) / seconds if growth.finished else None,
        finished=growth.finished,
        admission_rejections=sum(rejections) if rejections else None,
        prefix_cache_hit_share=_share(counters.get("prefix_cache_hits"), counters.get("prefix_cache_queries")),
        spec_acceptance_share=_share(counters.get("spec_accepted_tokens"), counters.get("spec_draft_tokens")),
        time_to_first_token=growth.histograms.get("time_to_first_token"),
        inter_token_latency=growth.histograms.get("inter_token_latency"),
        e2e_latency=growth.histograms.get("e2e_latency"),
        queue_wait=growth.histograms.get("queue_wait"),
    )


def _grown_by_reason(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    return {reason: _grown(before.get(reason), count) or 0.0 for reason, count in now.items()}


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


def _share(part: float | None, whole: float | None) -> float | None:
    return min(1.0, part / whole) if part is not None and whole else None


def _window(before: Histogram | None, now: Histogram | None) -> Histogram | None:
    return None if now is None else now.since(before)

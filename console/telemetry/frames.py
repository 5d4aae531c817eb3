"""A frame: what happened to one engine between two samples of it, and its short form in a Redis stream.

A frame holds growth, not totals, so frames of one engine can be added up over time, and frames of several engines over
engines. A name that is missing means "this engine doesn't say", which is not zero.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from workers.vllm.histograms import Histogram
from workers.vllm.metrics import COUNTERS, HISTOGRAMS, MetricsSample
from workers.vllm.rates import growth_between
from workers.vllm.sample_messages import GAUGES

FINISHED, REJECTED = "finished.", "rejected."
"""Prefixes of counts by reason: `finished.stop`, `rejected.max_num_queued_reqs`."""

Bounds = dict[str, tuple[float, ...]]
"""Bounds of histograms by a short id: every frame would repeat them otherwise."""


@dataclass(frozen=True, slots=True)
class Window:
    """What a histogram observed in a frame: how many fell into each bucket that has some, and the sum of all."""

    bounds: tuple[float, ...]
    total: float
    buckets: Mapping[int, float]

    @classmethod
    def of(cls, histogram: Histogram) -> "Window":
        """From cumulative counts."""
        found, below = {}, 0.0
        for index, count in enumerate(histogram.counts):
            if count != below:
                found[index] = count - below
            below = count
        return cls(histogram.bounds, histogram.total, found)


@dataclass(frozen=True, slots=True)
class Frame:
    """The `seconds` that end at a sample: how it is `now`, by how much counts have `grown`, what was observed in between."""

    seconds: float
    restarted: bool = False
    now: Mapping[str, float] = field(default_factory=dict)
    grown: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Window] = field(default_factory=dict)


def frame_between(earlier: MetricsSample, later: MetricsSample) -> Frame | None:
    """The frame that ends at `later`; None if `later` isn't later."""
    growth = growth_between(earlier, later)
    if growth is None:
        return None
    now = {name: getattr(later, name) for name in GAUGES}
    return Frame(
        seconds=growth.seconds,
        restarted=growth.restarted,
        now={name: value for name, value in now.items() if value is not None},
        grown={
            **growth.counters,
            **{f"{FINISHED}{reason}": count for reason, count in growth.finished.items()},
            **{f"{REJECTED}{reason}": count for reason, count in growth.admission_rejections.items()},
        },
        histograms={name: Window.of(histogram) for name, histogram in growth.histograms.items()},
    )


def without_requests(frame: Frame) -> Frame:
    """The same span as if nobody had asked anything: for Slipway's own requests, which are nobody's load."""
    return Frame(
        seconds=frame.seconds,
        restarted=frame.restarted,
        now={**frame.now, **{name: 0.0 for name in ("requests_running", "requests_waiting") if name in frame.now}},
        grown=dict.fromkeys(frame.grown, 0.0),
        histograms={name: Window(window.bounds, 0.0, {}) for name, window in frame.histograms.items()},
    )


@cache
def bounds_id(bounds: tuple[float, ...]) -> str:
    """Short name of a histogram's bounds."""
    return hashlib.sha256(repr(bounds).encode()).hexdigest()[:8]


def dump(frame: Frame, bounds: Bounds) -> str:
    """The frame as short JSON; bounds that are new are added to `bounds`."""
    reasons = {name: count for name, count in frame.grown.items() if name not in COUNTERS}
    histograms: list[object] = []
    for name in HISTOGRAMS:
        window = frame.histograms.get(name)
        if window is None:
            histograms.append(None)
            continue
        key = bounds_id(window.bounds)
        bounds.setdefault(key, window.bounds)
        buckets = {index: _short(count) for index, count in window.buckets.items()}
        histograms.append([key, _short(window.total), buckets])
    content = {
        "s": round(frame.seconds, 3),
        "r": int(frame.restarted),
        "n": [_short(frame.now.get(name)) for name in GAUGES],
        "g": [_short(frame.grown.get(name)) for name in COUNTERS],
        "f": {name: _short(count) for name, count in reasons.items()},
        "h": histograms,
    }
    return json.dumps(content, separators=(",", ":"))


def load(text: str, bounds_of: Callable[[str], tuple[float, ...] | None]) -> Frame:
    """The frame that was dumped. A histogram whose bounds are not known is left out."""
    content = json.loads(text)
    histograms = {}
    for name, stored in zip(HISTOGRAMS, content["h"], strict=False):
        if stored is not None and (bounds := bounds_of(stored[0])) is not None:
            buckets = {int(index): count for index, count in stored[2].items()}
            histograms[name] = Window(bounds, stored[1] or 0.0, buckets)
    return Frame(
        seconds=content["s"],
        restarted=bool(content["r"]),
        now={name: value for name, value in zip(GAUGES, content["n"], strict=False) if value is not None},
        grown={name: value for name, value in zip(COUNTERS, content["g"], strict=False) if value is not None}
        | content["f"],
        histograms=histograms,
    )


def load_bounds(stored: Mapping[str, str]) -> Bounds:
    """Bounds as they are kept in Redis: finite ones as JSON, the endless one left out."""
    return {key: (*json.loads(text), math.inf) for key, text in stored.items()}


def dump_bounds(bounds: Bounds) -> dict[str, str]:
    """The opposite of `load_bounds`."""
    return {key: json.dumps(values[:-1]) for key, values in bounds.items()}


def _short(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else float(f"{value:.7g}")

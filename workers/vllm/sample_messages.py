"""A typed sample as the message that crosses Redis, and back."""

import math
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any
from uuid import UUID

from workers.contracts import HistogramSample, InstanceSample
from workers.vllm.histograms import Histogram
from workers.vllm.metrics import COUNTERS, HISTOGRAMS, MetricsSample

GAUGES = ("requests_running", "requests_waiting", "kv_cache_usage", "kv_offload_usage", "resident_bytes")
"""Fields of a sample that say how it is now."""
_KNOWN = frozenset(field.name for field in fields(MetricsSample))


def to_message(
    sample: MetricsSample, *, instance: UUID, attempt: int, own_since: float | None = None
) -> InstanceSample:
    """The sample of one instance as it is sent; what is not finite is left out. `own_since`: see `InstanceSample`."""
    histograms: dict[str, HistogramSample] = {}
    for name in HISTOGRAMS:
        histogram: Histogram | None = getattr(sample, name)
        if histogram is not None and math.isinf(histogram.bounds[-1]):
            histograms[name] = HistogramSample.model_construct(
                bounds=list(histogram.bounds[:-1]),
                counts=list(histogram.counts[:-1]),
                count=histogram.count,
                total=histogram.total,
            )
    # Built without validation: these values are our own, and this runs every second for each engine.
    return InstanceSample.model_construct(
        instance=instance,
        attempt=attempt,
        taken_at=sample.taken_at,
        started_at=sample.started_at,
        now=_present(sample, GAUGES) | ({} if sample.asleep is None else {"asleep": float(sample.asleep)}),
        counters=_present(sample, COUNTERS),
        finished=dict(sample.finished),
        admission_rejections=dict(sample.admission_rejections),
        histograms=histograms,
        own_since=own_since,
    )


def from_message(message: InstanceSample) -> MetricsSample:
    """The typed sample that was sent. Names that this version doesn't know are passed over."""
    values: dict[str, Any] = {
        name: value for name, value in (message.now | message.counters).items() if name in _KNOWN and name != "asleep"
    }
    values |= {name: _histogram(sent) for name, sent in message.histograms.items() if name in HISTOGRAMS}
    asleep = message.now.get("asleep")
    return MetricsSample(
        taken_at=message.taken_at,
        started_at=message.started_at,
        asleep=None if asleep is None else bool(asleep),
        finished=_mapping(message.finished),
        admission_rejections=_mapping(message.admission_rejections),
        **values,
    )


def _present(sample: MetricsSample, names: tuple[str, ...]) -> dict[str, float]:
    values = {name: getattr(sample, name) for name in names}
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def _histogram(sent: HistogramSample) -> Histogram:
    return Histogram((*sent.bounds, math.inf), (*sent.counts, sent.count), sent.total)


def _mapping(values: Mapping[str, float]) -> Mapping[str, float]:
    return MappingProxyType(dict(values))

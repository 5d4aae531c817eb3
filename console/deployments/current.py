"""What instances do right now, as ingest keeps it in Redis: the numbers of lists and overviews.

They are of the last minute, and written anew every two seconds; numbers that are older than a quarter of a minute are no
longer shown, so a silent host has none. Whoever needs history asks `console.telemetry`.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

import structlog
from django.utils import timezone
from redis.exceptions import RedisError

from console.common.broker import connection
from workers.vllm.histograms import Histogram, added

log = structlog.get_logger(__name__)

KEY = "console:metrics:now"
"""Hash: instance's UUID -> `Current` as JSON."""
SHOWN_FOR_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Current:
    """Rates per second over the last minute, and how it is now. None: the engine doesn't say."""

    at: float
    """Seconds since the epoch, on the broker's clock."""
    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    requests: float | None = None
    errors: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1; of the fullest instance."""
    kv_offload: float | None = None
    preemptions: float | None = None
    acceptance: float | None = None
    """Share of the drafted tokens that were accepted, over the last minute."""
    queue_p95: float | None = None
    """95 % of the last minute's requests waited no longer than so many seconds."""
    ttft: Histogram | None = None

    @property
    def ttft_p95(self) -> float | None:
        """95 % of the last minute's first tokens came within so many seconds; None if there were none."""
        return self.ttft.quantile(0.95) if self.ttft else None


_OF_ONE = ("kv_usage", "kv_offload", "preemptions", "acceptance", "queue_p95")
_RATES = ("generation_tokens", "prompt_tokens", "requests", "errors", "running", "waiting")


def dump(current: Current) -> str:
    """As it is kept in Redis."""
    content = {name: getattr(current, name) for name in ("at", *_RATES, *_OF_ONE)}
    if current.ttft is not None:
        content["ttft"] = [current.ttft.bounds[:-1], current.ttft.counts, current.ttft.total]
    return json.dumps(content)


def load(text: str) -> Current:
    """The opposite of `dump`."""
    content = json.loads(text)
    ttft = content.pop("ttft", None)
    histogram = Histogram((*ttft[0], math.inf), tuple(ttft[1]), ttft[2]) if ttft else None
    return Current(**content, ttft=histogram)


def together(parts: Iterable[Current]) -> Current | None:
    """Several instances as one: rates are added, histograms too, of the KV cache the fullest counts. None if none."""
    present = list(parts)
    if not present:
        return None
    usages = [one.kv_usage for one in present if one.kv_usage is not None]
    return Current(
        at=max(one.at for one in present),
        **{name: _sum([getattr(one, name) for one in present]) for name in _RATES},
        kv_usage=max(usages, default=None),
        ttft=added(one.ttft for one in present),
    )


def of_instances(instances: Iterable[UUID]) -> dict[UUID, Current]:
    """The instances that have told something within the last seconds; empty while the broker is away."""
    wanted = [str(one) for one in instances]
    if not wanted:
        return {}
    try:
        stored = connection().hmget(KEY, wanted)
    except RedisError as error:
        log.warning("current numbers not read", error=str(error))
        return {}
    oldest = timezone.now().timestamp() - SHOWN_FOR_SECONDS
    found = {UUID(key): load(text) for key, text in zip(wanted, stored, strict=True) if text}  # type: ignore[arg-type]
    return {key: current for key, current in found.items() if current.at >= oldest}


def by_deployment(instances: Mapping[UUID, int]) -> dict[int, Current]:
    """Current numbers of deployments, from a mapping of their instances to them."""
    groups: dict[int, list[Current]] = {}
    for instance, current in of_instances(instances).items():
        groups.setdefault(instances[instance], []).append(current)
    return {key: whole for key, parts in groups.items() if (whole := together(parts)) is not None}


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None

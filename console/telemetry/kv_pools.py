"""The size of each instance's KV cache over time, as it was planned and as the engine found it, beside what is in use.

An engine's metrics tell a share; what a share is of stands in the facts of its launch. Columns get both, so that the charts
of one instance and of several together follow like all others.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from console.deployments.models import Instance, Launch
from console.telemetry.columns import MAX, NOW, Columns

POOL, PLANNED = f"{NOW}kv_pool_tokens", f"{NOW}kv_planned_tokens"
USED = f"{NOW}kv_used_tokens"


@dataclass(frozen=True)
class Pool:
    """The KV cache of one launch, from `since` (seconds since the epoch) on; tokens, None where nobody said it."""

    since: float
    tokens: float | None
    planned: float | None


Pools = Mapping[int, Sequence[Pool]]
"""By an instance's primary key, in the order of time."""


def pools_of(instances: Iterable[Instance]) -> Pools:
    """The pools of all launches of these instances, in one query."""
    keys = [instance.pk for instance in instances]
    launches = Launch.objects.filter(attempt__instance__in=keys).order_by("at")
    found: dict[int, list[Pool]] = {}
    for key, at, truth, plan in launches.values_list("attempt__instance", "at", "truth", "prediction"):
        # It counts from the spawn on: what is sampled while it warms up is of this launch already.
        since = at.timestamp() - (_number(truth, "seconds") or 0.0)
        pool = Pool(since, _number(truth, "kv_cache_tokens"), _number(plan, "kv_cache_tokens"))
        found.setdefault(key, []).append(pool)
    return found


def lay_beside(columns: Columns, pools: Sequence[Pool]) -> None:
    """Give the columns of one instance its pool and what is in use of it, in tokens, for every slot."""
    if not pools or not columns.starts:
        return
    since = [pool.since for pool in pools]
    at = [pools[max(0, bisect_right(since, start) - 1)] for start in columns.starts]
    shares = columns.column(f"{MAX}kv_cache_usage")
    columns.values[POOL] = [_or_nan(pool.tokens) for pool in at]
    columns.values[PLANNED] = [_or_nan(pool.planned) for pool in at]
    columns.values[USED] = [share * _or_nan(pool.tokens) for share, pool in zip(shares, at, strict=True)]


def _number(said: object, name: str) -> float | None:
    value = said.get(name) if isinstance(said, dict) else None
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value

"""Roll-ups: every minute, an engine's last minute goes from its ring into the database.

Rings are the source, so a killed ingest goes on where it was: a sorted set in Redis knows up to which second each engine
is stored, and a row takes only slots that come after its last. Engines take turns within the minute, so that the database
sees a few small writes every second instead of hundreds at once.
"""

import time
from typing import Any, cast
from uuid import UUID

import structlog
from django.db import transaction
from redis import Redis

from console.deployments.models import Instance
from console.telemetry.columns import Columns
from console.telemetry.models import COARSE_SECONDS, FINE_SECONDS, HOUR, MetricsHour
from console.telemetry.rings import SECONDS, STORED, Rings

log = structlog.get_logger(__name__)

LATE_SECONDS = 5
"""So long after the end of a minute its last samples have arrived."""
KEPT_SECONDS = {FINE_SECONDS: 25 * HOUR, COARSE_SECONDS: 30 * 24 * HOUR}
"""How long rows of each resolution are kept."""
MOST_AT_ONCE = 20
_PRUNE_AT_ONCE = 500


def store_due(redis: "Redis", rings: Rings, *, now: float | None = None, most: int = MOST_AT_ONCE) -> int:
    """Store what is due, of `most` engines at the most; returns of how many. `now` in seconds since the epoch."""
    now = time.time() if now is None else now
    complete = int(now - LATE_SECONDS) // COARSE_SECONDS * COARSE_SECONDS
    due: Any = redis.zrangebyscore(STORED, "-inf", complete - COARSE_SECONDS, start=0, num=most, withscores=True)
    if not due:
        return 0
    rows = dict(Instance.objects.filter(uuid__in=[key for key, _score in due]).values_list("uuid", "pk"))
    for key, stored in due:
        instance = UUID(key)
        if instance in rows:
            first = max(int(stored), int(now) - SECONDS)
            # The frame that ended at second `s` is of the second before it; a minute takes those that ended in it.
            slots = rings.read([instance], first, complete)[instance]
            if slots.starts:
                _store(rows[instance], slots)
                rings.keep([instance])
        if instance not in rows or (not slots.starts and now - stored > SECONDS):
            redis.zrem(STORED, key)
        else:
            redis.zadd(STORED, cast(Any, {key: complete}))
    return len(due)


def _store(instance_id: int, slots: Columns) -> None:
    with transaction.atomic():
        for resolution in (FINE_SECONDS, COARSE_SECONDS):
            rolled = slots.regrouped(resolution)
            for hour in sorted({start - start % HOUR for start in rolled.starts}):
                _append(instance_id, resolution, hour, rolled.between(hour, hour + HOUR))


def _append(instance_id: int, resolution: int, hour: int, slots: Columns) -> None:
    row = MetricsHour.objects.filter(
        instance_id=instance_id, resolution_seconds=resolution, begins_at=hour
    ).first() or MetricsHour(instance_id=instance_id, resolution_seconds=resolution, begins_at=hour)
    whole = unpacked(row) if row.pk else Columns()
    whole.extend(slots)
    row.packed = whole.pack(hour)
    row.save()


def unpacked(row: MetricsHour) -> Columns:
    """The slots of a row; none if the row can't be read (it is logged)."""
    try:
        return Columns.unpack(bytes(row.packed), row.begins_at)
    except ValueError as error:
        log.warning("metrics row not read", row=row.pk, error=str(error))
        return Columns()


def prune(*, now: float | None = None) -> int:
    """Delete rows that are older than their resolution is kept, a bounded number at once; returns how many."""
    now = time.time() if now is None else now
    deleted = 0
    for resolution, kept in KEPT_SECONDS.items():
        old = MetricsHour.objects.filter(resolution_seconds=resolution, begins_at__lt=now - kept - HOUR)
        keys = list(old.values_list("pk", flat=True)[:_PRUNE_AT_ONCE])
        if keys:
            deleted += MetricsHour.objects.filter(pk__in=keys).delete()[0]
    return deleted

"""Reading metrics of a range: from the rings, from the database, or from both where they meet."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from console.common.broker import connection
from console.deployments.models import Instance
from console.telemetry.columns import Columns
from console.telemetry.models import COARSE_SECONDS, FINE_SECONDS, HOUR, MetricsHour
from console.telemetry.rings import SECONDS as RING_SECONDS
from console.telemetry.rings import Rings
from console.telemetry.rollups import unpacked

MOST_POINTS = 900
STEPS = (1, 10, 30, 60, 120, 300, 900, 3600)
FINE_REACHES_SECONDS = 24 * HOUR
LONGEST_SECONDS = 30 * 24 * HOUR


@dataclass(frozen=True)
class Span:
    """A range of time in seconds since the epoch; `step` is the length of its slots."""

    first: int
    end: int
    step: int

    @classmethod
    def between(cls, first: float, end: float, *, now: float | None = None) -> "Span":
        """The finest slots that are kept for this range and are not too many for a chart."""
        now = time.time() if now is None else now
        first = max(first, now - LONGEST_SECONDS)
        end = min(max(end, first + 10), now + 1)
        kept = (
            1
            if first >= now - RING_SECONDS
            else FINE_SECONDS
            if first >= now - FINE_REACHES_SECONDS
            else COARSE_SECONDS
        )
        step = next((one for one in STEPS if one >= kept and (end - first) / one <= MOST_POINTS), STEPS[-1])
        return cls(int(first) // step * step, int(end), step)

    @classmethod
    def last(cls, seconds: int) -> "Span":
        """The last so many seconds."""
        now = time.time()
        return cls.between(now - seconds + 1, now, now=now)


def read(instances: Sequence[Instance], span: Span) -> dict[int, Columns]:
    """Slots of `span.step` seconds of each instance that has some, by its primary key."""
    uuids = {instance.pk: instance.uuid for instance in instances}
    if span.step == 1:
        found = {
            key: columns.between(span.first, span.end)
            for key, columns in _from_rings(uuids, dict.fromkeys(uuids, float(span.first)), span.end).items()
        }
    else:
        resolution = _resolution(span)
        found, ends = _stored(list(uuids), span, resolution)
        first = {key: ends.get(key, span.first) for key in uuids}
        oldest = time.time() - RING_SECONDS
        tails = _from_rings(uuids, {key: max(start, oldest) for key, start in first.items()}, span.end)
        for key, tail in tails.items():
            found.setdefault(key, Columns()).extend(tail.regrouped(resolution))
        found = {key: columns.between(span.first, span.end).regrouped(span.step) for key, columns in found.items()}
    return {key: columns for key, columns in found.items() if columns.starts}


def moments(parts: Sequence[Columns], span: Span) -> list[int]:
    """When there is something to show: the slots of all parts, and one empty moment in each gap, so that lines break."""
    starts = sorted({start for part in parts for start in part.starts})
    found: list[int] = []
    for start in starts:
        if found and start - found[-1] > 2 * span.step:
            found.append(found[-1] + span.step)
            if span.step == 1:
                found[-1] += 1  # the second after a sample still counts as that sample's
        found.append(start)
    return found


def _resolution(span: Span) -> int:
    return (
        FINE_SECONDS if span.first >= time.time() - FINE_REACHES_SECONDS - HOUR and span.step < HOUR else COARSE_SECONDS
    )


def _stored(keys: Sequence[int], span: Span, resolution: int) -> tuple[dict[int, Columns], dict[int, int]]:
    """Slots of each instance out of the database, and up to which second it has them."""
    rows = MetricsHour.objects.filter(
        instance_id__in=keys,
        resolution_seconds=resolution,
        begins_at__gt=span.first - HOUR,
        begins_at__lt=span.end,
    )
    found: dict[int, Columns] = {}
    ends: dict[int, int] = {}
    for row in rows.order_by("begins_at").iterator(chunk_size=100):
        # Slots of 10 s or a minute become the chart's at once; a month of them would be a lot of memory.
        hour = unpacked(row)
        if hour.starts:
            ends[row.instance_id] = hour.starts[-1] + resolution
        if span.step > resolution and row.begins_at + HOUR < span.end:
            hour = hour.regrouped(span.step)
        found.setdefault(row.instance_id, Columns()).extend(hour)
    return found, ends


def _from_rings(uuids: dict[int, UUID], first: dict[int, float], end: float) -> dict[int, Columns]:
    if not uuids:
        return {}
    rings = Rings(connection())
    found = rings.read(list(uuids.values()), min(first.values()), end + 1)
    return {key: found[uuid].between(int(first[key]), int(end) + 1) for key, uuid in uuids.items()}

"""A host and its devices over the last day: memory by owner, load, power, temperature, clocks, disk.

Each sign of life (every five seconds) leaves one entry in the host's stream; what is shown is the mean of its slots.
"""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from redis import Redis

from console.common.broker import connection
from console.common.models import StateChange
from console.deployments.models import Instance
from console.fleet.models import Host
from console.telemetry.measures import Chart, Line
from workers.host_facts import Gpu, live_of

LENGTH = 17_280
"""Entries of the stream: a day."""
RANGES = {900: "15 min", 3600: "1 h", 21_600: "6 h", 86_400: "24 h"}
MOST_POINTS = 400
EVERY_SECONDS = 5
GONE_AFTER_SECONDS = 2 * 86_400
GIB = 1 << 30


def stream(host: int) -> str:
    """Key of one host's stream."""
    return f"console:metrics:host:{host}"


def record(redis: "Redis", host: int, vitals: Mapping[str, Any]) -> None:
    """Note what a sign of life says."""
    pipe = redis.pipeline(transaction=False)
    pipe.xadd(stream(host), {"d": json.dumps(readings(vitals))}, maxlen=LENGTH, approximate=True)
    pipe.expire(stream(host), GONE_AFTER_SECONDS)
    pipe.execute()


def readings(vitals: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a heartbeat under the keys of the charts' lines; what it doesn't say is missing."""
    total, available = vitals.get("memory_total"), vitals.get("memory_available")
    disk_total, disk_free = vitals.get("disk_total"), vitals.get("disk_free")
    found: dict[str, float | None] = {
        "cpu": vitals.get("cpu_used"),
        "load": vitals.get("load_1m"),
        "disk": (disk_total - disk_free) / GIB if disk_total and disk_free is not None else None,
    }
    live = live_of(vitals)
    ours = sum(process.memory or 0 for process in live.processes) if live else 0
    if total and available is not None:
        found |= {"memory.engines": ours / GIB, "memory.others": max(0, total - available - ours) / GIB}
    for gpu in live.gpus.gpus if live else ():
        found |= {f"gpu{gpu.index}.{name}": value for name, value in _gpu(gpu).items()}
    return {key: round(float(value), 4) for key, value in found.items() if value is not None}


def _gpu(gpu: Gpu) -> dict[str, float | None]:
    known = [process for process in gpu.processes if process.memory is not None]
    ours = sum(process.memory or 0 for process in known if process.instance)
    strangers = sum(process.memory or 0 for process in known if not process.instance)
    used = gpu.memory_total - gpu.memory_free if gpu.memory_free is not None else None
    return {
        "engines": ours / GIB,
        "strangers": strangers / GIB,
        "other": max(0, used - ours - strangers) / GIB if used is not None else None,
        "utilization": gpu.utilization,
        "power": gpu.power_watts,
        "temperature": gpu.temperature_c,
        "clock": gpu.clock_sm_mhz,
    }


def charts(host: Host) -> tuple[Chart, ...]:
    """The charts of this host: its own, then those of its GPUs."""
    gpus = [device for device in host.devices.all() if device.kind == "gpu"]
    own = (
        Chart("cpu", gettext_lazy("Processors"), "share", (Line("cpu", gettext_lazy("in use")),), "cpu", ""),
        Chart(
            "memory",
            gettext_lazy("Memory"),
            "GiB",
            (
                Line("memory.engines", gettext_lazy("engines")),
                Line("memory.others", gettext_lazy("everything else"), "calm"),
            ),
            "memory.engines",
            "",
        ),
        Chart("load", gettext_lazy("Load, one minute"), "requests", (Line("load", gettext_lazy("load")),), "load", ""),
        Chart("disk", gettext_lazy("Disk in use"), "GiB", (Line("disk", gettext_lazy("in use")),), "disk", ""),
    )
    return (*own, *(chart for device in gpus for chart in _gpu_charts(device.index)))


def _gpu_charts(index: int) -> tuple[Chart, ...]:
    def chart(name: str, title: str, unit: str, *lines: Line) -> Chart:
        whole = _("GPU %(index)d: %(title)s") % {"index": index, "title": title}
        return Chart(f"gpu{index}-{name}", whole, unit, lines, lines[0].key, "")

    gpu = f"gpu{index}"
    return (
        chart(
            "memory",
            _("memory"),
            "GiB",
            Line(f"{gpu}.engines", _("engines")),
            Line(f"{gpu}.strangers", _("strangers"), "bad"),
            Line(f"{gpu}.other", _("driver and unknown"), "calm"),
        ),
        chart("utilization", _("utilisation"), "share", Line(f"{gpu}.utilization", _("busy"))),
        chart("power", _("power"), "W", Line(f"{gpu}.power", _("power"), "warn")),
        chart("temperature", _("temperature"), "°C", Line(f"{gpu}.temperature", _("temperature"), "bad")),
        chart("clock", _("clock"), "MHz", Line(f"{gpu}.clock", _("processors"), "calm")),
    )


def board(host: Host, *, range_seconds: int) -> dict[str, Any]:
    """The lines of a host's charts, in the form of a deployment's board."""
    now = time.time()
    entries: Any = connection().xrange(stream(host.pk), str(int((now - range_seconds) * 1000)), "+")
    step = max(EVERY_SECONDS, -(-range_seconds // MOST_POINTS // EVERY_SECONDS) * EVERY_SECONDS)
    slots: dict[int, list[Mapping[str, float]]] = {}
    for entry, fields in entries:
        moment = int(entry.partition("-")[0]) // 1000
        slots.setdefault(moment - moment % step, []).append(json.loads(fields["d"]))
    moments = _with_gaps(sorted(slots), step)
    shown = charts(host)
    keys = [line.key for chart in shown for line in chart.lines]
    values = {key: [_mean(slots.get(moment, ()), key) for moment in moments] for key in keys}
    return {
        "span": {"first": int(now - range_seconds), "end": int(now), "step": step},
        "t": [moment * 1000 for moment in moments],
        "groups": [{"key": "all", "name": "", "values": values}],
        "compared": None,
        "totals": [],
        "marks": _marks(host, now - range_seconds),
        "empty": {
            chart.id: _reason(host, bool(slots))
            for chart in shown
            if all(value is None for line in chart.lines for value in values[line.key])
        },
    }


def _with_gaps(starts: Sequence[int], step: int) -> list[int]:
    """The slots, and an empty moment after each that has no neighbour, so that lines break there."""
    found: list[int] = []
    for start in starts:
        if found and start - found[-1] > 3 * step:
            found.append(found[-1] + step)
        found.append(start)
    return found


def _mean(parts: Sequence[Mapping[str, float]], key: str) -> float | None:
    known = [part[key] for part in parts if key in part]
    return float(f"{sum(known) / len(known):.5g}") if known else None


def _marks(host: Host, first: float) -> list[dict[str, Any]]:
    """Starts and ends of instances here."""
    names = {instance.pk: str(instance) for instance in Instance.objects.filter(host=host).select_related("deployment")}
    changes = StateChange.objects.filter(
        kind="deployments.instance",
        object_id__in=names,
        after__in=("ready", "stopped", "crashed"),
        at__gte=datetime.fromtimestamp(first, tz=UTC),
    )
    return [
        {"t": int(row.at.timestamp() * 1000), "kind": row.after, "text": f"{names[row.object_id]} {row.after}"}
        for row in changes.order_by("-at")[:60]
    ]


def _reason(host: Host, told: bool) -> str:  # noqa: FBT001 - one word at its only call
    if host.last_seen_at is None:
        return _("This host has not joined yet.")
    if told:
        return _("This host does not tell that.")
    local = timezone.localtime(host.last_seen_at)
    return _("Host %(host)s offline since %(time)s.") % {"host": host.name, "time": f"{local:%H:%M} {local.tzname()}"}

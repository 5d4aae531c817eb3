"""A host and its devices over the last day: memory by owner, load, power, temperature, clocks, Xid errors, disk, network.

Each sign of life (every five seconds) leaves one entry in the host's stream; what is shown is the mean of its slots.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from redis import Redis

from console.deployments.models import Instance
from console.fleet.models import Device, Host
from console.telemetry import marks
from console.telemetry.marks import About, Mark
from console.telemetry.measures import Chart, Line
from console.telemetry.windows import Window, with_gaps
from workers.host_facts import Gpu, facts_of, live_of

LENGTH = 17_280
"""Entries of the stream: a day."""
EVERY_SECONDS = 5
GONE_AFTER_SECONDS = 2 * 86_400
GIB = 1 << 30
COUNTED = "counted."
"""Prefix of what a host counts since its start, and of when (`counted.at`, seconds on its steady clock)."""
DIRECTIONS = ("received", "sent")
MOST_BETWEEN_SECONDS = 60.0
"""Over a longer silence a mean would look like a measurement."""
MARKED = ("ready", "restarting", "unhealthy", "stopped", "crashed")


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
        **_network(vitals.get("network")),
    }
    live = live_of(vitals)
    ours = sum(process.memory or 0 for process in live.processes) if live else 0
    if total and available is not None:
        found |= {"memory.engines": ours / GIB, "memory.others": max(0, total - available - ours) / GIB}
    for gpu in live.gpus.gpus if live else ():
        found |= {f"{_key(gpu.number)}.{name}": value for name, value in _gpu(gpu).items()}
    return {key: round(float(value), 4) for key, value in found.items() if value is not None}


def _network(told: object) -> dict[str, float]:
    """The counters as the host has them; `rates` makes growth of them."""
    if not isinstance(told, dict):
        return {}
    return {f"{COUNTED}{name}": value for name, value in told.items() if isinstance(value, int | float)}


def rates(earlier: Mapping[str, float], later: Mapping[str, float]) -> dict[str, float]:
    """Bytes per second between two entries, by the host's own steady clock; nothing over a gap or a host's restart."""
    passed = later.get(f"{COUNTED}at", math.nan) - earlier.get(f"{COUNTED}at", math.nan)
    if not 0 < passed <= MOST_BETWEEN_SECONDS:
        return {}
    grown = {name: (later.get(COUNTED + name), earlier.get(COUNTED + name)) for name in DIRECTIONS}
    return {
        f"network.{name}": (now - before) / passed
        for name, (now, before) in grown.items()
        if now is not None and before is not None and now >= before
    }


def _key(number: str) -> str:
    """Begins the keys of a GPU's charts and lines: they become ids of elements, in which a dot would begin a class."""
    return f"gpu{number.replace('.', '-')}"


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
        Chart("load", gettext_lazy("Load, one minute"), "load", (Line("load", gettext_lazy("load")),), "load", ""),
        Chart("disk", gettext_lazy("Disk in use"), "GiB", (Line("disk", gettext_lazy("in use")),), "disk", ""),
        Chart(
            "network",
            gettext_lazy("Network"),
            "bytes/s",
            (
                Line("network.received", gettext_lazy("received")),
                Line("network.sent", gettext_lazy("sent"), "calm"),
            ),
            "network.received",
            "",
            gettext_lazy("Over all interfaces that are no loopback; of a machine of its own, its physical ones."),
        ),
    )
    return (*own, *(chart for device in gpus for chart in _gpu_charts(device)))


def _gpu_charts(device: Device) -> tuple[Chart, ...]:
    gpu = _key(device.number)
    part = f" · MIG {device.number}" if device.is_part else ""

    def chart(name: str, title: str, unit: str, *lines: Line) -> Chart:
        whole = _("GPU %(index)d: %(title)s") % {"index": device.index, "title": title} + part
        return Chart(f"{gpu}-{name}", whole, unit, lines, lines[0].key, "")

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


def board(host: Host, window: Window) -> dict[str, Any]:
    """The lines of a host's charts, in the form of a deployment's board."""
    slots = window.slots(_entries(host, window), every=EVERY_SECONDS)
    moments = with_gaps(sorted(slots), window.step(EVERY_SECONDS))
    shown = charts(host)
    keys = [line.key for chart in shown for line in chart.lines]
    values = {key: [_mean(slots.get(moment, ()), key) for moment in moments] for key in keys}
    return window.board(
        step=window.step(EVERY_SECONDS),
        moments=moments,
        groups=[{"key": "all", "name": "", "values": values}],
        marks=_marks(host, window),
        empty={
            chart.id: _reason(host, told=bool(slots))
            for chart in shown
            if all(value is None for line in chart.lines for value in values[line.key])
        },
    )


def _entries(host: Host, window: Window) -> Iterable[tuple[int, Mapping[str, float]]]:
    """What each sign of life said, with the rates since the one before."""
    before: Mapping[str, float] = {}
    for moment, content in window.read(stream(host.pk)):
        yield moment, content | rates(before, content)
        before = content


def _mean(parts: Sequence[Mapping[str, float]], key: str) -> float | None:
    known = [part[key] for part in parts if key in part]
    return float(f"{sum(known) / len(known):.5g}") if known else None


def _marks(host: Host, window: Window) -> list[dict[str, Any]]:
    """Starts and ends of instances here, alerts about the host or what runs on it, errors that its driver reported."""
    names = {instance.pk: str(instance) for instance in Instance.objects.filter(host=host).select_related("deployment")}
    first, end = window.first, window.end
    moves = marks.moves("deployments.instance", names, MARKED, first, end)
    alerts = marks.contributed(About(hosts=(host.pk,)), first, end)
    return marks.drawn([*moves, *alerts, *_xids(host, first, end)])


def _xids(host: Host, first: float, end: float) -> list[Mark]:
    """Xid errors of the range; the host's clock wrote them, its measured skew is taken off."""
    facts = facts_of(host.facts)
    skew = host.clock_skew_seconds or 0.0
    return [
        Mark(
            datetime.fromtimestamp(event.at - skew, tz=UTC),
            "xid",
            f"Xid {event.code} {event.bus_id}: {event.text}",
            "bad",
        )
        for event in (facts.xid.events if facts else ())
        if first <= event.at - skew <= end
    ]


def _reason(host: Host, *, told: bool) -> str:
    if host.last_seen_at is None:
        return _("This host has not joined yet.")
    if told:
        return _("This host does not tell that.")
    local = timezone.localtime(host.last_seen_at)
    return _("Host %(host)s offline since %(time)s.") % {"host": host.name, "time": f"{local:%H:%M} {local.tzname()}"}

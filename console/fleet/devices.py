"""Devices of a host: what inventories and heartbeats say of them becomes rows, and a summary that lists can read."""

from collections.abc import Iterable, Mapping
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _

from console.fleet import environment
from console.fleet.models import Device, Host
from workers.contracts import HostInventory
from workers.host_facts import Gpu, live_of

SUMMARY = ("vitals", "gpu_count", "memory_free", "device_groups", "environment_failures", "environment_warnings")
"""Columns of `Host` that `note_vitals` sets."""


def take(host: Host, inventory: HostInventory) -> None:
    """Store the devices of an inventory. One that is missing is lost since now, unless the host has not looked yet."""
    now = timezone.now()
    for device in inventory.devices:
        values = device.model_dump(exclude={"uuid"}) | {"lost_at": None, "lost_reason": ""}
        values["divided"] = bool(device.details.get("divided"))
        Device.objects.update_or_create(host=host, uuid=device.uuid, defaults=values)
    seen = [device.uuid for device in inventory.devices]
    if inventory.devices_known:
        host.devices.exclude(uuid__in=seen).filter(lost_at=None).update(lost_at=now, lost_reason=_why_lost(host))
    host.lost_devices = host.devices.exclude(lost_at=None).count()
    note_vitals(host, host.vitals, judge=True)
    host.save(update_fields=[*SUMMARY, "lost_devices"])


def _why_lost(host: Host) -> str:
    facts = environment.facts_of_host(host)
    return facts.gpus.problem[:1000] if facts else ""


def note_vitals(host: Host, vitals: Mapping[str, Any], *, judge: bool = False) -> tuple[str, ...]:
    """Set the host's vitals and summary, without saving; returns the names of the columns that may have changed.

    The environment is judged anew when asked to, or when the GPUs' state is another than it was: it costs a millisecond,
    and a thousand hosts send two hundred heartbeats a second.
    """
    before = _state(host.vitals)
    host.vitals = vitals
    live = live_of(vitals)
    gpus = [gpu for gpu in live.gpus.gpus if gpu.usable] if live else []
    if live is None:
        _summarize_rows(host)
    else:
        _summarize(host, gpus, vitals)
    if judge or _state(vitals) != before:
        host.environment_failures, host.environment_warnings = environment.count(host)
    return SUMMARY


def _state(vitals: Any) -> tuple[Any, ...]:
    live = vitals.get("live") if isinstance(vitals, Mapping) else None
    gpus = live.get("gpus") if isinstance(live, Mapping) else None
    if not isinstance(gpus, Mapping):
        return ()
    return gpus.get("code"), gpus.get("driver"), len(gpus.get("gpus") or [])


def _summarize(host: Host, gpus: Iterable[Gpu], vitals: Mapping[str, Any]) -> None:
    groups: dict[str, dict[str, Any]] = {}
    for gpu in gpus:
        group = groups.setdefault(gpu.name, {"kind": "gpu", "name": gpu.name, "count": 0, "total": 0, "used": 0})
        group["count"] += 1
        group["total"] += gpu.memory_total
        group["used"] += gpu.memory_total - free_of(gpu)
    host.gpu_count = sum(group["count"] for group in groups.values())
    total, available = _number(vitals.get("memory_total")), _number(vitals.get("memory_available"))
    cpu = {"kind": "cpu", "name": _cpu_name(host), "count": 1, "total": total, "used": max(0, total - available)}
    host.device_groups = [*groups.values(), cpu]
    host.memory_free = sum(one["total"] - one["used"] for one in groups.values()) if groups else available


def _summarize_rows(host: Host) -> None:
    """An older agent tells devices only now and then: take the rows."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for device in Device.objects.usable().filter(host=host) if host.pk else ():
        empty = {"kind": device.kind, "name": device.name, "count": 0, "total": 0, "used": 0}
        group = groups.setdefault((device.kind, device.name), empty)
        group["count"] += 1
        group["total"] += device.memory_total
        group["used"] += max(0, device.memory_total - device.memory_free)
    ordered = sorted(groups.values(), key=lambda group: group["kind"] == "cpu")
    gpus = [group for group in ordered if group["kind"] == "gpu"]
    host.device_groups = ordered
    host.gpu_count = sum(group["count"] for group in gpus)
    host.memory_free = sum(one["total"] - one["used"] for one in gpus or ordered) if ordered else None


def free_of(gpu: Gpu) -> int:
    """Bytes free on a GPU; where the driver only says what is used, the rest."""
    if gpu.memory_free is not None:
        return gpu.memory_free
    return max(0, gpu.memory_total - (gpu.memory_used or 0) - (gpu.memory_reserved or 0))


def _cpu_name(host: Host) -> str:
    facts = host.facts.get("host") if isinstance(host.facts, Mapping) else None
    cpu = facts.get("cpu") if isinstance(facts, Mapping) else None
    return str(cpu.get("name") or _("CPU"))[:120] if isinstance(cpu, Mapping) else _("CPU")


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int | float) else 0

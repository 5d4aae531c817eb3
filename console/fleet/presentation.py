"""Hosts as pages show them: one sentence of truth, device groups, what they told."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Count, Q, QuerySet, Sum
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from console.access.models import AuditEntry
from console.common.spans import readable_bytes, relative
from console.fleet.models import OFFLINE_AFTER_SECONDS, Device, Host

SKEW_WORTH_SAYING_SECONDS = 2


@dataclass(frozen=True)
class Memory:
    """A device's memory in bytes. A full one is no fault: engines take most of it when they start."""

    used: int
    total: int

    @property
    def free(self) -> int:
        """What is left, in bytes."""
        return self.total - self.used


def memory(device: Device, vitals: Mapping[str, Any] | None = None) -> Memory:
    """Memory of a device: from the last heartbeat if it says so, else from the last inventory."""
    free = _free_in_vitals(device, vitals or {})
    used = max(0, device.memory_total - (device.memory_free if free is None else free))
    return Memory(used, device.memory_total)


def _free_in_vitals(device: Device, vitals: Mapping[str, Any]) -> int | None:
    if device.kind == "cpu":
        free = vitals.get("memory_available")
        return int(free) if isinstance(free, int | float) else None
    for entry in vitals.get("gpus") or []:
        if isinstance(entry, Mapping) and entry.get("uuid") == device.uuid:
            free = entry.get("memory_free")
            return int(free) if isinstance(free, int | float) else None
    return None


@dataclass(frozen=True)
class DeviceGroup:
    """Like devices of one host, counted together. Memory in bytes; a full one is no fault: engines take most of it."""

    kind: str
    name: str
    count: int
    used: int
    total: int

    @property
    def free(self) -> int:
        """What is left, in bytes."""
        return self.total - self.used


def device_groups(host: Host) -> list[DeviceGroup]:
    """Devices of a host as of its last heartbeat, GPUs first; from its own row, so that a list needs no further query."""
    return [
        DeviceGroup(one["kind"], one["name"], one["count"], one["used"], one["total"]) for one in host.device_groups
    ]


NOT_REMOVED = ~Q(public_key="", join_token_sha256="", redis_password_sha256="")
"""The opposite of `Host.is_removed`, for queries."""


def totals(hosts: QuerySet[Host]) -> dict[str, Any]:
    """What all hosts together are, in one query: how many are online, silent, waiting or in trouble, GPUs, free memory."""
    limit = timezone.now() - timedelta(seconds=OFFLINE_AFTER_SECONDS)
    online = Q(last_seen_at__gt=limit)
    return hosts.filter(NOT_REMOVED).aggregate(
        all=Count("pk"),
        online=Count("pk", filter=online),
        offline=Count("pk", filter=Q(last_seen_at__lte=limit)),
        waiting=Count("pk", filter=Q(last_seen_at=None)),
        gpus=Sum("gpu_count", filter=online, default=0),
        memory_free=Sum("memory_free", filter=online & Q(gpu_count__gt=0), default=0),
        failing=Count("pk", filter=online & (Q(environment_failures__gt=0) | Q(lost_devices__gt=0))),
    )


def truth(host: Host, *, instances: int, ready: int, crashed: int = 0) -> str:
    """The truth about a host in a few sentences."""
    if host.is_removed:
        return _removed(host)
    if host.last_seen_at is None:
        return _not_heard_of(host)
    said = _what_it_does(host, instances=instances, ready=ready, crashed=crashed)
    return f"{said} {_new_work(host, instances)}".strip()


def work_look(host: Host, instances: int) -> str:
    """Name of the look of what it does with new work: one that was drained and has `instances` left is draining still."""
    return "drained" if host.state == "draining" and not instances else host.state


def _new_work(host: Host, instances: int) -> str:
    if host.state == "accepting":
        return ""
    why = f" ({host.state_reason})" if host.state_reason else ""
    told = {
        "paused": _("It is paused%(why)s: what runs goes on, and it takes no new work."),
        "draining": _("It is being drained%(why)s: what runs ends, and it takes no new work."),
        "drained": _("It is drained%(why)s and takes no new work until someone brings it back."),
    }
    return told[work_look(host, instances)] % {"why": why}


def _removed(host: Host) -> str:
    entry = AuditEntry.objects.filter(action="host.remove", target=host.name).first()
    stays = _("Its jobs stay in the ledger; with a new join command it comes back.")
    if entry is None:
        return " ".join((_("Removed."), stays))
    text = _("Removed %(ago)s by %(who)s: %(reason)s.") % {
        "ago": relative(entry.at), "who": entry.actor_name, "reason": entry.reason.rstrip("."),
    }  # fmt: skip
    if count := entry.details.get("instances"):
        text += " " + ngettext(
            "%(count)d instance was given up and may still run there, unseen.",
            "%(count)d instances were given up and may still run there, unseen.",
            count,
        ) % {"count": count}
    return f"{text} {stays}"


def _what_it_does(host: Host, *, instances: int, ready: int, crashed: int) -> str:
    if host.last_seen_at is not None and not host.is_online:
        text = _("Last heard of %(ago)s; what it does since then is unknown.") % {"ago": relative(host.last_seen_at)}
        if instances:
            text += " " + ngettext(
                "%(count)d instance there may still be serving.",
                "%(count)d instances there may still be serving.",
                instances,
            ) % {"count": instances}
        return text
    fallen = ngettext("%d has crashed.", "%d have crashed.", crashed) % crashed if crashed else ""
    if not instances:
        idle = _("Online. Nothing runs here.")
        return f"{idle} {fallen}".strip()
    text = ngettext(
        "Online, with %(ready)d of %(count)d instance ready.",
        "Online, with %(ready)d of %(count)d instances ready.",
        instances,
    ) % {"ready": ready, "count": instances}
    return f"{text} {fallen}".strip()


def _not_heard_of(host: Host) -> str:
    if host.join_token_expired:
        return _("Nobody ran its join command in time, so it works no more. Make a new one.")
    if host.join_token_sha256:
        return _("Waiting for its first sign of life. Run the join command on the machine.")
    return _("It has joined, but its agent was never heard of. The agent's log on the machine says why.")


def warnings(host: Host) -> list[str]:
    """What about a host deserves a look."""
    found = []
    if refused := host.vitals.get("refused_agent"):
        found.append(
            _("A second agent for this host was refused: process %(pid)s on machine %(machine)s. Stop it there.")
            % {"pid": refused.get("pid"), "machine": refused.get("machine")}
        )
    if host.clock_skew_seconds is not None and abs(host.clock_skew_seconds) > SKEW_WORTH_SAYING_SECONDS:
        found.append(
            _("Its clock is %(seconds).1f s off the console's. Times in its logs are shifted by that much.")
            % {"seconds": host.clock_skew_seconds}
        )
    if host.unknown_instances:
        found.append(
            ngettext(
                "%(count)d instance runs there that this console did not order. It is left alone.",
                "%(count)d instances run there that this console did not order. They are left alone.",
                len(host.unknown_instances),
            )
            % {"count": len(host.unknown_instances)}
        )
    return found


def facts(host: Host) -> list[tuple[str, str]]:
    """What the host told about itself in short, by readable names; nested tables as `a.b`."""
    told = {name: value for name, value in host.facts.items() if name != "host"}
    return [(str(_FACT_NAMES.get(name, name.replace("_", " ").capitalize())), value) for name, value in _flat(told)]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        if name in _NOT_SHOWN:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _readable(name, value)


def _readable(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if name == "boot_time" and isinstance(value, int | float):
        return f"{timezone.localtime(datetime.fromtimestamp(value, tz=UTC)):%Y-%m-%d %H:%M %Z}"
    if name == "port_range" and isinstance(value, list):
        return "–".join(map(str, value))
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    if isinstance(value, int | float) and any(part in name for part in ("memory", "disk", "bytes", "size")):
        return readable_bytes(value)
    return "–" if value in (None, "") else str(value)


_NOT_SHOWN = {"boot_id", "public_key", "driver", "driver_trouble"}
"""Of no use to a reader, or on the agent's card already."""
_FACT_NAMES = {
    "hostname": gettext_lazy("Host name"),
    "system": gettext_lazy("Operating system"),
    "machine": gettext_lazy("Processor architecture"),
    "python": gettext_lazy("Python"),
    "boot_time": gettext_lazy("Booted"),
    "models_dir": gettext_lazy("Models directory"),
    "engines_dir": gettext_lazy("Engines directory"),
    "port_range": gettext_lazy("Ports of instances"),
    "disk_total": gettext_lazy("Disk"),
}

"""Devices as the host's page shows them: live numbers, who holds the memory, processes, strangers, the machine itself."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _

from console.common.spans import readable_bytes
from console.fleet.devices import free_of
from console.fleet.models import Device, Host
from workers.host_facts import Gpu, GpuProcess, HostFacts, Live, Stranger, Xid, live_of
from workers.vllm.environment_devices import XID_MEANINGS

STALE_SECONDS = 20
"""A sample older than this, when it is sent, is said to be old."""
_BAR_WIDTH = 1000
_OWNERS = 6
"""Owners with a colour of their own in a bar; the rest are counted together."""


@dataclass(frozen=True)
class Owner:
    """Somebody who holds memory of a device. `instance`: ours, with its page; else a stranger."""

    name: str
    memory: int | None
    url: str = ""
    pid: int | None = None
    kind: str = "stranger"
    """`ours`, `stranger`, `reserved` or `rest`."""


@dataclass(frozen=True)
class Segment:
    """One piece of a memory bar, in thousandths of its width."""

    x: int
    width: int
    colour: str
    owner: Owner


@dataclass(frozen=True)
class ShownDevice:
    """One device with what is known of it now."""

    title: str
    index: str
    tags: list[str]
    used: int
    total: int
    free: int
    segments: list[Segment] = field(default_factory=list)
    numbers: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    lost: Device | None = None
    divided: bool = False


@dataclass(frozen=True)
class ShownProcess:
    """A row of the processes' table."""

    owner: Owner
    device: str
    command: str


@dataclass(frozen=True)
class ShownStranger:
    """A vLLM that somebody started by hand."""

    stranger: Stranger
    devices: list[str]
    started_at: datetime | None
    deploy_url: str


def shown(host: Host, facts: HostFacts | None, names: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Everything about devices for the host's page. `names`: instance id -> its name and page."""
    live = live_of(host.vitals) or Live()
    rows = {device.uuid: device for device in host.devices.all()}
    gpus = live.gpus.gpus if host.is_online else []
    devices = [_gpu(gpu, names) for gpu in gpus] + [
        _lost(row) for row in rows.values() if row.lost_at is not None and row.uuid not in {gpu.uuid for gpu in gpus}
    ]
    if not gpus:
        devices += [_row(row) for row in rows.values() if row.kind == "gpu" and row.lost_at is None]
    if "cpu" in rows:
        devices.append(_cpu(rows["cpu"], host, live, facts, names))
    return {
        "devices": devices,
        "processes": [_process(one, gpu, names) for gpu in gpus for one in gpu.processes],
        "strangers": [_stranger(one, gpus, host) for one in live.strangers] if host.is_online else [],
        "device_source": live.gpus.source,
        "device_problem": live.gpus.problem if live.gpus.code != "none" else "",
        "no_gpu": live.gpus.problem if live.gpus.code == "none" else "",
        "stale_seconds": live.age_seconds if live.age_seconds > STALE_SECONDS else None,
    }


def _gpu(gpu: Gpu, names: Mapping[str, tuple[str, str]]) -> ShownDevice:
    free = free_of(gpu)
    owners = [_owner(one, names) for one in gpu.processes]
    if gpu.memory_reserved:
        owners.append(Owner(_("driver"), gpu.memory_reserved, kind="reserved"))
    used = max(0, gpu.memory_total - free)
    return ShownDevice(
        title=gpu.name,
        index=f"#{gpu.number}",
        tags=_tags(gpu),
        used=used,
        total=gpu.memory_total,
        free=free,
        segments=[] if not gpu.usable else _segments(owners, used, gpu.memory_total),
        numbers=_numbers(gpu),
        warnings=_gpu_warnings(gpu),
        divided=not gpu.usable,
    )


def _tags(gpu: Gpu) -> list[str]:
    tags = [f"sm_{gpu.capability.replace('.', '')}"] if gpu.capability else []
    if gpu.pcie_generation_max and gpu.pcie_width:
        tags.append(f"PCIe {gpu.pcie_generation_max} x{gpu.pcie_width}")
    if gpu.nvlink_links:
        tags.append(f"NVLink ×{gpu.nvlink_links}")
    if gpu.mig is not None:
        tags.append(f"MIG {gpu.mig.profile}".strip())
    if gpu.ecc_enabled is not None and gpu.mig is None:
        tags.append("ECC" if gpu.ecc_enabled else _("ECC off"))
    if gpu.bus_id and gpu.mig is None:
        tags.append(gpu.bus_id.removeprefix("0000"))
    return tags


def _numbers(gpu: Gpu) -> list[tuple[str, str]]:
    found = []
    if gpu.utilization is not None:
        found.append((_("busy"), f"{gpu.utilization:.0%}"))
    if gpu.power_watts is not None:
        limit = f" / {gpu.power_limit_watts:.0f}" if gpu.power_limit_watts else ""
        found.append((_("power"), f"{gpu.power_watts:.0f}{limit} W"))
    if gpu.temperature_c is not None:
        found.append((_("temperature"), f"{gpu.temperature_c} °C"))
    if gpu.clock_sm_mhz is not None:
        top = f" / {gpu.clock_sm_max_mhz:,}" if gpu.clock_sm_max_mhz else ""
        found.append((_("clock"), f"{gpu.clock_sm_mhz:,}{top} MHz"))
    return found


def _gpu_warnings(gpu: Gpu) -> list[str]:
    found = []
    if not gpu.usable:
        found.append(_("Divided by MIG: only its parts can be used."))
    if gpu.slowdowns:
        found.append(_("Clocks held down: %s.") % ", ".join(gpu.slowdowns))
    if gpu.ecc_uncorrected:
        found.append(_("Uncorrectable memory errors: %d.") % gpu.ecc_uncorrected)
    if gpu.rows_pending:
        found.append(_("Memory rows wait for a reset to be replaced."))
    if gpu.compute_mode in ("Prohibited", "Exclusive_Process", "Exclusive_Thread"):
        found.append(_("Compute mode is %s.") % gpu.compute_mode)
    return found


def _cpu(
    row: Device, host: Host, live: Live, facts: HostFacts | None, names: Mapping[str, tuple[str, str]]
) -> ShownDevice:
    total = row.memory_total
    free = host.vitals.get("memory_available") if isinstance(host.vitals, Mapping) else None
    free = int(free) if isinstance(free, int | float) else row.memory_free
    owners = [_owner(one, names) for one in live.processes]
    on_cpu = [one for one in live.strangers if not one.devices]
    owners += [Owner(one.model or "vLLM", one.memory, pid=one.pid) for one in on_cpu]
    used = max(0, total - free)
    return ShownDevice(
        title=row.name,
        index="",
        tags=_cpu_tags(facts),
        used=used,
        total=total,
        free=free,
        segments=_segments(owners, used, total),
        numbers=_cpu_numbers(host),
    )


def _cpu_tags(facts: HostFacts | None) -> list[str]:
    if facts is None:
        return []
    cpu = facts.cpu
    tags = [_("%d cores") % cpu.cores] if cpu.cores else []
    if cpu.threads and cpu.usable and cpu.usable < cpu.threads:
        tags.append(
            _("%(usable)s of %(threads)d threads usable") % {"usable": f"{cpu.usable:g}", "threads": cpu.threads}
        )
    elif cpu.threads:
        tags.append(_("%d threads") % cpu.threads)
    if len(cpu.nodes) > 1:
        tags.append(_("%d NUMA nodes") % len(cpu.nodes))
    groups = (
        ("AMX", "amx_"),
        ("AVX-512", "avx512"),
        ("AVX2", "avx2"),
        ("bf16", "bf16"),
        ("SVE", "sve"),
        ("NEON", "asimd"),
    )
    have = [word for word, part in groups if any(part in feature for feature in cpu.features)]
    return tags + have


def _cpu_numbers(host: Host) -> list[tuple[str, str]]:
    vitals = host.vitals if isinstance(host.vitals, Mapping) else {}
    used, load = vitals.get("cpu_used"), vitals.get("load_1m")
    found = [(_("busy"), f"{used:.0%}")] if isinstance(used, int | float) else []
    return found + ([(_("load"), f"{load:.1f}")] if isinstance(load, int | float) else [])


def _lost(row: Device) -> ShownDevice:
    return ShownDevice(row.name, f"#{row.number}", [], 0, row.memory_total, 0, lost=row)


def _row(row: Device) -> ShownDevice:
    """A device of which only the last inventory is known: its host is silent, or its agent is an older one."""
    free = row.memory_free
    tags = [f"sm_{str(row.details.get('capability', '')).replace('.', '')}"] if row.details.get("capability") else []
    used = max(0, row.memory_total - free)
    return ShownDevice(
        row.name, f"#{row.number}", tags, used, row.memory_total, free, _segments([], used, row.memory_total)
    )


def _owner(process: GpuProcess, names: Mapping[str, tuple[str, str]]) -> Owner:
    if process.instance:
        name, url = names.get(process.instance, (_("an instance of another Slipway"), ""))
        return Owner(name, process.memory, url, process.pid, "ours" if url else "stranger")
    return Owner(_short(process.name) or _("a process of another user"), process.memory, pid=process.pid)


def _short(command: str) -> str:
    words = command.split()
    if not words:
        return ""
    program = words[0].rpartition("/")[2]
    return " ".join([program, *words[1:3]])[:60]


def _segments(owners: Iterable[Owner], used: int, total: int) -> list[Segment]:
    """Pieces of the bar by owner; what nobody is known to hold comes last, so that the bar always sums up to `used`."""
    if total <= 0:
        return []
    known = sorted((one for one in owners if one.memory), key=lambda one: (one.kind != "ours", -(one.memory or 0)))
    shown_owners, more = known[:_OWNERS], known[_OWNERS:]
    if more:
        shown_owners.append(Owner(_("others"), sum(one.memory or 0 for one in more)))
    rest = used - sum(one.memory or 0 for one in shown_owners)
    if rest > total // 200:
        shown_owners.append(Owner(_("others") if known else _("used"), rest, kind="rest"))
    pieces, x, ours, strangers = [], 0, 0, 0
    for owner in shown_owners:
        width = min(_BAR_WIDTH - x, round(_BAR_WIDTH * (owner.memory or 0) / total))
        if owner.kind == "ours":
            ours += 1
            colour = f"ours-{(ours - 1) % 3 + 1}"
        elif owner.kind == "stranger":
            strangers += 1
            colour = f"stranger-{(strangers - 1) % 2 + 1}"
        else:
            colour = owner.kind
        pieces.append(Segment(x, max(width, 2), colour, owner))
        x += width
    return pieces


def _process(process: GpuProcess, gpu: Gpu, names: Mapping[str, tuple[str, str]]) -> ShownProcess:
    return ShownProcess(_owner(process, names), f"#{gpu.number} {gpu.name}", process.name)


def _stranger(one: Stranger, gpus: Iterable[Gpu], host: Host) -> ShownStranger:
    titles = [f"#{gpu.number} {gpu.name}" for gpu in gpus if gpu.uuid in one.devices]
    try:
        form = reverse("deployment_add")
    except NoReverseMatch:
        form = ""
    started = datetime.fromtimestamp(one.started_at, tz=UTC) if one.started_at > 0 else None
    query = urlencode({"host": host.pk, "command": one.command})
    return ShownStranger(one, titles, started, f"{form}?{query}" if form and one.command else "")


@dataclass(frozen=True)
class ShownXid:
    """An error of the driver, with what it means."""

    at: datetime
    xid: Xid
    meaning: str


def xids(facts: HostFacts | None) -> list[ShownXid]:
    """Xid errors, newest first."""
    events = reversed(facts.xid.events) if facts else ()
    return [
        ShownXid(datetime.fromtimestamp(max(0.0, one.at), tz=UTC), one, XID_MEANINGS.get(one.code, ""))
        for one in events
    ]


def machine(facts: HostFacts | None) -> list[tuple[str, str]]:
    """The machine in rows: processor, memory, shared memory, limits, disks."""
    if facts is None:
        return []
    cpu, memory, limits = facts.cpu, facts.memory, facts.limits
    rows = [
        (_("Processor"), ", ".join([cpu.name, *_cpu_tags(facts)])),
        (_("Instruction sets"), ", ".join(cpu.features) or "–"),
    ]
    rows += [
        (
            _("NUMA node %d") % node.index,
            _("CPUs %(cpus)s, %(size)s") % {"cpus": node.cpus, "size": readable_bytes(node.memory_total)},
        )
        for node in cpu.nodes
        if len(cpu.nodes) > 1
    ]
    text = readable_bytes(memory.total) if memory.total else "–"
    if memory.limit:
        text += _(", the container may use %s") % readable_bytes(memory.limit)
    rows.append((_("RAM"), text))
    if limits.shm_total is not None:
        rows.append((_("Shared memory (/dev/shm)"), readable_bytes(limits.shm_total)))
    rows += [
        (_("Open files"), _limit(limits.open_files, limits.open_files_hard)),
        (_("Locked memory"), _bytes_limit(limits.locked_memory)),
        (_("Processes"), _limit(limits.processes)),
    ]
    for disk in facts.disks:
        free = _("%(free)s of %(total)s free") % {
            "free": readable_bytes(disk.free),
            "total": readable_bytes(disk.total),
        }
        holds = ", ".join(f"{_HOLDS.get(name, name)} {path}" for name, path in disk.holds.items())
        rows.append((_("Disk %s") % disk.mount, f"{free} ({disk.filesystem or '?'}): {holds}"))
    return rows


_HOLDS = {"temporary": "tmp"}


def _limit(value: int | None, hard: int | None = None) -> str:
    if value is None:
        return "–"
    text = _("unlimited") if value < 0 else f"{value:,}"
    return (
        text
        if hard is None or hard in (value, -1)
        else _("%(soft)s (up to %(hard)s)") % {"soft": text, "hard": f"{hard:,}"}
    )


def _bytes_limit(value: int | None) -> str:
    if value is None:
        return "–"
    return _("unlimited") if value < 0 else readable_bytes(value)

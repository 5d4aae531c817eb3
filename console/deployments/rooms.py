"""What placement decides over, gathered from rows: what a replica needs, and the room there is on hosts right now.

Room is counted against live free memory, so what strangers hold is never given away; what an instance was promised and
doesn't use yet is taken off as well.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from console.catalog.models import Copy
from console.common.errors import Refused
from console.deployments import arguments_check, engine_schema, fitting
from console.deployments.models import RUNNING_STATES, Claim, Instance
from console.deployments.placement import DeviceRoom, HostRoom, Need, Rule
from console.fleet import intake, presentation
from console.fleet.models import Device, Engine, Host
from workers.host_facts import Gpu, Live, live_of
from workers.vllm.arguments import Value
from workers.vllm.memory import Plan

HELD_FILES = ("downloading", "incomplete", "deleting", "removed", "damaged")
LOADED_STATES = ("validating", "warming", "ready", "unhealthy", "draining", "stopping")
"""States in which an engine has taken all it will take; where its host can't tell how much, its claim is believed."""
SHARED_REQUESTS = 4
"""Requests of full length at once for which an engine is sized that shares its device with others."""
MIB = 2**20
USUAL_SHARE = 0.92
"""What vLLM takes of a GPU that it is told nothing about."""


@dataclass(frozen=True)
class Site:
    """Where a replica of one model with one engine can run: the files and the engine of a host."""

    host: Host
    copy: Copy
    engine: Engine | None


def need_of(
    copy: Copy, engine: Engine, *, arguments: Collection[str], environment: Mapping[str, str], shares: bool
) -> Need:
    """What one replica takes. `shares`: on a GPU, size it to what it needs unless its arguments say how much it takes."""
    schema = engine_schema.schema_of(engine)
    values = arguments_check.values_of(schema, list(arguments)) if schema else {}
    return need_by_values(copy, engine, values, environment, shares=shares)


def need_by_values(
    copy: Copy, engine: Engine, values: Mapping[str, Value], environment: Mapping[str, str], *, shares: bool
) -> Need:
    """The same from typed values. Without a plan the files' size stands for the weights."""
    if shares and engine.platform == "cpu":
        values = sized(copy, engine, values, environment)
    plan = fitting.sum_of(copy, engine, values=values, environment=environment)
    ranks = fitting.world(values)
    if engine.platform == "cpu":
        return Need(_on_cpu(copy, environment, values, plan, ranks))
    share = values.get("gpu_memory_utilization")
    if values.get("kv_cache_memory_bytes") and plan is not None:
        return Need(_used(plan, plan.kv_cache_bytes or 0), devices=ranks)
    if share is None and shares and plan is not None:
        kv = SHARED_REQUESTS * plan.min_kv_bytes_for_one_request
        return Need(_used(plan, kv) + plan.overhead.spread_bytes, devices=ranks, sized=True)
    usual = plan.gpu_memory_utilization if plan is not None else USUAL_SHARE
    return Need(0, share=float(share) if isinstance(share, int | float) else usual, devices=ranks)


def sized(
    copy: Copy, engine: Engine, values: Mapping[str, Value], environment: Mapping[str, str], *, total: int | None = None
) -> Mapping[str, Value]:
    """The values with the share (on a CPU: the KV cache) that `pack` gives an engine there, where none is said.

    `total`: bytes of the device that it goes on; None: of the host's first.
    """
    if engine.platform == "cpu":
        kv_bytes = shared_kv_bytes(copy, engine, values, environment)
        return {**values, fitting.KV_ARGUMENT: kv_bytes} if kv_bytes else values
    need = need_by_values(copy, engine, values, environment, shares=True)
    if total is None:
        devices = Device.objects.usable().filter(host=engine.host, kind="gpu")
        total = devices.values_list("memory_total", flat=True).first()
    return {**values, "gpu_memory_utilization": need.share_of(total)} if need.sized and total else values


def shared_kv_bytes(
    copy: Copy, engine: Engine, values: Mapping[str, Value], environment: Mapping[str, str]
) -> int | None:
    """KV cache per rank of an engine on a CPU that shares it, in whole MiB; None where a size is said already.

    None as well where nothing can be planned, or this version of the engine has no argument for it.
    """
    schema = engine_schema.schema_of(engine)
    if schema is None or fitting.KV_ARGUMENT not in schema.by_dest:
        return None
    if environment.get(fitting.CPU_KV_VARIABLE) or values.get(fitting.KV_ARGUMENT):
        return None
    plan = fitting.sum_of(copy, engine, values=values, environment=environment)
    needed = SHARED_REQUESTS * plan.min_kv_bytes_for_one_request if plan is not None else 0
    return math.ceil(needed / MIB) * MIB or None


def kv_bytes_by_words(
    copy: Copy, engine: Engine, arguments: Collection[str], environment: Mapping[str, str]
) -> int | None:
    """`shared_kv_bytes` from arguments as they are written."""
    schema = engine_schema.schema_of(engine)
    values = arguments_check.values_of(schema, list(arguments)) if schema else {}
    return shared_kv_bytes(copy, engine, values, environment)


def _used(plan: Plan, kv_bytes: int) -> int:
    return plan.weights_bytes_per_device + plan.overhead_bytes + kv_bytes


def _on_cpu(
    copy: Copy, environment: Mapping[str, str], values: Mapping[str, Value], plan: Plan | None, ranks: int
) -> int:
    if plan is not None:
        return _used(plan, plan.kv_cache_bytes or 0) * ranks
    return (copy.size_bytes or 0) + fitting.cpu_kv_bytes(environment, values) * ranks


def sites_of(copy: Copy, engine: Engine, *, here_only: bool) -> list[Site]:
    """The chosen host, and every other that has the same revision's files; `engine` is None where it lacks that version."""
    found = [Site(copy.host, copy, engine)]
    if here_only:
        return found
    others = (
        Copy.objects.filter(revision_id=copy.revision_id, host__team=copy.host.team)
        .exclude(host_id=copy.host_id)
        .select_related("host", "revision__model__origin")
        .order_by("host__name", "pk")
    )
    same = Engine.objects.filter(
        present=True, distribution=engine.distribution, version=engine.version, platform=engine.platform
    ).select_related("host")
    engines = {one.host_id: one for one in same}
    seen = {copy.host_id}
    for other in others:
        if other.host_id not in seen:
            seen.add(other.host_id)
            found.append(Site(other.host, other, engines.get(other.host_id)))
    return found


def rooms(sites: Iterable[Site], *, without: Collection[int] = ()) -> list[HostRoom]:
    """Hosts with their devices' room now. `without`: instances whose memory counts as free, because they end first."""
    sites = list(sites)
    hosts = [site.host.pk for site in sites]
    claims: dict[int, list[Claim]] = {}
    for claim in Claim.objects.filter(device__host__in=hosts, instance__state__in=RUNNING_STATES).select_related(
        "instance"
    ):
        claims.setdefault(claim.device_id, []).append(claim)
    devices: dict[int, list[Device]] = {}
    for device in Device.objects.usable().filter(host__in=hosts):
        devices.setdefault(device.host_id, []).append(device)
    engines = dict.fromkeys(hosts, 0)
    for host_id in Instance.objects.filter(host__in=hosts, state__in=RUNNING_STATES).values_list("host_id", flat=True):
        engines[host_id] += 1
    return [
        _room(site, devices.get(site.host.pk, []), claims, engines[site.host.pk], without, chosen=at == 0)
        for at, site in enumerate(sites)
    ]


def _room(
    site: Site, rows: list[Device], claims: Mapping[int, list[Claim]], engines: int, without: Collection[int], *, chosen: bool
) -> HostRoom:  # fmt: skip
    kind = "cpu" if site.engine is not None and site.engine.platform == "cpu" else "gpu"
    live = live_of(site.host.vitals)
    links = links_of(live.gpus.gpus) if live else {}
    devices = [
        device_room(row, site.host, live, claims.get(row.pk, []), without, links.get(row.uuid, frozenset()))
        for row in rows
        if row.kind == kind
    ]
    return HostRoom(
        pk=site.host.pk,
        name=site.host.name,
        devices=tuple(devices),
        labels=dict(site.host.labels),
        trouble=_trouble(site, chosen=chosen),
        verified=site.copy.state == "verified",
        engines=engines,
        chosen=chosen,
    )


def device_room(
    row: Device, host: Host, live: Live | None, claims: Iterable[Claim], without: Collection[int], links: frozenset[str]
) -> DeviceRoom:
    """A device's room: what is free now, less what was promised and isn't used yet."""
    memory = presentation.memory(row, host.vitals)
    measured = _measured(row, live)
    free, promised, used_by_ours, claimed = memory.free, 0, 0, 0
    for claim in claims:
        used = measured.get(str(claim.instance.uuid))
        if used is None:
            used = claim.nbytes if claim.instance.state in LOADED_STATES else 0
        if claim.instance_id in without:
            free += used
            continue
        claimed += claim.nbytes
        used_by_ours += used
        promised += max(0, claim.nbytes - used)
    room = min(free - promised, memory.total - claimed)
    others = max(0, memory.total - free - used_by_ours)
    title = row.name if row.kind == "cpu" else str(row)
    return DeviceRoom(row.uuid, title, row.index, memory.total, max(0, room), claimed, others, _node(row), links)


def _measured(row: Device, live: Live | None) -> dict[str, int]:
    """Bytes that each of our instances holds of a device, as far as its host can tell."""
    if live is None:
        return {}
    gpu = next((one for one in live.gpus.gpus if one.uuid == row.uuid), None)
    processes = live.processes if row.kind == "cpu" else gpu.processes if gpu else []
    found: dict[str, int] = {}
    for process in processes:
        if process.instance and process.memory is not None:
            found[process.instance] = found.get(process.instance, 0) + process.memory
    return found


def links_of(gpus: Iterable[Gpu]) -> dict[str, frozenset[str]]:
    """Which GPUs NVLink joins, by uuid: directly, or through a switch that both are connected with."""
    rows = list(gpus)
    found: dict[str, frozenset[str]] = {}
    for one in rows:
        ends = set(one.nvlink_peers)
        joined = {
            other.uuid
            for other in rows
            if other is not one and (other.bus_id in ends or ends.intersection(other.nvlink_peers))
        }
        found[one.uuid] = frozenset(joined)
    return found


def _node(row: Device) -> int | None:
    node: Any = row.details.get("numa_node") if isinstance(row.details, dict) else None
    return node if isinstance(node, int) and node >= 0 else None


def _trouble(site: Site, *, chosen: bool) -> str:
    if site.engine is None:
        return _("this version of the engine is not installed there")
    if site.copy.state in HELD_FILES and not chosen:
        return _("its files are %(state)s") % {"state": site.copy.look.word}
    try:
        intake.refuse_new_work(site.host, "deploy")
    except Refused as refusal:
        return str(refusal)
    if not chosen and not site.host.is_online:
        return _("it is silent: what is free there is not known")
    return ""


def needs_claim(rows: Iterable[HostRoom], rule: Rule) -> bool:
    """False while the chosen host has not told of any device: there is nothing to claim yet, its preflight decides."""
    found = list(rows)
    return any(host.devices for host in found) or rule.strategy in ("pack", "spread") or bool(rule.labels)

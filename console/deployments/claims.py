"""Claims: what placement decided, made to hold. Two requests at the same moment never get the same memory.

Whoever claims locks the rows of the hosts first, in one order, looks at the room, decides and writes; the next one sees the
claim. On SQLite every such transaction is a writer from its start, on PostgreSQL the locked rows make them wait.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.catalog.models import Copy
from console.common.errors import Refused
from console.common.spans import readable_bytes
from console.deployments import rooms
from console.deployments.models import RUNNING_STATES, Claim, Instance, Spec
from console.deployments.placement import STRATEGIES, Choice, Decision, Need, Rule, Strategy, decide
from console.fleet.models import Device, Host

WIDE = ("pack", "spread")


@dataclass(frozen=True)
class Place:
    """One replica's place, with the rows behind it. `choice` is None where the host has told of no device yet."""

    site: rooms.Site
    choice: Choice | None


def rule_of(spec: Spec, *, replicas: int | None = None) -> Rule:
    """How a spec wants its replicas placed. Devices that were chosen without a strategy are chosen by hand."""
    given = spec.placement if isinstance(spec.placement, dict) else {}
    usual: Strategy = "manual" if spec.devices else "here"
    strategy = next((one for one in STRATEGIES if one == given.get("strategy")), usual)
    labels = given.get("labels")
    return Rule(
        strategy=strategy,
        replicas=spec.replicas if replicas is None else replicas,
        labels=dict(labels) if isinstance(labels, dict) else {},
        devices=tuple(spec.devices) if strategy == "manual" else (),
    )


def need_of(spec: Spec) -> Need:
    """What one replica of a spec takes. Refused when a size in its environment can't be read."""
    try:
        return rooms.need_of(
            spec.copy,
            spec.engine,
            arguments=spec.arguments,
            environment=spec.environment,
            shares=rule_of(spec).strategy == "pack",
        )
    except ValueError as error:
        raise Refused(str(error), field="environment") from None


def lock(*specs: Spec) -> None:
    """Keep everyone else from claiming on the hosts that these specs may be placed on, until the transaction ends."""
    _lock({site.host.pk for spec in specs for site in _sites(spec)})


def place(spec: Spec, *, replicas: int | None = None, without: Collection[int] = ()) -> list[Place]:
    """`find`, with the hosts' rows locked until the transaction ends, in which `take` writes the claims."""
    lock(spec)
    return find(spec, replicas=replicas, without=without)


def find(
    spec: Spec, *, replicas: int | None = None, without: Collection[int] = (), besides: Collection[int] = ()
) -> list[Place]:
    """Places for a spec's replicas as things are now. Refused without room.

    `without`: instances that end first; `besides`: hosts that are not asked.
    """
    rule, sites = rule_of(spec, replicas=replicas), _sites(spec)
    if not rule.replicas:
        return []
    found = [room for room in rooms.rooms(sites, without=without) if room.pk not in besides]
    if not rooms.needs_claim(found, rule):
        return [Place(sites[0], None)] * rule.replicas
    decision = decide(need_of(spec), found, rule)
    if not decision.holds:
        raise Refused(_refusal(spec, rule, decision), field=_field(rule))
    by_host = {site.host.pk: site for site in sites}
    return [Place(by_host[choice.host], choice) for choice in decision.choices]


def _sites(spec: Spec) -> list[rooms.Site]:
    """Read anew: what a request looked at before it had the lock may be old."""
    rows = Copy.objects.select_related("host", "revision__model__origin")
    # A change that is only looked at may name a copy that is not there yet, and not stored.
    copy = rows.get(pk=spec.copy_id) if spec.copy_id is not None else spec.copy
    return rooms.sites_of(copy, spec.engine, here_only=rule_of(spec).strategy not in WIDE)


def _lock(hosts: Collection[int]) -> None:
    list(Host.objects.select_for_update().filter(pk__in=hosts).order_by("pk").values_list("pk", flat=True))


def _field(rule: Rule) -> str:
    return "replicas" if rule.replicas > 1 else "devices" if rule.devices else "placement"


def _refusal(spec: Spec, rule: Rule, decision: Decision) -> str:
    """What is missing, on the device that comes nearest, who holds it, and what next."""
    nearest = max(decision.verdicts, key=lambda one: (not one.barred, one.free - one.need), default=None)
    if nearest is None or not nearest.device:
        return nearest.why if nearest else _("There is no host for it.")
    if nearest.free >= nearest.need and not nearest.taken:
        return _("%(host)s, %(device)s: %(why)s") % {
            "host": nearest.host, "device": nearest.device, "why": nearest.why,
        }  # fmt: skip
    text = ngettext(
        "There is room for %(there)d of %(count)d replica.",
        "There is room for %(there)d of %(count)d replicas.",
        rule.replicas,
    ) % {"there": len(decision.choices), "count": rule.replicas}
    left = max(0, nearest.free - nearest.taken * nearest.need)
    text += " " + _("Each needs %(need)s of a device; %(host)s, %(device)s, has %(left)s left.") % {
        "need": readable_bytes(nearest.need), "host": nearest.host, "device": nearest.device,
        "left": readable_bytes(left),
    }  # fmt: skip
    if holders := _holders(spec, nearest.host, nearest.device):
        text += " " + _("The rest is claimed by %(names)s: stop one, or choose other devices or a smaller share.") % {
            "names": ", ".join(holders)
        }
    else:
        text += " " + _("Lower the context or the share, or choose other devices.")
    return text


def _holders(spec: Spec, host: str, device: str) -> list[str]:
    claims = Claim.objects.filter(device__host__name=host, instance__state__in=RUNNING_STATES).select_related(
        "instance__deployment", "device"
    )
    return sorted(
        {str(one.instance) for one in claims if one.device.name in device and one.instance.deployment_id != spec.deployment_id}
    )[:4]  # fmt: skip


def take(instance: Instance, where: Place) -> None:
    """Write an instance's claims in place of those it had. Belongs into the transaction of `place`."""
    instance.claims.all().delete()
    if where.choice is None:
        return
    devices = {row.uuid: row for row in Device.objects.filter(host=where.site.host, uuid__in=where.choice.devices)}
    Claim.objects.bulk_create(
        Claim(instance=instance, device=devices[uuid], nbytes=nbytes, why=where.choice.why)
        for uuid, nbytes in zip(where.choice.devices, where.choice.nbytes, strict=True)
    )


def take_again(instance: Instance) -> None:
    """Claim for another start of an instance that had ended, on its own host. Refused when its memory is gone meanwhile."""
    _lock([instance.host_id])
    spec, rule = instance.spec, rule_of(instance.spec, replicas=1)
    site = rooms.Site(Host.objects.get(pk=instance.host_id), instance.copy, instance.engine)
    found = rooms.rooms([site], without=[instance.pk])
    here = Rule("manual" if rule.devices else "here", 1, {}, rule.devices)
    if not rooms.needs_claim(found, here):
        return
    # The same instance comes up again where it was: a host that is paused or drained takes that as intake says.
    decision = decide(need_of(spec), [replace(found[0], trouble="")], here)
    if not decision.holds:
        raise Refused(_refusal(spec, here, decision))
    take(instance, Place(site, decision.choices[0]))


def environment_of(instance: Instance) -> dict[str, str]:
    """Variables that keep an engine on the GPUs it has claimed, by their index in PCI order, as NVML counts.

    A part of a divided GPU goes by its uuid: to CUDA the GPU's index means its first part, whoever has claimed that.
    """
    rows = [claim.device for claim in instance.claims.all() if claim.device.kind == "gpu"]
    if not rows and instance.spec.devices:
        rows = list(instance.host.devices.filter(uuid__in=instance.spec.devices, kind="gpu"))
    rows.sort(key=lambda row: row.index)
    chosen = ",".join(row.uuid if row.is_part else str(row.index) for row in rows)
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": chosen} if chosen else {}


def arguments_of(instance: Instance) -> list[str]:
    """An instance's arguments; one that was sized to share its device is told the size."""
    spec = instance.spec
    words = list(spec.arguments)
    if rule_of(spec).strategy != "pack" or _says_size(words):
        return words
    if spec.engine.platform == "cpu":
        kv_bytes = rooms.kv_bytes_by_words(spec.copy, spec.engine, words, spec.environment)
        return [*words, "--kv-cache-memory-bytes", str(kv_bytes)] if kv_bytes else words
    claim = next((one for one in instance.claims.all() if one.device.kind == "gpu"), None)
    if claim is None:
        return words
    share = Need(claim.nbytes).share_of(claim.device.memory_total)
    return [*words, "--gpu-memory-utilization", f"{share:g}"]


def _says_size(words: list[str]) -> bool:
    flags = ("--gpu-memory-utilization", "--kv-cache-memory")
    return any(word.replace("_", "-").startswith(flags) for word in words)


def as_placement(strategy: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """What `Spec.placement` holds."""
    return {"strategy": strategy, "labels": dict(labels)} if strategy or labels else {}

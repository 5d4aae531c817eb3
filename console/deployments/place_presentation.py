"""The table "why here, why not there": where the replicas of a form would go, and what every device has to say."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.catalog.models import Copy
from console.common.spans import readable_bytes
from console.deployments import rooms
from console.deployments.claims import WIDE
from console.deployments.models import Deployment
from console.deployments.placement import Decision, DeviceRoom, HostRoom, Need, Rule, Verdict, decide
from console.fleet.models import Engine
from workers.vllm.arguments import Value


@dataclass(frozen=True)
class Row:
    """Devices of one host that are alike and have the same to say. `taken`: replicas that each of them serves."""

    host: str
    device: str
    size: str
    taken: int
    why: str


@dataclass(frozen=True)
class Places:
    """A decision for the fit card. `note` says what the engine is told because of it; empty: nothing.

    `sites`: files and engine by host, of those that were looked at; `rooms`: the hosts before anything was placed.
    """

    decision: Decision
    sentence: str
    note: str
    sites: Mapping[int, rooms.Site]
    rooms: Mapping[int, HostRoom] = field(default_factory=dict)

    def room_on(self, host: int) -> dict[str, DeviceRoom]:
        """A host's devices by uuid, with the room that placement counts there; empty for one that was not looked at."""
        found = self.rooms.get(host)
        return {one.uuid: one for one in found.devices} if found else {}

    @property
    def rows(self) -> list[Row]:
        """Taken ones first, then those with the most room; alike ones of a host together."""
        ordered = sorted(self.decision.verdicts, key=lambda one: (not one.taken, one.need - one.free))
        groups: dict[tuple[object, ...], list[Verdict]] = {}
        for one in ordered:
            groups.setdefault((one.host, _name(one), _size(one), one.taken, one.why), []).append(one)
        return [Row(own[0].host, _names(own), _size(own[0]), own[0].taken, own[0].why) for own in groups.values()]


def _name(one: Verdict) -> str:
    return one.device.partition(" #")[0]


def _size(one: Verdict) -> str:
    if not one.device:
        return ""
    sizes = {"free": readable_bytes(one.free), "need": readable_bytes(one.need)}
    return _("room for %(free)s, %(need)s each") % sizes


def _names(alike: Sequence[Verdict]) -> str:
    """ "H100 #0", "H100 #2–5", "H100 #1, #3", "A100 MIG 10 GiB #0.3.0, #0.4.0"."""
    name, numbers = _name(alike[0]), [one.device.partition(" #")[2] for one in alike]
    if name == alike[0].device:
        return name
    if not all(number.isdecimal() for number in numbers):  # parts of divided GPUs: they are no row of numbers
        return f"{name} " + ", ".join(f"#{number}" for number in sorted(numbers, key=_by_parts))
    runs: list[list[int]] = []
    for number in sorted(map(int, numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return f"{name} " + ", ".join(f"#{run[0]}–{run[-1]}" if len(run) > 1 else f"#{run[0]}" for run in runs)


def _by_parts(number: str) -> list[int]:
    return [int(part) for part in number.split(".")]


def places(
    copy: Copy,
    engine: Engine,
    *,
    values: Mapping[str, Value],
    environment: Mapping[str, str],
    rule: Rule,
    changing: Deployment | None,
) -> Places | None:
    """Where it would go now; None while that can't be said. The engines of a deployment that changes count as gone."""
    try:
        need = rooms.need_by_values(copy, engine, values, environment, shares=rule.strategy == "pack")
    except ValueError:
        return None  # the field that can't be read says so
    sites = rooms.sites_of(copy, engine, here_only=rule.strategy not in WIDE)
    found = rooms.rooms(sites, without=_own(changing))
    if not rooms.needs_claim(found, rule):
        return None
    decision = decide(need, found, rule)
    note = _note(need, decision, found)
    if rule.strategy == "pack" and engine.platform == "cpu" and decision.choices:
        note = _cpu_note(rooms.shared_kv_bytes(copy, engine, values, environment))
    sites_by_host = {site.host.pk: site for site in sites}
    return Places(decision, sentence_of(decision, rule), note, sites_by_host, {host.pk: host for host in found})


def _own(changing: Deployment | None) -> Collection[int]:
    return list(changing.instances.filter(ordered=True).values_list("pk", flat=True)) if changing else []


def sentence_of(decision: Decision, rule: Rule) -> str:
    """The table's truth in a line: whether each replica has its place, or why none has."""
    if decision.holds:
        hosts = len({choice.host for choice in decision.choices})
        text = ngettext("%(count)d replica has its place", "%(count)d replicas have their places", rule.replicas)
        on = ngettext("on %(hosts)d host.", "on %(hosts)d hosts.", hosts)
        return f"{text % {'count': rule.replicas}} {on % {'hosts': hosts}}"
    if not decision.choices:
        return _without_choice(decision)
    return _("There is room for %(there)d of %(count)d replicas.") % {
        "there": len(decision.choices), "count": rule.replicas,
    }  # fmt: skip


def _without_choice(decision: Decision) -> str:
    """More room wouldn't help where a host may take none at all."""
    barred = {one.host for one in decision.verdicts if one.barred}
    others = {one.host for one in decision.verdicts if not one.barred}
    if others or not barred:
        text = _("No device has room for it now.")
        if not barred:
            return text
        left_out = ngettext("%(count)d host is left out, see why below.", "%(count)d hosts are left out, see why below.",
                            len(barred)) % {"count": len(barred)}  # fmt: skip
        return f"{text} {left_out}"
    reasons = sorted({one.why.rstrip(".") for one in decision.verdicts})
    if len(barred) == 1:
        return _("%(host)s can't take it: %(why)s.") % {"host": barred.pop(), "why": "; ".join(reasons)}
    return _("None of the %(count)d hosts can take it: %(why)s.") % {"count": len(barred), "why": "; ".join(reasons)}


def _cpu_note(kv_bytes: int | None) -> str:
    if kv_bytes is None:
        return ""
    return _("It is started with %(size)s of KV cache, enough for %(count)d full requests at once, so that others can "
             "share the memory. Set the size yourself for more.") % {
                 "size": readable_bytes(kv_bytes), "count": rooms.SHARED_REQUESTS}  # fmt: skip


def _note(need: Need, decision: Decision, found: Sequence[HostRoom]) -> str:
    if not need.sized or not decision.choices:
        return ""
    first = decision.choices[0]
    totals = {(host.pk, device.uuid): device.total for host in found for device in host.devices}
    share = need.share_of(totals[first.host, first.devices[0]])
    return _("It is started with --gpu-memory-utilization %(share)s, enough for %(count)d full requests at once, so that "
             "others can share the device. Set the memory share yourself for more.") % {
                 "share": f"{share:g}", "count": rooms.SHARED_REQUESTS}  # fmt: skip

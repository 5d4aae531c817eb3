"""Where engines go: a pure decision over frozen values, with a reason for every device that was looked at.

Nothing is read or written here. `console.deployments.rooms` gathers what there is, `console.deployments.claims` makes a
decision hold. The same values give the same decision, whatever order they come in.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.common.spans import readable_bytes

Strategy = Literal["here", "pack", "spread", "manual"]
STRATEGIES: tuple[Strategy, ...] = ("here", "pack", "spread", "manual")

LINKED, SAME_NODE, FAR = 0, 1, 2
"""Hops between two GPUs: NVLink, one NUMA node (or an unknown one), across nodes."""


@dataclass(frozen=True)
class DeviceRoom:
    """A device and its room now, in bytes. `free`: what a new engine may take, claims and strangers taken off.

    Attributes:
        title: its name; of a GPU with its number.
        claimed: promised to instances, whether they use it already or not.
        others: held by processes that are none of our instances.
        node: NUMA node; None where the host doesn't tell.
        links: uuids of the devices that NVLink joins it with.
    """

    uuid: str
    title: str
    index: int
    total: int
    free: int
    claimed: int = 0
    others: int = 0
    node: int | None = None
    links: frozenset[str] = frozenset()


@dataclass(frozen=True)
class HostRoom:
    """A host as placement sees it.

    Attributes:
        trouble: why it can't take an engine at all (paused, no files, no such engine); empty if it can.
        verified: True if its files are verified already: such hosts come first.
        engines: instances that run there.
        chosen: True for the host that the form names.
    """

    pk: int
    name: str
    devices: tuple[DeviceRoom, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""
    verified: bool = True
    engines: int = 0
    chosen: bool = False


@dataclass(frozen=True)
class Need:
    """What one replica takes of each of its devices.

    Attributes:
        nbytes: bytes on a device, whatever its size.
        share: fraction of the device instead, as `--gpu-memory-utilization` takes it; None where `nbytes` counts.
        devices: how many devices a replica takes.
        sized: the engine is told the share that `nbytes` make of its device, rounded up to a hundredth.
    """

    nbytes: int
    share: float | None = None
    devices: int = 1
    sized: bool = False

    def on(self, total: int) -> int:
        """Bytes that it takes of a device with `total` bytes."""
        if self.share is not None:
            return math.ceil(self.share * total)
        if self.sized and total:
            return max(self.nbytes, math.ceil(self.share_of(total) * total))
        return self.nbytes

    def share_of(self, total: int) -> float:
        """What `--gpu-memory-utilization` is on a device with `total` bytes."""
        return self.share if self.share is not None else math.ceil(100 * self.nbytes / max(total, 1)) / 100


@dataclass(frozen=True)
class Rule:
    """What is asked for. `labels`: name to wanted value; an empty value asks for the name, one after `!` refuses it."""

    strategy: Strategy = "here"
    replicas: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """One replica's place."""

    host: int
    devices: tuple[str, ...]
    nbytes: tuple[int, ...]
    why: str


@dataclass(frozen=True)
class Verdict:
    """One device (or a whole host without one: `device` is empty), and why it was taken or not. Sizes in bytes."""

    host: str
    device: str
    index: int
    free: int
    total: int
    claimed: int
    others: int
    need: int
    taken: int
    """How many replicas it serves by this decision."""
    why: str
    barred: bool = False
    """Its host may take none at all, by what was asked for or by its own trouble: more room wouldn't help."""


@dataclass(frozen=True)
class Decision:
    """Places for as many replicas as there was room for, and the table behind it."""

    choices: tuple[Choice, ...]
    verdicts: tuple[Verdict, ...]
    missing: int

    @property
    def holds(self) -> bool:
        """True if every replica has its place."""
        return not self.missing


@dataclass(frozen=True)
class _Option:
    """A place that would do, with what it is ranked by."""

    host: HostRoom
    devices: tuple[DeviceRoom, ...]
    hops: int

    @property
    def left(self) -> int:
        return min(device.free for device in self.devices)


def decide(need: Need, hosts: Iterable[HostRoom], rule: Rule) -> Decision:
    """Place replicas one after the other; each sees what those before it took."""
    state = sorted(hosts, key=lambda host: host.name)
    refused = {host.pk: text for host in state if (text := _unfit(host, rule))}
    choices: list[Choice] = []
    taken: dict[int, int] = {}
    for _number in range(rule.replicas):
        options = [one for host in state if host.pk not in refused for one in _options(need, host, rule)]
        if not options:
            break
        best = min(options, key=lambda one: _rank(one, rule, taken))
        choices.append(_choice(best, need, rule, len(options)))
        taken[best.host.pk] = taken.get(best.host.pk, 0) + 1
        state = [_with_taken(host, best, need) if host.pk == best.host.pk else host for host in state]
    verdicts = tuple(_verdicts(need, state, rule, refused, choices))
    return Decision(tuple(choices), verdicts, rule.replicas - len(choices))


def _unfit(host: HostRoom, rule: Rule) -> str:
    if rule.strategy in ("here", "manual") and not host.chosen:
        return _("another host than the chosen one; pack and spread look at all hosts")
    if host.trouble:
        return host.trouble
    for name, wanted in sorted(rule.labels.items()):
        has = host.labels.get(name)
        if wanted.startswith("!"):
            if has is not None and wanted[1:] in ("", has):
                return _("its label %(label)s is not wanted") % {"label": _label(name, has)}
        elif has is None or wanted not in ("", has):
            return _("it has no label %(label)s") % {"label": _label(name, wanted)}
    return ""


def _label(name: str, value: str) -> str:
    return f"{name}={value}" if value else name


def _options(need: Need, host: HostRoom, rule: Rule) -> Iterator[_Option]:
    fitting = [one for one in _candidates(host, rule) if one.free >= need.on(one.total)]
    if len(fitting) < need.devices:
        return
    if rule.strategy == "manual" and len(rule.devices) == need.devices:
        yield _Option(host, tuple(fitting), _hops(fitting))
        return
    for seed in fitting:
        group = _grown([seed], fitting, need.devices, rule)
        yield _Option(host, tuple(sorted(group, key=lambda one: one.index)), _hops(group))


def _candidates(host: HostRoom, rule: Rule) -> list[DeviceRoom]:
    rows = sorted(host.devices, key=lambda one: (one.index, one.uuid))
    return [one for one in rows if one.uuid in rule.devices] if rule.devices else rows


def _grown(group: list[DeviceRoom], among: Sequence[DeviceRoom], size: int, rule: Rule) -> list[DeviceRoom]:
    """Take the nearest device until there are enough: a tensor-parallel group talks at every layer."""
    while len(group) < size:
        rest = [one for one in among if one not in group]
        group = [*group, min(rest, key=lambda one: (_hops([*group, one]), _fill(one.free, rule), one.index))]
    return group


def _hops(devices: Sequence[DeviceRoom]) -> int:
    pairs = [(a, b) for at, a in enumerate(devices) for b in devices[at + 1 :]]
    return sum(_distance(a, b) for a, b in pairs)


def _distance(a: DeviceRoom, b: DeviceRoom) -> int:
    if b.uuid in a.links or a.uuid in b.links:
        return LINKED
    return FAR if None not in (a.node, b.node) and a.node != b.node else SAME_NODE


def _fill(free: int, rule: Rule) -> int:
    return free if rule.strategy == "pack" else -free


def _rank(one: _Option, rule: Rule, taken: Mapping[int, int]) -> tuple[object, ...]:
    """Verified files first; then as the strategy says; then the nearest devices; then by name, so that it is certain."""
    host = one.host
    load = taken.get(host.pk, 0)
    by_host = (-load, -host.engines) if rule.strategy == "pack" else (load, host.engines)
    if rule.strategy in ("here", "manual"):
        by_host = (0, 0)
    uuids = tuple(device.uuid for device in one.devices)
    return (not host.verified, *by_host, one.hops, _fill(one.left, rule), host.name, one.devices[0].index, uuids)


def _choice(one: _Option, need: Need, rule: Rule, options: int) -> Choice:
    parts = [_strategy_words(rule.strategy)]
    if len(one.devices) > 1:
        words = ngettext("%(hops)d hop between its devices", "%(hops)d hops between its devices", one.hops)
        parts.append(words % {"hops": one.hops})
    if one.host.verified:
        parts.append(_("its files are verified"))
    if options > 1:
        parts.append(_("%(count)d places would have done") % {"count": options})
    sizes = tuple(need.on(device.total) for device in one.devices)
    return Choice(one.host.pk, tuple(device.uuid for device in one.devices), sizes, "; ".join(parts))


def _strategy_words(strategy: Strategy) -> str:
    return {
        "here": _("most room on the chosen host"),
        "pack": _("fullest place that still fits"),
        "spread": _("fewest engines, most room"),
        "manual": _("chosen by hand"),
    }[strategy]


def _with_taken(host: HostRoom, option: _Option, need: Need) -> HostRoom:
    used = {device.uuid for device in option.devices}
    devices = [
        replace(one, free=one.free - need.on(one.total), claimed=one.claimed + need.on(one.total))
        if one.uuid in used
        else one
        for one in host.devices
    ]
    return replace(host, devices=tuple(devices))


def _verdicts(
    need: Need, state: Sequence[HostRoom], rule: Rule, refused: Mapping[int, str], choices: Sequence[Choice]
) -> Iterator[Verdict]:
    for host in state:
        if not host.devices:
            text = refused.get(host.pk) or _("it has told of no device that the engine runs on")
            yield Verdict(host.name, "", 0, 0, 0, 0, 0, need.nbytes, 0, text, barred=host.pk in refused)
        for device in sorted(host.devices, key=lambda one: (one.index, one.uuid)):
            mine = [one for one in choices if one.host == host.pk and device.uuid in one.devices]
            took = len(mine) * need.on(device.total)
            why = mine[0].why if mine else refused.get(host.pk) or _why_not(need, host, device, rule)
            yield Verdict(
                host.name, device.title, device.index, device.free + took, device.total, device.claimed - took,
                device.others, need.on(device.total), len(mine), why, barred=host.pk in refused,
            )  # fmt: skip


def _why_not(need: Need, host: HostRoom, device: DeviceRoom, rule: Rule) -> str:
    if rule.devices and device.uuid not in rule.devices:
        return _("not among the chosen devices")
    wanted = need.on(device.total)
    if device.free < wanted:
        return " ".join(_too_little(device, wanted - device.free))
    fitting = sum(one.free >= need.on(one.total) for one in _candidates(host, rule))
    if fitting < need.devices:
        return _("only %(there)d of the %(wanted)d devices that a replica takes have room") % {
            "there": fitting, "wanted": need.devices,
        }  # fmt: skip
    return _("would do; another place comes first (%(why)s)") % {"why": _strategy_words(rule.strategy)}


def _too_little(device: DeviceRoom, short: int) -> Iterator[str]:
    yield _("%(short)s too little.") % {"short": readable_bytes(short)}
    if device.claimed:
        yield _("%(size)s are claimed.") % {"size": readable_bytes(device.claimed)}
    if device.others:
        yield _("%(size)s are held by others.") % {"size": readable_bytes(device.others)}

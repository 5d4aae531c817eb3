"""The fleet at one glance: what serves and what doesn't, tokens and requests, hosts with their memory and load.

Its lines come from a stream in which ingest sums up every deployment each ten seconds, for a day: reading two hundred
instances' own history for a screen that hangs on a wall would cost seconds.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Prefetch
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from redis import Redis

from console.access import policies
from console.access.models import User
from console.common.states import LOOKS, Look
from console.deployments import current
from console.deployments.current import Current
from console.deployments.models import Deployment, Instance
from console.fleet.models import Host
from console.fleet.presentation import DeviceGroup, device_groups
from console.telemetry import marks
from console.telemetry.boards import count, seconds
from console.telemetry.marks import MARKED, About
from console.telemetry.measures import Chart, Line
from console.telemetry.windows import Window, with_gaps

STREAM = "console:metrics:fleet"
EVERY_SECONDS = 10
LENGTH = 8_640
"""Entries of the stream: a day."""
MOST_APART = 8
WORST = 5
_FIELDS = ("generation_tokens", "prompt_tokens", "requests", "errors", "running", "waiting", "kv_usage")
WORST_FIRST = ("failed", "degraded", "deploying", "stopping", "serving")

CHARTS: tuple[Chart, ...] = (
    Chart(
        "tokens",
        gettext_lazy("Tokens"),
        "tokens/s",
        (
            Line("prompt_tokens", gettext_lazy("prompt"), "calm"),
            Line("generation_tokens", gettext_lazy("generated")),
        ),
        "generation_tokens",
        "",
    ),
    Chart(
        "requests",
        gettext_lazy("Finished requests"),
        "requests/s",
        (Line("requests", gettext_lazy("all")), Line("errors", gettext_lazy("failed"), "bad")),
        "requests",
        "",
    ),
    Chart(
        "load",
        gettext_lazy("Requests in engines"),
        "requests",
        (Line("running", gettext_lazy("running")), Line("waiting", gettext_lazy("waiting"), "warn")),
        "running",
        "",
    ),
    Chart("kv", gettext_lazy("Fullest KV cache"), "share", (Line("kv_usage", gettext_lazy("in use")),), "kv_usage", ""),
)


@dataclass(frozen=True)
class Row:
    """A deployment with how it looks and what it does right now."""

    deployment: Deployment
    look: Look
    ready: int
    wanted: int
    now: Current | None

    @property
    def error_share(self) -> float | None:
        """Share of the last minute's requests that failed."""
        if self.now is None or not self.now.requests or self.now.errors is None:
            return None
        return self.now.errors / self.now.requests

    @property
    def error_percent(self) -> float:
        """The same in per cent, for people."""
        return 100 * (self.error_share or 0.0)


@dataclass(frozen=True)
class HostRow:
    """A host with its memory, its load and its tokens per second."""

    host: Host
    groups: Sequence[DeviceGroup]
    instances: int
    now: Current | None

    @property
    def load(self) -> float | None:
        """Share of the processors in use."""
        used = self.host.vitals.get("cpu_used")
        return float(used) if isinstance(used, int | float) else None


def record(redis: "Redis", deployments: Mapping[int, Sequence[Current]], *, entry: str = "*") -> None:
    """Write one entry: every deployment's numbers, its instances taken together. `entry`: its id, if not of now."""
    content = {}
    for key, parts in deployments.items():
        if whole := current.together(parts):
            content[str(key)] = [_short(getattr(whole, name)) for name in _FIELDS]
    if content:
        redis.xadd(STREAM, {"d": json.dumps(content, separators=(",", ":"))}, id=entry, maxlen=LENGTH, approximate=True)


def board(user: User, window: Window, *, apart: bool) -> dict[str, Any]:
    """The lines of the fleet's charts, in the form of a deployment's board."""
    names = dict(policies.visible(user, Deployment.objects.all()).values_list("pk", "name"))
    entries = (
        (moment, {key: values for key, values in content.items() if int(key) in names})
        for moment, content in window.read(STREAM)
    )
    slots = window.slots(entries, every=EVERY_SECONDS)
    moments = with_gaps(sorted(slots), window.step(EVERY_SECONDS))
    groups = (
        _apart(slots, moments, names) if apart else [_group("all", "", [_whole(slots.get(one, ())) for one in moments])]
    )
    values = [value for group in groups for line in group["values"].values() for value in line]
    reason = "" if any(value is not None for value in values) else _("No engine has told anything in this range.")
    return window.board(
        step=window.step(EVERY_SECONDS),
        moments=moments,
        groups=groups,
        marks=_marks(user, names, window),
        empty={chart.id: reason for chart in CHARTS} if reason else {},
    )


def _marks(user: User, names: Mapping[int, str], window: Window) -> list[dict[str, Any]]:
    """How deployments came and went, and what was alerted about."""
    moves = marks.moves("deployments.deployment", names, MARKED["deployments.deployment"], window.first, window.end)
    hosts = policies.visible(user, Host.objects.all()).values_list("pk", flat=True)
    return marks.drawn([*moves, *marks.contributed(About(names, tuple(hosts)), window.first, window.end)])


def _apart(
    slots: Mapping[int, Sequence[Mapping[str, list[float | None]]]], moments: Sequence[int], names: Mapping[int, str]
) -> list[dict[str, Any]]:
    keys = {key for parts in slots.values() for part in parts for key in part}
    weight = {key: sum(part[key][0] or 0 for parts in slots.values() for part in parts if key in part) for key in keys}
    chosen = sorted(keys, key=lambda key: -weight[key])[:MOST_APART]
    return [
        _group(
            str(number),
            names[int(key)],
            [_whole([{key: part[key]} for part in slots.get(one, ()) if key in part]) for one in moments],
        )
        for number, key in enumerate(chosen, 1)
    ]


def _group(key: str, name: str, rows: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    return {"key": key, "name": name, "values": {field: [row.get(field) for row in rows] for field in _FIELDS}}


def _whole(parts: Sequence[Mapping[str, list[float | None]]]) -> dict[str, float | None]:
    """Of a slot: the mean over its entries of what all deployments do together; of KV caches the fullest."""
    found: dict[str, float | None] = {}
    for at, name in enumerate(_FIELDS):
        sums = []
        for part in parts:
            known = [value for values in part.values() if (value := values[at]) is not None]
            if known:
                sums.append(max(known) if name == "kv_usage" else sum(known))
        found[name] = _short((max(sums) if name == "kv_usage" else sum(sums) / len(sums)) if sums else None)
    return found


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def context(user: User) -> dict[str, Any]:
    """Numbers and tables of the page, in a constant number of queries."""
    rows, instances = _rows(user)
    living = [row for row in rows if row.deployment.state not in ("draft", "stopped")]
    told = [row.now for row in living if row.now is not None]
    whole = current.together(told)
    serving = sum(row.deployment.state in ("serving", "degraded") and row.look is not LOOKS["unknown"] for row in rows)
    busy = sorted((row for row in living if row.now), key=lambda row: -((row.now and row.now.generation_tokens) or 0))
    slow = sorted(
        (row for row in living if row.now and row.now.ttft_p95 is not None),
        key=lambda row: -((row.now and row.now.ttft_p95) or 0),
    )
    failing = sorted((row for row in living if row.error_share), key=lambda row: -(row.error_share or 0))
    return {
        "rows": sorted(living, key=lambda row: (WORST_FIRST.index(row.deployment.state), row.deployment.name)),
        "truth": _truth(serving, len(living)),
        "figures": _figures(whole, serving, len(living)),
        "busiest": busy[:WORST],
        "slowest": slow[:WORST],
        "failing": failing[:WORST],
        "hosts": _hosts(user, instances),
    }


def _rows(user: User) -> tuple[list[Row], list[Instance]]:
    living = Prefetch("instances", Instance.objects.exclude(state="stopped").select_related("host"))
    deployments = policies.visible(
        user, Deployment.objects.lasting().select_related("current_spec__copy__revision__model")
    )
    found = list(deployments.prefetch_related(living))
    instances = [instance for deployment in found for instance in deployment.instances.all()]
    numbers = current.by_deployment({instance.uuid: instance.deployment_id for instance in instances})
    rows = []
    for deployment in found:
        own = [one for one in deployment.instances.all() if one.run or one.ordered]
        unknown = bool(own) and all(one.is_unknown for one in own)
        ready = sum(one.state == "ready" and not one.is_unknown for one in own)
        look = LOOKS["unknown"] if unknown else deployment.look
        rows.append(Row(deployment, look, ready, len(own), numbers.get(deployment.pk)))
    return rows, instances


def _hosts(user: User, instances: Sequence[Instance]) -> list[HostRow]:
    hosts = policies.visible(user, Host.objects.all())
    numbers = current.by_deployment({instance.uuid: instance.host_id for instance in instances})
    return [
        HostRow(
            host,
            [group for group in device_groups(host) if group.kind == "gpu" or not host.gpu_count],
            sum(instance.host_id == host.pk for instance in instances),
            numbers.get(host.pk),
        )
        for host in hosts
        if not host.is_removed
    ]


def _truth(serving: int, deployments: int) -> str:
    if not deployments:
        return _("Nothing is deployed.")
    if serving == deployments:
        every = ngettext("The one deployment serves.", "All %(count)d deployments serve.", deployments)
        return every % {"count": deployments}
    return _("%(serving)d of %(count)d deployments serve.") % {"serving": serving, "count": deployments}


def _figures(whole: Current | None, serving: int, deployments: int) -> list[dict[str, str]]:
    def rate(value: float | None) -> str:
        return "–" if value is None else count(value) if value >= 100 else f"{value:.1f}"

    failed = whole.errors / whole.requests if whole and whole.requests and whole.errors is not None else None
    return [
        {"name": _("Serving"), "value": str(serving), "note": _("of %d") % deployments},
        {
            "name": _("Generated tokens"),
            "value": rate(whole.generation_tokens if whole else None),
            "note": _("per second"),
        },
        {"name": _("Prompt tokens"), "value": rate(whole.prompt_tokens if whole else None), "note": _("per second")},
        {"name": _("Requests"), "value": rate(whole.requests if whole else None), "note": _("per second")},
        {
            "name": _("Failed"),
            "value": "–" if failed is None else f"{failed * 100:.1f} %",
            "note": _("of requests"),
        },
        {
            "name": _("First token, p95"),
            "value": seconds(whole.ttft_p95 if whole else None),
            "note": _("last minute"),
        },
        {
            "name": _("In engines"),
            "value": count(whole.running if whole else None),
            "note": _("%s waiting") % count(whole.waiting if whole else None),
        },
    ]

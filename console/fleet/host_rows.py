"""Rows of the hosts' list, made to be cheap: fifty of them are drawn each time that one of a thousand hosts changes."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Q
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from console.common.spans import readable_bytes
from console.common.templatetags.slipway import ago, state
from console.fleet import labels, presentation
from console.fleet.models import Engine, Host

GONE = ("stopped", "crashed")
COLUMNS = (
    "name", "state", "public_key", "join_token_sha256", "redis_password_sha256", "agent_version", "last_seen_at",
    "gpu_count", "memory_free", "device_groups", "lost_devices", "environment_failures", "environment_warnings", "labels",
)  # fmt: skip
"""What a row needs of a host; the rest (facts, vitals) is most of its size."""
_DASH: SafeString = mark_safe('<span class="dim">–</span>')


@dataclass(frozen=True)
class Row:
    """One host as the list shows it: each cell's HTML is ready."""

    url: str
    name: str
    state: SafeString
    devices: SafeString
    free: str
    engines: SafeString
    ready: str
    environment: SafeString
    agent: str
    heard: SafeString
    labels: list[str]


class Cells:
    """Draws cells, equal ones once: among a thousand hosts most have the same state, engines and checks."""

    def __init__(self) -> None:
        self._drawn: dict[Hashable, SafeString] = {}
        self._detail = reverse("host_detail", args=[0])
        self._never = _("never")
        self._unknown, self._of = _("%(count)s unknown"), _("%(ready)s of %(count)s")
        self._memory_of, self._used = _("Memory of %(name)s"), _("%(used)s of %(total)s used")

    def row(self, host: Host, engines: list[str], instances: int, ready: int) -> Row:
        """The row of a host with these engines, and so many living and ready instances."""
        presence = host.presence
        return Row(
            url=self._detail.replace("/0/", f"/{host.pk}/"),
            name=host.name,
            state=self._state(host, presence, instances),
            devices=self._devices(host),
            free="–" if host.memory_free is None else readable_bytes(host.memory_free),
            engines=self._engines(engines),
            ready=self._readiness(presence, instances, ready),
            environment=self._environment(host),
            agent=host.agent_version or "–",
            heard=ago(host.last_seen_at, self._never),
            labels=labels.text_of(host.labels).split(),
        )

    def _once(self, key: Hashable, draw: Callable[[], str]) -> SafeString:
        if key not in self._drawn:
            self._drawn[key] = mark_safe(draw())  # noqa: S308 - from a template or format_html
        return self._drawn[key]

    def _state(self, host: Host, presence: str, instances: int) -> SafeString:
        if host.is_removed:
            return self._once(("state", "removed"), lambda: state("removed"))
        wanted = presentation.work_look(host, instances)
        if wanted == "accepting":
            return self._once(("state", presence), lambda: state(presence))
        return self._once(("state", presence, wanted), lambda: format_html("{} {}", state(presence), state(wanted)))

    def _devices(self, host: Host) -> SafeString:
        shown = [one for one in host.device_groups if one["kind"] == "gpu" or not host.gpu_count]
        return mark_safe("".join(self._memory(one) for one in shown)) if shown else _DASH  # noqa: S308 - format_html

    def _memory(self, group: dict[str, Any]) -> SafeString:
        name, used, total = str(group["name"]), group["used"], group["total"]
        title = f"{group['count']} × {name}" if group["count"] > 1 else name
        amount = self._used % {"used": readable_bytes(used), "total": readable_bytes(total)}
        return format_html(
            '<div class="progress-line memory"><progress max="{}" value="{}" aria-label="{}"></progress>'
            "<small>{} · {}</small></div>",
            total,
            used,
            self._memory_of % {"name": name},
            title,
            amount,
        )

    def _engines(self, names: list[str]) -> SafeString:
        tag = '<span class="tag">{}</span> '
        none = '<span class="dim">{}</span>'
        return self._once(
            ("engines", *names),
            lambda: "".join(format_html(tag, one) for one in names) or format_html(none, _("none")),
        )

    def _readiness(self, presence: str, instances: int, ready: int) -> str:
        if instances and presence == "offline":
            return self._unknown % {"count": instances}
        return self._of % {"ready": ready, "count": instances}

    def _environment(self, host: Host) -> SafeString:
        key = (host.lost_devices, host.environment_failures, host.environment_warnings, host.last_seen_at is None)
        return self._once(key, lambda: render_to_string("fleet/_environment_tags.html", {"host": host}))


def rows(hosts: Iterable[Host]) -> list[Row]:
    """The rows of a page of hosts, in their order; one query counts what runs there, one names the engines."""
    hosts, cells = list(hosts), Cells()
    keys = [host.pk for host in hosts]
    counts, engines = instance_counts(keys), _engines_of(keys)
    return [cells.row(host, engines.get(host.pk, []), *counts.get(host.pk, (0, 0))) for host in hosts]


def _engines_of(hosts: list[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    present = Engine.objects.filter(host__in=hosts, present=True).order_by("distribution", "version")
    for host, distribution, version in present.values_list("host_id", "distribution", "version"):
        found.setdefault(host, []).append(f"{distribution} {version}")
    return found


def instance_counts(hosts: list[int]) -> dict[int, tuple[int, int]]:
    """Host -> (living instances, ready ones); grouped by the key alone, since a host's row holds a lot."""
    living = ~Q(instances__state__in=GONE) & Q(instances__isnull=False)
    found = (
        Host.objects.filter(pk__in=hosts)
        .order_by()
        .values("pk")
        .annotate(
            living=Count("instances", filter=living), ready=Count("instances", filter=Q(instances__state="ready"))
        )
    )
    return {row["pk"]: (row["living"], row["ready"]) for row in found}

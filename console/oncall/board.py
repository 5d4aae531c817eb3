"""What is broken now, the worst first: since when, whom it hits, why, what Slipway did about it, and what can be done."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django.db.models import Q
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.alerts.models import Alert
from console.common.models import StateChange
from console.common.states import LOOKS, Look
from console.deployments import fixing, what_changed
from console.deployments.fixing import Fix
from console.deployments.models import Deployment, Instance
from console.deployments.remedies import Kind
from console.deployments.what_changed import SinceGood
from console.fleet.models import Host
from console.oncall import causes
from console.oncall.impact import Impact, impacts
from console.oncall.models import Incident

LINES_OF_DEEDS = 6
MOST_DETAILED = 25
"""In an outage of everything the page must stay quick: beyond so many, what changed and fixes stand on their own pages."""
SEVERITY_RANK = {"critical": 0, "warning": 2, "info": 3}


@dataclass(frozen=True)
class Act:
    """One thing that whoever is on call can do. `key` is the letter that does it for the chosen problem."""

    label: str
    icon: str
    url: str
    key: str
    danger: bool = False
    is_advised: bool = False
    """What the cause asks for: it stands out."""


@dataclass
class Problem:
    """One thing that is broken."""

    ident: str
    name: str
    url: str
    look: Look
    rank: int
    """0: nothing serves; 1: unknown, a host is silent; 2: serves, but badly; 3: worth knowing."""
    since: datetime | None
    cause: str
    cause_title: str = ""
    code: str = ""
    evidence: list[dict[str, Any]] = field(default_factory=list)
    impact: Impact = field(default_factory=Impact)
    hit: str = ""
    """Impact in words where it isn't one of routes."""
    deeds: list[StateChange] = field(default_factory=list)
    """What Slipway itself did and saw since it began, newest first."""
    restarts: int = 0
    since_good: SinceGood | None = None
    fixes: list[Fix] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    incident: Incident | None = None
    trees: str = ""
    """Where the decision trees are walked for it."""


def problems(user: User) -> list[Problem]:
    """Everything that is broken and that this person may see; the worst first, then the longest."""
    deployments = causes.broken(policies.visible(user, Deployment.objects.lasting()))
    hosts = [host for host in _hosts(user) if host.presence == "offline" and not host.is_removed]
    alerts = list(
        policies.visible(user, Alert.objects.exclude(state="closed").select_related("rule", "acknowledged_by"))
    )
    hit = impacts(user, deployments)
    found = [
        _of_deployment(user, one, hit[one.pk], alerts, is_detailed=at < MOST_DETAILED)
        for at, one in enumerate(deployments)
    ]
    found += [_of_host(user, host, alerts) for host in hosts]
    _link_incidents(user, found)
    told = {alert.pk for problem in found for alert in problem.alerts}
    found += [_of_alert(user, alert) for alert in alerts if alert.pk not in told]
    return sorted(found, key=lambda one: (one.rank, one.since.timestamp() if one.since else 0))


def _link_incidents(user: User, found: Sequence[Problem]) -> None:
    """Each problem's newest open incident."""
    living = policies.visible(user, Incident.objects.filter(state="open")).order_by("opened_at")
    by_ident = {}
    for one in living:
        kind, key = ("deployment", one.deployment_id) if one.deployment_id else ("host", one.host_id)
        by_ident[f"{kind}-{key}"] = one
    for problem in found:
        problem.incident = by_ident.get(problem.ident)


def _hosts(user: User) -> list[Host]:
    return list(policies.visible(user, Host.objects.defer("facts")))


def _of_deployment(
    user: User, deployment: Deployment, impact: Impact, alerts: Iterable[Alert], *, is_detailed: bool
) -> Problem:
    instances = list(deployment.instances.all())
    cause = causes.cause_of(deployment)
    began = cause.since or deployment.state_since
    since_good = what_changed.since_good(deployment) if is_detailed else None
    offered = fixing.fixes(user, deployment, cause.failure, since_good) if since_good else []
    advised = {fix.remedy.kind for fix in offered}
    acts = [
        replace(act, is_advised=act.key == "r" and Kind.START in advised)
        for act in _acts_of_deployment(user, deployment, instances, since_good)
    ]
    return Problem(
        ident=f"deployment-{deployment.pk}",
        name=deployment.name,
        url=reverse("deployment_detail", args=[deployment.pk]),
        look=deployment.look,
        rank=2 if cause.is_serving else 0,
        since=began,
        cause=cause.text,
        cause_title=cause.title,
        code=cause.code,
        evidence=cause.evidence,
        impact=impact,
        deeds=_deeds(deployment, instances, began),
        restarts=sum(one.restarts for one in instances if one.run),
        since_good=since_good,
        fixes=_beside_acts(offered),
        acts=acts,
        alerts=[alert for alert in alerts if alert.deployment_id == deployment.pk],
        trees=f"{reverse('tree_list')}?instance={bad.pk}" if (bad := causes.first_bad(instances)) else "",
    )


def _beside_acts(fixes: Sequence[Fix]) -> list[Fix]:
    """Rolling back and starting again have buttons of their own among the acts, with keys of their own."""
    return [fix for fix in fixes if fix.remedy.kind not in (Kind.ROLL_BACK, Kind.START)]


def _deeds(deployment: Deployment, instances: Sequence[Instance], began: datetime) -> list[StateChange]:
    about = Q(kind="deployments.deployment", object_id=deployment.pk)
    about |= Q(kind="deployments.instance", object_id__in=[one.pk for one in instances])
    rows = StateChange.objects.filter(about, at__gte=began).select_related("actor")
    return list(rows.order_by("-at", "-pk")[:LINES_OF_DEEDS])


def _acts_of_deployment(
    user: User, deployment: Deployment, instances: Sequence[Instance], since: SinceGood | None
) -> list[Act]:
    if not policies.can(user, Action.OPERATE):
        return []
    acts = []
    running = [one for one in instances if one.ordered and one.run]
    ordered = causes.first_bad(running) or next(iter(running), None)
    if ordered is not None:
        there = reverse("instance_restart", args=[ordered.pk])
        several = len(running) > 1
        acts.append(Act(_("Restart %(name)s") % {"name": ordered} if several else _("Restart"), "refresh", there, "r"))
        if several:
            there = reverse("deployment_restart", args=[deployment.pk])
            acts.append(Act(_("Restart one by one"), "rotate-clockwise", there, "o"))
    elif deployment.state in ("stopped", "failed"):
        acts.append(Act(_("Start"), "player-play", reverse("deployment_start", args=[deployment.pk]), "r"))
    if since and what_changed.spec_to_go_back_to(deployment, since):
        there = reverse("oncall_roll_back", args=[deployment.pk])
        acts.append(Act(_("Roll back"), "history", there, "b"))
    if deployment.state not in ("stopped", "stopping", "draft") and ordered is not None:
        there = reverse("deployment_stop", args=[deployment.pk])
        acts.append(Act(_("Stop"), "player-stop", there, "s", danger=True))
    there = f"{reverse('oncall_silence')}?deployment={deployment.pk}"
    return [*acts, Act(_("Silence"), "bell-off", there, "m"), *_drain(ordered)]


def _drain(ordered: Instance | None) -> list[Act]:
    host = ordered.host if ordered else None
    if host is None or host.state == "draining":
        return []
    label = _("Drain %(host)s") % {"host": host.name}
    return [Act(label, "progress-down", reverse("host_drain", args=[host.pk]), "d", danger=True)]


def _of_host(user: User, host: Host, alerts: Iterable[Alert]) -> Problem:
    # One that was told to end goes on, too, until its host has said otherwise.
    ordered = Instance.objects.filter(host=host, ordered=True).select_related("deployment")
    running = ordered.filter(Q(run=True) | ~Q(state__in=("stopped", "crashed")))
    names = sorted({one.deployment.name for one in running})
    hit = _("nothing runs there")
    if names:
        hit = _("unknown while it is silent: %(names)s") % {"names": ", ".join(names)}
    acts = []
    if policies.can(user, Action.OPERATE):
        if host.state != "draining":
            acts.append(Act(_("Drain"), "progress-down", reverse("host_drain", args=[host.pk]), "d", danger=True))
        if host.state != "accepting":
            acts.append(Act(_("Bring back"), "player-play", reverse("host_bring_back", args=[host.pk]), "r"))
        acts.append(Act(_("Silence"), "bell-off", f"{reverse('oncall_silence')}?host={host.pk}", "m"))
    return Problem(
        ident=f"host-{host.pk}",
        name=host.name,
        url=reverse("host_detail", args=[host.pk]),
        look=LOOKS["offline"],
        rank=1 if names else 3,
        since=host.last_seen_at,
        cause=_("Its agent is silent: the machine is off, the network is cut, or the agent ended. Engines there may go on"
                " serving; Slipway leaves them alone and catches up when it is back."),
        hit=hit,
        acts=acts,
        alerts=[alert for alert in alerts if alert.host_id == host.pk and alert.deployment_id is None],
    )  # fmt: skip


def _of_alert(user: User, alert: Alert) -> Problem:
    acts = []
    if policies.can(user, Action.OPERATE):
        if alert.state == "open":
            acts.append(Act(_("Acknowledge"), "user-check", reverse("alert_acknowledge", args=[alert.pk]), "a"))
        acts.append(Act(_("Silence"), "bell-off", reverse("alert_silence", args=[alert.pk]), "m"))
    return Problem(
        ident=f"alert-{alert.pk}",
        name=alert.name,
        url=reverse("alert_detail", args=[alert.pk]),
        look=alert.look,
        rank=SEVERITY_RANK[alert.severity],
        since=alert.opened_at,
        cause=alert.cause or alert.summary,
        cause_title=alert.rule.title,
        hit=alert.summary if alert.cause else "",
        acts=acts,
        alerts=[],
    )


def truth(found: Sequence[Problem]) -> str:
    """All of it in one sentence."""
    if not found:
        return _("Nothing is broken.")
    # An alert stays for a while after what it is about serves again.
    dead = sum(one.rank == 0 and one.ident.startswith("deployment-") for one in found)
    routes = {name for one in found for name in one.impact.routes}
    if all(one.ident.startswith("alert-") for one in found):
        words = ngettext("Nothing is down; %(n)d alert is open.", "Nothing is down; %(n)d alerts are open.", len(found))
        return words % {"n": len(found)}
    parts = [ngettext("%(n)d thing is broken", "%(n)d things are broken", len(found)) % {"n": len(found)}]
    if dead:
        parts.append(ngettext("%(n)d doesn't serve at all", "%(n)d don't serve at all", dead) % {"n": dead})
    if routes:
        parts.append(ngettext("%(n)d route is down", "%(n)d routes are down", len(routes)) % {"n": len(routes)})
    return f"{'; '.join(parts)}."

"""Incidents open when something breaks and close when all is well again; a round every few seconds makes sure of both.

What is broken now is read off the rows. What broke and was well again between two rounds is read off the changes of states
behind the position where the last round stopped, so that a crash that was answered within a second has its incident as well.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from console.access.models import Team
from console.common import live
from console.common.broker import alone
from console.common.models import StateChange
from console.common.states import move
from console.deployments import what_changed
from console.deployments.models import Deployment, Instance
from console.fleet.models import Host
from console.jobs.reconcile import ingest_is_current
from console.oncall import causes
from console.oncall.causes import Cause
from console.oncall.impact import impacts_in
from console.oncall.models import Incident, Position

log = structlog.get_logger(__name__)

LOCK = "console:incidents:round"
LOCK_SECONDS = 60
CALM_SECONDS = 60
"""All must be well for so long before an incident closes: what breaks again within it is the same incident."""
HOST_OFFLINE = "host.offline"
MOST_CHANGES = 2000


def run() -> None:
    """One round, unless another process is at it. While reports are late nothing is concluded: what is late is not gone."""
    with alone(LOCK, seconds=LOCK_SECONDS) as is_ours:
        if is_ours and ingest_is_current():
            watch()


def watch(*, now: datetime | None = None) -> None:
    """One round: open what is new, say of open ones whether they are well again, close what has been well for a while."""
    now = now or timezone.now()
    with transaction.atomic():
        _open_for_passed(now)
        for team in Team.objects.all():
            broken = causes.broken(Deployment.objects.lasting().filter(team=team))
            _open_for_deployments(team, broken, now)
            silent = _silent_hosts(team)
            for host in silent:
                _open_for_host(host, now)
            _close(team, {one.pk for one in broken}, {one.pk for one in silent}, now)


# -- opening -----------------------------------------------------------------------------------------------------------


def _open_for_deployments(team: Team, broken: list[Deployment], now: datetime) -> None:
    found = impacts_in(team.pk, broken)
    for deployment in broken:
        cause = causes.cause_of(deployment)
        incident = opened(deployment, cause, now=now)
        words = found[deployment.pk].sentence
        is_worse = incident.served and not cause.is_serving
        if is_worse or (words and not incident.impact):
            incident.impact, incident.served = words or incident.impact, incident.served and cause.is_serving
            incident.save(update_fields=["impact", "served"])


def _open_for_passed(now: datetime) -> None:
    """What broke since the last round and is well again already."""
    position, is_first = Position.objects.select_for_update().get_or_create(pk=1)
    changes = StateChange.objects.filter(pk__gt=position.last_change).order_by("pk")
    newest = changes.values_list("pk", flat=True).last()
    if newest is None:
        return
    if not is_first:  # history from before incidents were watched opens none
        bad = changes.filter(kind="deployments.instance", after__in=causes.BAD_INSTANCES, actor=None)[:MOST_CHANGES]
        for instance in _of_changes(bad):
            _open_for_crash(instance, now)
    position.last_change = newest
    position.save(update_fields=["last_change"])


def _of_changes(changes: Iterable[StateChange]) -> list[Instance]:
    """Instances that turned bad by themselves: a start that somebody asked for may pass through the same states."""
    pks = {change.object_id for change in changes}
    rows = Instance.objects.filter(pk__in=pks, bring_up="agent", run=True)
    return list(rows.select_related("deployment", "host").order_by("pk"))


def _open_for_crash(instance: Instance, now: datetime) -> None:
    ended = instance.attempts.filter(ended_at__isnull=False, asked=False).order_by("-number").first()
    if ended is None or ended.ended_at is None or now - ended.ended_at > timedelta(minutes=10):
        return
    opened(instance.deployment, causes.cause_of_end(ended), now=now)


def opened(deployment: Deployment, cause: Cause, *, now: datetime) -> Incident:
    """The open incident of this cause. One whose cause wasn't known yet becomes this one; else a new one opens."""
    living = {one.code: one for one in Incident.objects.filter(deployment=deployment, state="open")}
    incident = (
        living.get(cause.code) or living.get("") or (next(iter(living.values()), None) if not cause.code else None)
    )
    if incident is None:
        return _create(deployment, cause, now)
    fields: dict[str, Any] = {"well_since": None}
    if cause.code and not incident.code:
        fields |= {"code": cause.code, "title": cause.title[:200], "cause": cause.text, "evidence": cause.evidence}
    elif cause.title and not incident.title and cause.code == incident.code:
        fields |= {"title": cause.title[:200]}
    if any(getattr(incident, name) != value for name, value in fields.items()):
        for name, value in fields.items():
            setattr(incident, name, value)
        incident.save(update_fields=list(fields))
        live.changed("incident", incident.pk)
    return incident


def _create(deployment: Deployment, cause: Cause, now: datetime) -> Incident:
    began = min(cause.since or now, now)
    since_good = what_changed.since_good(deployment)
    instances = list(deployment.instances.values_list("pk", flat=True))
    incident = Incident.objects.create(
        team_id=deployment.team_id,
        deployment=deployment,
        name=deployment.name,
        about={"deployment": deployment.pk, "instances": instances},
        code=cause.code,
        title=cause.title[:200],
        cause=cause.text,
        evidence=cause.evidence,
        changed=[{"name": str(one.name), "before": one.before, "after": one.after} for one in since_good.differences],
        served=cause.is_serving,
        opened_at=began,
        state_since=now,
    )
    live.changed("incident", incident.pk)
    return incident


def _silent_hosts(team: Team) -> list[Host]:
    rows = Host.objects.filter(team=team).defer("facts", "vitals")
    return [host for host in rows if host.presence == "offline" and not host.is_removed]


def _open_for_host(host: Host, now: datetime) -> None:
    incident = Incident.objects.filter(host=host, deployment=None, code=HOST_OFFLINE, state="open").first()
    if incident is not None:
        if incident.well_since is not None:
            incident.well_since = None
            incident.save(update_fields=["well_since"])
        return
    there = Instance.objects.filter(host=host, run=True, ordered=True).select_related("deployment")
    names = sorted({one.deployment.name for one in there})
    incident = Incident.objects.create(
        team_id=host.team_id,
        host=host,
        name=host.name,
        about={"host": host.pk, "instances": [one.pk for one in there]},
        code=HOST_OFFLINE,
        title=_("The host is silent"),
        cause=_("Its agent says nothing: the machine is off, the network is cut, or the agent ended."),
        impact=_("unknown meanwhile: %(names)s") % {"names": ", ".join(names)} if names else "",
        served=True,
        opened_at=min(host.last_seen_at or now, now),
        state_since=now,
    )
    live.changed("incident", incident.pk)


# -- closing -----------------------------------------------------------------------------------------------------------


def _close(team: Team, broken: set[int], silent: set[int], now: datetime) -> None:
    for incident in Incident.objects.filter(team=team, state="open").select_related("deployment", "host"):
        why = _well(incident, broken, silent)
        if why is None:
            if incident.well_since is not None:
                incident.well_since = None
                incident.save(update_fields=["well_since"])
        elif incident.well_since is None:
            incident.well_since = now
            incident.save(update_fields=["well_since"])
            live.changed("incident", incident.pk)
        elif now - incident.well_since >= timedelta(seconds=CALM_SECONDS):
            move(incident, to="closed", reason=why)
            incident.closed_at = incident.well_since
            incident.save(update_fields=["closed_at"])
            live.changed("incident", incident.pk)


def _well(incident: Incident, broken: set[int], silent: set[int]) -> str | None:
    """Why it is over; None while it isn't, or while nothing is known of it."""
    if incident.code == HOST_OFFLINE:
        if incident.host is None or incident.host.is_removed:
            return _("The host was removed.")
        return None if incident.host_id in silent else _("The host is heard of again.")
    deployment = incident.deployment
    if deployment is None:
        return _("The deployment was deleted.")
    if deployment.pk in broken:
        return None
    if deployment.state == "serving":
        living = deployment.instances.filter(run=True, ordered=True).select_related("host")
        return None if any(one.is_unknown for one in living) else _("It serves again.")
    return _("It was stopped.") if deployment.state in ("stopped", "draft") else None

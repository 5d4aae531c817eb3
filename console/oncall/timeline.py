"""An incident's timeline, read off the rows that every part leaves anyway: what happened, who did what and why."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.db.models import Q, QuerySet
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from console.access.models import AuditEntry
from console.alerts.models import Alert
from console.common.models import StateChange
from console.common.states import LOOKS, Look
from console.deployments.models import Attempt, Instance
from console.jobs.models import Event, Job
from console.oncall.models import Incident

BEFORE = timedelta(minutes=10)
"""What was done shortly before belongs to it: it is often the cause."""
MOST_OF_A_KIND = 200


@dataclass(frozen=True)
class Entry:
    """One line of a timeline."""

    at: datetime
    kind: str
    """`incident`, `state`, `attempt`, `action`, `job`, `alert` or `note`."""
    icon: str
    text: str
    look: Look | None = None
    who: str = ""
    """Who did it; empty: Slipway itself."""
    reason: str = ""
    url: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For the export."""
        fields = {"who": self.who, "reason": self.reason, "state": str(self.look.word) if self.look else ""}
        return {
            "at": self.at.isoformat(timespec="milliseconds"), "kind": self.kind, "text": self.text,
        } | {name: value for name, value in fields.items() if value}  # fmt: skip


@dataclass(frozen=True)
class _Scope:
    """Which rows belong to an incident."""

    incident: Incident
    begins: datetime
    ends: datetime

    @property
    def deployment(self) -> int | None:
        found: int | None = self.incident.about.get("deployment")
        return found

    @property
    def host(self) -> int | None:
        found: int | None = self.incident.about.get("host")
        return found

    @cached_property
    def instances(self) -> dict[int, str]:
        """Those of its deployment, also ones that came later; those of its host as they were."""
        rows = Instance.objects.filter(pk__in=self.incident.about.get("instances", []))
        if self.deployment is not None:
            rows |= Instance.objects.filter(deployment_id=self.deployment)
        return {one.pk: str(one) for one in rows.select_related("deployment")}

    def within(self, rows: QuerySet[Any], field: str = "at") -> QuerySet[Any]:
        """Those of its time, the oldest first."""
        limits = {f"{field}__gte": self.begins, f"{field}__lte": self.ends}
        return rows.filter(**limits).order_by(field, "pk")[:MOST_OF_A_KIND]


def timeline(incident: Incident) -> list[Entry]:
    """Everything that belongs to an incident, the oldest first."""
    ends = incident.closed_at + timedelta(minutes=2) if incident.closed_at else timezone.now()
    scope = _Scope(incident, incident.opened_at - BEFORE, ends)
    entries = [
        *_own(incident), *_states(scope), *_attempts(scope), *_actions(scope), *_jobs(scope), *_alerts(scope),
    ]  # fmt: skip
    return sorted(entries, key=lambda one: one.at)


def _own(incident: Incident) -> Iterator[Entry]:
    cause = f"{incident.heading}: {incident.cause}" if incident.cause else incident.heading
    yield Entry(incident.opened_at, "incident", "alert-circle", _("The incident begins."), reason=cause)
    if incident.well_since and incident.state == "open":
        yield Entry(incident.well_since, "incident", "circle-check", _("All is well again; it closes if that lasts."))
    if incident.closed_at:
        yield Entry(
            incident.closed_at, "incident", "circle-check", _("The incident is over."), reason=incident.state_reason
        )
    for note in incident.notes.all():
        yield Entry(note.at, "note", "notes", note.text, who=note.author_name)


def _states(scope: _Scope) -> Iterator[Entry]:
    instances = scope.instances
    about = Q(kind="deployments.instance", object_id__in=list(instances))
    if scope.deployment is not None:
        about |= Q(kind="deployments.deployment", object_id=scope.deployment)
    if scope.host is not None:
        about |= Q(kind="fleet.host", object_id=scope.host)
    for change in scope.within(StateChange.objects.filter(about).select_related("actor")):
        is_instance = change.kind == "deployments.instance"
        name = instances.get(change.object_id, "") if is_instance else scope.incident.name
        url = reverse("instance_detail", args=[change.object_id]) if is_instance else ""
        yield Entry(
            change.at, "state", "activity", name, look=LOOKS.get(change.after),
            who=str(change.actor) if change.actor else "", reason=change.reason, url=url,
        )  # fmt: skip


def _attempts(scope: _Scope) -> Iterator[Entry]:
    rows = Attempt.objects.filter(instance_id__in=list(scope.instances)).select_related("instance__deployment")
    for attempt in scope.within(rows, "started_at"):
        text = _("%(instance)s: attempt %(number)d starts") % {"instance": attempt.instance, "number": attempt.number}
        yield Entry(attempt.started_at, "attempt", "player-play", text, url=_attempt_url(attempt))
    for attempt in scope.within(rows, "ended_at"):
        code = attempt.exit_code
        words = _("%(instance)s: attempt %(number)d ends, as asked") if attempt.asked else _(
            "%(instance)s: attempt %(number)d ends with exit code %(code)s"
        )  # fmt: skip
        text = words % {"instance": attempt.instance, "number": attempt.number, "code": "–" if code is None else code}
        said = attempt.diagnosis if attempt.diagnosis.get("code") != "healthy" else {}
        why = ": ".join(str(said[name]) for name in ("title", "message") if said.get(name))
        yield Entry(attempt.ended_at, "attempt", "x", text, reason=why, url=_attempt_url(attempt))


def _attempt_url(attempt: Attempt) -> str:
    return f"{reverse('instance_detail', args=[attempt.instance_id])}?attempt={attempt.number}"


def _actions(scope: _Scope) -> Iterator[Entry]:
    urls = [f"/instances/{pk}/" for pk in scope.instances]
    if scope.deployment is not None:
        urls.append(f"/deployments/{scope.deployment}/")
    if scope.host is not None:
        urls.append(f"/hosts/{scope.host}/")
    rows = AuditEntry.objects.filter(target_url__in=urls)
    for entry in scope.within(rows):
        who = "" if entry.actor_id is None and entry.actor_name == "system" else entry.actor_name
        text = f"{entry.action} {entry.target}"
        yield Entry(entry.at, "action", "user-check", text, who=who, reason=entry.reason, url=entry.target_url)


def _jobs(scope: _Scope) -> Iterator[Entry]:
    if scope.deployment is None:
        return
    rows = Job.objects.filter(subject_kind="deployment", subject_id=scope.deployment).select_related("requested_by")
    for job in scope.within(rows, "created_at"):
        who = str(job.requested_by) if job.requested_by else ""
        yield Entry(job.created_at, "job", "list-check", job.title, who=who, reason=job.reason, url=_job_url(job.pk))
    for job in scope.within(rows, "finished_at"):
        why = str((job.failure or {}).get("message", ""))
        yield Entry(
            job.finished_at, "job", "list-check", job.title, look=LOOKS[job.state], reason=why, url=_job_url(job.pk)
        )
    events = Event.objects.filter(job__in=rows, level__in=("warning", "error")).select_related("job")
    for event in scope.within(events):
        yield Entry(event.at, "job", "alert-triangle", event.text, url=_job_url(event.job_id))


def _job_url(pk: int) -> str:
    return reverse("job_detail", args=[pk])


def _alerts(scope: _Scope) -> Iterator[Entry]:
    about = Q(deployment_id=scope.deployment) if scope.deployment is not None else Q(host_id=scope.host)
    rows = Alert.objects.filter(about, team=scope.incident.team).select_related("rule")
    for alert in scope.within(rows, "opened_at"):
        quiet = _("quiet") if alert.silenced else ""
        yield Entry(
            alert.opened_at, "alert", "bell", f"{alert.rule.title}: {alert.summary}", look=LOOKS["open"], reason=quiet,
            url=reverse("alert_detail", args=[alert.pk]),
        )  # fmt: skip
    moves = StateChange.objects.filter(kind="alerts.alert", object_id__in=rows.values("pk")).select_related("actor")
    titles = {alert.pk: alert.rule.title for alert in rows[:MOST_OF_A_KIND]}
    for change in scope.within(moves):
        yield Entry(
            change.at, "alert", "bell", titles.get(change.object_id, ""), look=LOOKS.get(change.after),
            who=str(change.actor) if change.actor else "", reason=change.reason,
            url=reverse("alert_detail", args=[change.object_id]),
        )  # fmt: skip


def summary_of(incident: Incident) -> list[tuple[str, str]]:
    """Facts of an incident in words, for its page and the export."""
    until = incident.closed_at.isoformat(timespec="seconds") if incident.closed_at else _("it lasts")
    facts = [
        (_("What"), incident.name),
        (_("Cause"), f"{incident.heading}: {incident.cause}" if incident.cause else incident.heading),
        (_("Code"), incident.code),
        (_("Impact"), incident.impact),
        (_("Began"), incident.opened_at.isoformat(timespec="seconds")),
        (_("Over"), until),
    ]
    return [(name, value) for name, value in facts if value]


def as_json(incident: Incident, entries: Iterable[Entry]) -> dict[str, Any]:
    """An incident with its timeline, for other systems."""
    return {
        "incident": incident.pk,
        "about": incident.name,
        "kind": "host" if incident.about.get("host") else "deployment",
        "state": incident.state,
        "code": incident.code,
        "title": incident.title,
        "cause": incident.cause,
        "evidence": incident.evidence,
        "changed": incident.changed,
        "impact": incident.impact,
        "opened_at": incident.opened_at.isoformat(),
        "closed_at": incident.closed_at.isoformat() if incident.closed_at else None,
        "closed_because": incident.state_reason if incident.state == "closed" else "",
        "timeline": [entry.as_dict() for entry in entries],
    }


def as_markdown(incident: Incident, entries: Iterable[Entry]) -> str:
    """The same for people: a report that can be pasted into a ticket."""
    lines = [f"# {_('Incident')} {incident.pk}: {_plain(str(incident))}", ""]
    lines += [f"- **{name}**: {_plain(value)}" for name, value in summary_of(incident)]
    if incident.changed:
        lines += ["", f"## {_('What changed since the last good start')}", ""]
        lines += [
            f"- {_plain(one['name'])}: {_plain(one['before']) or '–'} → {_plain(one['after']) or '–'}"
            for one in incident.changed
        ]
    if incident.evidence:
        texts = [str(one.get("text", "")) for one in incident.evidence]
        lines += ["", f"## {_('Evidence')}", "", *[f"    {text}" for text in texts]]
    lines += [
        "",
        f"## {_('Timeline')}",
        "",
        f"| {_('At')} | {_('What')} | {_('Who')} | {_('Why')} |",
        "|---|---|---|---|",
    ]
    for entry in entries:
        what = f"{entry.text}: {entry.look.word}" if entry.look else entry.text
        cells = (entry.at.isoformat(timespec="seconds"), what, entry.who or "Slipway", entry.reason)
        lines.append(f"| {' | '.join(_cell(str(one)) for one in cells)} |")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """One line, whatever was quoted."""
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")

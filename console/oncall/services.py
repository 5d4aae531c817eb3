"""What whoever is on call does to several things at once, or to what has no alert yet."""

from collections.abc import Sequence
from datetime import timedelta

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.alerts.models import Alert, Silence
from console.common import live
from console.common.errors import Refused
from console.deployments import changes, fixing, services, what_changed
from console.deployments.models import Deployment
from console.fleet.models import Host
from console.jobs.models import Job
from console.oncall.models import Incident, Note


def restart_all(deployments: Sequence[Deployment], *, actor: User, reason: str) -> tuple[list[Job], list[str]]:
    """Restart what runs badly and start what doesn't run, each with its own job; returns the jobs and what was refused."""
    jobs, refused = [], []
    for deployment in deployments:
        try:
            jobs.append(fixing.start_again(deployment, actor=actor, reason=reason))
        except Refused as refusal:
            refused.append(f"{deployment}: {refusal.message}")
    return jobs, refused


def roll_back(deployment: Deployment, *, actor: User, reason: str) -> Job | None:
    """Bring the spec back that last started well, or did before the one in force."""
    good = what_changed.spec_to_go_back_to(deployment, what_changed.since_good(deployment))
    if good is None:
        raise Refused(_("%(name)s has no other spec that ever started well.") % {"name": deployment})
    with transaction.atomic():
        job = changes.roll_back(deployment, good.number, reason=reason, actor=actor)
        deployment.refresh_from_db()
        if job is None and deployment.state in ("failed", "stopped"):
            job = services.start(deployment, actor=actor, reason=reason)
        return job


def silence(about: Deployment | Host, *, hours: float, actor: User, reason: str) -> Silence:
    """Keep every alert about a deployment or a host quiet for some hours; what is open already is marked as quiet too."""
    now = timezone.now()
    is_host = isinstance(about, Host)
    page = f"/hosts/{about.pk}/" if is_host else f"/deployments/{about.pk}/"
    with transaction.atomic():
        made = Silence.objects.create(
            team_id=about.team_id,
            deployment=None if isinstance(about, Host) else about,
            host=about if isinstance(about, Host) else None,
            begins_at=now,
            ends_at=now + timedelta(hours=hours),
            reason=reason,
            author=actor,
        )
        for alert in Alert.objects.filter(team=about.team).exclude(state="closed"):
            if made.covers(alert):
                Alert.objects.filter(pk=alert.pk).update(silenced=True)
        access.record(actor=actor, action="alert.silence", target=about.name, target_url=page, reason=reason)
        live.changed("alert")
    return made


def note(incident: Incident, *, text: str, actor: User) -> Note:
    """Write something down about an incident, open or over."""
    with transaction.atomic():
        made = Note.objects.create(incident=incident, author=actor, author_name=actor.get_username(), text=text.strip())
        page = f"/oncall/incidents/{incident.pk}/"
        access.record(actor=actor, action="incident.note", target=str(incident), target_url=page)
        live.changed("incident", incident.pk)
    return made

"""Emptying a host and bringing it back: what runs there is stopped with grace, and started again when somebody asks.

Also giving up what ran on a host that is removed.
"""

from datetime import timedelta

from django.db import transaction
from django.db.models import Count, F, Q
from django.utils.translation import gettext as _

from console.access.models import User
from console.common.models import StateChange
from console.deployments import changes, services
from console.deployments.handlers import forget
from console.deployments.models import Deployment
from console.fleet import intake
from console.fleet.models import Host
from console.jobs.models import Job

_AT_ONCE = timedelta(seconds=10)
"""A drain orders all its stops in one transaction."""
_SERVE = ("serving", "degraded")


def on_host(host: Host) -> list[Deployment]:
    """Deployments that have something ordered on the host, by name."""
    return list(Deployment.objects.filter(instances__host=host, instances__ordered=True).distinct().order_by("name"))


def drain(host: Host, *, actor: User, reason: str) -> list[Job]:
    """Take no new work and stop what runs there, each with its grace; returns the jobs that do it."""
    with transaction.atomic():
        intake.begin_draining(host, actor=actor, reason=reason)
        why = _("%(host)s is drained: %(reason)s") % {"host": host, "reason": reason}
        living = [one for one in on_host(host) if one.state not in ("stopped", "stopping", "draft")]
        return [_stop_there(one, host, actor=actor, reason=why) for one in living]


def _stop_there(deployment: Deployment, host: Host, *, actor: User, reason: str) -> Job:
    """Stop what a deployment has on one host; its replicas on other hosts go on serving."""
    if not is_elsewhere(deployment, host):
        return services.stop(deployment, actor=actor, reason=reason)
    there = deployment.instances.filter(host=host, ordered=True).select_related("host").order_by("number")
    return services.stop_some(deployment, list(there), actor=actor, reason=reason)


def is_elsewhere(deployment: Deployment, host: Host) -> bool:
    """True if other hosts serve it as well."""
    return deployment.instances.filter(ordered=True, run=True).exclude(host=host).exists()


def stopped_by_drain(host: Host) -> list[Deployment]:
    """Deployments that the drain of this host stopped, or took replicas of, and that nobody has started since."""
    if host.state != "draining":
        return []
    begun = StateChange.objects.filter(
        kind="deployments.deployment", after="stopping", at__gte=host.state_since, at__lte=host.state_since + _AT_ONCE
    ).values_list("object_id", flat=True)
    rows = Deployment.objects.filter(pk__in=list(begun), state="stopped", instances__host=host)
    return sorted(
        [*rows.select_related("current_spec__host").distinct(), *_lacking(host)], key=lambda deployment: deployment.name
    )


def _lacking(host: Host) -> list[Deployment]:
    """Those that serve on elsewhere, with fewer replicas than they should have since the drain."""
    stops = Job.objects.filter(
        kind="stop", steps__host=host, subject_kind="deployment", created_at__gte=host.state_since - _AT_ONCE,
        created_at__lte=host.state_since + _AT_ONCE,
    )  # fmt: skip
    rows = Deployment.objects.filter(pk__in=list(stops.values_list("subject_id", flat=True)), state__in=_SERVE)
    there = rows.annotate(there=Count("instances", filter=Q(instances__ordered=True)))
    return list(there.filter(there__lt=F("current_spec__replicas")).select_related("current_spec__host"))


def bring_back(host: Host, *, start: bool, actor: User, reason: str) -> list[Job]:
    """Take new work again and, if asked, start what the drain had stopped; returns the jobs that do it."""
    with transaction.atomic():
        waiting = stopped_by_drain(host) if start else []
        intake.resume(host, actor=actor, reason=reason)
        return [job for deployment in waiting if (job := _start_again(deployment, actor=actor, reason=reason))]


def _start_again(deployment: Deployment, *, actor: User, reason: str) -> Job | None:
    """Start a stopped one; where others serve on, only the replicas that are missing are added."""
    if deployment.state in _SERVE and (spec := deployment.current_spec):
        return changes.change(deployment, changes.Wish.of_spec(spec), reason=reason, actor=actor)
    return services.start(deployment, actor=actor, reason=reason)


def give_up(host: Host, actor: User, reason: str) -> None:  # noqa: ARG001 - who it was stands in the audit of the removal
    """The host is removed by force: its instances are no longer ordered. What runs there is not reached any more."""
    why = _("%(host)s was removed from the console; it may still run there (%(reason)s)") % {
        "host": host,
        "reason": reason,
    }
    for instance in host.instances.filter(ordered=True).select_related("deployment", "host"):
        forget(instance, reason=why)
        services.settle(instance.deployment_id)

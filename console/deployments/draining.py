"""Emptying a host and bringing it back: what runs there moves or is stopped with grace, and what was stopped is started
again when somebody asks.

Also giving up what ran on a host that is removed.
"""

from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import Count, F, Q
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.common.errors import Refused
from console.common.models import StateChange
from console.deployments import changes, claims, services
from console.deployments.handlers import forget
from console.deployments.models import Deployment, Instance
from console.fleet import intake
from console.fleet.models import Host
from console.jobs.models import Job

_AT_ONCE = timedelta(seconds=10)
"""A drain orders all its stops in one transaction."""
_SERVE = ("serving", "degraded")


def on_host(host: Host) -> list[Deployment]:
    """Deployments that have something ordered on the host, by name."""
    return list(Deployment.objects.filter(instances__host=host, instances__ordered=True).distinct().order_by("name"))


@dataclass(frozen=True)
class Leaving:
    """What becomes of a deployment's instances on a host that is drained, in the order of their numbers.

    `moved`: each with its place on another host, where a new engine is ready before it ends. `stopped` just end.
    """

    deployment: Deployment
    moved: tuple[tuple[Instance, claims.Place], ...]
    stopped: tuple[Instance, ...]


def leaving(deployment: Deployment, host: Host) -> Leaving:
    """What a drain does to a deployment as things are now. What placement chose may go where placement finds room."""
    there = list(deployment.instances.filter(host=host, ordered=True).select_related("host").order_by("number"))
    ready = [one for one in there if one.run and one.state == "ready"]
    places = _places_elsewhere(deployment, host, len(ready)) if _may_move(deployment, host) else []
    moved = tuple(zip(ready, places, strict=False))
    goes = {one.pk for one, _place in moved}
    return Leaving(deployment, moved, tuple(one for one in there if one.pk not in goes))


def _may_move(deployment: Deployment, host: Host) -> bool:
    """True for what placement chose the host for. Of a silent host nothing says what serves; a fixed port may be taken."""
    spec = deployment.current_spec
    if spec is None or spec.port is not None or deployment.for_study or deployment.state not in _SERVE:
        return False
    if not host.is_online or claims.rule_of(spec).strategy not in claims.WIDE:
        return False
    try:
        services.refuse_while_busy(deployment)
    except Refused:
        return False
    return True


def _places_elsewhere(deployment: Deployment, host: Host, most: int) -> list[claims.Place]:
    """Places on other hosts for as many of its instances as there is room for, beside all that runs."""
    assert deployment.current_spec is not None  # noqa: S101 - `_may_move` has looked
    for count in range(most, 0, -1):
        try:
            return claims.find(deployment.current_spec, replicas=count, besides=[host.pk])
        except Refused:
            continue
    return []


def drain(host: Host, *, actor: User, reason: str) -> list[Job]:
    """Take no new work, and empty the host; returns the jobs that do it.

    What placement put there moves where another host has room, new ready before old ends. The rest stops with its grace.
    """
    with transaction.atomic():
        living = [one for one in on_host(host) if one.state not in ("stopped", "stopping", "draft")]
        # Deployments before hosts, as a change locks them.
        list(Deployment.objects.select_for_update().filter(pk__in=[one.pk for one in living]).order_by("pk"))
        claims.lock(*(one.current_spec for one in living if one.current_spec and _may_move(one, host)))
        intake.begin_draining(host, actor=actor, reason=reason)
        why = _("%(host)s is drained: %(reason)s") % {"host": host, "reason": reason}
        return [_leave(leaving(one, host), host, actor=actor, reason=why) for one in living]


def _leave(one: Leaving, host: Host, *, actor: User, reason: str) -> Job:
    spec = one.deployment.current_spec
    if not one.moved or spec is None:
        return _stop_there(one.deployment, host, actor=actor, reason=reason)
    turns = [
        *(changes.Turn(old, place) for old, place in one.moved),
        *(changes.Turn(old, stop=True) for old in one.stopped),
    ]
    title = _("Move %(name)s away from %(host)s") % {"name": one.deployment, "host": host}
    access.record(
        actor=actor, action="deployment.move", target=one.deployment.name,
        target_url=f"/deployments/{one.deployment.pk}/", reason=reason, host=host.name,
    )  # fmt: skip
    return changes.take_turns(one.deployment, spec, turns, title=title, actor=actor, reason=reason)


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

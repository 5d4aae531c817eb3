"""Routes: make, change, weigh, remove."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.common import live
from console.common.errors import Refused
from console.deployments.models import Deployment
from console.deployments.public import MODEL_NAME
from console.fleet import desired
from console.gateway import adapters, bell, publishing
from console.gateway.models import Alias, Route, Target


@dataclass(frozen=True)
class Share:
    """A deployment's part in a route, as a form gives it."""

    deployment: Deployment
    weight: int = 100
    version: str = ""
    is_long_lane: bool = False


def save(
    route: Route,
    *,
    aliases: Sequence[str],
    shares: Sequence[Share],
    actor: User | None,
    reason: str = "",
    **fields: Any,
) -> Route:
    """Make a route, or change one. Names are unique over all routes and aliases; targets belong to the route's team.

    A name that the engines behind it do not know yet waits for their restart; the names that answer go on answering.
    """
    is_new = route.pk is None
    try:
        with transaction.atomic():
            for field, value in fields.items():
                setattr(route, field, value)
            _check_names(route, aliases)
            _check_targets(route, shares)
            stored = Route.objects.select_for_update().prefetch_related("aliases").filter(pk=route.pk).first()
            made = publishing.begin(route, aliases, stored)
            route.created_by = route.created_by or actor
            route.save()
            route.aliases.all().delete()
            Alias.objects.bulk_create(made)
            _store(route, shares)
            publishing.settle(Route.objects.filter(pk=route.pk))
            route.refresh_from_db(fields=["name_answers", "fallback_answers"])
            changed(route, "route.create" if is_new else "route.change", actor=actor, reason=reason)
    except IntegrityError:
        raise Refused(_("Another route took one of these names just now."), field="name") from None
    return route


def publish(deployment: Deployment, name: str, actor: User | None, reason: str) -> None:
    """Make a route of this name to one new deployment. Refused at `public_name` where that can't be."""
    try:
        MODEL_NAME(name)
        save(
            Route(name=name, team_id=deployment.team_id),
            aliases=(),
            shares=[Share(deployment)],
            actor=actor,
            reason=reason,
        )
    except ValidationError as error:
        raise Refused(" ".join(error.messages), field="public_name") from None
    except Refused as refusal:
        raise Refused(str(refusal), field="public_name") from None


def weigh(route: Route, weights: dict[int, int], *, actor: User | None, reason: str) -> None:
    """Change the weights of a route's targets (by primary key): in force within a second, nothing is dropped."""
    with transaction.atomic():
        for target in route.targets.select_for_update():
            if target.pk in weights:
                Target.objects.filter(pk=target.pk).update(weight=weights[target.pk])
        changed(route, "route.weigh", actor=actor, reason=reason, weights=sorted(weights.items()))


def allow_shadows(route: Route, *, actor: User, reason: str) -> None:
    """Let rollouts send copies of this route's requests to engines that are being tried out; who said so is stored."""
    with transaction.atomic():
        locked = Route.objects.select_for_update().get(pk=route.pk)
        if locked.shadow_allowed_at is None:
            locked.shadow_allowed_at, locked.shadow_allowed_by = timezone.now(), actor
            locked.save(update_fields=["shadow_allowed_at", "shadow_allowed_by"])
            _tell(locked, "route.allow_shadows", actor=actor, reason=reason)


def forbid_shadows(route: Route, *, actor: User, reason: str) -> None:
    """Take the consent back: no further request of this route is copied, within two seconds."""
    with transaction.atomic():
        locked = Route.objects.select_for_update().get(pk=route.pk)
        if locked.shadow_allowed_at is not None:
            locked.shadow_allowed_at = locked.shadow_allowed_by = None
            locked.save(update_fields=["shadow_allowed_at", "shadow_allowed_by"])
            _tell(locked, "route.forbid_shadows", actor=actor, reason=reason)


def remove(route: Route, *, actor: User, reason: str) -> None:
    """Remove a route: its names are unknown from now on. Deployments go on running."""
    with transaction.atomic():
        _tell_hosts(route)
        access.record(actor=actor, action="route.remove", target=route.name, reason=reason)
        route.delete()
        bell.ring()
        live.changed("route")


def changed(route: Route, action: str, *, actor: User | None, reason: str = "", **details: Any) -> None:
    """Record a change, and let the gateway and the hosts know."""
    _tell(route, action, actor=actor, reason=reason, **details)
    _tell_hosts(route)


def _tell(route: Route, action: str, *, actor: User | None, reason: str, **details: Any) -> None:
    """Record a change that only the gateway needs to know of."""
    access.record(
        actor=actor,
        action=action,
        target=route.name,
        target_url=f"/routes/{route.pk}/",
        reason=reason,
        **details,
    )
    bell.ring()
    live.changed("route", route.pk)


def _tell_hosts(route: Route) -> None:
    # Engines that start from now on must know the route's names; running ones keep theirs until they are restarted.
    targets = Target.objects.filter(route__in=[route, *([route.fallback] if route.fallback else [])])
    hosts = {
        instance.host
        for target in targets.prefetch_related("deployment__instances__host")
        for instance in target.deployment.instances.all()
        if instance.ordered
    }
    for host in hosts:
        desired.change(host)


def _store(route: Route, shares: Sequence[Share]) -> None:
    kept = [share.deployment.pk for share in shares]
    route.targets.exclude(deployment__in=kept).delete()
    # Versions may change places: none may stand twice on the way.
    route.targets.update(version="")
    for share in shares:
        Target.objects.update_or_create(
            route=route,
            deployment=share.deployment,
            defaults={"weight": share.weight, "version": share.version, "is_long_lane": share.is_long_lane},
        )


def _check_names(route: Route, aliases: Sequence[str]) -> None:
    if route.name in aliases:
        raise Refused(_("“%(name)s” is the route's own name.") % {"name": route.name}, field="aliases")
    for name, field in [(route.name, "name"), *((alias, "aliases") for alias in aliases)]:
        other = Route.objects.exclude(pk=route.pk).filter(name=name).first()
        alias = Alias.objects.exclude(route_id=route.pk).filter(name=name).select_related("route").first()
        if other or alias:
            raise Refused(
                _("“%(name)s” belongs to the route %(route)s.")
                % {"name": name, "route": other or (alias and alias.route)},
                field=field,
            )
        if adapter := adapters.holder_of(name):
            raise Refused(
                _("“%(name)s” is an adapter of %(deployment)s.") % {"name": name, "deployment": adapter.deployment},
                field=field,
            )


def _check_targets(route: Route, shares: Sequence[Share]) -> None:
    seen: set[str] = set()
    for share in shares:
        if share.deployment.team_id != route.team_id:
            raise Refused(_("%(name)s belongs to another team.") % {"name": share.deployment}, field="targets")
        if share.deployment.for_study:
            raise Refused(
                _("%(name)s belongs to a study: it is only measured.") % {"name": share.deployment}, field="targets"
            )
        if share.version and share.version.lower() in seen:
            raise Refused(_("The version %(name)s stands twice.") % {"name": share.version}, field="targets")
        seen.add(share.version.lower())
    if route.fallback_id and route.fallback_id == route.pk:
        raise Refused(_("A route can't fall back to itself."), field="fallback")
    if route.fallback and route.fallback.team_id != route.team_id:
        raise Refused(_("%(name)s belongs to another team.") % {"name": route.fallback}, field="fallback")

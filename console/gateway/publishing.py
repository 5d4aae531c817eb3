"""Which names of routes answer, and which fallbacks are in force.

An engine knows the names that its command gave it, and refuses others. So a new name waits until every engine that gets the
route's requests knows it, and a name that answers is never taken back: an engine that does not know it waits for its restart.
"""

from collections.abc import Iterable

from django.db.models import Q, QuerySet

from console.common import live
from console.deployments.models import Instance
from console.gateway import names
from console.gateway.models import Alias, Route


def asked_as(route: Route) -> frozenset[str]:
    """Names under which requests may come to a route's own targets now: an engine that lacks one gets none of them."""
    through = (other.answering for other in route.fallback_for.all() if other.fallback_answers)
    return frozenset(route.answering).union(*through)


def begin(route: Route, aliases: Iterable[str], before: Route | None) -> list[Alias]:
    """Mark what is new in a route that is about to be stored as waiting; returns its aliases. `before`: as it was stored."""
    answered = set(before.answering) if before else {route.name}
    made = [Alias(route=route, name=name, answers=name in answered) for name in dict.fromkeys(aliases)]
    # Where no old name is left, nothing has to be spared: clients get 503 until the restart, which tells more than 404.
    route.name_answers = route.name in answered or not any(alias.answers for alias in made)
    same = before is not None and before.fallback_id == route.fallback_id
    route.fallback_answers = before.fallback_answers if before and same else route.fallback_id is None
    return made


def settle(routes: QuerySet[Route]) -> None:
    """Let names answer, and fallbacks take over, that have waited and are known to all engines by now."""
    new = Q(name_answers=False) | Q(aliases__answers=False) | Q(fallback_answers=False, fallback__isnull=False)
    waiting = routes.filter(new).distinct()
    for route in waiting.select_related("fallback").prefetch_related("aliases", "fallback_for__aliases"):
        spare = _known_in_rotation(route.fallback) if route.fallback else []
        is_backed = bool(route.fallback) and route.fallback_answers
        if spare and not is_backed and all(known.issuperset(route.answering) for known in spare):
            Route.objects.filter(pk=route.pk, fallback=route.fallback).update(fallback_answers=True)
            is_backed = True
            live.changed("route", route.pk)
        asked = _known_in_rotation(route) + (spare if is_backed else [])
        if ready := [name for name in route.waiting if asked and all(name in known for known in asked)]:
            Route.objects.filter(pk=route.pk, name__in=ready).update(name_answers=True)
            Alias.objects.filter(route=route, name__in=ready).update(answers=True)
            live.changed("route", route.pk)


def _known_in_rotation(route: Route) -> list[frozenset[str]]:
    """For each instance that gets a route's requests now, the names that it knows."""
    instances = Instance.objects.filter(
        deployment__route_targets__route=route, state="ready", run=True, port__isnull=False
    )
    needed = asked_as(route)
    return [known for known in names.known_to(instances).values() if needed <= known]

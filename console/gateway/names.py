"""Which names a deployment's engines must know, and which of them a running instance knows."""

from collections.abc import Iterable

from django.db.models import Q

from console import env
from console.deployments.models import Attempt, Deployment, Instance
from console.deployments.public import PublicEndpoint
from console.gateway.models import Route, Target

FLAG = "--served-model-name"


def of_deployment(deployment: Deployment) -> list[str]:
    """All names under which routes may send it requests: theirs, their aliases', and those that fall back to them."""
    direct = Q(targets__deployment=deployment)
    through_fallback = Q(fallback__targets__deployment=deployment)
    routes = Route.objects.filter(direct | through_fallback).distinct().prefetch_related("aliases")
    return [name for route in routes for name in route.names]


def endpoint(deployment: Deployment) -> PublicEndpoint | None:
    """The gateway's address and the first name that leads to this deployment now; None if none does."""
    target = (
        Target.objects.filter(deployment=deployment, route__enabled=True)
        .order_by("-weight", "route__name")
        .select_related("route")
        .first()
    )
    return PublicEndpoint(env.gateway_url(), target.route.answering[0]) if target else None


def known_to(instances: Iterable[Instance]) -> dict[int, frozenset[str]]:
    """The names that running engines serve, by instance: read from the command of each one's newest attempt."""
    newest: dict[int, frozenset[str]] = {}
    attempts = Attempt.objects.filter(instance__in=[one.pk for one in instances]).order_by("instance", "number")
    for instance, argv in attempts.values_list("instance", "argv"):
        newest[instance] = frozenset(served(argv))
    return newest


def served(argv: list[str]) -> list[str]:
    """Names after the last `--served-model-name` of a command."""
    if FLAG not in argv:
        return []
    after = argv[len(argv) - argv[::-1].index(FLAG) :]
    stop = next((at for at, word in enumerate(after) if word.startswith("--")), len(after))
    return after[:stop]

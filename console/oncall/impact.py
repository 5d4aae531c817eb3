"""Who feels it: routes and keys that lead to a deployment, and requests that failed lately."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.utils import timezone
from django.utils.translation import ngettext

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.deployments.models import Deployment
from console.gateway.models import GatewayRequest, Key, Route, Target

RECENT_SECONDS = 900
MOST_REQUESTS = 5000
"""Of the newest requests only so many are read: the page must stay quick when everything fails at once."""


@dataclass(frozen=True)
class Impact:
    """What a broken deployment means for its clients."""

    routes: tuple[str, ...] = ()
    """Routes that nothing else serves now."""
    weaker_routes: tuple[str, ...] = ()
    """Routes that other instances or deployments still serve."""
    keys: int = 0
    failed_requests: int = 0

    @property
    def sentence(self) -> str:
        """All of it in words."""
        parts = []
        if self.routes:
            parts.append(
                ngettext("the route %(names)s has no engine left", "the routes %(names)s have no engine left",
                         len(self.routes)) % {"names": ", ".join(self.routes)}
            )  # fmt: skip
        if self.weaker_routes:
            parts.append(
                ngettext("the route %(names)s is served by what is left", "the routes %(names)s are served by what is left",
                         len(self.weaker_routes)) % {"names": ", ".join(self.weaker_routes)}
            )  # fmt: skip
        if self.keys and self.routes:
            parts.append(ngettext("%(count)d key can call it", "%(count)d keys can call them", self.keys)
                         % {"count": self.keys})  # fmt: skip
        if self.failed_requests:
            parts.append(
                ngettext("%(count)d request failed in 15 min", "%(count)d requests failed in 15 min",
                         self.failed_requests) % {"count": self.failed_requests}
            )  # fmt: skip
        return "; ".join(parts)


def impacts(user: User, deployments: Sequence[Deployment]) -> dict[int, Impact]:
    """Impact by deployment, for a person's team."""
    return impacts_in(policies.require(user, Action.VIEW).team.pk, deployments)


def impacts_in(team: int, deployments: Sequence[Deployment]) -> dict[int, Impact]:
    """Impact by deployment; all of them belong to this team."""
    if not deployments:
        return {}
    names = {one.pk: one.name for one in deployments}
    targets = list(Target.objects.filter(route__enabled=True, route__team_id=team).select_related("route"))
    alive = Deployment.objects.lasting().filter(team_id=team, instances__state="ready", instances__run=True)
    serving = set(alive.values_list("pk", flat=True))
    failed = _failed_requests(team)
    keys = list(Key.objects.filter(revoked_at=None, team_id=team).prefetch_related("routes"))
    return {pk: _impact(pk, name, targets, serving, failed, keys) for pk, name in names.items()}


def _impact(
    pk: int, name: str, targets: list[Target], serving: set[int], failed: Counter[str], keys: list[Key]
) -> Impact:
    own = [target.route for target in targets if target.deployment_id == pk]
    held = {target.route_id for target in targets if target.deployment_id in serving}
    dead = [route for route in own if route.pk not in held]
    return Impact(
        routes=tuple(route.name for route in dead),
        weaker_routes=tuple(route.name for route in own if route.pk in held),
        keys=_keys(dead, keys),
        failed_requests=failed[name],
    )


def _keys(routes: list[Route], keys: list[Key]) -> int:
    """How many usable keys may call one of the routes."""
    wanted = {route.pk for route in routes}
    allowed = [key for key in keys if key.is_usable and wanted]
    return sum(key.all_routes or any(one.pk in wanted for one in key.routes.all()) for key in allowed)


def _failed_requests(team: int) -> Counter[str]:
    """Requests that ended with an error of ours, by the deployment that had them."""
    since = timezone.now() - timedelta(seconds=RECENT_SECONDS)
    newest = GatewayRequest.objects.of_clients().filter(team_id=team).order_by("-pk")
    rows = newest.values_list("at", "status", "deployment")[:MOST_REQUESTS]
    return Counter(deployment for at, status, deployment in rows if at >= since and status >= 500)

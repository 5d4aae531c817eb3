"""Links that show one deployment's metrics to people without an account: read-only, signed, and for a limited time."""

from dataclasses import dataclass

from console.access import policies, services, share_links
from console.access.models import User
from console.access.policies import Action
from console.deployments.models import Deployment

SALT = "slipway.telemetry.share"


@dataclass(frozen=True)
class Shared:
    """What a link shows, and until when (seconds since the epoch)."""

    deployment: Deployment
    until: float
    by: User


def share(deployment: Deployment, *, hours: int, actor: User) -> str:
    """Make a link's token, good for `hours`. Whoever has it can look, and do nothing else."""
    token = share_links.make(deployment.pk, salt=SALT, hours=hours, actor=actor)
    services.record(
        actor=actor,
        action="metrics.share",
        target=deployment.name,
        target_url=f"/deployments/{deployment.pk}/metrics/",
        details={"hours": hours},
    )
    return token


def opened(token: str) -> Shared:
    """What a token shows. 404 if it is forged, over, or if who made it may no longer look at it themselves."""
    found = share_links.opened(token, salt=SALT)
    deployment = policies.get(found.by, Deployment.objects.select_related("current_spec"), Action.VIEW, pk=found.key)
    return Shared(deployment, found.until, found.by)

"""Links that show one deployment's metrics to people without an account: read-only, signed, and for a limited time."""

import time
from dataclasses import dataclass

from django.core import signing
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _

from console.access import policies, services
from console.access.models import User
from console.access.policies import Action
from console.common.errors import Refused
from console.deployments.models import Deployment

SALT = "slipway.telemetry.share"
HOURS = (1, 24, 168)
"""For how long a link may be good, in hours."""


@dataclass(frozen=True)
class Shared:
    """What a link shows, and until when (seconds since the epoch)."""

    deployment: Deployment
    until: float
    by: User


def share(deployment: Deployment, *, hours: int, actor: User) -> str:
    """Make a link's token, good for `hours`. It names no secret; whoever has it can look, and do nothing else."""
    if hours not in HOURS:
        raise Refused(_("A link is good for 1, 24 or 168 hours. Choose one of them."), field="hours")
    services.record(
        actor=actor,
        action="metrics.share",
        target=deployment.name,
        target_url=f"/deployments/{deployment.pk}/metrics/",
        details={"hours": hours},
    )
    until = int(time.time()) + hours * 3600
    return signing.dumps({"d": deployment.pk, "u": until, "p": actor.pk}, salt=SALT, compress=True)


def opened(token: str) -> Shared:
    """What a token shows. 404 if it is forged, over, or if who made it may no longer look at it themselves."""
    try:
        content = signing.loads(token, salt=SALT)
        key, until, person = int(content["d"]), float(content["u"]), int(content["p"])
    except (signing.BadSignature, KeyError, TypeError, ValueError):
        raise Http404(_("This link is not known.")) from None
    if until < time.time():
        raise Http404(_("This link was good for a limited time, which is over. Ask for a new one."))
    by = get_object_or_404(User, pk=person)
    if not policies.can(by, Action.VIEW):
        raise Http404(_("This link is no longer good."))
    deployment = policies.get(by, Deployment.objects.select_related("current_spec"), Action.VIEW, pk=key)
    return Shared(deployment, until, by)

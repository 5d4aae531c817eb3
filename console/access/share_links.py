"""Links that show one thing to people without an account: read-only, signed, and for a limited time."""

import time
from dataclasses import dataclass

from django.core import signing
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.common.errors import Refused

HOURS = (1, 24, 168)
"""For how long a link may be good, in hours."""


@dataclass(frozen=True)
class Opened:
    """The primary key of what a link shows, who made the link, and until when it is good (seconds since the epoch)."""

    key: int
    by: User
    until: float


def make(key: int, *, salt: str, hours: int, actor: User) -> str:
    """A link's token, good for `hours`. It names no secret; `salt` tells the kinds of links apart."""
    if hours not in HOURS:
        raise Refused(_("A link is good for 1, 24 or 168 hours. Choose one of them."), field="hours")
    until = int(time.time()) + hours * 3600
    return signing.dumps({"d": key, "u": until, "p": actor.pk}, salt=salt, compress=True)


def opened(token: str, *, salt: str) -> Opened:
    """What a token names. 404 if it is forged, over, or if who made it may no longer look at anything."""
    try:
        content = signing.loads(token, salt=salt)
        key, until, person = int(content["d"]), float(content["u"]), int(content["p"])
    except (signing.BadSignature, KeyError, TypeError, ValueError):
        raise Http404(_("This link is not known.")) from None
    if until < time.time():
        raise Http404(_("This link was good for a limited time, which is over. Ask for a new one."))
    by = get_object_or_404(User, pk=person)
    if not policies.can(by, Action.VIEW):
        raise Http404(_("This link is no longer good."))
    return Opened(key, by, until)

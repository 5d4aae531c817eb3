"""Who keeps a deployment from being changed for a while: apps above say so, without being imported here."""

from collections.abc import Callable

from console.common.errors import Refused
from console.deployments.models import Deployment

Holder = Callable[[Deployment], str]
"""Why it must not be changed now, in a sentence that says what next; empty: nothing is against it."""
_holders: list[Holder] = []


def hold_by(holder: Holder) -> None:
    """Register who may keep deployments as they are. Called once, from an app's `ready`."""
    if holder not in _holders:
        _holders.append(holder)


def refuse_while_held(deployment: Deployment) -> None:
    """Refuse to change or restart a deployment that somebody holds."""
    if why := next((why for holder in _holders if (why := holder(deployment))), ""):
        raise Refused(why)

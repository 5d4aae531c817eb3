"""What the page of gateways shows of one on another machine."""

from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils.translation import gettext as _

from console.common.states import LOOKS, Look
from console.fleet import host_wheel
from console.gateway import machines
from console.gateway.models import GatewayMachine
from workers.gateway.keeping import Status
from workers.gateway.messages import Order, Told


@dataclass(frozen=True)
class ShownMachine:
    """A gateway with its truth in a sentence."""

    machine: GatewayMachine
    look: Look
    sentence: str
    told: Told | None
    status: Status | None
    in_step: bool
    """True if what is live there is what was ordered last."""
    repaired_at: datetime | None
    """When its drift was repaired last."""
    upgrade: str
    """The version that this console comes with, where the agent there is another one."""


def repaired_at(status: Status | None) -> datetime | None:
    """When what HAProxy has was put right last, by the clock of its machine."""
    try:
        return datetime.fromtimestamp(status.repaired_at, tz=UTC) if status and status.repaired_at else None
    except (OverflowError, ValueError, OSError):
        return None


def shown(machine: GatewayMachine) -> ShownMachine:
    """One gateway, as it said within the last quarter of a minute."""
    told, order = machines.told_by(machine), machines.ordered(machine)
    status = told.status if told else None
    in_step = bool(told and order and told.digest == order.digest)
    look, sentence = _truth(machine, told, status, order)
    upgrade = _upgrade(told.agent_version) if told and not machine.leaving_since else ""
    return ShownMachine(machine, look, sentence, told, status, in_step, repaired_at(status), upgrade)


def _upgrade(version: str) -> str:
    offered = host_wheel.current().version
    # One that runs from a checkout or the console's own installation says the number alone.
    return "" if version in (offered, offered.partition("+")[0]) else offered


def _truth(machine: GatewayMachine, told: Told | None, status: Status | None, order: Order | None) -> tuple[Look, str]:
    if machine.leaving_since:
        return LOOKS["removing"], _("It finishes what it has begun, then it ends.")
    if not machine.public_key:
        text = _("Nobody has run its join command yet.")
        return LOOKS["waiting"], _(
            "Its join command has expired. Make a new one."
        ) if machine.join_token_expired else text
    if told is None or status is None:
        return LOOKS["offline"], _(
            "It is not heard of. HAProxy there serves on with what it has, and its log waits there."
        )
    if problem := told.problem or status.problem:
        return LOOKS["degraded"], _("The last change is not in force: %(problem)s") % {"problem": problem}
    if not status.up:
        return LOOKS["failed"], _("HAProxy does not answer there: clients can't reach any model through it.")
    if order is None or told.digest != order.digest:
        return LOOKS["online"], _("It serves; the last change is on its way.")
    return LOOKS["serving"], _("It serves the same routes and keys as here.")

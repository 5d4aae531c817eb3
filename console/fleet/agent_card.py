"""The agent of a host as its page shows it: which version, which contract, and whether it should be upgraded."""

from dataclasses import dataclass

from django.utils.translation import gettext as _

from console.fleet import host_wheel, intake
from console.fleet.models import Host
from workers.contracts import CONTRACT


@dataclass(frozen=True)
class AgentCard:
    """What is known of an agent's version. `text` says it in a sentence, with what to do."""

    offered: str
    """Version that this console comes with."""
    is_current: bool
    is_needed: bool
    """True: the agent is too old for new orders."""
    can_upgrade: bool
    text: str


def describe(host: Host) -> AgentCard:
    """Compare a host's agent with what this console comes with."""
    offered = host_wheel.current().version
    if not host.public_key or not host.agent_version:
        text = _("Its agent has not been heard of yet.")
        return AgentCard(offered, is_current=True, is_needed=False, can_upgrade=False, text=text)
    kept = bool(host.vitals.get("kept"))
    is_current = host.agent_version == (offered if kept else offered.partition("+")[0])
    is_needed = host.contract is not None and host.contract < intake.OLDEST_CONTRACT
    # An agent that nobody keeps has the console's own code, or was started by hand: there is nothing to switch.
    text = _sentence(host, offered, is_current=is_current, is_needed=is_needed, kept=kept)
    return AgentCard(offered, is_current, is_needed, can_upgrade=kept and not is_current, text=text)


def _sentence(host: Host, offered: str, *, is_current: bool, is_needed: bool, kept: bool) -> str:
    if is_needed:
        text = _("Upgrade needed: it speaks contract %(old)d, the console %(new)d. New orders are refused until then.")
        return text % {"old": host.contract, "new": CONTRACT}
    if is_current and not kept:
        return _("It runs from the console's own installation and is upgraded together with it.")
    if is_current:
        return _("It is the version that this console comes with.")
    if not kept:
        return _("It was started by hand, so it can't be upgraded from here: start it as the join command says.")
    return _("An upgrade is ready: %(version)s.") % {"version": offered}

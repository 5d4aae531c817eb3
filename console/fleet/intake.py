"""Whether a host takes new work: paused and draining hosts don't, and one whose agent is too old can't."""

from django.db import transaction
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.common import live
from console.common.errors import Refused
from console.common.states import move
from console.fleet.models import Host
from workers.contracts import CONTRACT

OLDEST_CONTRACT = CONTRACT - 1
"""The console speaks its own contract and the one before."""

UPKEEP = frozenset(
    {"stop", "rollout_stop", "verify", "delete_copy", "check_engine", "remove_engine", "clear_cache", "upgrade_agent"}
)
"""Kinds of jobs that bring nothing new onto a host: never refused because it is paused or drained."""

_ALWAYS = frozenset({"stop", "rollout_stop", "upgrade_agent"})
"""Kinds of jobs that an agent of any age is asked for."""


def pause(host: Host, *, actor: User, reason: str) -> None:
    """No new work from now on; what runs goes on."""
    _move(host, "paused", actor=actor, reason=reason, action="host.pause")


def resume(host: Host, *, actor: User, reason: str) -> None:
    """Take new work again."""
    _move(host, "accepting", actor=actor, reason=reason, action="host.resume")


def begin_draining(host: Host, *, actor: User, reason: str) -> None:
    """No new work, and no restart either: what runs is about to be stopped."""
    _move(host, "draining", actor=actor, reason=reason, action="host.drain")


def _move(host: Host, to: str, *, actor: User, reason: str, action: str) -> None:
    with transaction.atomic():
        if move(host, to=to, reason=reason, actor=actor):
            access.record(actor=actor, action=action, target=host.name, target_url=f"/hosts/{host.pk}/", reason=reason)
            live.changed("host", host.pk)


def refuse_new_work(host: Host, kind: str) -> None:
    """Raise Refused if a job of this kind can't be given to the host now; the message says why and who can change it."""
    if host.is_removed and kind not in ("stop", "rollout_stop"):
        raise Refused(
            _("%(host)s was removed from the console. Choose another host, or have it join again.") % {"host": host}
        )
    if host.contract is not None and host.contract < OLDEST_CONTRACT and kind not in _ALWAYS:
        raise Refused(
            _(
                "Upgrade needed: the agent of %(host)s speaks contract %(old)d, this console %(oldest)d or later. What "
                "runs there goes on. Upgrade the agent on the host's page, then try again."
            )
            % {"host": host, "old": host.contract, "oldest": OLDEST_CONTRACT}
        )
    if (
        kind in UPKEEP
        or host.state == "accepting"
        or (host.state == "paused" and kind in ("restart", "rolling_restart"))
    ):
        return
    why = f" ({host.state_reason})" if host.state_reason else ""
    if host.state == "paused":
        text = _("%(host)s is paused%(why)s and takes no new work. Choose another host, or resume it on its page.")
    else:
        text = _(
            "%(host)s is being drained%(why)s and takes no new work. Choose another host, or resume it on its page."
        )
    raise Refused(text % {"host": host, "why": why})

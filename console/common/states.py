"""State tables, how a state looks, and `move`: the only way in which a state changes.

A move is a compare-and-set in the database and leaves a `StateChange` row, so that two processes can't both win and every
change can be explained later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import models, transaction
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from console.common.errors import IllegalMove, LostRace


@dataclass(frozen=True)
class Look:
    """How a state is shown: a word, an icon and a colour, never a colour alone."""

    word: str | Promise
    icon: str
    colour: str
    """One of green, blue, amber, red, grey."""


LOOKS: Mapping[str, Look] = {
    "draft": Look(_("draft"), "pencil", "grey"),
    "queued": Look(_("queued"), "clock", "grey"),
    "running": Look(_("running"), "progress", "blue"),
    "succeeded": Look(_("succeeded"), "check", "green"),
    "failed": Look(_("failed"), "x", "red"),
    "cancelling": Look(_("cancelling"), "progress-x", "amber"),
    "cancelled": Look(_("cancelled"), "circle-off", "grey"),
    "interrupted": Look(_("interrupted"), "plug-connected-x", "amber"),
    "skipped": Look(_("skipped"), "player-skip-forward", "grey"),
    "deploying": Look(_("deploying"), "progress", "blue"),
    "serving": Look(_("serving"), "circle-filled", "green"),
    "degraded": Look(_("degraded"), "alert-triangle", "amber"),
    "stopping": Look(_("stopping"), "progress-down", "blue"),
    "stopped": Look(_("stopped"), "player-stop", "grey"),
    "starting": Look(_("starting"), "progress", "blue"),
    "loading": Look(_("loading"), "progress", "blue"),
    "loaded": Look(_("loaded"), "circle-filled", "green"),
    "validating": Look(_("validating"), "progress-check", "blue"),
    "warming": Look(_("warming up"), "flame", "blue"),
    "ready": Look(_("ready"), "circle-filled", "green"),
    "unhealthy": Look(_("unhealthy"), "heart-broken", "amber"),
    "restarting": Look(_("restarting"), "refresh", "blue"),
    "draining": Look(_("draining"), "progress-down", "blue"),
    "drained": Look(_("drained"), "tool", "amber"),
    "crashed": Look(_("crashed"), "x", "red"),
    "accepting": Look(_("takes new work"), "circle-filled", "green"),
    "paused": Look(_("paused"), "player-pause", "amber"),
    "waiting": Look(_("waiting to join"), "clock", "grey"),
    "online": Look(_("online"), "circle-filled", "green"),
    "offline": Look(_("offline"), "plug-connected-x", "amber"),
    "clearing": Look(_("making room"), "progress-down", "blue"),
    "finishing": Look(_("giving the device back"), "progress-down", "blue"),
    "preparing": Look(_("is being prepared"), "progress", "blue"),
    "shadowing": Look(_("copying requests"), "progress", "blue"),
    "shifting": Look(_("shifting requests"), "progress", "blue"),
    "held": Look(_("on hold"), "player-pause", "amber"),
    "rolling_back": Look(_("rolling back"), "refresh", "amber"),
    "rolled_back": Look(_("rolled back"), "history", "red"),
    "aborted": Look(_("aborted"), "circle-off", "grey"),
    "open": Look(_("open"), "bell-ringing", "red"),
    "acknowledged": Look(_("someone is at it"), "user-check", "blue"),
    "closed": Look(_("over"), "check", "green"),
    "unknown": Look(_("unknown"), "help", "grey"),
    "installing": Look(_("installing"), "progress", "blue"),
    "testing": Look(_("being tested"), "progress-check", "blue"),
    "removing": Look(_("being removed"), "progress", "blue"),
    "usable": Look(_("usable"), "check", "green"),
    "broken": Look(_("broken"), "x", "red"),
    "removed": Look(_("removed"), "circle-off", "grey"),
    "downloading": Look(_("downloading"), "progress-down", "blue"),
    "incomplete": Look(_("not complete"), "alert-triangle", "amber"),
    "deleting": Look(_("deleting"), "progress", "blue"),
    "unverified": Look(_("not verified"), "help", "grey"),
    "verified": Look(_("verified"), "check", "green"),
    "damaged": Look(_("damaged"), "x", "red"),
}


class StateTable:
    """Which state may follow which. `final` states have no successor."""

    def __init__(self, moves: Mapping[str, str]) -> None:
        self.moves = {state: frozenset(followers.split()) for state, followers in moves.items()}
        unknown = {name for followers in self.moves.values() for name in followers} - set(self.moves)
        if unknown:
            raise IllegalMove(f"states without a row: {sorted(unknown)}")

    @property
    def states(self) -> list[str]:
        """All states, in the order of the table."""
        return list(self.moves)

    @property
    def final(self) -> frozenset[str]:
        """States that nothing follows."""
        return frozenset(state for state, followers in self.moves.items() if not followers)

    def allows(self, current: str, to: str) -> bool:
        """True if `to` may follow `current`."""
        return to in self.moves[current]

    def choices(self) -> list[tuple[str, str | Promise]]:
        """Choices for a model field."""
        return [(state, LOOKS[state].word) for state in self.moves]


class Stateful(models.Model):
    """Base of everything with a state. Subclasses set `STATES` and declare the field `state` themselves."""

    STATES: StateTable
    state: Any
    state_since = models.DateTimeField(default=timezone.now)
    state_reason = models.TextField(blank=True, default="")

    class Meta:
        abstract = True

    @property
    def look(self) -> Look:
        """Word, icon and colour of the current state."""
        return LOOKS[self.state]


def move(thing: Stateful, *, to: str, reason: str = "", actor: Any = None) -> bool:
    """Move `thing` from the state it was read in to `to`.

    Returns False if it is there already. Raises IllegalMove if the table forbids it, and LostRace if the row has another
    state in the database than `thing` believes (another process moved it first); `thing` is refreshed then.
    """
    from console.common.models import StateChange

    current = thing.state
    if current == to:
        return False
    if not thing.STATES.allows(current, to):
        raise IllegalMove(f"{thing._meta.label} {thing.pk}: {current} -> {to}")
    now = timezone.now()
    rows: models.QuerySet[Any] = type(thing)._default_manager.all()
    with transaction.atomic():
        changed = rows.filter(pk=thing.pk, state=current).update(state=to, state_since=now, state_reason=reason)
        if not changed:
            thing.refresh_from_db()
            raise LostRace(f"{thing} is {thing.look.word} by now. Look at it again before you go on.")
        StateChange.objects.create(
            kind=thing._meta.label_lower,
            object_id=thing.pk,
            before=current,
            after=to,
            reason=reason,
            actor=actor,
            at=now,
        )
    thing.state, thing.state_since, thing.state_reason = to, now, reason
    return True

"""Keeping one HAProxy at what is wanted, and knowing what is live: the same on the console's machine and on another one."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.gateway.applying import Applier, Outcome
from workers.gateway.description import Gateway, within

DRIFT_SECONDS = 5.0
RELOAD_PAUSE_SECONDS = 6.0
"""HAProxy hands its counters on only once it has settled, five seconds after its start: reloads are that far apart."""


@dataclass
class Status:
    """What is told of one gateway. Times are Unix times."""

    at: float = 0
    up: bool = False
    version: str = ""
    requests_in_flight: int = 0
    changed_at: float = 0
    changed_by: str = ""
    problem: str = ""
    repaired_at: float = 0
    not_sent: str = ""
    """Which receiver of the access log takes nothing, and why."""
    routes: int = 0
    keys: int = 0
    servers: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "Status":
        """From JSON, whatever a newer or older one may have said beside."""
        return cls(**{name: value for name, value in told.items() if name in cls.__dataclass_fields__})


class Keeper:
    """Brings one HAProxy to each description in turn, repairs drift, and keeps `status` true."""

    def __init__(self, applier: Applier) -> None:
        self.status = Status()
        self._applier = applier
        self._last: Gateway | None = None
        self._applied: Gateway | None = None
        self._looked_at = 0.0

    @property
    def waits(self) -> bool:
        """True if what is wanted is not in force yet, since reloads have to be some seconds apart."""
        return self._last is None

    def keep(self, wanted: Gateway) -> bool:
        """One round; True if `status` was looked at anew. Raises Away if HAProxy does not answer."""
        now = time.time()
        if wanted != self._last:
            outcome = self._applier.apply(wanted)
            self._note(outcome, now)
            if outcome.way != "later" and not outcome.problem:
                self._applied = wanted
            elif self._applied is not None:
                # Weights and servers don't wait for a reload: a bad engine loses its requests at once.
                self._applied = within(self._applied, wanted)
                self._applier.apply(self._applied)
            self._last = wanted if outcome.way != "later" else None
        if time.monotonic() - self._looked_at <= DRIFT_SECONDS:
            return False
        # Drift is looked for in what is in force: maps must name no backend that waits for its configuration.
        if self._applied is not None and self._applier.repair(self._applied):
            self.status.repaired_at = now
        self._look(wanted)
        self._looked_at = time.monotonic()
        return True

    def is_away(self, why: str) -> None:
        """HAProxy did not answer: nothing is known of what it has."""
        self._last = self._applied = None
        self.status.up, self.status.problem = False, why

    def _note(self, outcome: Outcome, now: float) -> None:
        if outcome.way == "later":
            return
        self.status.problem = outcome.problem
        if outcome.way in ("runtime", "reload"):
            self.status.changed_at, self.status.changed_by = now, outcome.way
            self._looked_at = 0.0

    def _look(self, wanted: Gateway) -> None:
        info = self._applier.api.info()
        self.status.up, self.status.version = True, info.get("Version", "")
        self.status.requests_in_flight = int(info.get("CurrConns", 0))
        self.status.routes, self.status.keys = len(wanted.routes), len(wanted.keys)
        busy = self._applier.api.in_flight()
        self.status.servers = [
            {
                "backend": one.backend,
                "instance": one.name,
                "up": one.is_up,
                "draining": one.draining,
                "in_flight": busy.get((one.backend, one.name), 0),
            }
            for one in self._applier.api.servers().values()
        ]

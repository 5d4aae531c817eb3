"""Processes of the console that run but do nothing: told by what they should be doing."""

from collections.abc import Callable
from dataclasses import dataclass

from redis.exceptions import RedisError

from console.jobs.reconcile import pulse_is_fresh

EVERY_SECONDS = 5.0
UNWELL_AFTER = 6
NEVER_STARTED_AFTER = 36


@dataclass
class Watched:
    """One process, and whether it does its work.

    One that has not done any yet may still be starting, on a busy machine for long: it gets three minutes instead of half a
    one, or it would be killed again and again before it can.
    """

    name: str
    does_its_work: Callable[[], bool]
    _pid: int | None = None
    _idle: int = 0
    _worked: bool = False

    def look(self, pid: int | None) -> float:
        """Look once. Returns for how many seconds it has done nothing if that is too long, else 0."""
        if pid != self._pid:
            self._pid, self._idle, self._worked = pid, 0, False
        if self.does_its_work():
            self._idle, self._worked = 0, True
            return 0.0
        self._idle += 1
        if self._idle < (UNWELL_AFTER if self._worked else NEVER_STARTED_AFTER):
            return 0.0
        idle, self._idle = self._idle, 0
        return idle * EVERY_SECONDS


def reports_are_read() -> bool:
    """True while ingest reads what hosts report; also while the broker is away, since nothing can be read then."""
    try:
        return pulse_is_fresh()
    except RedisError:
        return True

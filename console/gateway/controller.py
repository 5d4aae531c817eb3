"""The gateway's controller: stores what went through, and keeps HAProxy at what the database says.

It is not in the path of requests: while it is away, HAProxy serves on with what it has.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from threading import Thread
from typing import Any, Protocol

import structlog
from django.db import close_old_connections
from django.db.utils import OperationalError
from django.utils import timezone
from redis.exceptions import RedisError

from console import env
from console.common import broker
from console.gateway import access_log, bell, plan, sending
from console.gateway.haproxy import program
from console.gateway.haproxy.applying import Applier, Outcome
from console.gateway.haproxy.description import Gateway, within
from console.gateway.haproxy.runtime_api import Away

log = structlog.get_logger(__name__)

ROUND_SECONDS = 0.5
DRIFT_SECONDS = 5.0
TRIM_SECONDS = 300.0
RELOAD_PAUSE_SECONDS = 6.0
"""HAProxy hands its counters on only once it has settled, five seconds after its start: reloads are that far apart."""
STATUS_KEY = "console:gateway:status"
STATUS_SECONDS = 15
COMPANION_SECONDS = 5.0
"""How long the end waits for a companion's: what it holds lies in the database."""


@dataclass
class Status:
    """What the pages show of the gateway. Times are Unix times."""

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


def status() -> Status | None:
    """What the controller said last; None if it has been silent for a quarter of a minute."""
    try:
        text = broker.connection().get(STATUS_KEY)
    except RedisError:
        return None
    return Status(**json.loads(text)) if text else None


class Companion(Protocol):
    """Work of an app above that lives in the controller's process, in a thread of its own."""

    stopping: bool

    def run(self) -> None:
        """Work until `stopping`."""


_companions: list[Callable[[], Companion]] = []


def accompany(make: Callable[[], Companion]) -> None:
    """Register a companion. Called once, from an app's `ready`."""
    _companions.append(make)


class Controller:
    """One run."""

    def __init__(self) -> None:
        self.stopping = False
        directory = plan.directory()
        settled = env.environment()
        binary = program.find(settled.slipway_haproxy)
        receivers = sending.sinks(syslog=settled.slipway_gateway_syslog, otlp=settled.slipway_gateway_otlp)
        self._senders = [sending.Sender(sink) for sink in receivers]
        self._applier = Applier(directory, binary, pause_seconds=RELOAD_PAUSE_SECONDS)
        self._reader = access_log.Reader(directory / program.ACCESS_LOG, self._senders)
        self._last: Gateway | None = None
        self._applied: Gateway | None = None
        self._looked_at = self._trimmed_at = 0.0
        self._status = Status()
        self._bell: Any = None

    def run(self) -> None:
        """Work until `stopping`, and so do the companions. What is away is waited for."""
        beside = [make() for make in _companions]
        threads = [Thread(target=one.run, name=type(one).__name__, daemon=True) for one in beside]
        for thread in threads:
            thread.start()
        try:
            self._work()
        finally:
            for one in beside:
                one.stopping = True
            for thread in threads:
                thread.join(COMPANION_SECONDS)

    def _work(self) -> None:
        while not self.stopping:
            try:
                close_old_connections()
                self.round()
            except Away as away:
                self._last, self._applied, self._status.up, self._status.problem = None, None, False, str(away)
                self._say()
            except (OperationalError, RedisError) as error:
                log.warning("gateway: database or broker away", error=str(error))
            except Exception:
                log.exception("gateway: a round failed")
            self._wait()

    def round(self) -> None:
        """Store what is new in the log, then bring HAProxy to what is wanted."""
        self._reader.read()
        now = time.time()
        wanted = plan.read(corrections=self._reader.corrections.sums(now))
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
        if time.monotonic() - self._looked_at > DRIFT_SECONDS:
            # Drift is looked for in what is in force: maps must name no backend that waits for its configuration.
            if self._applied is not None and self._applier.repair(self._applied):
                self._status.repaired_at = now
            self._look(wanted)
            self._looked_at = time.monotonic()
            self._say()
        if time.monotonic() - self._trimmed_at > TRIM_SECONDS:
            access_log.trim(plan.directory(), today=timezone.now().date())
            self._trimmed_at = time.monotonic()

    def _note(self, outcome: Outcome, now: float) -> None:
        if outcome.way == "later":
            return
        self._status.problem = outcome.problem
        if outcome.way in ("runtime", "reload"):
            self._status.changed_at, self._status.changed_by = now, outcome.way
            self._looked_at = 0.0

    def _look(self, wanted: Gateway) -> None:
        info = self._applier.api.info()
        self._status.up, self._status.version = True, info.get("Version", "")
        self._status.requests_in_flight = int(info.get("CurrConns", 0))
        self._status.routes, self._status.keys = len(wanted.routes), len(wanted.keys)
        self._status.not_sent = next((one.problem for one in self._senders if one.problem), "")
        busy = self._applier.api.in_flight()
        self._status.servers = [
            {
                "backend": one.backend,
                "instance": one.name,
                "up": one.is_up,
                "draining": one.draining,
                "in_flight": busy.get((one.backend, one.name), 0),
            }
            for one in self._applier.api.servers().values()
        ]

    def _say(self) -> None:
        self._status.at = time.time()
        try:
            broker.connection().set(STATUS_KEY, json.dumps(asdict(self._status)), ex=STATUS_SECONDS)
        except RedisError as error:
            log.info("gateway: status not told", error=str(error))

    def _wait(self) -> None:
        """Until the bell rings, for half a second at most."""
        try:
            if self._bell is None:
                self._bell = broker.connection().pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
                self._bell.subscribe(bell.CHANNEL)
            until = time.monotonic() + ROUND_SECONDS
            while (left := until - time.monotonic()) > 0 and not self.stopping:
                if self._bell.get_message(timeout=left):
                    return
        except RedisError:
            self._bell = None
            time.sleep(ROUND_SECONDS)

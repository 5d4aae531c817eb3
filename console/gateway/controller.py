"""The gateway's controller: stores what went through, and keeps HAProxy at what the database says.

It is not in the path of requests: while it is away, HAProxy serves on with what it has.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from threading import Thread
from typing import Any, Protocol

import structlog
from django.db import close_old_connections
from django.utils import timezone
from redis.exceptions import RedisError

from console import env
from console.common import broker
from console.common.databases import DATABASE_AWAY
from console.gateway import access_log, bell, plan, publishing, sending
from console.gateway.machine_rounds import MachineRounds
from console.gateway.models import Route
from workers.gateway import program
from workers.gateway.applying import Applier
from workers.gateway.description import Gateway
from workers.gateway.keeping import RELOAD_PAUSE_SECONDS, Keeper, Status
from workers.gateway.runtime_api import Away

log = structlog.get_logger(__name__)

ROUND_SECONDS = 0.5
TRIM_SECONDS = 300.0
STATUS_KEY = "console:gateway:status"
STATUS_SECONDS = 15
COMPANION_SECONDS = 5.0
"""How long the end waits for a companion's: what it holds lies in the database."""


def status() -> Status | None:
    """What the controller said last; None if it has been silent for a quarter of a minute."""
    try:
        text = broker.connection().get(STATUS_KEY)
    except RedisError:
        return None
    return Status.of(json.loads(text)) if text else None


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
        self._keeper = Keeper(Applier(directory, binary, pause_seconds=RELOAD_PAUSE_SECONDS))
        self._reader = access_log.Reader(directory / program.ACCESS_LOG, self._senders)
        self._machines = MachineRounds(directory, self._senders)
        self._trimmed_at = 0.0
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
            except (*DATABASE_AWAY, RedisError) as error:
                log.warning("gateway: database or broker away", error=str(error))
            except Exception:
                log.exception("gateway: a round failed")
            self._wait()

    def round(self) -> None:
        """Store what is new in the log, bring HAProxy to what is wanted, then the gateways on other machines."""
        self._reader.read()
        publishing.settle(Route.objects.all())
        wanted = plan.read(corrections=self._reader.corrections.sums(time.time()))
        self._keep(wanted)
        self._machines.round(wanted)
        if time.monotonic() - self._trimmed_at > TRIM_SECONDS:
            access_log.trim(plan.directory(), today=timezone.now().date())
            self._trimmed_at = time.monotonic()

    def _keep(self, wanted: Gateway) -> None:
        """Before anything that needs the broker: instances that ended leave HAProxy while the broker is away, too."""
        try:
            if self._keeper.keep(wanted):
                self._say()
        except Away as away:
            self._keeper.is_away(str(away))
            self._say()

    def _say(self) -> None:
        told = self._keeper.status
        told.at, told.not_sent = time.time(), next((one.problem for one in self._senders if one.problem), "")
        try:
            broker.connection().set(STATUS_KEY, json.dumps(asdict(told)), ex=STATUS_SECONDS)
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

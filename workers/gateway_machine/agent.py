"""Keeps HAProxy on this machine at what the console ordered, tells what is live, and sends back what went through.

It is not in the path of requests: while the console, the broker or this agent is away, HAProxy serves on with what it has,
and its access log waits on this disk.
"""

import asyncio
import hashlib
import logging
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import redis
from pydantic import ValidationError
from redis.exceptions import RedisError

from workers.app import tls_options
from workers.contracts import CONTRACT, CredentialsOrder
from workers.gateway import messages, program
from workers.gateway.applying import Applier
from workers.gateway.description import Gateway, Listener
from workers.gateway.files import replace_private
from workers.gateway.keeping import RELOAD_PAUSE_SECONDS, Keeper
from workers.gateway.log_file import LogFile
from workers.gateway.messages import FRESH_SECONDS, Order, Told
from workers.gateway.runtime_api import Away
from workers.gateway_machine.haproxy_process import HAProxyProcess
from workers.gateway_machine.joining import ORDER
from workers.gateway_machine.log_shipping import LogShipping
from workers.host.credentials import take_over
from workers.host.vitals import agent_version
from workers.host_config import GatewayConfig
from workers.sealing import SealingError, public_key_of, unseal_any

logger = logging.getLogger(__name__)

ROUND_SECONDS = 0.5
TELL_SECONDS = 1.0
START_SECONDS = 2.0
"""HAProxy that ends at once is started again so often."""
DRAIN_SECONDS = 30.0
_BROKER_SECONDS = 5.0


class Agent:
    """One run. `stopping` ends it; HAProxy goes on."""

    def __init__(self, config: GatewayConfig, path: Path) -> None:
        """Raises NoHAProxy."""
        self.stopping = False
        self._config, self._path = config, path
        self._directory = config.state_dir
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        binary = program.find(config.haproxy)
        self._applier = Applier(self._directory, binary, pause_seconds=RELOAD_PAUSE_SECONDS)
        self._keeper = Keeper(self._applier)
        self._haproxy = HAProxyProcess(binary, self._directory)
        self._shipping = LogShipping(config.name, LogFile(self._directory / program.ACCESS_LOG))
        self._client = redis.Redis.from_url(
            config.redis_url,
            **tls_options(config.redis_url, config.broker_ca),
            socket_timeout=_BROKER_SECONDS,
            socket_connect_timeout=_BROKER_SECONDS,
            decode_responses=True,
        )
        self._bell: redis.client.PubSub | None = None
        self._order = self._order_of_before()
        self._opened: tuple[Order, Gateway] | None = None
        self._in_force = ""
        self._problem = ""
        self._told_at = self._started_at = 0.0
        self._broker_is_away = False

    def run(self) -> bool:
        """Work until `stopping` or removed; True if it has to start anew, since its credentials are others now."""
        while not self.stopping:
            self._ask()
            order = self._order
            if order is not None and order.credentials is not None and self._takes(order.credentials):
                return True
            if order is not None and order.ends:
                self._end()
                return False
            self._keep()
            self._tell(now=False)
            if not self._ship():
                self._wait()
        return False

    def _takes(self, ordered: CredentialsOrder) -> bool:
        return asyncio.run(take_over(ordered, self._config, self._path))

    # -- down ---------------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        try:
            text = self._client.get(messages.order_key(self._config.name))
        except (RedisError, OSError) as error:
            self._away(error)
            return
        self._broker_is_away = False
        if not text:
            return
        try:
            order = Order.model_validate_json(str(text))
        except ValidationError as error:
            self._problem = f"the order can't be understood: {error.errors()[0]['msg']}"
            return
        self._problem = ""  # whether it can be opened is said anew where it is opened
        if order != self._order:
            self._order = order
            replace_private(self._directory / ORDER, order.model_dump_json())

    def _away(self, error: Exception) -> None:
        if not self._broker_is_away:
            logger.warning("the broker can't be reached, HAProxy goes on with what it has: %s", error)
        self._broker_is_away = True
        self._bell = None

    def _order_of_before(self) -> Order | None:
        path = self._directory / ORDER
        with suppress(OSError, ValidationError):
            return Order.model_validate_json(path.read_text())
        return None

    # -- here ---------------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        wanted = self._wanted()
        if wanted is None:
            return
        digest = self._opened[0].digest if self._opened else ""
        try:
            if self._haproxy.pid() is None:
                self._start(wanted)
                return
            if self._keeper.keep(wanted):
                self._told_at = 0.0
        except Away as away:
            self._keeper.is_away(str(away))
            return
        self._in_force = digest if not self._keeper.waits and not self._keeper.status.problem else self._in_force

    def _wanted(self) -> Gateway | None:
        """The order's description, with this machine's own address, certificate and files."""
        order = self._order
        if order is None:
            return None
        if self._opened is None or self._opened[0] != order:
            try:
                content = unseal_any(self._config.private_keys, order.sealed)
                self._opened = (order, messages.read_content(content))
                self._problem = ""
            except (SealingError, ValidationError) as error:
                self._problem = f"the order can't be opened: {str(error).splitlines()[0]}"
                if self._opened is None:
                    return None
        return replace(self._opened[1], listener=self._listener(self._opened[1].listener))

    def _listener(self, ordered: Listener) -> Listener:
        path = Path(self._config.certificate) if self._config.certificate else None
        content = path.read_bytes() if path is not None and path.exists() else b""
        return replace(
            ordered,
            directory=str(self._directory),
            lua=str(program.LUA),
            address=self._config.bind,
            port=self._config.port,
            peer_port=self._config.peer_port,
            certificate=self._config.certificate,
            certificate_sha256=hashlib.sha256(content).hexdigest() if content else "",
            threads=min(4, os.cpu_count() or 1),
        )

    def _start(self, wanted: Gateway) -> None:
        self._keeper.is_away(self._haproxy.last_words() if self._started_at else "")
        if time.monotonic() - self._started_at < START_SECONDS:
            return
        self._started_at = time.monotonic()
        if problem := self._applier.prepare(wanted):
            self._keeper.is_away(problem)
            if not (self._directory / program.CONFIG).exists():
                return
        self._applier.forget()
        self._haproxy.start(wanted.listener.log_descriptors)
        logger.info("HAProxy was started")

    def _end(self) -> None:
        """It was removed: no request is taken from now on, those that run are finished, and all that went through is sent."""
        logger.info("the console removed this gateway: HAProxy ends")
        self._haproxy.stop(DRAIN_SECONDS)
        until = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < until and not self.stopping:
            self._ship()
            if not self._shipping.waiting_bytes:
                break
            time.sleep(0.1)
        self._keeper.is_away("")
        self._tell(now=True, ended=True)

    # -- up -----------------------------------------------------------------------------------------------------------

    def _tell(self, *, now: bool, ended: bool = False) -> None:
        if not now and time.monotonic() - self._told_at < TELL_SECONDS:
            return
        self._told_at = time.monotonic()
        config, status = self._config, self._keeper.status
        status.at = time.time()
        told = Told(
            contract=CONTRACT,
            agent_version=agent_version(),
            digest=self._in_force,
            credentials=config.credentials,
            public_key=public_key_of(config.private_key),
            url=config.public_url,
            address=f"{config.bind}:{config.port}",
            waiting_bytes=self._shipping.waiting_bytes,
            ended=ended,
            problem=self._problem,
            status=status,
        )
        try:
            self._client.set(messages.told_key(config.name), told.model_dump_json(), ex=FRESH_SECONDS)
        except (RedisError, OSError) as error:
            self._away(error)

    def _ship(self) -> bool:
        try:
            return self._shipping.ship(self._client)
        except (RedisError, OSError) as error:
            self._away(error)
            return False

    def _wait(self) -> None:
        """Until the doorbell rings, for half a second at most."""
        until = time.monotonic() + ROUND_SECONDS
        try:
            if self._bell is None and not self._broker_is_away:
                self._bell = self._client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
                self._bell.subscribe(messages.doorbell_channel(self._config.name))
            while self._bell is not None and (left := until - time.monotonic()) > 0 and not self.stopping:
                if self._bell.get_message(timeout=left):
                    return
        except (RedisError, OSError) as error:
            self._away(error)
        time.sleep(max(0.0, until - time.monotonic()))

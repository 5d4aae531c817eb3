"""The agent: one process that supervises this host's engines and speaks with the console through Redis.

The loop is the parent, the Celery worker its child: whatever happens to a broker connection, supervision goes on. The
lanes (reports, logs, control) have a connection each and reconnect by themselves; nothing that is important lies in
memory only, so this process may be killed at any moment.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

from redis.exceptions import RedisError

from workers.contracts import Heartbeat, StepProgress, desired_key, doorbell_channel, samples_stream
from workers.host import slots
from workers.host.agent_lock import AgentLock
from workers.host.credentials import take_over
from workers.host.desired import DesiredStore
from workers.host.drivers.choosing import driver_of
from workers.host.engine_environments import sweep_all
from workers.host.engine_reports import tell_engines
from workers.host.engines import register_signature
from workers.host.files import write_json
from workers.host.keeper import alive_path, kept_config_path
from workers.host.logs import LogSender
from workers.host.offers import TICK_SECONDS as OFFERS_TICK_SECONDS
from workers.host.offers import Offers
from workers.host.outbox import Outbox
from workers.host.redis_link import Address, Client, connect, end, keep_connected
from workers.host.reports import ReportSender
from workers.host.sampling import STREAM_LENGTH, Sampler
from workers.host.seat import Seat, SeatTakenError
from workers.host.step_files import StepFiles, forget_old_steps, running_steps
from workers.host.step_runner import cancel_step
from workers.host.supervised import Surroundings
from workers.host.supervisor import TICK_SECONDS, Supervisor, forget_old_instances
from workers.host.vitals import agent_version, vitals
from workers.host.watcher_process import WatcherProcess
from workers.host.worker_process import WorkerProcess
from workers.host_config import HostConfig
from workers.sealing import public_key_of

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 5.0
_INVENTORY_SECONDS = 600.0
_FIRST_LOOK_SECONDS = 15.0
"""How long the first inventory waits for the devices; a host whose driver hangs is told without them."""
_HOUSEKEEPING_SECONDS = 3600.0
_LOG_CAPS_SECONDS = 2.0
_BRING_UP_THREADS = 32
_FIRST_SEAT_SECONDS = 3.0


class Agent:
    """Everything that runs in the agent's process. `run` returns after SIGTERM or SIGINT; engines stay."""

    def __init__(self, config: HostConfig, config_path: Path) -> None:
        self.starts_anew = False
        """After `run`: True if the agent is to be started again at once, because its configuration has changed."""
        self._lock = AgentLock(config.state_dir, config.name)
        self._config = config
        self._config_path = config_path
        self._address = Address(config.redis_url, config.broker_ca)
        self._public_key = public_key_of(config.private_key)
        self._seat = Seat.of(config.name, config.state_dir)
        self._seat_taken: SeatTakenError | None = None
        self._refused: dict[str, Any] = {}
        self._told_alive = False
        self._stopping = asyncio.Event()
        self._boot = uuid4()
        self._outbox = Outbox(config.state_dir / "outbox.sqlite3")
        self._desired = DesiredStore(config.state_dir / "desired.json")
        self._reports = ReportSender(config.name, self._outbox)
        self._logs = LogSender(config.name)
        self._worker = WorkerProcess(config_path)
        self._offers = Offers(self._desired, config.state_dir, config_path)
        self._watcher = WatcherProcess(config_path, config.state_dir)
        self._look_at_desired = asyncio.Event()
        self._told: tuple[tuple[tuple[str, int], ...], int] | None = None
        self._inventory_at = float("-inf")
        self._started_at = time.monotonic()

    async def run(self) -> None:
        """Supervise until asked to end. Raises SeatTakenError when another machine's agent speaks for this host."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        await self._take_seat()
        logger.info("agent %s for host %s, process %d", agent_version(), self._config.name, os.getpid())
        threads = ThreadPoolExecutor(_BRING_UP_THREADS, thread_name_prefix="bring-up")
        host = Surroundings(
            config=self._config,
            driver=driver_of(self._config),
            report=self._outbox.add,
            logs=self._logs,
            sampled=lambda instance: sampler.latest.get(instance),
            threads=threads,
        )
        supervisor = Supervisor(self._desired, host)
        sampler = Sampler(self._config.name, supervisor.sampled)
        tasks = [asyncio.create_task(work) for work in self._activities(supervisor, host, sampler)]
        await self._stopping.wait()
        logger.info("stopping; %d engines go on without an agent", supervisor.running())
        await end(tasks)
        supervisor.close()
        self._offers.close()
        await self._watcher.end()
        await self._worker.end()
        threads.shutdown(wait=False, cancel_futures=True)
        if self._seat_taken is None and not self.starts_anew:
            await self._leave_seat()
        self._outbox.close()
        self._lock.release()
        if self._seat_taken is not None:
            raise self._seat_taken

    async def _take_seat(self) -> None:
        """Before anything is supervised: is another machine's agent at it? A broker that is away is not waited for."""
        client = connect(self._address)
        try:
            await asyncio.wait_for(self._seat.take(client), _FIRST_SEAT_SECONDS)
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("the broker can't be asked yet whether this host has another agent: %s", error)
        finally:
            await client.aclose()

    async def _leave_seat(self) -> None:
        client = connect(self._address)
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            await asyncio.wait_for(self._seat.leave(client), 1)
        await client.aclose()

    def _activities(
        self, supervisor: Supervisor, host: Surroundings, sampler: Sampler
    ) -> list[Coroutine[Any, Any, None]]:
        url = self._address
        every = _repeat
        return [
            every(TICK_SECONDS, supervisor.tick),
            every(0.5, self._tell_inventory),
            every(1.0, self._apply_cancellations),
            every(_LOG_CAPS_SECONDS, self._logs.keep_caps),
            every(_HOUSEKEEPING_SECONDS, lambda: self._keep_house(host)),
            every(0.2, self._worker.keep_alive),
            every(OFFERS_TICK_SECONDS, self._offers.tick),
            every(1.0, self._watcher.keep_alive),
            _for_ever("reports", lambda: keep_connected("reports", url, self._reports.session)),
            _for_ever("logs", lambda: keep_connected("logs", url, self._logs.session)),
            _for_ever("sampling", sampler.run),
            _for_ever("samples", lambda: keep_connected("samples", url, sampler.session)),
            _for_ever("doorbell", lambda: keep_connected("doorbell", url, self._listen)),
            _for_ever(
                "control", lambda: keep_connected("control", url, lambda client: self._control(client, supervisor))
            ),
        ]

    # -- control lane -----------------------------------------------------------------------------------------------

    async def _listen(self, client: Client) -> None:
        """Wait for the console's doorbell; it has no content."""
        async with client.pubsub() as subscription:
            await subscription.subscribe(doorbell_channel(self._config.name))
            self._ring()
            while True:
                message = await subscription.get_message(ignore_subscribe_messages=True, timeout=2.0)
                if message is not None:
                    self._ring()
                elif not subscription.connection or not subscription.connection.is_connected:
                    raise ConnectionError("the subscription was lost")

    def _ring(self) -> None:
        for doorbell in (self._look_at_desired, self._reports.doorbell, self._logs.doorbell):
            doorbell.set()

    async def _control(self, client: Client, supervisor: Supervisor) -> None:
        """Heartbeat every five seconds; the desired state at each of them, and whenever the doorbell rings."""
        while True:
            self._look_at_desired.clear()
            await self._keep_seat(client)
            await self._read_desired(client)
            await self._send_heartbeat(client, supervisor)
            deadline = time.monotonic() + HEARTBEAT_SECONDS
            while (left := deadline - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._look_at_desired.wait(), left)
                    self._look_at_desired.clear()
                    await self._read_desired(client)

    async def _read_desired(self, client: Client) -> None:
        if self.starts_anew:
            return
        text = await client.get(desired_key(self._config.name))
        if text is not None and self._desired.offer(text):
            self._apply_cancellations()
        state = self._desired.state
        if state is not None and await take_over(state.credentials, self._config, self._config_path):
            self.starts_anew = True
            self._stopping.set()

    async def _keep_seat(self, client: Client) -> None:
        try:
            await self._seat.take(client)
            self._refused = await self._seat.refused(client)
        except SeatTakenError as error:
            self._seat_taken = error
            self._stopping.set()
            # Not one order more is read: they are the other agent's.
            await asyncio.sleep(_HOUSEKEEPING_SECONDS)

    async def _send_heartbeat(self, client: Client, supervisor: Supervisor) -> None:
        state_dir = self._config.state_dir
        heartbeat = Heartbeat(
            agent_version=agent_version(),
            agent_pid=os.getpid(),
            agent_boot=self._boot,
            at=time.time(),
            generation=supervisor.reflected,
            credentials=self._config.credentials,
            public_key=self._public_key,
            running_steps=sorted({*running_steps(state_dir), *slots.parked_steps(state_dir)}),
            vitals=vitals(self._config, self._watcher.live())
            | {"instances_running": supervisor.running(), "reports_waiting": self._outbox.depth()}
            | {"kept": kept_config_path() is not None, "refused_agent": self._refused},
        )
        await client.xadd(
            samples_stream(self._config.name),
            {"json": heartbeat.model_dump_json()},
            maxlen=STREAM_LENGTH,
            approximate=True,
        )
        if not self._told_alive:
            self._told_alive = True
            write_json(alive_path(state_dir), {"pid": os.getpid(), "version": agent_version()})
        self._renew_parked()

    # -- what comes round --------------------------------------------------------------------------------------------

    def _apply_cancellations(self) -> None:
        state = self._desired.state
        for cancelled in state.cancelled_steps if state else []:
            files = StepFiles(self._config.state_dir, cancelled.step)
            cancel_step(files, cancelled.fence, self._outbox.add)
            slots.unpark(self._config.state_dir, cancelled.step, cancelled.fence)

    def _renew_parked(self) -> None:
        """A parked step has no process that could report; its lease is renewed for it."""
        for order in slots.parked_orders(self._config.state_dir):
            self._outbox.add(
                StepProgress(
                    step=order.step, fence=order.fence, done=0, waiting_for="another long step of this host to end"
                )
            )

    def _tell_inventory(self) -> None:
        now = time.monotonic()
        if self._watcher.facts_number == 0 and now - self._started_at < _FIRST_LOOK_SECONDS:
            return
        what = register_signature(self._config.engines_dir), self._watcher.facts_number
        if what != self._told or now - self._inventory_at > _INVENTORY_SECONDS:
            self._told, self._inventory_at = what, now
            tell_engines(self._config, self._outbox.add)

    def _keep_house(self, host: Surroundings) -> None:
        forget_old_steps(self._config.state_dir)
        forget_old_instances(self._desired, host)
        sweep_all(self._config.engines_dir, self._config.state_dir)


async def _repeat(seconds: float, work: Callable[[], None]) -> None:
    """Call `work` again and again; an error is logged and does not end it (a full disk, for one, passes)."""
    failing = False
    while True:
        try:
            work()
        except Exception:
            if not failing:
                logger.exception("%s failed, trying on", getattr(work, "__qualname__", work))
            failing = True
        else:
            failing = False
        await asyncio.sleep(seconds)


async def _for_ever(name: str, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await work()
        except Exception:
            logger.exception("the %s lane failed, starting it again", name)
        await asyncio.sleep(1)

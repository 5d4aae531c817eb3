"""One instance under supervision: bring it to what is desired, and say what is seen of it.

Everything that matters lies in files (see `workers.host.instance_files`), so an agent that was killed goes on where it
was. What is kept here are only running activities: an order to the driver, a health watch, a bring-up.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from uuid import UUID

from workers.contracts import (
    Body,
    Failure,
    Generation,
    InstanceObserved,
    InstanceOrder,
    InstancePhase,
)
from workers.host import ports
from workers.host.adapters import Adapters, links_of
from workers.host.attempt_reports import AttemptReports
from workers.host.bring_up import Target
from workers.host.drivers import DriverError, EngineDriver
from workers.host.engines import find_engine
from workers.host.failures import StepFailedError
from workers.host.health import Health, watch_health
from workers.host.instance_files import InstanceFiles, ShimState
from workers.host.launching import API_KEY, Launch, open_secrets, prepare_launch
from workers.host.liveness import Liveness
from workers.host.logs import LogSender
from workers.host.own_bring_up import OwnBringUp
from workers.host.own_requests import no_probes
from workers.host.sampling import Sampled
from workers.host.sampling import Target as SampleTarget
from workers.host_config import HostConfig

logger = logging.getLogger(__name__)

_REPEAT_STOP_SECONDS = 5.0
_REPEAT_ADOPT_SECONDS = 2.0
_RETRY_REFUSED_SECONDS = 10.0
_FIRST_STATE_SECONDS = 20.0
_BRINGING_UP = (InstancePhase.VALIDATING, InstancePhase.WARMING)


@dataclass(frozen=True)
class Surroundings:
    """What all instances of a host share."""

    config: HostConfig
    driver: EngineDriver
    report: Callable[[Body], object]
    logs: LogSender
    sampled: Callable[[UUID], Sampled | None]
    """The last metrics of an instance's engine."""
    threads: Executor
    """For bring-ups, which take minutes; short work goes to the loop's own threads."""


@dataclass(frozen=True)
class Sight:
    """What is seen of an instance at one moment."""

    phase: InstancePhase
    attempt: int | None = None
    reason: str = ""
    failure: Failure | None = None


class SupervisedInstance:
    """`converge` acts, `observe` reports; both are called about ten times a second and never block."""

    def __init__(self, files: InstanceFiles, host: Surroundings) -> None:
        self.files = files
        self.order: InstanceOrder | None = None
        self.state: ShimState | None = None
        self._host = host
        self._state_changed_at = -1
        self._work: asyncio.Task[None] | None = None
        self._attempts = AttemptReports(files, host.report, host.logs, host.config.private_keys)
        self._health: Health | None = None
        self._health_task: asyncio.Task[None] | None = None
        self._bring_up: OwnBringUp | None = None
        self._stop_asked_at = self._adopted_at = self._refused_at = float("-inf")
        self._seen_attempt: int | None = None
        self._reported: Sight | None = None
        self._liveness: Liveness | None = None
        self._liveness_task: asyncio.Task[None] | None = None
        self._adapters: Adapters | None = None
        self._hold = ""

    # -- acting -----------------------------------------------------------------------------------------------------

    def converge(self, order: InstanceOrder | None, hold: str = "") -> None:
        """Start, stop, restart or take over, whatever is missing. `order` None: unknown to the console, left alone.

        `hold`: why nothing that lives may be ended without a person having asked for it; empty: it may.
        """
        self.order, self._hold = order, hold
        self._read_state()
        if self._work is not None and not self._work.done():
            return
        state = self.state
        if state is not None and state.unfinished:
            if order is not None and (not order.run or order.start > state.start):
                self._stop(order.grace_seconds)
            elif not state.shim_alive:
                self._adopt()
        elif order is not None and order.run and self._may_start(order, state):
            self._work = asyncio.create_task(asyncio.to_thread(self._launch, order))

    @property
    def unfinished(self) -> bool:
        """True while a process of it runs, or should."""
        return self.state is not None and self.state.unfinished

    @property
    def idle(self) -> bool:
        """True when nothing runs and nothing is left to report."""
        working = self._work is not None and not self._work.done()
        return not self.unfinished and not working and not self._attempts.busy

    @property
    def sampled(self) -> SampleTarget | None:
        """Where its metrics are; None while its engine doesn't listen."""
        order, health = self.order, self._health
        if order is None or health is None or not health.listening or not self.unfinished:
            return None
        ready = self.files.ready_attempt() == health.attempt
        probes = self._liveness.probes if self._liveness is not None else no_probes
        return SampleTarget(self.files.instance, health.attempt, order.port, ready, probes)

    def _read_state(self) -> None:
        try:
            changed_at = (self.files.directory / "state.json").stat().st_mtime_ns
        except FileNotFoundError:
            changed_at = 0
        if changed_at != self._state_changed_at:
            self._state_changed_at = changed_at
            self.state = self._host.driver.status(self.files)

    def _may_start(self, order: InstanceOrder, state: ShimState | None) -> bool:
        now = time.monotonic()
        if self.files.refusal(order.start) is not None:
            # What was ready once will be again: after a reboot, a disk may just not be mounted yet.
            return self.files.ready_start() == order.start and now - self._refused_at > _RETRY_REFUSED_SECONDS
        return state is None or state.state != "crashed" or state.start != order.start

    def _launch(self, order: InstanceOrder) -> None:
        config = self._host.config
        try:
            engine = find_engine(config.engines_dir, order.engine)
            launch = prepare_launch(order, engine, config.private_keys, os.environ, state_dir=config.state_dir)
            if not ports.is_free(order.port):
                raise StepFailedError.of(ports.in_use(order.port))
            self.files.write_order(order, launch.spec)
            self._host.driver.start(self.files, launch)
        except StepFailedError as error:
            self._refuse(order, error.failure)
        except DriverError as error:
            if self._runs_already(order.start):
                return  # an agent that was killed had started it, and its shim had not yet said so
            self._refuse(order, Failure(code="driver.failed", message=str(error), next="Read the agent's log."))
        else:
            self._await_first_state(order.start)
            logger.info("instance %s: start %d of %s", self.files.instance, order.start, order.deployment)

    def _runs_already(self, start: int) -> bool:
        state = self._host.driver.status(self.files)
        return state is not None and state.unfinished and state.start == start and state.shim_alive

    def _await_first_state(self, start: int) -> None:
        """A shim is there before it has written what goes on; until it has, it must not be launched a second time."""
        deadline = time.monotonic() + _FIRST_STATE_SECONDS
        while time.monotonic() < deadline:
            state = self._host.driver.status(self.files)
            if state is not None and state.start >= start:
                return
            time.sleep(0.02)

    def _refuse(self, order: InstanceOrder, failure: Failure) -> None:
        logger.warning("instance %s: start %d refused: %s", self.files.instance, order.start, failure.message)
        self._refused_at = time.monotonic()
        self.files.refuse(order.start, failure)

    def _stop(self, grace_seconds: float) -> None:
        if time.monotonic() - self._stop_asked_at > _REPEAT_STOP_SECONDS:
            self._stop_asked_at = time.monotonic()
            logger.info("instance %s: stopping", self.files.instance)
            self._work = asyncio.create_task(self._drive(self._host.driver.stop, self.files, grace_seconds))

    def _adopt(self) -> None:
        if time.monotonic() - self._adopted_at > _REPEAT_ADOPT_SECONDS:
            self._adopted_at = time.monotonic()
            logger.warning("instance %s: its shim is gone, taking over", self.files.instance)
            self._work = asyncio.create_task(self._drive(self._host.driver.adopt, self.files, self._relaunch()))

    async def _drive(self, action: Callable[..., None], *arguments: object) -> None:
        try:
            await asyncio.to_thread(action, *arguments)
        except DriverError as error:
            logger.warning("instance %s: %s", self.files.instance, error)

    def _relaunch(self) -> Launch:
        """The launch of the order that ran; if it couldn't be started today, at least its process is kept."""
        order, config = self.files.order(), self._host.config
        try:
            if order is not None:
                engine = find_engine(config.engines_dir, order.engine)
                return prepare_launch(order, engine, config.private_keys, os.environ, state_dir=config.state_dir)
        except StepFailedError as error:
            logger.warning("instance %s: it runs, but could not be restarted: %s", self.files.instance, error)
        return Launch(spec={}, environment={"PATH": os.environ.get("PATH", os.defpath)})

    # -- watching ---------------------------------------------------------------------------------------------------

    def observe(self, generation: Generation | None) -> None:
        """Report attempts and phase as far as they are new."""
        self.tell_attempts()
        self._attempts.tell_validation(self.state, self.order)
        self._attempts.tell_measurement(self.state)
        self._watch_running()
        self._keep_adapters()
        if self._attempts.busy:
            return  # the cause of an end is told before the phase that follows from it
        if (sight := self._look()) is None:
            return
        state = self.state
        if state is not None and state.restarts and self._seen_attempt not in (None, state.attempt):
            restart = self._restart_seen(state)
            if restart is None:
                return
            self._report(restart, generation)
        self._seen_attempt = state.attempt if state is not None else None
        self._report(sight, generation)

    def tell_attempts(self) -> None:
        """Report what is new about attempts."""
        self._attempts.tell(self._state_changed_at)

    def close(self) -> None:
        """End what runs here in the agent; the instance itself goes on."""
        self._end_health_watch()
        if self._bring_up is not None:
            self._bring_up.abandon()

    def _report(self, sight: Sight, generation: Generation | None) -> None:
        if sight == self._reported:
            return
        restarts = self.state.restarts if self.state else 0
        logger.info("instance %s: %s%s", self.files.instance, sight.phase, f" ({sight.reason})" if sight.reason else "")
        self._host.report(
            InstanceObserved(
                instance=self.files.instance,
                generation=generation,
                phase=sight.phase,
                reason=sight.reason,
                attempt=sight.attempt,
                restarts=restarts,
                failure=sight.failure,
            )
        )
        self._reported = sight  # not before: on a full disk it is reported again and again until it is stored

    def _look(self) -> Sight | None:
        """What is seen now; `None` while it can't be told."""
        order, state = self.order, self.state
        if order is not None and order.run and (state is None or not state.unfinished):
            refusal = self.files.refusal(order.start)
            if refusal is not None:
                return Sight(InstancePhase.CRASHED, reason=refusal.message, failure=refusal)
        if state is None:
            return Sight(InstancePhase.STOPPED) if order is not None and not order.run else None
        if state.state in ("stopping", "stopped"):
            if order is not None and order.run:
                return None  # asked to run again: the launch is on its way
            return Sight(InstancePhase.STOPPING if state.state == "stopping" else InstancePhase.STOPPED, state.attempt)
        if state.state == "crashed":
            if order is not None and order.run and order.start != state.start:
                return None
            cause = self._attempts.cause(state.attempt)
            return Sight(InstancePhase.CRASHED, state.attempt, state.reason, cause) if cause is not None else None
        if state.state == "backoff":
            return self._restart_seen(state)
        return self._look_at_running(state)

    def _look_at_running(self, state: ShimState) -> Sight | None:
        health = self._health
        if health is None or health.attempt != state.attempt:
            return Sight(InstancePhase.STARTING, state.attempt)
        if self.files.ready_attempt() == state.attempt:
            if self._liveness is not None and (hang := self._liveness.failure) is not None:
                return Sight(InstancePhase.UNHEALTHY, state.attempt, hang.message, hang)
            if self._liveness is not None and self._liveness.trouble:
                return Sight(InstancePhase.UNHEALTHY, state.attempt, self._liveness.trouble)
            if health.unhealthy:
                return Sight(InstancePhase.UNHEALTHY, state.attempt, "/health fails")
            return Sight(InstancePhase.READY, state.attempt) if health.listening else None
        if (phase := self.files.bring_up_phase(state.attempt)) is not None:
            return Sight(phase, state.attempt)
        if self._bring_up is not None and self._bring_up.failure is not None:
            failure = self._bring_up.failure
            return Sight(InstancePhase.UNHEALTHY, state.attempt, failure.message, failure)
        if health.listening:
            reported = self._reported
            if reported is not None and reported.attempt == state.attempt and reported.phase in _BRINGING_UP:
                return reported  # between two steps of a bring-up: it doesn't fall back
            return Sight(InstancePhase.LISTENING, state.attempt)
        log = self.files.log(state.attempt)
        says_something = log.exists() and log.stat().st_size > 0
        return Sight(InstancePhase.LOADING if says_something else InstancePhase.STARTING, state.attempt)

    def _restart_seen(self, state: ShimState) -> Sight | None:
        ended = state.attempt if state.state == "backoff" else state.attempt - 1
        if (cause := self._attempts.cause(ended)) is None:
            return None
        return Sight(InstancePhase.RESTARTING, ended, cause.message, cause)

    def _watch_running(self) -> None:
        state = self.state
        if state is None or state.state != "running":
            self._end_health_watch()
            return
        if self._health is None or self._health.attempt != state.attempt:
            self._end_health_watch()
            order = self.files.order()
            if order is None:
                return
            self._health = Health(attempt=state.attempt)
            self._health_task = asyncio.create_task(watch_health(order.port, self._health))
        self._bring_up_if_needed(state)
        self._watch_liveness(state)

    def _end_health_watch(self) -> None:
        if self._health_task is not None:
            self._health_task.cancel()
            self._health_task = self._health = None
        if self._liveness_task is not None:
            self._liveness_task.cancel()
            self._liveness_task = self._liveness = None

    def _watch_liveness(self, state: ShimState) -> None:
        """From readiness on: is it still working?"""
        order, health = self.files.order(), self._health
        watched = self._liveness is not None and self._liveness.attempt == state.attempt
        if watched or order is None or health is None or self.files.ready_attempt() != state.attempt:
            return
        try:
            python = find_engine(self._host.config.engines_dir, order.engine).python
        except StepFailedError:
            python = ""
        self._liveness = Liveness(
            files=self.files,
            attempt=state.attempt,
            order=order,
            health=health,
            sampled=lambda: self._host.sampled(self.files.instance),
            key=self._key_of(order),  # without one it runs, and can be watched all the same
            engine_python=python,
            driver=self._host.driver,
            held=lambda: self._hold,
        )
        self._liveness_task = asyncio.create_task(self._liveness.run())

    def _keep_adapters(self) -> None:
        """While it is ready: has it the adapters that are wanted?"""
        state, order, health = self.state, self.order, self._health
        if state is None or order is None or not order.run or state.state != "running":
            return
        if health is None or not health.listening or self.files.ready_attempt() != state.attempt:
            return
        if self._adapters is None or self._adapters.attempt != state.attempt:
            if (running := self.files.order()) is None:
                return
            self._adapters = Adapters(
                self.files, state.attempt, running, self._key_of(running),
                links_of(self._host.config.state_dir, self.files.instance),
            )  # fmt: skip
        self._adapters.go_on(order.adapters, self._host.threads)
        self._adapters.tell(self._host.report)

    def _key_of(self, order: InstanceOrder) -> str:
        try:
            return open_secrets(order, self._host.config.private_keys).get(API_KEY, "")
        except StepFailedError:
            return ""

    def _bring_up_if_needed(self, state: ShimState) -> None:
        order = self.order
        if order is None or not order.run or self.files.ready_attempt() == state.attempt:
            return
        ours = order.bring_up == "agent" or state.restarts > 0 or self.files.ready_start() == state.start
        if not ours:
            return
        if self._bring_up is None or self._bring_up.attempt != state.attempt:
            if self._bring_up is not None:
                self._bring_up.abandon()
            target = Target(self.files, state.start, self._host.config.private_keys)
            self._bring_up = OwnBringUp(target, state.attempt, order.start_deadline_seconds, self._host.driver)
        self._bring_up.go_on(self._host.threads)

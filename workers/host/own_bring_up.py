"""Bring-up by the agent itself: after a restart or a reboot, nobody has to ask for it."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TypeVar

from workers.contracts import Failure, Level
from workers.host.bring_up import Target, wait_until_listening
from workers.host.drivers import EngineDriver
from workers.host.failures import StepCancelledError, StepFailedError
from workers.host.step_context import POLL_SECONDS, Unit, in_thread
from workers.host.validation import validate
from workers.host.validation_checks import CHECKS, depth_of
from workers.host.warming import warm_up

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 30.0

Result = TypeVar("Result")


class OwnProgress:
    """The `Progress` of a bring-up that no job watches: what happens goes to the agent's log."""

    def __init__(self, deadline_seconds: float) -> None:
        self.abandoned = threading.Event()
        self._deadline = time.monotonic() + deadline_seconds
        self._deadline_seconds = deadline_seconds

    def check(self) -> None:
        """Raise when it was abandoned or is late."""
        if self.abandoned.is_set():
            raise StepCancelledError
        if time.monotonic() > self._deadline:
            raise StepFailedError(
                "instance.start_deadline",
                f"it was not ready within its {self._deadline_seconds:.0f} s",
                next_step="Read its log; give it more time if it was still making progress.",
            )

    def sleep(self, seconds: float) -> None:
        """Wait, checking."""
        self.abandoned.wait(seconds)
        self.check()

    def progress(self, done: float, total: float | None = None, *, unit: Unit = "items", waiting_for: str = "") -> None:
        """Nobody watches."""

    def event(self, text: str, level: Level = Level.INFO) -> None:
        """Write it to the agent's log."""
        logger.info("%s: %s", level.value, text)

    def in_background(self, work: Callable[[], Result], *, waiting_for: str) -> Result:  # noqa: ARG002
        """Run blocking `work`, checking meanwhile; its thread is left behind if it must not go on."""
        future = in_thread(work)
        while not future.done():
            self.check()
            time.sleep(POLL_SECONDS / 2)
        return future.result()


class OwnBringUp:
    """Listening, validation and warm-up of one attempt; tried again every half minute while the model answers badly."""

    def __init__(self, target: Target, attempt: int, deadline_seconds: float, driver: EngineDriver) -> None:
        self.attempt = attempt
        self.failure: Failure | None = None
        """Why the last try failed although the engine runs."""
        self._target = target
        self._driver = driver
        self._deadline_seconds = deadline_seconds
        self._progress = OwnProgress(deadline_seconds)
        self._future: Future[None] | None = None
        self._try_again_at = 0.0

    def go_on(self, threads: Executor) -> None:
        """Begin, or try again, if that is due."""
        if (self._future is None or self._future.done()) and time.monotonic() >= self._try_again_at:
            self._future = threads.submit(self._run)

    def abandon(self) -> None:
        """Stop trying."""
        self._progress.abandoned.set()

    def _run(self) -> None:
        if self.failure is not None:
            self._progress = OwnProgress(self._deadline_seconds)
        try:
            wait_until_listening(self._target, self._progress)
            depth = depth_of(start=self._target.start, ready_start=self._target.files.ready_start())
            validate(self._target, self._progress, CHECKS, depth)
            warm_up(self._target, self._progress)
        except StepCancelledError:
            return
        except StepFailedError as error:
            self._failed(error.failure)
        else:
            self.failure = None

    def _failed(self, failure: Failure) -> None:
        self._try_again_at = time.monotonic() + _RETRY_SECONDS
        state = self._target.files.state()
        if state is None or not state.unfinished or state.attempt != self.attempt:
            return  # it has ended; the shim's policy decides what follows
        logger.warning("instance %s: bring-up failed: %s", self._target.files.instance, failure.message)
        self.failure = failure
        if failure.code == "instance.start_deadline":
            self._driver.fail(self._target.files, failure)

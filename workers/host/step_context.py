"""What a step sees of the world: its order, the host's configuration, its deadline, and how to say how it goes."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from workers.contracts import Body, FileProgress, Level, StepEvent, StepOrder, StepPart, StepProgress
from workers.host.failures import StepCancelledError, StepFailedError
from workers.host.step_files import StepFiles
from workers.host_config import HostConfig

Unit = Literal["bytes", "seconds", "items", "tokens"]
Result = TypeVar("Result")

POLL_SECONDS = 0.1
"""How often a waiting step looks whether it is cancelled or late."""

_PROGRESS_EVERY_SECONDS = 1.0
_CHANGE_EVERY_SECONDS = 0.25
_RATE_SECONDS = 30.0


class Progress(Protocol):
    """The part of a context that bring-up needs; the supervisor has one of its own for restarts."""

    def check(self) -> None:
        """Raise when the work must not go on."""

    def sleep(self, seconds: float) -> None:
        """Wait, checking."""

    def progress(self, done: float, total: float | None = None, *, unit: Unit = "items", waiting_for: str = "") -> None:
        """Say how far it is."""

    def event(self, text: str, level: Level = Level.INFO) -> None:
        """Say what happened."""

    def in_background(self, work: Callable[[], Result], *, waiting_for: str) -> Result:
        """Run blocking `work` while going on checking."""


@dataclass(frozen=True)
class FilesProgress:
    """The files of a step: those that matter now, and how many there are and are done altogether."""

    shown: list[FileProgress]
    total: int
    done: int


@dataclass
class _Pace:
    """When progress was last sent, and how far it was then; `seen` are the moments of the last half minute."""

    at: float = 0.0
    done: float = 0.0
    waiting_for: str = ""
    seen: "deque[tuple[float, float]]" = field(default_factory=deque)

    def remaining_seconds(self, now: float, done: float, total: float | None) -> float | None:
        """How long the rest takes at the rate of the last half minute; None while nothing comes."""
        self.seen.append((now, done))
        while len(self.seen) > 1 and now - self.seen[0][0] > _RATE_SECONDS:
            self.seen.popleft()
        since, before = self.seen[0]
        if total is None or done <= before or now - since < _PROGRESS_EVERY_SECONDS:
            return None
        return (total - done) * (now - since) / (done - before)


@dataclass(frozen=True)
class StepContext:
    """Handed to a step's `run`. `deadline` is on the monotonic clock."""

    order: StepOrder
    config: HostConfig
    files: StepFiles
    report: Callable[[Body], object]
    began: float
    deadline: float
    _pace: _Pace = field(default_factory=_Pace)

    @property
    def fence(self) -> int:
        """The newest dispatch of this step: reports carry it, so that a re-dispatched step's reports count."""
        return max(self.order.fence, self.files.fence)

    @property
    def cancelled(self) -> bool:
        """True once someone asked for this step to be abandoned."""
        return self.files.cancelled_fence >= self.fence

    @property
    def seconds(self) -> float:
        """Time since the step began here."""
        return time.monotonic() - self.began

    def check(self) -> None:
        """Raise `StepCancelledError` or, past the deadline, `StepFailedError`. Call it at least every 0.2 s."""
        if self.cancelled:
            raise StepCancelledError
        if time.monotonic() > self.deadline:
            doing = f" It was waiting for: {self._pace.waiting_for}." if self._pace.waiting_for else ""
            raise StepFailedError(
                "step.deadline",
                f"the step did not finish within its {self.order.deadline_seconds:.0f} s.{doing}",
                next_step="Look at what it was waiting for; then retry, or give it a longer deadline.",
            )

    def sleep(self, seconds: float) -> None:
        """Wait, but end early by an exception when the step must not go on."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, POLL_SECONDS))
        self.check()

    def progress(
        self,
        done: float,
        total: float | None = None,
        *,
        unit: Unit = "items",
        waiting_for: str = "",
        files: Callable[[], FilesProgress] | None = None,
        numbers: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        """Say how far the step is; sent once a second at most, sooner when what it waits for changes.

        `files` and `numbers` (what it measures meanwhile) are asked for only when something is sent.
        """
        now = time.monotonic()
        elapsed = now - self._pace.at
        changed = waiting_for != self._pace.waiting_for
        if elapsed < (_CHANGE_EVERY_SECONDS if changed else _PROGRESS_EVERY_SECONDS):
            return
        rate = None
        if self._pace.at and unit != "seconds" and elapsed >= _PROGRESS_EVERY_SECONDS:
            rate = max(0.0, (done - self._pace.done) / elapsed)
        self._pace.at, self._pace.done, self._pace.waiting_for = now, done, waiting_for
        of = files() if files is not None else FilesProgress([], 0, 0)
        self.report(
            StepProgress(
                step=self.order.step,
                fence=self.fence,
                done=done,
                total=total,
                unit=unit,
                rate=rate,
                waiting_for=waiting_for,
                remaining_seconds=self._pace.remaining_seconds(now, done, total) if unit != "seconds" else None,
                files=of.shown,
                files_total=of.total,
                files_done=of.done,
                numbers=dict(numbers()) if numbers is not None else {},
            )
        )

    def event(self, text: str, level: Level = Level.INFO) -> None:
        """Add a line to the step's own log."""
        self.report(StepEvent(step=self.order.step, fence=self.fence, level=level, text=text))

    def part(self, name: str, content: Mapping[str, object], *, raw: str = "") -> None:
        """Hand over a part of the result that stays, however the step ends. See `workers.contracts.StepPart`."""
        self.report(StepPart(step=self.order.step, fence=self.fence, name=name, content=dict(content), raw=raw))

    def in_background(
        self, work: Callable[[], Result], *, waiting_for: str, progress: Callable[[], None] | None = None
    ) -> Result:
        """Run blocking `work` in a thread and return what it returns; meanwhile progress, cancellation, deadline.

        `progress` tells how far it is; without it the seconds are told. When the step must not go on, the thread is
        left behind: `work` needs a timeout of its own.
        """
        future = in_thread(work)
        while not future.done():
            if progress is not None:
                progress()
            else:
                self.progress(self.seconds, unit="seconds", waiting_for=waiting_for)
            self.check()
            _wait_for(future)
        return future.result()


def in_thread(work: Callable[[], Result]) -> "Future[Result]":
    """Start blocking `work` in a thread of its own, which nobody has to wait for."""
    future: Future[Result] = Future()
    threading.Thread(target=_run_into, args=(future, work), daemon=True).start()
    return future


def _run_into(future: "Future[Result]", work: Callable[[], Result]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


def _wait_for(future: "Future[Result]") -> None:
    done = threading.Event()
    future.add_done_callback(lambda _future: done.set())
    done.wait(POLL_SECONDS)

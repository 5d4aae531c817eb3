"""Is a ready engine still working? Token progress, its API server, its processes, and now and then one token.

Busy is not hung: whatever moves a counter is progress (`workers.vllm.token_progress`). Hung is: work and no progress, an API
server that doesn't answer, a worker that ended unnoticed, or an idle engine that can't give one token, each for
`hang_seconds`. Then the stacks are dumped into the attempt's log, and the driver ends it as a failure: policy follows.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from workers.contracts import Failure, InstanceOrder, RestartPolicy
from workers.host.drivers import EngineDriver
from workers.host.engine_client import EngineClient, EngineError
from workers.host.health import Health
from workers.host.instance_files import InstanceFiles
from workers.host.own_requests import Probes
from workers.host.processes import ProcessFacts, facts_of, family_of, is_alive
from workers.host.sampling import Sampled
from workers.host.stacks import dump_stacks, process_name, state_of
from workers.vllm.token_progress import TokenProgress, describe_load, has_work

logger = logging.getLogger(__name__)

EVERY_SECONDS = 0.5
_UNNOTICED_SECONDS = 10.0
"""An engine notices the end of a worker within seconds and ends; one that hasn't by then never will."""
_SHOWN_AFTER_SECONDS = 120.0
"""With `hang_seconds` 0 nothing is ended, but it is shown after this time."""
_FAILED_PROBES = 3

_NEXT = (
    "It is restarted by policy. If it happens again: read the stacks at the end of its log; waiting in NCCL or a lock of "
    "all workers points at the interconnect, one worker alone at its device."
)


@dataclass
class Liveness:
    """What is known of one ready process. `failure` is set once it counts as hung."""

    files: InstanceFiles
    attempt: int
    order: InstanceOrder
    health: Health
    sampled: Callable[[], Sampled | None]
    key: str
    engine_python: str
    driver: EngineDriver
    held: Callable[[], str]
    """Why nothing may be ended now; empty: it may."""
    failure: Failure | None = None
    trouble: str = ""
    """What is wrong already, while the engine may yet notice it by itself; empty: nothing."""
    _progress: TokenProgress = field(default_factory=TokenProgress)
    _members: list[ProcessFacts] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)
    _lost_at: float | None = None
    _probed_at: float = field(default_factory=time.monotonic)
    _probe: "asyncio.Task[None] | None" = None
    _probe_began: float = 0.0
    _probes: int = 0
    _failed_probes: int = 0
    _probe_error: str = ""

    async def run(self) -> None:
        """Watch until cancelled, or until it has been ended as hung."""
        self._members = await asyncio.to_thread(self._titled_members)
        self._names = {process.pid: process_name(process.pid) for process in self._members}
        try:
            while True:
                await asyncio.sleep(EVERY_SECONDS)
                reason = self._why_hung()
                self.failure = self._hung(reason) if reason else None
                if self.failure is not None and self._policy.hang_seconds and not self.held():
                    await asyncio.to_thread(self._end, self.failure)
                    return
        finally:
            if self._probe is not None:
                self._probe.cancel()

    def probes(self) -> Probes:
        """How many requests for one token were begun, and whether one is unanswered."""
        return Probes(self._probes, int(self._probe is not None and not self._probe.done()))

    @property
    def _policy(self) -> RestartPolicy:
        return self.order.restart

    def _why_hung(self) -> str:
        patience = self._policy.hang_seconds or _SHOWN_AFTER_SECONDS
        now = time.monotonic()
        since = self.health.failing_since
        if since is not None and now - since > patience:
            return f"its API server has not answered /health for {now - since:.0f} s"
        sampled = self.sampled()
        if sampled is not None and sampled.attempt == self.attempt:
            stuck = self._progress.take(sampled.sample)
            if stuck > patience:
                return f"no token and no other progress for {stuck:.0f} s, while {describe_load(sampled.sample)}"
        if lost := self._lost_member(now):
            return lost
        # While /health fails too, that is the plainer reason; it counts as soon as it has lasted long enough.
        return "" if since is not None else self._why_probe_fails(sampled, now, patience)

    # -- processes --------------------------------------------------------------------------------------------------

    def _family(self) -> list[ProcessFacts]:
        state = self.files.state()
        family = family_of(str(self.files.instance), self.files.directory, state.pid if state else None)
        return [process for process in family if state is None or process.pid != state.shim_pid]

    def _titled_members(self) -> list[ProcessFacts]:
        """EngineCore and the workers: those that name themselves and never come and go."""
        return [process for process in self._family() if process_name(process.pid).startswith(("EngineCore", "Worker"))]

    def _lost_member(self, now: float) -> str:
        lost = [process.pid for process in self._members if not is_alive(process.pid, process.start)]
        if not lost:
            self._lost_at, self.trouble = None, ""
            return ""
        self._lost_at = self._lost_at or now
        names = ", ".join(f"{self._names[pid]} (pid {pid})" for pid in lost)
        self.trouble = f"{names} has ended"
        if now - self._lost_at < _UNNOTICED_SECONDS:
            return ""
        return f"{names} ended {now - self._lost_at:.0f} s ago, and it has not noticed"

    # -- one token --------------------------------------------------------------------------------------------------

    def _why_probe_fails(self, sampled: Sampled | None, now: float, patience: float) -> str:
        """Ask for one token when that is due; return what is wrong with the answer, if anything."""
        if self._probe is not None and not self._probe.done():
            waited = now - self._probe_began
            return f"it has not given one token for {waited:.0f} s, although idle" if waited > patience else ""
        if self._failed_probes >= _FAILED_PROBES:
            return f"{self._failed_probes} requests for one token failed in a row: {self._probe_error}"
        busy = sampled is None or has_work(sampled.sample)
        due = self._policy.probe_seconds and now - self._probed_at >= self._policy.probe_seconds
        if due and (not busy or self._policy.probe_under_load):
            self._probed_at = self._probe_began = now
            self._probes += 1
            self._probe = asyncio.create_task(self._ask_for_a_token(patience))
        return ""

    async def _ask_for_a_token(self, patience: float) -> None:
        def ask() -> None:
            with EngineClient(self.order.port, self.key, timeout_seconds=patience + 5) as client:
                if client.asked_as(self.order.probe.mode) == "embeddings":
                    client.embed(self.order.served_model_names[0], "1")
                else:
                    client.complete(self.order.served_model_names[0], "1", max_tokens=1)

        try:
            await asyncio.to_thread(ask)
        except EngineError as error:
            self._failed_probes, self._probe_error = self._failed_probes + 1, str(error)
        else:
            self._failed_probes = 0

    # -- the end ----------------------------------------------------------------------------------------------------

    def _hung(self, reason: str) -> Failure:
        stopped = [process for process in self._family() if state_of(process.pid) in ("T", "t")]
        if stopped:
            names = ", ".join(f"{process_name(process.pid)} (pid {process.pid})" for process in stopped)
            reason += f"; {names} is stopped by a signal"
        if held := self.held():
            reason += f". It is not ended: {held}"
        return Failure(code="engine.hung", message=f"the engine hangs: {reason}", next=_NEXT)

    def _end(self, failure: Failure) -> None:
        logger.warning("instance %s: %s", self.files.instance, failure.message)
        text = dump_stacks([process.pid for process in self._family()], self.engine_python)
        directory = self.files.attempt_directory(self.attempt)
        (directory / "stacks.txt").write_text(text, encoding="utf-8")
        lines = [f"[slipway] {line}" for line in [failure.message, *text.splitlines()]]
        _append(directory / "log", "\n".join(lines) + "\n")
        state = self.files.state()
        # Look again at the last moment: what a person or the shim has ended meanwhile needs no killing.
        if state is not None and state.attempt == self.attempt and facts_of(state.pid or 0) is not None:
            self.driver.fail(self.files, failure)


def _append(path: "os.PathLike[str]", text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)

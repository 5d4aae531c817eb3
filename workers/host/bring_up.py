"""From a spawned process to one that listens, and what all of bring-up shares.

Validation (`workers.host.validation`) and warm-up (`workers.host.warming`) follow. The steps of a job use these functions,
and so does the agent when it brings an instance up by itself (after a restart, after a reboot).
"""

import time
from dataclasses import dataclass

from workers.contracts import Failure, InstanceOrder
from workers.host.engine_client import EngineClient
from workers.host.exits import explain_exit, tail_bytes
from workers.host.failures import StepFailedError
from workers.host.instance_files import InstanceFiles, ShimState
from workers.host.launching import API_KEY, open_secrets
from workers.host.step_context import Progress
from workers.step_payloads import ListeningResult

_HEALTH_EVERY_SECONDS = 0.15

_STAGES = (
    ("Loading safetensors checkpoint shards", "loading the weights"),
    ("Starting to load model", "loading the weights"),
    ("Loading weights took", "preparing the model"),
    ("torch.compile", "compiling the model"),
    ("Compiling a graph", "compiling the model"),
    ("Available KV cache memory", "reserving memory for the KV cache"),
    ("KV cache size", "reserving memory for the KV cache"),
    ("Graph capturing", "capturing CUDA graphs"),
    ("Capturing CUDA graph", "capturing CUDA graphs"),
    ("Warming up model", "warming up the engine"),
    ("init engine", "starting the HTTP server"),
    ("Started server process", "starting the HTTP server"),
    ("Starting vLLM", "starting the HTTP server"),
    ("Initializing a V1 LLM engine", "starting the engine core"),
    ("non-default args", "reading the configuration"),
)
"""Words of vLLM's log, and what a person should be told is going on when they were the last ones seen."""


@dataclass(frozen=True)
class Target:
    """One instance at one start, as bring-up sees it."""

    files: InstanceFiles
    start: int
    private_keys: tuple[str, ...]

    def order(self) -> InstanceOrder:
        """The order that runs. Raises `StepFailedError` if this start was never launched here."""
        order = self.files.order()
        if order is None or order.start != self.start:
            raise StepFailedError(
                "instance.not_launched",
                f"start {self.start} of this instance was never launched on this host",
                next_step="Retry the job: it begins with the launch.",
            )
        return order

    def running(self) -> ShimState:
        """The shim's state while the engine runs. Raises `StepFailedError` with the cause if it has ended."""
        state = self.files.state()
        if state is None or state.start != self.start:
            self.order()
            raise StepFailedError(
                "instance.not_launched",
                f"start {self.start} of this instance does not run on this host",
                next_step="Retry the job: it begins with the launch.",
            )
        if not state.unfinished:
            raise StepFailedError.of(self.why_ended(state))
        return state

    def why_ended(self, state: ShimState) -> Failure:
        """The cause of the last attempt's end."""
        attempt = self.files.attempt(state.attempt)
        if attempt is None:
            return Failure(code="engine.exited", message=f"the engine has ended: {state.reason}")
        if state.asked:
            return Failure(
                code="instance.stopped",
                message="the engine was stopped meanwhile",
                next="Start it again if it should run.",
            )
        return explain_exit(self.files, attempt)

    def client(self) -> EngineClient:
        """A client with the instance's own key."""
        order = self.order()
        return EngineClient(order.port, open_secrets(order, self.private_keys).get(API_KEY, ""))


def wait_until_listening(target: Target, progress: Progress) -> ListeningResult:
    """Wait until /health answers 200. Fails within moments of the process' end, with its root cause."""
    order = target.order()
    with EngineClient(order.port) as client:
        while True:
            progress.check()
            state = target.running()
            attempt = target.files.attempt(state.attempt)
            waited = max(0.0, time.time() - attempt.started_at) if attempt else 0.0
            if client.is_healthy() and target.running().attempt == state.attempt:
                return ListeningResult(attempt=state.attempt, port=order.port, seconds=round(waited, 3))
            progress.progress(
                waited, order.start_deadline_seconds, unit="seconds", waiting_for=stage_of(target.files, state.attempt)
            )
            progress.sleep(_HEALTH_EVERY_SECONDS)


def stage_of(files: InstanceFiles, attempt: int) -> str:
    """What a starting engine is doing, from the end of its log."""
    log = files.log(attempt)
    if not log.exists() or log.stat().st_size == 0:
        return "the engine to say something"
    lines = tail_bytes(log, 8192).decode(errors="replace").splitlines()
    for line in reversed(lines):
        for words, stage in _STAGES:
            if words in line:
                return stage
    return "the engine to start"

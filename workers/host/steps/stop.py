"""Stop: wait until the supervisor has stopped an instance, nothing of it is left, and its memory is back."""

from workers.host.failures import StepFailedError
from workers.host.instance_files import InstanceFiles
from workers.host.memory_back import Held, free_shared, gpu_reading, held_by, not_back
from workers.host.processes import family_of
from workers.host.step_context import POLL_SECONDS, StepContext
from workers.step_payloads import StopPayload as Payload
from workers.step_payloads import StopResult

__all__ = ["Payload", "run"]

BACK_SECONDS = 60.0
"""A driver may take so long to take the memory of a killed process back."""


def run(context: StepContext, payload: Payload) -> StopResult:
    """Return how it ended, once no process of it exists and what its processes held is free again."""
    files = InstanceFiles.of(context.config.state_dir, payload.instance)
    before: Held | None = None
    while True:
        context.check()
        state = files.state()
        if state is None or not state.unfinished:
            break
        family = [process.pid for process in family_of(str(payload.instance), files.directory, state.pid)]
        left = [pid for pid in family if pid != state.shim_pid]
        if before is None and left:
            before = held_by(left, gpu_reading())
        context.progress(
            context.seconds,
            payload.grace_seconds,
            unit="seconds",
            waiting_for=f"{len(left)} processes to end" if state.state == "stopping" else "the agent to stop it",
        )
        context.sleep(POLL_SECONDS)
    if before is not None:
        _wait_for_memory(context, before)
    attempt = files.attempt(state.attempt) if state is not None else None
    return StopResult(
        was_running=before is not None,
        attempt=attempt.number if attempt else None,
        exit_code=attempt.exit_code if attempt else None,
        killed=attempt.killed if attempt else False,
        returned_device_bytes=before.device_bytes if before and before.devices else None,
        returned_resident_bytes=before.resident + sum(before.shared.values()) if before else None,
        seconds=round(context.seconds, 3),
    )


def _wait_for_memory(context: StepContext, before: Held) -> None:
    """Its processes have ended; the driver may need a moment. Raises StepFailedError when the memory doesn't come back."""
    if freed := free_shared(before):
        context.event(f"{freed / 2**20:.0f} MiB of shared memory that its processes left behind were freed.")
    if not before.devices:
        return
    ended = context.seconds
    while missing := not_back(before, gpu_reading()):
        if context.seconds - ended > BACK_SECONDS:
            raise StepFailedError(
                "memory.not_back",
                f"its processes have ended, and {BACK_SECONDS:.0f} s later {'; '.join(missing)}",
                next_step="A process that hangs in the driver keeps its memory: look at the host's page for who holds it; "
                "if nobody does, drain the host and reset the GPU.",
            )
        context.check()
        context.progress(context.seconds, None, unit="seconds", waiting_for="the driver to give its memory back")
        context.sleep(1.0)

"""Stop: wait until the supervisor has stopped an instance and nothing of it is left."""

from workers.host.instance_files import InstanceFiles
from workers.host.processes import family_of
from workers.host.step_context import POLL_SECONDS, StepContext
from workers.step_payloads import StopPayload as Payload
from workers.step_payloads import StopResult

__all__ = ["Payload", "run"]


def run(context: StepContext, payload: Payload) -> StopResult:
    """Return how it ended, once no process of it exists."""
    files = InstanceFiles.of(context.config.state_dir, payload.instance)
    was_running = False
    while True:
        context.check()
        state = files.state()
        if state is None or not state.unfinished:
            break
        was_running = True
        family = family_of(str(payload.instance), files.directory, state.pid)
        left = sum(process.pid != state.shim_pid for process in family)
        context.progress(
            context.seconds,
            payload.grace_seconds,
            unit="seconds",
            waiting_for=f"{left} processes to end" if state.state == "stopping" else "the agent to stop it",
        )
        context.sleep(POLL_SECONDS)
    attempt = files.attempt(state.attempt) if state is not None else None
    return StopResult(
        was_running=was_running,
        attempt=attempt.number if attempt else None,
        exit_code=attempt.exit_code if attempt else None,
        killed=attempt.killed if attempt else False,
        seconds=round(context.seconds, 3),
    )

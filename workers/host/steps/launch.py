"""Launch: wait until the supervisor has spawned an engine process for this start.

The desired state does the launching; this step only watches, so that a job shows it and fails with it.
"""

from workers.contracts import Failure
from workers.host.bring_up import Target
from workers.host.failures import StepFailedError
from workers.host.instance_files import InstanceFiles, ShimState
from workers.host.step_context import POLL_SECONDS, StepContext
from workers.step_payloads import LaunchPayload as Payload
from workers.step_payloads import LaunchResult

__all__ = ["Payload", "run"]


def run(context: StepContext, payload: Payload) -> LaunchResult:
    """Return the process once it is there; fail with the reason why there is none."""
    files = InstanceFiles.of(context.config.state_dir, payload.instance)
    while True:
        context.check()
        if (refusal := files.refusal(payload.start)) is not None:
            raise StepFailedError.of(refusal)
        state = files.state()
        if state is not None and state.start > payload.start:
            raise StepFailedError.of(_superseded(payload, state))
        if state is not None and state.start == payload.start:
            attempt = files.attempt(state.attempt)
            if attempt is not None and attempt.start == payload.start:
                if not state.unfinished:
                    target = Target(files, payload.start, context.config.private_keys)
                    raise StepFailedError.of(target.why_ended(state))
                return LaunchResult(attempt=attempt.number, pid=attempt.pid, argv=attempt.argv)
        waiting_for = "the previous process to end" if state is not None and state.unfinished else "the process"
        context.progress(context.seconds, context.order.deadline_seconds, unit="seconds", waiting_for=waiting_for)
        context.sleep(POLL_SECONDS / 2)


def _superseded(payload: Payload, state: ShimState) -> Failure:
    return Failure(
        code="instance.superseded",
        message=f"start {payload.start} was asked for, but start {state.start} runs already",
        next="Look at the newer start; this job is out of date.",
    )

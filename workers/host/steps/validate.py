"""Validate: a real chat answer decides whether the model is sound; /health doesn't."""

from workers.host import bring_up
from workers.host.bring_up import Target
from workers.host.instance_files import InstanceFiles
from workers.host.step_context import StepContext
from workers.step_payloads import ValidatePayload as Payload
from workers.step_payloads import ValidateResult

__all__ = ["Payload", "run"]


def run(context: StepContext, payload: Payload) -> ValidateResult:
    """Return the answer; fail with what is wrong with it."""
    files = InstanceFiles.of(context.config.state_dir, payload.instance)
    return bring_up.validate(Target(files, payload.start, context.config.private_key), context)

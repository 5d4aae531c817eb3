"""Validate: real answers decide whether the model is sound; /health doesn't."""

from workers.host.bring_up import Target
from workers.host.instance_files import InstanceFiles
from workers.host.step_context import StepContext
from workers.host.validation import validate
from workers.host.validation_checks import CHECKS
from workers.step_payloads import ValidatePayload as Payload
from workers.step_payloads import ValidateResult

__all__ = ["Payload", "run"]


def run(context: StepContext, payload: Payload) -> ValidateResult:
    """Return a row for each check; fail with what is wrong, and with the rows so far."""
    files = InstanceFiles.of(context.config.state_dir, payload.instance)
    return validate(Target(files, payload.start, context.config.private_keys), context, CHECKS, "full")

"""Warm-up: requests until the first token comes evenly, so that the first real one finds all compiled and cached."""

from workers.host.bring_up import Target
from workers.host.instance_files import InstanceFiles
from workers.host.step_context import StepContext
from workers.host.warming import warm_up
from workers.step_payloads import WarmupPayload as Payload
from workers.step_payloads import WarmupResult

__all__ = ["Payload", "run"]


def run(context: StepContext, payload: Payload) -> WarmupResult:
    """Return how fast it was; afterwards the instance is ready."""
    files = InstanceFiles.of(context.config.state_dir, payload.instance)
    return warm_up(Target(files, payload.start, context.config.private_keys), context)

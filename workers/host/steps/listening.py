"""Listening: wait until the engine answers /health, or say within a second why it ended instead."""

from workers.host.bring_up import Target, wait_until_listening
from workers.host.instance_files import InstanceFiles
from workers.host.step_context import StepContext
from workers.step_payloads import ListeningPayload as Payload
from workers.step_payloads import ListeningResult

__all__ = ["Payload", "run"]


def run(context: StepContext, payload: Payload) -> ListeningResult:
    """Return port and seconds since the spawn."""
    files = InstanceFiles.of(context.config.state_dir, payload.instance)
    return wait_until_listening(Target(files, payload.start, context.config.private_keys), context)

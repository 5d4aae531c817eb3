"""Engine drivers: how an engine's process group is kept, behind one protocol."""

from typing import Protocol

from workers.contracts import Failure
from workers.host.instance_files import InstanceFiles, ShimState
from workers.host.launching import Launch


class DriverError(Exception):
    """The driver could not do what was asked; the message says why."""


class EngineDriver(Protocol):
    """Keeps engines running independently of the agent. All methods return quickly; `status` tells the outcome."""

    def start(self, files: InstanceFiles, launch: Launch) -> None:
        """Start the engine described by `launch`; the caller has written order and spec. Raises `DriverError`."""

    def adopt(self, files: InstanceFiles, launch: Launch) -> None:
        """Take over an instance whose keeper was killed: a live engine goes on, a dead one is restarted by policy."""

    def stop(self, files: InstanceFiles, grace_seconds: float) -> None:
        """Ask for an orderly end; after `grace_seconds` every process of the instance is killed."""

    def fail(self, files: InstanceFiles, failure: Failure) -> None:
        """End the running attempt as a failure with this cause, so that the restart policy decides what follows."""

    def status(self, files: InstanceFiles) -> ShimState | None:
        """What is known of the instance; `None` if it was never started here."""

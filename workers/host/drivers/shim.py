"""The shim driver: one detached `workers.host.shim` process per instance."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from workers.contracts import Failure
from workers.host.drivers import DriverError
from workers.host.files import write_json
from workers.host.instance_files import InstanceFiles, ShimState
from workers.host.launching import Launch

PACKAGE_ROOT = Path(__file__).resolve().parents[3]
START_TIMEOUT_SECONDS = 20


class ShimDriver:
    """Starts shims and signals them; everything else it reads from their files."""

    def start(self, files: InstanceFiles, launch: Launch) -> None:
        """Start a shim; returns once it holds the instance's lock."""
        self._run(files, launch.environment)

    def adopt(self, files: InstanceFiles, launch: Launch) -> None:
        """A shim that starts takes over by itself what an earlier one left behind."""
        self._run(files, launch.environment, "--adopt")

    def stop(self, files: InstanceFiles, grace_seconds: float) -> None:
        """Signal the shim; if it was killed, a new one ends what it left."""
        write_json(files.directory / "stop.json", {"grace_seconds": grace_seconds})
        if not self._signal(files, signal.SIGTERM):
            self._run(files, {name: value for name, value in os.environ.items() if name == "PATH"}, "--stop")

    def fail(self, files: InstanceFiles, failure: Failure) -> None:
        """Let the shim kill the running attempt and keep the cause with it."""
        state = files.state()
        if state is None:
            return
        write_json(
            files.directory / "fail.json", {"attempt": state.attempt, "failure": failure.model_dump(mode="json")}
        )
        self._signal(files, signal.SIGUSR1)

    def status(self, files: InstanceFiles) -> ShimState | None:
        """Read the shim's state file."""
        return files.state()

    def _signal(self, files: InstanceFiles, number: signal.Signals) -> bool:
        state = files.state()
        if state is None or not state.shim_alive:
            return False
        # The pidfd is opened before the identity is checked again: the signal can't reach a reused pid.
        try:
            descriptor = os.pidfd_open(state.shim_pid)
        except ProcessLookupError:
            return False
        try:
            if not state.shim_alive:
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _run(self, files: InstanceFiles, environment: Mapping[str, str], *options: str) -> None:
        with (files.directory / "shim.log").open("ab") as log:
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "workers.host.shim", str(files.directory), *options],
                    cwd=PACKAGE_ROOT,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    timeout=START_TIMEOUT_SECONDS,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise DriverError(f"the shim could not be started: {error}") from error
        if done.returncode != 0:
            raise DriverError(f"the shim ended at once with code {done.returncode}; see {files.directory}/shim.log")

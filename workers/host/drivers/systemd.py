"""The systemd driver: the same shim, each in a transient unit of its own.

What it adds to the shim driver is the cgroup: whatever an engine starts, and however it hides its parent, name and
environment, stays in the unit, so nothing of it is missed when the instance ends (`workers.host.processes.family_of`).

    slipway-<instance>-<random>.service     Type=forking: started means that the shim holds the instance's lock
                                            KillMode=process: the end of a shim takes no engine with it
                                            OOMPolicy=continue: a worker that the kernel killed is the shim's affair

Each shim gets a new unit: while an engine outlives its shim, the old unit lasts. Secrets must be in no file and in no
property of a unit, which every user may read, so the environment goes through a pipe that only the shim reads.
"""

import errno
import json
import os
import resource
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from workers.host.drivers import DriverError
from workers.host.drivers.shim import PACKAGE_ROOT, START_TIMEOUT_SECONDS, ShimDriver
from workers.host.instance_files import InstanceFiles

_FOR_SYSTEMD_RUN = ("PATH", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")


class SystemdDriver(ShimDriver):
    """Starts shims by `systemd-run`: system units for root, units of the user's manager for anyone else."""

    def why_not(self) -> str:
        """Why units can't be started here, in words; empty if they can."""
        runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
        socket = Path("/run/systemd/private") if os.geteuid() == 0 else runtime / "systemd" / "private"
        if socket.exists():
            return ""
        who = "no systemd runs here" if os.geteuid() == 0 else "no systemd manager of this user runs here"
        hint = "" if os.geteuid() == 0 else " (`loginctl enable-linger` starts it at boot)"
        return f"{who}: {socket} is missing{hint}. Set the host's driver to shim, or start it where systemd is."

    def _run(self, files: InstanceFiles, environment: Mapping[str, str], *options: str) -> None:
        if why := self.why_not():
            raise DriverError(why)
        pipe = files.directory / "environment"
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe, 0o600)
        try:
            with (files.directory / "shim.log").open("ab") as log:
                self._start_unit(files, pipe, environment, options, log.fileno())
        except OSError as error:
            raise DriverError(f"systemd-run could not be started: {error}") from error
        finally:
            pipe.unlink(missing_ok=True)

    def _start_unit(
        self, files: InstanceFiles, pipe: Path, environment: Mapping[str, str], options: tuple[str, ...], log: int
    ) -> None:
        argv = unit_command(files, pipe, options)
        own = {name: os.environ[name] for name in _FOR_SYSTEMD_RUN if name in os.environ}
        starter = subprocess.Popen(argv, env=own, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        try:
            _hand_over(pipe, environment, starter, deadline)
            code = starter.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise DriverError(f"systemd did not start the unit within {START_TIMEOUT_SECONDS} s") from None
        finally:
            if starter.poll() is None:
                starter.kill()
                starter.wait()
        if code != 0:
            raise DriverError(f"the unit did not start (code {code}); see {files.directory}/shim.log")


def unit_command(files: InstanceFiles, pipe: Path, options: tuple[str, ...]) -> list[str]:
    """The argv that starts a shim for this instance in a new unit."""
    log = files.directory / "shim.log"
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    properties = {
        "Type": "forking",
        "KillMode": "process",
        "OOMPolicy": "continue",
        "TasksMax": "infinity",
        "LimitNOFILE": "infinity" if open_files == resource.RLIM_INFINITY else str(open_files),
        "LimitMEMLOCK": "infinity",
        "LimitCORE": "0",
        "CollectMode": "inactive-or-failed",
        "TimeoutStartSec": str(START_TIMEOUT_SECONDS),
        "TimeoutStopSec": "infinity",
        "StandardOutput": f"append:{log}",
        "StandardError": f"append:{log}",
        "WorkingDirectory": str(PACKAGE_ROOT),
    }
    return [
        "systemd-run",
        *([] if os.geteuid() == 0 else ["--user"]),
        "--quiet",
        f"--unit=slipway-{files.instance}-{secrets.token_hex(4)}",
        f"--description=Slipway engine {files.instance}",
        *(f"--property={name}={value}" for name, value in properties.items()),
        "--",
        sys.executable,
        "-m",
        "workers.host.shim_in_unit",
        str(pipe),
        str(files.directory),
        *options,
    ]


def _hand_over(pipe: Path, environment: Mapping[str, str], starter: "subprocess.Popen[bytes]", deadline: float) -> None:
    """Write the environment as soon as the shim reads; return without it if the unit failed before."""
    while starter.poll() in (None, 0):
        try:
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:  # nobody reads yet
                raise
        else:
            os.set_blocking(descriptor, True)
            with os.fdopen(descriptor, "wb") as writer:
                writer.write(json.dumps(dict(environment)).encode())
            return
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired("systemd-run", START_TIMEOUT_SECONDS)
        time.sleep(0.01)

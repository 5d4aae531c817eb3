"""The HAProxy of one folder: started so that it outlives the agent, found again by its sockets, ended in good order."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from workers.gateway import program, unix_sockets

_ANSWER_SECONDS = 5.0
OUTPUT = "haproxy.log"


class HAProxyProcess:
    """Starts and ends it."""

    def __init__(self, binary: str, directory: Path) -> None:
        self._binary = binary
        self._directory = directory
        self._child: subprocess.Popen[bytes] | None = None

    def pid(self) -> int | None:
        """Process id of the master, by its own word; None if nothing answers."""
        if self._child is not None:
            self._child.poll()
        try:
            said = unix_sockets.exchange(self._directory / program.MASTER_SOCKET, "show proc", seconds=_ANSWER_SECONDS)
        except OSError:
            return None
        master = next((line.split()[0] for line in said.splitlines() if " master " in line), "")
        return int(master) if master.isdigit() else None

    def start(self, descriptors: Sequence[int]) -> None:
        """Start it with the configuration that lies there. It gets the access log by these descriptors."""
        log = os.open(self._directory / program.ACCESS_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        program.hand_down(log, descriptors)
        try:
            with (self._directory / OUTPUT).open("ab") as output:
                self._child = subprocess.Popen(
                    program.command(self._binary, self._directory),
                    pass_fds=tuple(descriptors),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=program.environment(),
                    # It goes on serving whatever becomes of the agent.
                    start_new_session=True,
                )
        finally:
            for number in (log, *descriptors):
                os.close(number)

    def stop(self, grace_seconds: float) -> bool:
        """End it: what it has begun has so long to finish. True once nothing of it answers."""
        pid = self.pid()
        if pid is None:
            return True
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
        if not self._ended(pid, grace_seconds):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return self._ended(pid, 10)

    def _ended(self, pid: int, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._child is not None and self._child.pid == pid:
                if self._child.poll() is not None:
                    return True
            elif not Path(f"/proc/{pid}").exists():
                return True
            time.sleep(0.05)
        return False

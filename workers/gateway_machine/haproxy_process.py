"""The HAProxy of one folder: started so that it outlives the agent, found again by its process, ended in good order."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from workers.gateway import program
from workers.host.files import read_json, write_json
from workers.host.processes import boot_id, facts_of, is_alive

OUTPUT = "haproxy.log"
PROCESS = "haproxy.json"
"""Which process it is: boot, pid and start time."""


class HAProxyProcess:
    """Starts and ends it."""

    def __init__(self, binary: str, directory: Path) -> None:
        self._binary = binary
        self._directory = directory
        self._child: subprocess.Popen[bytes] | None = None

    def pid(self) -> int | None:
        """Process id of the master that was started here; None if it has ended.

        Its socket isn't asked: one that is slow to answer must not be started a second time.
        """
        if self._child is not None:
            self._child.poll()
        known = read_json(self._directory / PROCESS) or {}
        pid, start = known.get("pid"), known.get("start")
        if known.get("boot") != boot_id() or not isinstance(pid, int) or not isinstance(start, int):
            return None
        return pid if is_alive(pid, start) else None

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
        facts = facts_of(self._child.pid)
        write_json(
            self._directory / PROCESS,
            {"boot": boot_id(), "pid": self._child.pid, "start": facts.start if facts else 0},
        )

    def last_words(self) -> str:
        """Why it ended, as far as it said; empty if it didn't."""
        path = self._directory / OUTPUT
        said = path.read_text(errors="replace")[-4000:].splitlines() if path.exists() else []
        alerts = [line for line in said if "[ALERT]" in line and "exited" not in line]
        return alerts[-1][:500] if alerts else ""

    def stop(self, grace_seconds: float) -> bool:
        """End it: what it has begun has so long to finish. True once nothing of it answers."""
        pid = self.pid()
        if pid is None:
            return True
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
        if not self._ended(grace_seconds):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return self._ended(10)

    def _ended(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self.pid() is not None:
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

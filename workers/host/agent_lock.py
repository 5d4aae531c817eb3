"""One agent per host: two would both supervise the same engines."""

import fcntl
import os
from pathlib import Path

from workers.host.files import read_json


class AlreadyRunningError(Exception):
    """Another agent looks after this host; the message names it."""


class AgentLock:
    """Held as long as the object lives; the kernel frees it when the process ends, however that happens."""

    def __init__(self, state_dir: Path, name: str) -> None:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = state_dir / "agent.lock"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            pid = (read_json(path) or {}).get("pid", "unknown")
            raise AlreadyRunningError(
                f"an agent for host {name!r} runs already: process {pid} holds {path}. Stop it first (kill {pid})."
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f'{{"pid": {os.getpid()}, "name": "{name}"}}'.encode())

    def release(self) -> None:
        """Let another agent take over."""
        os.close(self._descriptor)

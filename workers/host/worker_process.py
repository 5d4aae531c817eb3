"""The Celery worker as a child of the agent: started again when it ends, ended with the agent."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

logger = logging.getLogger(__name__)

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_END_SECONDS = 2.0
_SHORTEST_LIFE_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 30.0


class WorkerProcess:
    """Call `keep_alive` again and again, and `end` once."""

    def __init__(self, config_path: Path) -> None:
        self._config_path = config_path.resolve()
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._start_again_at = 0.0
        self._pause = 0.5

    def keep_alive(self) -> None:
        """Start the worker if it doesn't run; one that dies at once is started less and less often."""
        now = time.monotonic()
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return
            lived = now - self._started_at
            self._pause = 0.5 if lived > _SHORTEST_LIFE_SECONDS else min(self._pause * 2, _LONGEST_PAUSE_SECONDS)
            logger.warning("the worker ended with code %s, starting it again in %.1f s", code, self._pause)
            self._process, self._start_again_at = None, now + self._pause
        if now >= self._start_again_at:
            self._start(now)

    def _start(self, now: float) -> None:
        self._started_at = now
        # A session of its own: Ctrl-C in the agent's terminal would make the worker wait for its steps.
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "workers.host.worker",
                "--config",
                str(self._config_path),
                "--parent",
                str(os.getpid()),
            ],
            cwd=_PACKAGE_ROOT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    async def end(self) -> None:
        """End it soon, whatever it does: its steps resume when they are dispatched again."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        if process.poll() is None:
            process.kill()
            process.wait()

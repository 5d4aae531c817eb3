"""The agent's end of the watcher: keeps the process alive, reads its lines, and knows how old the last one is."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

from pydantic import ValidationError

from workers.host.files import write_json
from workers.host_facts import Live

logger = logging.getLogger(__name__)

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_HANGS_SECONDS = 45.0
"""Longer than the slowest honest round: nvidia-smi's limit, twice, and the hub's."""
_PAUSE_SECONDS = 10.0
_MOST_PAUSE_SECONDS = 300.0
_LONGEST_LINE = 4 << 20

FACTS_FILE = "host-facts.json"
"""Below the state directory: the last facts, so that steps needn't look again."""


class WatcherProcess:
    """Call `keep_alive` again and again, and `end` once. Everything else may be asked at any time and never waits."""

    def __init__(self, config_path: Path, state_dir: Path, *, hangs_seconds: float = _HANGS_SECONDS) -> None:
        self._config_path = config_path.resolve()
        self._state_dir = state_dir
        self._hangs_seconds = hangs_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: Thread | None = None
        self._live: Live | None = None
        self._heard_at = time.monotonic()
        self._start_again_at = 0.0
        self._pause = _PAUSE_SECONDS
        self._killed = False
        self.facts_number = 0
        """Rises whenever new facts lie in the file."""

    @property
    def hangs(self) -> bool:
        """True if nothing was heard for so long that something on the host must hang."""
        return time.monotonic() - self._heard_at > self._hangs_seconds

    def live(self) -> Live | None:
        """The last sample with its age; while something hangs it says so. None before the first one."""
        age = time.monotonic() - self._heard_at
        live = self._live or (Live() if self.hangs else None)
        if live is None:
            return None
        if self.hangs:
            gpus = live.gpus.model_copy(
                update={"code": "hangs", "problem": f"devices and processes have not answered for {age:.0f} s"}
            )
            live = live.model_copy(update={"gpus": gpus})
        return live.model_copy(update={"age_seconds": round(age, 1)})

    def keep_alive(self) -> None:
        """Start the watcher if none runs. One that hangs is killed, and the next starts once the kernel let it go."""
        now = time.monotonic()
        process = self._process
        if process is not None and process.poll() is None:
            if self.hangs and not self._killed:
                logger.warning("the watcher has not answered for %.0f s, ending it", now - self._heard_at)
                process.kill()
                self._killed = True
            return
        if process is not None:
            self._process = None
            self._start_again_at = now + self._pause
            logger.warning("the watcher ended with code %s, next try in %.0f s", process.returncode, self._pause)
            self._pause = min(self._pause * 2, _MOST_PAUSE_SECONDS)
        if now >= self._start_again_at:
            self._start()

    def _start(self) -> None:
        self._killed = False
        self._heard_at = max(self._heard_at, time.monotonic() - self._hangs_seconds / 2)
        module = "workers.host.inventory.watcher"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--config", str(self._config_path), "--parent", str(os.getpid())],
            cwd=_PACKAGE_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._reader = Thread(target=self._read, args=(self._process,), name="watcher", daemon=True)
        self._reader.start()

    def _read(self, process: "subprocess.Popen[bytes]") -> None:
        if process.stdout is None:
            return
        while line := process.stdout.readline(_LONGEST_LINE):
            try:
                self._take(json.loads(line))
            except (ValueError, OSError, ValidationError) as error:
                logger.warning("a line of the watcher can't be used: %s", error)
        process.stdout.close()

    def _take(self, said: dict[str, Any]) -> None:
        if "live" in said:
            self._live = Live.model_validate(said["live"])
            self._pause = _PAUSE_SECONDS
        elif "facts" in said:
            write_json(self._state_dir / FACTS_FILE, {"host": said["facts"], "reading": said.get("reading", {})})
            self.facts_number += 1
        self._heard_at = time.monotonic()

    async def end(self) -> None:
        """End it; one that can't be ended is left to the kernel, which ends it with this process."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.kill()
        deadline = time.monotonic() + 1.0
        while process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

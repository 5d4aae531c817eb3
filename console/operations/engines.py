"""The local host's engines, seen from outside its agent: what runs, and ending all of it when no console runs.

The files are the shim's (documented in workers/host/shim.py): one directory per instance with `state.json`, in which the shim
names itself and its engine by pid and start time, so that a pid that was given to another process meanwhile is never signalled.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from console.operations import local_host

_STOP_SECONDS = 40.0


@dataclass(frozen=True)
class RunningEngine:
    """One instance whose shim or engine lives. A pid is None when that process is gone."""

    directory: Path
    shim: int | None
    engine: int | None


def running() -> list[RunningEngine]:
    """Instances of the local host of which a process lives."""
    found = [_read(path.parent) for path in sorted(_instances_directory().glob("*/state.json"))]
    return [one for one in found if one and (one.shim or one.engine)]


def _instances_directory() -> Path:
    return local_host.directory() / "state" / "instances"


def _read(directory: Path) -> RunningEngine | None:
    try:
        state = json.loads((directory / "state.json").read_text())
    except (OSError, json.JSONDecodeError):
        return None
    if state.get("boot_id") != Path("/proc/sys/kernel/random/boot_id").read_text().strip():
        return None
    return RunningEngine(
        directory,
        shim=_alive(state.get("shim_pid"), state.get("shim_start")),
        engine=_alive(state.get("pid"), state.get("pid_start")),
    )


def _alive(pid: int | None, start: int | None) -> int | None:
    """`pid`, if the process that was started at `start` (clock ticks since boot) still has it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return pid if fields[0] != "Z" and int(fields[19]) == start else None


def stop_all() -> list[Path]:
    """Have every shim stop its engine and wait for it; returns the directories of those that did not stop."""
    began = time.monotonic()
    for one in running():
        if one.shim:
            with suppress(ProcessLookupError):
                os.kill(one.shim, signal.SIGTERM)
        else:
            _end_without_shim(one.directory)
    while (left := running()) and time.monotonic() - began < _STOP_SECONDS:
        time.sleep(0.1)
    return [one.directory for one in left]


def _end_without_shim(directory: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "workers.host.shim", str(directory), "--stop"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_STOP_SECONDS,
        check=False,
    )

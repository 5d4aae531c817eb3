"""Proof that a stopped engine's memory is back: what its processes held before, and that nobody holds it now.

On a GPU the driver is asked which processes hold how much: one that was killed may keep its memory for seconds, and one that
hangs in the driver for good. In RAM what counts are its processes and the files in /dev/shm that they shared.

The driver is asked by a process of its own (`python -m workers.host.memory_back`): one that hangs takes its caller with it.
"""

import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from workers.host.inventory.gpus import device_nodes, read_gpus
from workers.host.inventory.owners import own_memory
from workers.host.processes import all_processes
from workers.host_facts import GpuReading

ASK_SECONDS = 30.0
BACK_SHARE = 0.9
"""So much of what its processes held must be free again; the driver rounds, and keeps a little for the next one."""
_SHARED = "/dev/shm/"  # noqa: S108 - where engines share memory; nothing is made there


@dataclass(frozen=True)
class Held:
    """What an instance's processes held when its stop began. Bytes."""

    pids: frozenset[int] = frozenset()
    resident: int = 0
    shared: Mapping[Path, int] = field(default_factory=dict)
    """Files in /dev/shm that they had mapped."""
    devices: Mapping[str, int] = field(default_factory=dict)
    """GPU uuid -> bytes held by them, as the driver says."""
    used: Mapping[str, int] = field(default_factory=dict)
    """GPU uuid -> bytes in use by anybody."""

    @property
    def device_bytes(self) -> int:
        """Of all GPUs together."""
        return sum(self.devices.values())


def held_by(pids: Collection[int], reading: GpuReading | None) -> Held:
    """What these processes hold now."""
    own = frozenset(pids)
    gpus = reading.gpus if reading else []
    devices = {gpu.uuid: sum(one.memory or 0 for one in gpu.processes if one.pid in own) for gpu in gpus}
    paths = {path for pid in own for path in _shared_files(pid)}
    return Held(
        pids=own,
        resident=sum(own_memory(pid) for pid in own),
        shared={path: size for path in paths if (size := _size(path))},
        devices={uuid: nbytes for uuid, nbytes in devices.items() if nbytes},
        used={gpu.uuid: gpu.memory_used for gpu in gpus if gpu.memory_used is not None},
    )


def not_back(before: Held, reading: GpuReading | None) -> list[str]:
    """What is still held of what they held, in words; empty once all is back. Their processes have ended by now."""
    found = [
        f"GPU {gpu.index}: process {one.pid} still holds {_gib(one.memory)}"
        for gpu in (reading.gpus if reading else [])
        for one in gpu.processes
        if one.pid in before.pids
    ]
    if found or reading is None:
        return found
    for gpu in reading.gpus:
        held, used = before.devices.get(gpu.uuid, 0), before.used.get(gpu.uuid)
        if not held or used is None or gpu.memory_used is None:
            continue
        others = sum(one.memory or 0 for one in gpu.processes)
        # What somebody else took meanwhile isn't what is missing.
        fell = used - gpu.memory_used + max(0, others - (used - held))
        if fell < BACK_SHARE * held:
            found.append(f"GPU {gpu.index}: {_gib(held - max(0, fell))} of {_gib(held)} are in use by no process")
    return found


def free_shared(before: Held) -> int:
    """Remove the files in /dev/shm that only this instance's processes had mapped, and return their bytes.

    A process that was killed can't remove them itself; they would hold RAM until the machine is restarted.
    """
    left = {path: size for path in before.shared if (size := _size(path))}
    if not left:
        return 0
    in_use = {path for process in all_processes() for path in _shared_files(process.pid)}
    freed = 0
    for path in left.keys() - in_use:
        path.unlink(missing_ok=True)
        freed += left[path]
    return freed


def gpu_reading() -> GpuReading | None:
    """What the driver says now; None without GPUs, and while it doesn't answer."""
    if not device_nodes():
        return None
    try:
        asked = subprocess.run(
            [sys.executable, "-m", __name__],
            capture_output=True,
            timeout=ASK_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        reading = GpuReading.model_validate_json(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValidationError):
        return None
    return reading if reading.gpus else None


def _shared_files(pid: int) -> Iterable[Path]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return {Path(line[line.index(_SHARED) :]) for line in lines if _SHARED in line and not line.endswith("(deleted)")}


def _size(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _gib(nbytes: int | None) -> str:
    return "memory" if nbytes is None else f"{nbytes / 2**30:.1f} GiB"


if __name__ == "__main__":
    sys.stdout.write(read_gpus().model_dump_json())

"""What the kernel lets the agent have: cgroup quotas of version 1 and 2, ulimits, shared memory, file systems."""

import os
import resource
import shutil
from pathlib import Path

import psutil

from workers.host_config import HostConfig
from workers.host_facts import Disk, Limits, Memory

_NO_LIMIT = 2**60
"""Version 1 writes a huge number where there is no limit."""


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs that the cgroup grants, or None without a quota."""
    quotas = []
    for directory in _cgroup_directories(root, ""):
        words = _words(directory / "cpu.max")
        if len(words) == 2 and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
    for directory in _cgroup_directories(root, "cpu"):
        quota, period = _words(directory / "cpu.cfs_quota_us"), _words(directory / "cpu.cfs_period_us")
        if quota and period and int(quota[0]) > 0:
            quotas.append(int(quota[0]) / int(period[0]))
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """Bytes that the cgroup allows, and how much of it is used (page cache that can be dropped left out)."""
    found: list[tuple[int, int | None]] = []
    for controller, limit, used in (
        ("", "memory.max", "memory.current"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        for directory in _cgroup_directories(root, controller):
            words = _words(directory / limit)
            if words and words[0] != "max" and int(words[0]) < _NO_LIMIT:
                found.append((int(words[0]), _used(directory, used)))
    return min(found, key=lambda one: one[0]) if found else (None, None)


def _used(directory: Path, name: str) -> int | None:
    used = _words(directory / name)
    if not used:
        return None
    statistics = dict(line.split() for line in _lines(directory / "memory.stat") if line.count(" ") == 1)
    cache = int(statistics.get("inactive_file") or statistics.get("total_inactive_file") or 0)
    return max(0, int(used[0]) - cache)


def read_memory(root: Path = Path("/")) -> Memory:
    """RAM as this process may use it."""
    memory = psutil.virtual_memory()
    limit, used = memory_limit(root)
    available = memory.available
    if limit is not None and limit < memory.total:
        available = min(available, max(0, limit - (used or 0)))
    return Memory(
        total=memory.total,
        available=available,
        limit=limit if limit is not None and limit < memory.total else None,
        limit_used=used,
        swap_total=psutil.swap_memory().total,
    )


def read_limits() -> Limits:
    """ulimits of this process, which engines inherit, and the size of /dev/shm."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    total, free = shm()
    return Limits(
        open_files=soft,
        open_files_hard=hard,
        locked_memory=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        processes=resource.getrlimit(resource.RLIMIT_NPROC)[0],
        shm_total=total,
        shm_free=free,
    )


def shm() -> tuple[int | None, int | None]:
    """Size of /dev/shm and what is free there, in bytes."""
    try:
        usage = shutil.disk_usage("/dev/shm")  # noqa: S108 - its size is read, nothing is written
    except OSError:
        return None, None
    return usage.total, usage.free


def read_disks(config: HostConfig) -> list[Disk]:
    """The file systems that hold something of Slipway, each once, with what lies there."""
    paths = {
        "models": config.models_dir,
        "engines": config.engines_dir,
        "state": config.state_dir,
        "temporary": Path(os.environ.get("TMPDIR") or "/tmp"),  # noqa: S108 - where others write
        "home": Path.home(),
    }
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    found: dict[Path, Disk] = {}
    for name, path in paths.items():
        mount = _mount_of(path)
        disk = found.get(mount)
        if disk is None:
            try:
                usage = shutil.disk_usage(mount)
            except OSError:
                continue
            disk = Disk(mount=str(mount), filesystem=mounts.get(mount, ""), total=usage.total, free=usage.free)
        found[mount] = disk.model_copy(update={"holds": {**disk.holds, name: str(path)}})
    return list(found.values())


def _mount_of(path: Path) -> Path:
    place = path.resolve()
    while not place.exists() or (not place.is_mount() and place != place.parent):
        place = place.parent
    return place


def _cgroup_directories(root: Path, controller: str) -> list[Path]:
    """The process's own cgroup and all above it; in a container the innermost that is mounted. "": version 2."""
    base = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _number, names, path = [*line.split(":", 2), "", ""][:3]
        if controller in names.split(","):
            top = base / controller if controller else base
            inner = top / path.lstrip("/")
            chain = [inner, *inner.parents] if inner.is_dir() else [top]
            return [directory for directory in chain if directory == top or top in directory.parents]
    return []


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()

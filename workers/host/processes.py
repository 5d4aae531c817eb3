"""Who runs on this machine: process identity, family and ownership, read from /proc. Standard library only.

A pid alone proves nothing, because the kernel reuses it. A process is known by (boot id, pid, start time), where the
start time is field 22 of /proc/PID/stat in clock ticks since boot.
"""

import ctypes
import functools
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

OWNER_VARIABLE = "SLIPWAY_INSTANCE"
"""Environment variable that marks every process of an engine with its instance's id."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class ProcessFacts:
    """One line of /proc/PID/stat. `start` in clock ticks since boot; a zombie has ended and only waits to be reaped."""

    pid: int
    parent: int
    session: int
    start: int
    zombie: bool


@functools.cache
def boot_id() -> str:
    """Id that the kernel drew at this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def facts_of(pid: int) -> ProcessFacts | None:
    """Return what /proc says of `pid`, or `None` when there is no such process."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command name stands in parentheses and may hold spaces and parentheses itself: cut behind the last one.
    fields = raw[raw.rindex(b")") + 2 :].split()
    return ProcessFacts(
        pid=pid, parent=int(fields[1]), session=int(fields[3]), start=int(fields[19]), zombie=fields[0] in (b"Z", b"X")
    )


def is_alive(pid: int | None, start: int | None) -> bool:
    """True if the very process that had this pid and start time is still running (a zombie is not)."""
    if not pid:
        return False
    facts = facts_of(pid)
    return facts is not None and not facts.zombie and facts.start == start


def all_processes() -> Iterator[ProcessFacts]:
    """Yield every process that is visible here."""
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        if (facts := facts_of(pid)) is not None:
            yield facts


def family_of(
    instance: str, directory: Path, session: int | None, *, ancestor: int | None = None
) -> list[ProcessFacts]:
    """Return every living process of an instance, whoever its parent is by now; never the caller itself.

    It belongs to the instance if it carries the ownership variable, or if it is in the engine's `session` *and* works
    in or writes to the instance's `directory` (engines that set their process title overwrite their environment, so
    that the variable alone would miss them: vLLM's EngineCore and Worker do), or if it is in a systemd unit of this
    instance, which no process can leave. Descendants of `ancestor` belong to it too.
    """
    own = os.getpid()
    processes = [process for process in all_processes() if process.pid != own and not process.zombie]
    descendants = descendants_of(ancestor, processes) if ancestor is not None else set()
    token = f"{OWNER_VARIABLE}={instance}".encode()
    return [
        process
        for process in processes
        if process.pid in descendants
        or _carries(process.pid, token)
        or (session is not None and process.session == session and _uses(process.pid, directory))
        or _is_in_unit_of(process.pid, instance)
    ]


def descendants_of(ancestor: int, processes: Iterable[ProcessFacts]) -> set[int]:
    """Pids of all processes below `ancestor`."""
    children: dict[int, list[int]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _carries(pid: int, token: bytes) -> bool:
    try:
        return token in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _is_in_unit_of(pid: int, instance: str) -> bool:
    try:
        return f"/slipway-{instance}-".encode() in Path(f"/proc/{pid}/cgroup").read_bytes()
    except OSError:
        return False


def _uses(pid: int, directory: Path) -> bool:
    for link in ("cwd", "fd/1", "fd/2"):
        try:
            target = Path(f"/proc/{pid}/{link}").readlink()
        except OSError:
            continue
        if directory in (target, *target.parents):
            return True
    return False


def become_subreaper() -> None:
    """Let orphans among this process's descendants become its own children, so that it can end and count them all."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when `parent` (its parent's pid) ends, however that happens.

    Raises `SystemExit` if the parent has ended already.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(f"the parent process {parent} has ended")


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

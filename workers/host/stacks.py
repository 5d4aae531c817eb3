"""What the processes of a hung engine are doing: Python stacks by py-spy where it is installed, else the kernel's view."""

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_TIMEOUT_SECONDS = 8.0
_LONGEST_DUMP = 20_000


def dump_stacks(pids: Iterable[int], engine_python: str) -> str:
    """A text with one part for each process. Takes seconds, changes nothing in them, never raises."""
    tool = find_py_spy(engine_python)
    parts = []
    for pid in pids:
        part = f"== {process_name(pid)} (pid {pid}), {kernel_view(pid)}\n"
        if tool is not None:
            part += _py_spy(tool, pid)
        parts.append(part[:_LONGEST_DUMP])
    if tool is None:
        parts.append("Python stacks need py-spy in the environment of Slipway or of the engine.\n")
    return "\n".join(parts)


def find_py_spy(engine_python: str) -> str | None:
    """The program, from Slipway's own environment, the engine's, or PATH."""
    beside = [Path(python).parent / "py-spy" for python in (sys.executable, engine_python)]
    return next((str(path) for path in beside if path.exists()), None) or shutil.which("py-spy")


def process_name(pid: int) -> str:
    """A short name for people: the title that it gave itself, or its program."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "a process that has ended"
    title = next((word.strip() for word in words if word.startswith("VLLM::")), "")
    return title.removeprefix("VLLM::") or Path(words[0]).name or "kernel thread"


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does (R, S, D, T, Z), or an empty text if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


def kernel_view(pid: int) -> str:
    """State and, where the kernel tells, what it waits in."""
    words = {"R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped by a signal", "Z": "ended"}
    view = words.get(state_of(pid), "gone")
    try:
        waits_in = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii")
    except OSError:
        waits_in = ""
    return f"{view} in {waits_in}" if waits_in not in ("", "0") else view


def _py_spy(tool: str, pid: int) -> str:
    # Not blocking: a process that hangs in a driver can't be paused without making things worse.
    argv = [tool, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"py-spy gave nothing: {type(error).__name__}\n"
    return done.stdout if done.returncode == 0 else f"py-spy gave nothing: {done.stderr.strip()[:300]}\n"

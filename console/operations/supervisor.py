"""Starts processes, shows their logs with a prefix, starts crashed ones again, and stops all of them in order.

One thread and one selector: pipes, ends of processes (pidfd) and signals all wake the same loop. Every child is
the leader of its own process group, so that Ctrl-C in the terminal reaches the supervisor alone, and the kernel ends it
together with the supervisor, however that ends.
"""

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
CALM_SECONDS = 60.0
"""A process that lived this long has its restart pause begin anew."""
STOP_SECONDS = 10.0

FRUITLESS_STARTS = 3
"""A process that ended this often before it was ever ready makes `start` give up."""

_CHILD = str(Path(__file__).with_name("child.py"))
_COLOURS = (36, 32, 33, 35, 34, 96)
_READ_BYTES = 65536


class StartFailed(Exception):
    """A process did not become ready; the message says which, for how long it was waited for, and what it said."""


@dataclass(frozen=True)
class Program:
    """A process to run. `ready` is asked every 50 ms after its start, at most for `ready_seconds`."""

    name: str
    argv: list[str]
    environment: Mapping[str, str]
    ready: Callable[[], bool] | None = None
    ready_seconds: float = 180.0


@dataclass
class _Child:
    program: Program
    colour: int
    process: subprocess.Popen[bytes] | None = None
    pidfd: int = -1
    started_at: float = 0.0
    pause: float = FIRST_PAUSE_SECONDS
    start_again_at: float | None = None
    ends: int = 0
    partial: bytes = b""
    last_lines: list[str] = field(default_factory=list)


class Supervisor:
    """Runs programs in the order in which they are started and stops them in the opposite one."""

    def __init__(self, *, directory: Path, write: Callable[[str], None] | None = None) -> None:
        self.stopping = False
        self._directory = directory
        self._write = write or write_line
        self._children: dict[str, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ, ("wake", None))

    # -- from outside -------------------------------------------------------------------------------------------------

    def listen_to_signals(self) -> None:
        """Let SIGINT and SIGTERM stop the loop. Call it from the main thread."""

        def stop(_number: int, _frame: FrameType | None) -> None:
            self.ask_to_stop()

        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)

    def ask_to_stop(self) -> None:
        """Let `run` return soon. May be called from any thread or signal handler."""
        self.stopping = True
        self._wake()

    def restart(self, name: str) -> None:
        """Kill a process that hangs; it is started again at once. May be called from any thread."""
        child = self._children[name]
        if child.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)

    def remove(self, name: str) -> None:
        """Kill a program and forget it. Main thread only."""
        child = self._children.pop(name)
        if child.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
            self._ended(child)

    def pids(self) -> dict[str, int]:
        """Process ids of what runs now."""
        return {name: child.process.pid for name, child in self._children.items() if child.process is not None}

    def say(self, text: str, *, name: str = "up", colour: int = 1) -> None:
        """Write one line of the log under a name."""
        self._write(_line(name, text, colour))

    # -- starting -----------------------------------------------------------------------------------------------------

    def start(self, *programs: Program) -> None:
        """Start programs together and wait until all of them are ready. Raises StartFailed. Main thread only."""
        for program in programs:
            child = _Child(program, _COLOURS[len(self._children) % len(_COLOURS)])
            self._children[program.name] = child
            self._spawn(child)
        began = time.monotonic()
        waiting = [program for program in programs if program.ready]
        while waiting and not self.stopping:
            self._step(0.05)
            waiting = [program for program in waiting if program.ready and not program.ready()]
            for program in waiting:
                self._give_up_if_late(program, time.monotonic() - began)

    def _give_up_if_late(self, program: Program, seconds: float) -> None:
        child = self._children[program.name]
        if seconds > program.ready_seconds or child.ends >= FRUITLESS_STARTS:
            said = "\n  ".join(child.last_lines[-10:]) or "nothing"
            ends = f" and ended {child.ends} times" if child.ends else ""
            raise StartFailed(f"{program.name} was not ready after {seconds:.0f} s{ends}. It last said:\n  {said}")

    def _spawn(self, child: _Child) -> None:
        program = child.program
        child.start_again_at = None
        child.started_at = time.monotonic()
        child.process = subprocess.Popen(
            [sys.executable, "-I", "-S", _CHILD, str(os.getpid()), *program.argv],
            env=dict(program.environment),
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        child.pidfd = os.pidfd_open(child.process.pid)
        assert child.process.stdout is not None  # noqa: S101 - PIPE was asked for
        os.set_blocking(child.process.stdout.fileno(), False)
        self._selector.register(child.process.stdout, selectors.EVENT_READ, ("output", child))
        self._selector.register(child.pidfd, selectors.EVENT_READ, ("end", child))

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Watch until someone asks to stop."""
        while not self.stopping:
            self._step(self._seconds_to_next_start())

    def _step(self, seconds: float | None) -> None:
        for key, _events in self._selector.select(seconds):
            what, child = key.data
            if what == "wake":
                with suppress(BlockingIOError):
                    os.read(self._wake_read, 1024)
            elif what == "output":
                self._read(child)
            elif self._is_current(child, key.fd):
                self._ended(child)
        for child in self._children.values():
            if child.start_again_at is not None and time.monotonic() >= child.start_again_at and not self.stopping:
                self._spawn(child)

    def _is_current(self, child: _Child, descriptor: int) -> bool:
        return child.process is not None and child.pidfd == descriptor

    def _seconds_to_next_start(self) -> float | None:
        times = [child.start_again_at for child in self._children.values() if child.start_again_at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _read(self, child: _Child) -> None:
        if child.process is None or child.process.stdout is None:
            return
        with suppress(BlockingIOError):
            data = os.read(child.process.stdout.fileno(), _READ_BYTES)
            if not data:
                self._selector.unregister(child.process.stdout)
                child.process.stdout.close()
                child.process.stdout = None
            *lines, child.partial = (child.partial + data).split(b"\n")
            for line in lines:
                self._show(child, line)

    def _show(self, child: _Child, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        child.last_lines = [*child.last_lines[-19:], text]
        self.say(text, name=child.program.name, colour=child.colour)

    def _ended(self, child: _Child) -> None:
        assert child.process is not None  # noqa: S101 - checked by the caller
        code = child.process.wait()
        self._drain(child)
        # What the process had started itself (a worker's beat, say) must not live on beside the next one.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        child.process, child.pidfd = None, -1
        child.ends += 1
        if self.stopping:
            return
        lived = time.monotonic() - child.started_at
        if lived > CALM_SECONDS:
            child.pause = FIRST_PAUSE_SECONDS
        child.start_again_at = time.monotonic() + child.pause
        self.say(
            f"{child.program.name} ended after {lived:.1f} s with {_how(code)}; it starts again in {child.pause:.1f} s"
        )
        child.pause = min(LONGEST_PAUSE_SECONDS, child.pause * 2)

    def _drain(self, child: _Child) -> None:
        while child.process is not None and child.process.stdout is not None:
            before = child.partial, child.process.stdout
            self._read(child)
            if child.process.stdout is None or (child.partial, child.process.stdout) == before:
                break
        if child.partial:
            self._show(child, child.partial)
            child.partial = b""
        if child.process is not None and child.process.stdout is not None:
            self._selector.unregister(child.process.stdout)
            child.process.stdout.close()
            child.process.stdout = None

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b".")

    # -- stopping -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop what runs, last started first: TERM, ten seconds, KILL."""
        self.stopping = True
        for child in reversed(self._children.values()):
            child.start_again_at = None
            if child.process is not None:
                self._stop_one(child)

    def _stop_one(self, child: _Child) -> None:
        assert child.process is not None  # noqa: S101 - checked by the caller
        with suppress(ProcessLookupError):
            child.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while child.process is not None:
            self._step(0.1)
            if child.process is not None and time.monotonic() > deadline:
                self.say(f"{child.program.name} did not stop within {STOP_SECONDS:.0f} s and is killed")
                os.killpg(child.process.pid, signal.SIGKILL)
                deadline = time.monotonic() + STOP_SECONDS


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _line(name: str, text: str, colour: int) -> str:
    head = f"{name:<7} |"
    return f"\x1b[{colour}m{head}\x1b[0m {text}" if sys.stdout.isatty() else f"{head} {text}"


_stdout_lock = threading.Lock()


def write_line(line: str) -> None:
    """Write one whole line to stdout, from any thread."""
    # A reader that went away (`make demo | head`) must not take the console with it.
    with _stdout_lock, suppress(BrokenPipeError, ValueError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

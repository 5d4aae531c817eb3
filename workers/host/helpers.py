"""Helper programs of steps (pip, conversions): output line by line, progress in bytes, ended when the step ends."""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from workers.host.step_context import POLL_SECONDS, StepContext, Unit

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_KEPT_LINES = 60
_END_SECONDS = 3.0

_NOT_INHERITED = (
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_USER",
    "PIP_REQUIRE_VIRTUALENV",
)

Measure = Callable[[int], tuple[float, float | None, Unit]]
"""From the bytes that a helper has written: how far it is, of how much, in which unit."""


def in_bytes_written(written: int) -> tuple[float, float | None, Unit]:
    """The measure of a helper that tells nothing else."""
    return written, None, "bytes"


@dataclass
class Ended:
    """How a helper ended: its exit code and its last lines."""

    code: int
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))

    @property
    def text(self) -> str:
        """The last lines in one piece."""
        return "\n".join(self.lines)

    def evidence(self, count: int = 8) -> list[dict[str, object]]:
        """The last lines for a `Failure`."""
        return [{"line": None, "text": line[:500]} for line in list(self.lines)[-count:]]


def clean_environment(**changes: str) -> dict[str, str]:
    """The agent's environment without what would lead another Python astray, so that index settings still count."""
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return inherited | changes


def run_helper(
    context: StepContext,
    argv: list[str],
    *,
    environment: Mapping[str, str],
    on_line: Callable[[str], None],
    waiting_for: Callable[[], str],
    measure: Measure = in_bytes_written,
    numbers: Callable[[], Mapping[str, float]] | None = None,
) -> Ended:
    """Run `argv` to its end, telling the step's progress by `measure`; raises when the step must not go on.

    What the callables raise ends the program, too.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "workers.host.leash", str(os.getpid()), *argv],
        cwd=_PACKAGE_ROOT,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    ended = Ended(code=0)
    try:
        for line in _lines_of(context, process, waiting_for, measure, numbers):
            ended.lines.append(line)
            on_line(line)
        ended.code = process.wait()
    finally:
        if process.poll() is None:
            _end(process)
    return ended


def _lines_of(
    context: StepContext,
    process: "subprocess.Popen[bytes]",
    waiting_for: Callable[[], str],
    measure: Measure,
    numbers: Callable[[], Mapping[str, float]] | None,
) -> Iterator[str]:
    """Yield the process' lines (ended by newline or carriage return), checking and telling progress meanwhile."""
    output = process.stdout
    if output is None:
        return
    os.set_blocking(output.fileno(), False)
    rest, written = b"", 0
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            context.check()
            written = max(written, _bytes_written(process.pid))
            done, total, unit = measure(written)
            context.progress(done, total, unit=unit, waiting_for=waiting_for(), numbers=numbers)
            if not selector.select(POLL_SECONDS):
                continue
            data = output.read(65_536)
            if data == b"":
                break
            *lines, rest = (rest + (data or b"")).replace(b"\r", b"\n").split(b"\n")
            yield from (text for line in lines if (text := line.decode(errors="replace").strip()))
    if text := rest.decode(errors="replace").strip():
        yield text


def _bytes_written(pid: int) -> int:
    try:
        return psutil.Process(pid).io_counters().write_bytes
    except psutil.Error:
        return 0


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the helper and what it started."""
    for number, seconds in ((signal.SIGTERM, _END_SECONDS), (signal.SIGKILL, 60.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        end = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)

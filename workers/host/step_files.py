"""The directory of one step: its lock, the newest fence that was seen, a cancellation, and how it ended.

<state_dir>/steps/<step>/lock        held by the process that runs it
                         fence       the newest dispatch seen
                         cancelled   dispatches up to this fence must not go on
                         outcome.json   what the step answered, to what payload
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.contracts import StepFinished
from workers.host.files import read_json, write_json
from workers.host.processes import facts_of, is_alive

KEEP_SECONDS = 14 * 86_400
"""How long the files of an ended step stay, so that a late message for it is still recognised."""


@dataclass(frozen=True)
class Outcome:
    """A stored answer and the question it belongs to."""

    finished: StepFinished
    payload: dict[str, Any]


class StepFiles:
    """Typed access to one step's directory, which is made when it is first needed."""

    def __init__(self, state_dir: Path, step: int) -> None:
        self.step = step
        self.directory = state_dir / "steps" / str(step)
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextmanager
    def running(self) -> Iterator[bool]:
        """Hold the step's lock for a while; yields False when another process has it."""
        with _flock(self.directory / "lock", blocking=False) as held:
            yield held

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Look at and change fence, cancellation and outcome without anyone in between. Held for moments only."""
        with _flock(self.directory / "deciding", blocking=True):
            yield

    @contextmanager
    def marked_as_running(self) -> Iterator[None]:
        """Let `running_steps` see it for a while."""
        mark = self.directory / "running"
        facts = facts_of(os.getpid())
        write_json(mark, {"pid": os.getpid(), "start": facts.start if facts else 0})
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)

    @property
    def fence(self) -> int:
        """The newest dispatch that was seen; 0 before the first."""
        return self._number("fence")

    @fence.setter
    def fence(self, fence: int) -> None:
        write_json(self.directory / "fence", {"number": fence})

    @property
    def cancelled_fence(self) -> int:
        """Dispatches up to this fence are cancelled; 0 if none is."""
        return self._number("cancelled")

    @cancelled_fence.setter
    def cancelled_fence(self, fence: int) -> None:
        write_json(self.directory / "cancelled", {"number": fence})

    @property
    def outcome(self) -> Outcome | None:
        """How the step last ended here."""
        raw = read_json(self.directory / "outcome.json")
        if raw is None:
            return None
        return Outcome(finished=StepFinished.model_validate(raw["finished"]), payload=raw["payload"])

    def store_outcome(self, finished: StepFinished, payload: dict[str, Any]) -> None:
        """Keep the answer for the case that it is asked for again."""
        write_json(self.directory / "outcome.json", {"finished": finished.model_dump(mode="json"), "payload": payload})

    def _number(self, name: str) -> int:
        return int((read_json(self.directory / name) or {}).get("number", 0))


def running_steps(state_dir: Path) -> list[int]:
    """Steps that are being run on this host now. Takes no lock: whoever starts a step must never find it taken."""
    running = []
    for mark in (state_dir / "steps").glob("*/running"):
        owner = read_json(mark)
        if owner and mark.parent.name.isdigit() and is_alive(owner["pid"], owner["start"]):
            running.append(int(mark.parent.name))
    return sorted(running)


def forget_old_steps(state_dir: Path) -> None:
    """Remove the files of steps that ended long ago."""
    parent = state_dir / "steps"
    limit = time.time() - KEEP_SECONDS
    for directory in parent.iterdir() if parent.is_dir() else []:
        outcome = directory / "outcome.json"
        if outcome.exists() and outcome.stat().st_mtime < limit:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _flock(path: Path, *, blocking: bool) -> Iterator[bool]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)

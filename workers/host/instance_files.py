"""The directory of one instance: what the agent, the shim, the steps and bring-up tell each other through files.

<state_dir>/instances/<uuid>/
    order.json               the InstanceOrder that runs (secrets sealed)
    spec.json, state.json, ready, stop.json, fail.json, lock, attempts/NNNN/{attempt.json, log}     see workers.host.shim
    refused.json             why a start was not even tried
    attempts/NNNN/bring-up.json   how far bring-up is with this process
    attempts/NNNN/reported.json   which reports about this attempt have been written to the outbox
    attempts/NNNN/validation.json  the rows of its last validation, and its number
    adapters/                links by which LoRA adapters are loaded, see workers.host.adapters
    attempts/NNNN/log-sent   the console has this log to its end
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from workers.contracts import Check, Failure, GoldenAnswer, InstanceOrder, InstancePhase, LaunchFacts
from workers.host.files import read_json, write_json
from workers.host.processes import boot_id, is_alive
from workers.host.shim import UNFINISHED


@dataclass(frozen=True)
class ShimState:
    """What a shim last wrote about its instance; see `workers.host.shim`."""

    state: str
    start: int
    attempt: int
    pid: int | None
    pid_start: int | None
    shim_pid: int
    shim_start: int
    boot_id: str
    exit_code: int | None
    restarts: int
    reason: str
    asked: bool

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> "ShimState":
        """Build it from the content of state.json."""
        known: dict[str, Any] = {name: raw.get(name) for name in cls.__dataclass_fields__}
        return cls(**{**known, "reason": raw.get("reason", ""), "asked": raw.get("asked", False)})

    @property
    def unfinished(self) -> bool:
        """True while a shim is at work, or was until something killed it."""
        return self.state in UNFINISHED

    @property
    def shim_alive(self) -> bool:
        """True if the shim that wrote this is still there."""
        return self.boot_id == boot_id() and is_alive(self.shim_pid, self.shim_start)

    @property
    def engine_alive(self) -> bool:
        """True if the engine's main process is still there."""
        return self.boot_id == boot_id() and is_alive(self.pid, self.pid_start)


@dataclass(frozen=True)
class Attempt:
    """One engine process, as attempt.json tells; `ended_at` None: still running (or its shim was killed)."""

    number: int
    start: int
    pid: int
    argv: list[str]
    environment: dict[str, str]
    started_at: float
    ended_at: float | None
    exit_code: int | None
    asked: bool
    killed: bool
    log_bytes: int
    reason: str
    failure: dict[str, Any] | None
    """Why the agent had it ended (it hung, it was late), as a `Failure`; None if it ended by itself or was stopped."""


class InstanceFiles:
    """Typed access to one instance's directory. All paths may be missing; readers then return `None`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.instance = UUID(directory.name)
        self._known: dict[Path, tuple[tuple[int, int, int], dict[str, Any] | None]] = {}

    @classmethod
    def of(cls, state_dir: Path, instance: UUID) -> "InstanceFiles":
        """The directory of `instance` below the host's state directory."""
        return cls(state_dir / "instances" / str(instance))

    @classmethod
    def all_in(cls, state_dir: Path) -> "list[InstanceFiles]":
        """Every instance that ever ran here and has not been forgotten."""
        parent = state_dir / "instances"
        return [cls(path) for path in sorted(parent.iterdir()) if _is_uuid(path.name)] if parent.is_dir() else []

    def _read(self, path: Path) -> dict[str, Any] | None:
        """The JSON object at `path`, read only when the file is another one: they are asked for ten times a second."""
        try:
            stat = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        version = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if path not in self._known or self._known[path][0] != version:
            self._known[path] = (version, read_json(path))
        return self._known[path][1]

    def prepare(self) -> None:
        """Make the directory, private to the agent's user: logs may quote prompts."""
        (self.directory / "attempts").mkdir(parents=True, exist_ok=True, mode=0o700)

    # -- what runs --------------------------------------------------------------------------------------------------

    def order(self) -> InstanceOrder | None:
        """The order that the running process was started with."""
        raw = self._read(self.directory / "order.json")
        return InstanceOrder.model_validate(raw) if raw else None

    def state(self) -> ShimState | None:
        """What the shim last wrote."""
        raw = self._read(self.directory / "state.json")
        return ShimState.parse(raw) if raw else None

    def write_order(self, order: InstanceOrder, spec: dict[str, Any]) -> None:
        """Record what the next shim shall run."""
        self.prepare()
        write_json(self.directory / "order.json", order.model_dump(mode="json"))
        write_json(self.directory / "spec.json", spec)
        (self.directory / "stop.json").unlink(missing_ok=True)
        (self.directory / "refused.json").unlink(missing_ok=True)

    # -- attempts ---------------------------------------------------------------------------------------------------

    def attempt_directory(self, number: int) -> Path:
        """Where the log and the record of one attempt lie."""
        return self.directory / "attempts" / f"{number:04d}"

    def log(self, number: int) -> Path:
        """The log of one attempt, written by the engine itself."""
        return self.attempt_directory(number) / "log"

    def attempt(self, number: int) -> Attempt | None:
        """The record of one attempt."""
        raw = self._read(self.attempt_directory(number) / "attempt.json")
        if not raw:
            return None
        optional: dict[str, Any] = {
            "ended_at": None,
            "exit_code": None,
            "asked": False,
            "killed": False,
            "log_bytes": 0,
            "reason": "",
            "failure": None,
        }
        known: dict[str, Any] = {name: raw.get(name, optional.get(name)) for name in Attempt.__dataclass_fields__}
        return Attempt(**known)

    def attempt_numbers(self) -> list[int]:
        """Numbers of all attempts on disk, in order."""
        parent = self.directory / "attempts"
        return sorted(int(path.name) for path in parent.iterdir() if path.name.isdigit()) if parent.is_dir() else []

    # -- bring-up ---------------------------------------------------------------------------------------------------

    def bring_up_phase(self, number: int) -> InstancePhase | None:
        """How far bring-up is with this attempt (validating, warming), or `None` when it is not at work."""
        raw = self._read(self.attempt_directory(number) / "bring-up.json")
        return InstancePhase(raw["phase"]) if raw and raw.get("phase") else None

    def set_bring_up_phase(self, number: int, phase: InstancePhase | None) -> None:
        """Tell the supervisor what bring-up does."""
        directory = self.attempt_directory(number)
        if directory.is_dir():
            write_json(directory / "bring-up.json", {"phase": phase})

    def write_validation(
        self,
        number: int,
        *,
        sound: bool,
        checks: list[Check],
        golden: list[GoldenAnswer],
        warnings: list[dict[str, Any]],
    ) -> None:
        """Keep the report of a validation with its attempt."""
        path = self.attempt_directory(number) / "validation.json"
        if path.parent.is_dir():
            report = {"sound": sound, "warnings": warnings}
            rows = {"checks": [row.model_dump() for row in checks], "golden": [one.model_dump() for one in golden]}
            write_json(path, {"run": (self.validation(number) or {}).get("run", 0) + 1, **report, **rows})

    def validation(self, number: int) -> dict[str, Any] | None:
        """The report of an attempt's last validation: run (counted from 1), sound, checks, golden, warnings."""
        return self._read(self.attempt_directory(number) / "validation.json")

    def write_measurement(self, number: int, facts: LaunchFacts) -> None:
        """Keep what a start needed with its attempt."""
        path = self.attempt_directory(number) / "measured.json"
        if path.parent.is_dir():
            write_json(path, facts.model_dump())

    def measurement(self, number: int) -> LaunchFacts | None:
        """What a start needed, once it has warmed up."""
        raw = self._read(self.attempt_directory(number) / "measured.json")
        return LaunchFacts.model_validate(raw) if raw else None

    def mark_ready(self, *, start: int, attempt: int) -> None:
        """Say that this process passed validation and warm-up; from now on the shim restarts it by policy."""
        write_json(self.directory / "ready", {"start": start, "attempt": attempt})

    def ready_attempt(self) -> int | None:
        """The attempt that last became ready."""
        return (self._read(self.directory / "ready") or {}).get("attempt")

    def ready_start(self) -> int | None:
        """The `start` number that last became ready."""
        return (self._read(self.directory / "ready") or {}).get("start")

    # -- refusals ---------------------------------------------------------------------------------------------------

    def refuse(self, start: int, failure: Failure) -> None:
        """Record that this start was not tried, and why."""
        self.prepare()
        write_json(self.directory / "refused.json", {"start": start, "failure": failure.model_dump(mode="json")})

    def refusal(self, start: int) -> Failure | None:
        """Why this start was not tried, or `None` if it was not refused."""
        raw = self._read(self.directory / "refused.json")
        return Failure.model_validate(raw["failure"]) if raw and raw["start"] == start else None


def _is_uuid(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False

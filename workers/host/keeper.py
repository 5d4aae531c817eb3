"""The keeper: a small parent of the agent that starts it again, and tries a new version of it without losing the old.

Versions lie side by side; `current`, a link beside the host's configuration, names the one that is trusted, and the unit
starts the keeper from there. A trial runs the new version under the old keeper. Only when its first heartbeat has reached
the broker does `current` move; otherwise the old version is started again. So whatever happens in between, a power cut
included, the machine comes back with a version that has worked. Engines have shims for parents and notice nothing.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from workers.host.files import read_json, write_json

logger = logging.getLogger(__name__)

KEEPER_VARIABLE = "SLIPWAY_KEEPER"
"""Set, to the path of the host's configuration, for the agent and its worker: an upgrade needs a keeper."""

HEARTBEAT_SECONDS = 60.0
"""How long a new version may take until its first heartbeat; the design's number."""

_POLL_SECONDS = 0.1
_END_SECONDS = 15.0
_CALM_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_KEPT_LINES = 20


class Trial(BaseModel):
    """An upgrade of the agent, as it lies beside the host's configuration; written by the upgrade step and the keeper."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: str
    directory: Path
    """Environment of the new version."""
    step: int
    previous: str = ""
    """The version that ran before."""
    state: Literal["wanted", "running", "kept", "rolled_back"] = "wanted"
    reason: str = ""
    last_lines: list[str] = []

    @staticmethod
    def path(config_path: Path) -> Path:
        """Where the trial of the host with this configuration lies."""
        return config_path.parent / "upgrade.json"

    @classmethod
    def load(cls, config_path: Path) -> Self | None:
        """Read it; `None` if there is none."""
        try:
            return cls.model_validate(read_json(cls.path(config_path)) or {})
        except ValidationError:
            return None

    def save(self, config_path: Path) -> None:
        """Write it in one step."""
        write_json(self.path(config_path), self.model_dump(mode="json"))


def current_link(config_path: Path) -> Path:
    """The link to the environment of the trusted version."""
    return config_path.parent / "current"


def point_current(config_path: Path, directory: Path) -> None:
    """Let `current` name another environment, in one step."""
    link = current_link(config_path)
    draft = link.with_name(f".{link.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(directory)
    draft.replace(link)


def alive_path(state_dir: Path) -> Path:
    """File in which an agent says that its first heartbeat has reached the broker: `{"pid", "version"}`."""
    return state_dir / "agent-alive.json"


class Keeper:
    """Keeps one host's agent running until SIGTERM; see the module. `run` returns an exit code."""

    def __init__(self, config_path: Path, state_dir: Path, *, heartbeat_seconds: float = HEARTBEAT_SECONDS) -> None:
        self._config_path = config_path.resolve()
        self._state_dir = state_dir
        self._heartbeat_seconds = heartbeat_seconds
        self._stopping = threading.Event()
        self._agent: subprocess.Popen[bytes] | None = None
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)

    def run(self) -> int:
        """Start the agent again whenever it ends, and try what an upgrade asks for."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())
        pause = _FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            began = time.monotonic()
            if not self._runs():
                self._start(self._trusted())
            trial = self._watch()
            if trial is not None:
                self._try(trial)
                pause = _FIRST_PAUSE_SECONDS
            elif not self._stopping.is_set():
                pause = _FIRST_PAUSE_SECONDS if time.monotonic() - began > _CALM_SECONDS else pause
                code = self._agent.returncode if self._agent else None
                logger.warning("the agent ended with code %s, starting it again in %.1f s", code, pause)
                self._stopping.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        self._end()
        return 0

    def _trusted(self) -> Path:
        link = current_link(self._config_path)
        return link.resolve() if link.exists() else Path(sys.prefix)

    def _watch(self) -> Trial | None:
        """Wait until the agent ends, an upgrade is wanted (it is returned), or the keeper shall end."""
        while not self._stopping.wait(_POLL_SECONDS):
            trial = Trial.load(self._config_path)
            if trial is not None and trial.state in ("wanted", "running"):
                return trial
            if not self._runs():
                return None
        return None

    def _runs(self) -> bool:
        return self._agent is not None and self._agent.poll() is None

    def _try(self, trial: Trial) -> None:
        """Run the new version; keep it if its heartbeat comes in time, otherwise leave the old one to be started again."""
        logger.info("trying version %s", trial.version)
        trial = trial.model_copy(update={"state": "running"})
        trial.save(self._config_path)
        self._end()
        self._start(trial.directory)
        reason = self._first_heartbeat()
        if self._stopping.is_set():
            return  # still "running": the next keeper tries again
        if reason is None:
            point_current(self._config_path, trial.directory)
            trial.model_copy(update={"state": "kept"}).save(self._config_path)
            logger.info("version %s is kept", trial.version)
            return
        logger.error("version %s is not kept: %s", trial.version, reason)
        self._end()
        rolled_back = {"state": "rolled_back", "reason": reason, "last_lines": list(self._lines)}
        trial.model_copy(update=rolled_back).save(self._config_path)

    def _first_heartbeat(self) -> str | None:
        """Wait for the new agent's first heartbeat; returns why there was none, or `None`."""
        end = time.monotonic() + self._heartbeat_seconds
        while time.monotonic() < end and not self._stopping.wait(_POLL_SECONDS):
            agent = self._agent
            if agent is None or agent.poll() is not None:
                return f"it ended with code {agent.returncode if agent else None} before its first heartbeat"
            if (read_json(alive_path(self._state_dir)) or {}).get("pid") == agent.pid:
                return None
        return f"its first heartbeat did not reach the broker within {self._heartbeat_seconds:.0f} s"

    def _start(self, prefix: Path) -> None:
        program = [str(prefix / "bin" / "python"), "-P", "-m", "workers.cli"]
        environment = os.environ | {KEEPER_VARIABLE: str(self._config_path), "PYTHONUNBUFFERED": "1"}
        self._lines.clear()
        try:
            # Through the leash, so that no agent is left behind by a keeper that is killed. The session is its own:
            # Ctrl-C in a terminal is for the keeper, which ends the agent in order.
            self._agent = subprocess.Popen(
                [
                    *(sys.executable, "-m", "workers.host.leash", str(os.getpid())),
                    *program,
                    *("host", "run", "--config", str(self._config_path)),
                ],
                cwd=Path(__file__).resolve().parents[2],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            logger.error("the agent in %s can't be started: %s", prefix, error)  # noqa: TRY400 - the reason is enough
            self._agent = None
            return
        threading.Thread(target=self._pass_on, args=(self._agent.stdout,), daemon=True).start()

    def _pass_on(self, output: IO[bytes]) -> None:
        """The agent's lines go where the keeper's go, and the last ones are kept for an upgrade that fails."""
        for raw in output:
            line = raw.decode(errors="replace").rstrip()
            self._lines.append(line[:500])
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def _end(self) -> None:
        """End the agent, if one runs; engines go on."""
        if self._agent is None or not self._runs():
            return
        self._agent.terminate()
        try:
            self._agent.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._agent.kill()
            self._agent.wait()


def kept_config_path() -> Path | None:
    """In an agent (or its worker) that has a keeper: the host's configuration file, beside which upgrades are agreed."""
    value = os.environ.get(KEEPER_VARIABLE)
    return Path(value) if value else None

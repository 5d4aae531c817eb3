"""How the agent is started for good: as a service of systemd, or detached where there is none."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from workers.host.drivers.systemd import SystemdDriver
from workers.host.files import read_json
from workers.host.keeper import current_link, point_current
from workers.host.processes import ProcessFacts, facts_of, is_alive
from workers.host_config import HostConfig, slipway_home

_START_SECONDS = 60.0
_END_SECONDS = 20.0


class ServiceError(Exception):
    """The service could not be installed; the message says why and what to do."""


def trust_this_version(config_path: Path) -> None:
    """Make the environment that runs now the one that the service starts."""
    point_current(config_path, Path(sys.prefix))


def unit_name(name: str) -> str:
    """Name of the host's unit."""
    return f"slipway-host-{name}.service"


def unit_path(unit: str) -> Path:
    """Where a unit belongs: the system's units for root, the person's own otherwise."""
    if os.geteuid() == 0:
        return Path("/etc/systemd/system") / unit
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return base / "systemd" / "user" / unit


def systemd_unit(name: str, config_path: Path) -> str:
    """A unit for the host's agent; engines go on while it is stopped or upgraded."""
    program = [str(current_link(config_path) / "bin" / "python"), "-P", "-m", "workers.cli", "host", "keep"]
    return unit_text(f"Slipway host agent of {name}", [*program, "--config", str(config_path)], restart="always")


def unit_text(description: str, words: Sequence[str], *, restart: Literal["always", "on-failure"]) -> str:
    """A unit that runs `words`. KillMode=process: stopping it leaves alone what the program has started."""
    target = "multi-user.target" if os.geteuid() == 0 else "default.target"
    command = " ".join(_quoted(word) for word in words)
    return f"""\
[Unit]
Description={description}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Environment={_quoted(f"SLIPWAY_HOME={slipway_home()}")}
ExecStart={command}
Restart={restart}
RestartSec=2
KillMode=process
OOMPolicy=continue
TimeoutStopSec=30
LimitNOFILE=1048576

[Install]
WantedBy={target}
"""


def install_unit(config: HostConfig, config_path: Path) -> Path:
    """Write the unit, start it now and at every boot; returns the unit's path. Raises ServiceError.

    Engines get units of their own then, too: an agent's unit that held them would be stopped with all of them when the
    kernel kills one for its memory.
    """
    unit = unit_name(config.name)
    take_place_of_agent(unit, config.state_dir, config_path)
    config.model_copy(update={"driver": "systemd"}).save(config_path)
    return start_unit(unit, systemd_unit(config.name, config_path))


def start_unit(unit: str, text: str) -> Path:
    """Write a unit, start it now and at every boot; returns its path. Raises ServiceError."""
    path = unit_path(unit)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    scope = []
    if os.geteuid() != 0:
        scope = ["--user"]
        _have_a_manager(unit)
    for words in (["daemon-reload"], ["enable", unit], ["restart", unit]):
        _run([_systemctl(), *scope, *words])
    return path


def take_place_of_agent(unit: str, state_dir: Path, config_path: Path) -> None:
    """End an agent, and its keeper, that was started by hand: it would hold what the unit shall look after.

    Raises ServiceError, without having ended anything, where systemd does not run.
    """
    _systemctl()
    agent = _running_agent(state_dir, config_path)
    if agent is None:
        return
    keeper = _keeper_of(agent, config_path) or agent
    if unit not in Path(f"/proc/{keeper.pid}/cgroup").read_text(encoding="utf-8"):
        _end(keeper.pid, keeper.start)


def _systemctl() -> str:
    program = shutil.which("systemctl")
    if program is None or not Path("/run/systemd/system").is_dir():
        raise ServiceError(
            "systemd does not run here. Leave --systemd out, or start the agent by what runs services here."
        )
    return program


def _have_a_manager(unit: str) -> None:
    """Have systemd keep a manager for this person's services; ServiceError with what is left to do if it has none.

    `sudo -u` and `su` alone bring none, and without lingering it ends with the last session and doesn't start at boot.
    """
    user = pwd.getpwuid(os.getuid()).pw_name
    trouble = ""
    if not Path("/var/lib/systemd/linger", user).exists() and (linger := shutil.which("loginctl")):
        try:
            # By name: logind does not guess who asks where there is no session.
            _run([linger, "enable-linger", user])
        except ServiceError as error:
            trouble = f"{error}. "
    os.environ.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    end = time.monotonic() + _START_SECONDS
    while not trouble and (why := SystemdDriver().why_not()):
        trouble = why.partition(". ")[0] + ". " if time.monotonic() > end else ""
        time.sleep(0.1)
    if trouble:
        raise ServiceError(
            f"{trouble}As root, run `loginctl enable-linger {user}`; then, as {user}, `systemctl --user enable --now {unit}`."
        )


def start_detached(config: HostConfig, config_path: Path) -> int:
    """Start the keeper in a session of its own and return the agent's pid. It doesn't come back after a reboot.

    An agent of before, which doesn't know the new credentials, is ended first (engines go on). Where it has a keeper, that
    one starts it again, and no second keeper is started.
    """
    log = config.state_dir / "agent.log"
    config.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    before = _running_agent(config.state_dir, config_path)
    keeper = _keeper_of(before, config_path) if before else None
    if before is not None:
        _end(before.pid, before.start)
    if keeper is None:
        keeper = _start_keeper(config_path, log)
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and is_alive(keeper.pid, keeper.start):
        agent = _running_agent(config.state_dir, config_path)
        if agent is not None and agent.parent == keeper.pid and (before is None or agent.pid != before.pid):
            return agent.pid
        time.sleep(0.1)
    raise ServiceError(f"the agent did not start within {_START_SECONDS:.0f} s; its log is {log}")


def _start_keeper(config_path: Path, log: Path) -> ProcessFacts:
    with log.open("ab") as output:
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", "workers.cli", "host", "keep", "--config", str(config_path)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )
    facts = facts_of(keeper.pid)
    if facts is None:
        raise ServiceError(f"the agent's keeper ended at once; its log is {log}")
    return facts


def _running_agent(state_dir: Path, config_path: Path) -> ProcessFacts | None:
    """The agent that works there now. The lock's file names its holder; trying the lock itself could make a new
    agent believe that it is taken.
    """
    pid = (read_json(state_dir / "agent.lock") or {}).get("pid")
    facts = facts_of(pid) if isinstance(pid, int) else None
    return facts if facts and not facts.zombie and _is_about(facts.pid, "run", config_path) else None


def _keeper_of(agent: ProcessFacts, config_path: Path) -> ProcessFacts | None:
    return facts_of(agent.parent) if _is_about(agent.parent, "keep", config_path) else None


def _is_about(pid: int, action: str, config_path: Path) -> bool:
    """True if the process is `slipway host ACTION`, or `slipway gateway ACTION`, with this configuration."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return action in words and any(word[:1] == "/" and Path(word).resolve() == config_path.resolve() for word in words)


def _end(pid: int, start: int) -> None:
    """End an agent, or a keeper with its agent, in order; engines go on."""
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + _END_SECONDS
    while is_alive(pid, start):
        if time.monotonic() > end:
            raise ServiceError(
                f"process {pid}, the agent of before, does not end. Kill it (kill -9 {pid}); engines go on."
            )
        time.sleep(0.05)


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise ServiceError(f"{' '.join(argv)} ended with code {done.returncode}: {done.stderr.strip()}")


def _quoted(word: str) -> str:
    """A word as systemd reads it: quoted where it has to be, with its own specifiers taken literally."""
    plain = word.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{plain}"' if any(sign in word for sign in " \"\\'") else plain

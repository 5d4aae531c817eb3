"""Install quantizer: llm-compressor into an environment of its own, or one that lies there adopted; registered last.

It never shares an environment with an engine: both pin torch and transformers, and seldom the same ones.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from workers.host.engine_environments import discard, engine_lock, new_environment, remove_tree, size_of
from workers.host.failures import StepFailedError
from workers.host.helpers import clean_environment, run_helper
from workers.host.pip_runs import Pip, check_space, install_failure, make_environment
from workers.host.quantizers import (
    DISTRIBUTION,
    Quantizer,
    known_quantizer,
    quantizers_dir,
    register_quantizer,
    sweep_quantizers,
)
from workers.host.step_context import StepContext
from workers.host.steps.adopt_engine import find_python
from workers.host.trusted_paths import check_trusted
from workers.quantization_payloads import InstallQuantizerPayload as Payload
from workers.quantization_payloads import InstallQuantizerResult

__all__ = ["Payload", "run"]

_SELF_TEST = Path(__file__).resolve().parents[1] / "scripts" / "quantizer_self_test.py"
_SPACE_NEEDED = 10 * 2**30
"""Bytes that an installation takes at its peak where torch brings CUDA's libraries along."""


def run(context: StepContext, payload: Payload) -> InstallQuantizerResult:
    """Return what may be run from now on."""
    with engine_lock(quantizers_dir(context.config), DISTRIBUTION, waiting=lambda: _wait(context)):
        made = _adopt(context, payload.path) if payload.path else _install(context, payload.version)
    context.event(f"{made.key} can quantise models.")
    return InstallQuantizerResult(
        key=made.key, version=made.version, python=made.python, adopted=made.adopted, size_bytes=made.size_bytes,
        details=made.details, seconds=round(context.seconds, 3),
    )  # fmt: skip


def _wait(context: StepContext) -> None:
    context.progress(context.seconds, unit="seconds", waiting_for="another installation of llm-compressor")
    context.check()


def _adopt(context: StepContext, path: str) -> Quantizer:
    python = find_python(check_trusted(context.config, path, what="environments"), path)
    facts = _facts(context, python)
    # Two environments may hold the same version: the path tells them apart.
    apart = hashlib.sha256(str(python).encode()).hexdigest()[:6]
    made = Quantizer(
        key=f"{DISTRIBUTION}-{facts['version']}-{apart}", version=facts["version"], python=str(python), details=facts
    )
    register_quantizer(context.config, made)
    return made


def _install(context: StepContext, version: str) -> Quantizer:
    place = quantizers_dir(context.config)
    if freed := sweep_quantizers(context.config):
        context.event(f"{freed / 1e9:.1f} GB that an earlier installation left were removed.")
    check_space(place, "llm-compressor", _SPACE_NEEDED)
    # Which version it will be is not known before: the folder is called after what was asked for.
    directory = new_environment(place, f".{version or 'newest'}")
    try:
        facts = _build(context, directory, version)
    except BaseException:
        discard(directory)
        raise
    return _take_over(context, directory, facts)


def _build(context: StepContext, directory: Path, version: str) -> dict[str, Any]:
    python = make_environment(context, directory)
    temporary = directory / ".tmp"  # as for engines: a small /tmp has no room for what pip unpacks
    temporary.mkdir(mode=0o700)
    wanted = f"{DISTRIBUTION}=={version}" if version else DISTRIBUTION
    ended = Pip(context, python, clean_environment(TMPDIR=str(temporary)), []).install(wanted)
    if ended.code != 0:
        raise install_failure(DISTRIBUTION, version or "newest", ended, may_relax=False)
    remove_tree(temporary)
    return _facts(context, python)


def _take_over(context: StepContext, directory: Path, facts: dict[str, Any]) -> Quantizer:
    """The register names the new environment; one of the same version that was there before goes."""
    key = f"{DISTRIBUTION}-{facts['version']}"
    before = known_quantizer(context.config, key)
    made = Quantizer(
        key=key, version=facts["version"], python=str(directory / "bin" / "python"), directory=str(directory),
        size_bytes=size_of(directory), details=facts,
    )  # fmt: skip
    register_quantizer(context.config, made)
    if before is not None and before.directory and before.directory != made.directory:
        remove_tree(Path(before.directory))
    return made


def _facts(context: StepContext, python: Path) -> dict[str, Any]:
    """What its self-test says. Raises `StepFailedError` (`quantizer.unusable`) if it can't be used."""
    ended = run_helper(
        context, [str(python), str(_SELF_TEST)],
        environment=clean_environment(HF_HUB_OFFLINE="1", PYTHONDONTWRITEBYTECODE="1"),
        on_line=lambda _line: None, waiting_for=lambda: "llm-compressor to be tried",
    )  # fmt: skip
    try:
        facts = json.loads(ended.lines[-1]) if ended.code == 0 and ended.lines else None
    except ValueError:
        facts = None
    if not isinstance(facts, dict) or not facts.get("version"):
        last = ended.lines[-1] if ended.lines else f"exit code {ended.code}"
        raise StepFailedError(
            "quantizer.unusable", f"llm-compressor can't be used by {python}: {last[:300]}",
            next_step="Read the last lines. An environment that is adopted needs llmcompressor and what it asks for.",
            evidence=ended.evidence(),
        )  # fmt: skip
    return facts

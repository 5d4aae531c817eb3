"""llm-compressor on a host: adopted or installed, run by its own Python, and what is left when it can't."""

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import PATIENCE, wait_for
from tests.host.vllm_package import make_wheel
from tests.standin import quantizer
from tests.weights.build import make_model, make_quantised
from workers.contracts import StepFinished, StepKind, StepOrder
from workers.host.quantizers import Quantizer, known_quantizer, quantizers_dir, register_quantizer, sweep_quantizers
from workers.host.step_files import StepFiles
from workers.host.step_runner import cancel_step, run_order
from workers.host_config import HostConfig
from workers.sealing import generate_key_pair
from workers.weights.verification import verify_directory

PROMPTS = ["What is the capital of France?", "Name a colour of the sky."]


class Host:
    """Runs steps in this process and collects what they report."""

    def __init__(self, config: HostConfig) -> None:
        self.config = config
        self.reports: list[Any] = []
        self.steps = 0
        self.key = ""

    def step(self, kind: StepKind, **payload: Any) -> StepFinished:
        self.steps += 1
        order = StepOrder(step=self.steps, job=1, fence=1, kind=kind, deadline_seconds=300, payload=payload)
        run_order(order, self.config, self.reports.append)
        return next(one for one in reversed(self.reports) if isinstance(one, StepFinished))

    def quantize(self, **changes: Any) -> StepFinished:
        given = {"quantizer": self.key, "model_path": "llama", "name": "llama-FP8", "scheme": "FP8_DYNAMIC"} | changes
        return self.step(StepKind.QUANTIZE, **given)

    def left(self) -> list[str]:
        return sorted(path.name for path in self.config.models_dir.iterdir())

    def texts(self) -> list[str]:
        return [one.text for one in self.reports if one.kind == "step.event"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantizer.make_environment(tmp_path_factory.mktemp("theirs") / "llmc")


@pytest.fixture
def bare(tmp_path: Path, environment: Path) -> Host:
    """A host with a model, and nothing to quantise it with."""
    config = HostConfig(
        name="quant", redis_url="redis://127.0.0.1:1/0", private_key=generate_key_pair()[0],
        state_dir=tmp_path / "state", engines_dir=tmp_path / "engines", models_dir=tmp_path / "models",
        trusted_roots=[environment.parents[2]],
    )  # fmt: skip
    config.state_dir.mkdir()
    make_model(config.models_dir / "llama", "llama")
    return Host(config)


@pytest.fixture
def host(bare: Host, environment: Path) -> Host:
    """With llm-compressor, as an adoption registers it."""
    bare.key = "llmcompressor-adopted"
    register_quantizer(bare.config, Quantizer(key=bare.key, version=quantizer.VERSION, python=str(environment)))
    return bare


def test_an_environment_is_adopted_run_by_its_own_python_and_forgotten_untouched(bare: Host, environment: Path) -> None:
    host = bare
    adopted = host.step(StepKind.INSTALL_QUANTIZER, path=str(environment.parents[1]))
    assert adopted.outcome == "succeeded", adopted.failure
    host.key = str(adopted.result["key"])
    found = known_quantizer(host.config, host.key)
    assert found is not None
    assert (found.version, found.python, found.adopted) == (quantizer.VERSION, str(environment), True)
    removed = host.step(StepKind.REMOVE_QUANTIZER, key=host.key)
    assert removed.result["freed_bytes"] == 0
    assert environment.exists()
    ended = host.quantize()
    assert ended.failure is not None
    assert ended.failure.code == "quantizer.not_installed"


def test_an_environment_without_it_is_no_quantizer(bare: Host, tmp_path: Path, environment: Path) -> None:
    elsewhere = bare.step(StepKind.INSTALL_QUANTIZER, path=str(tmp_path))
    assert elsewhere.failure is not None
    assert elsewhere.failure.code == "path.not_trusted"
    without = environment.parents[2] / "without" / "bin" / "python"
    without.parent.mkdir(parents=True)
    without.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'llmcompressor'\"; exit 1\n")
    without.chmod(0o755)
    ended = bare.step(StepKind.INSTALL_QUANTIZER, path=str(without))
    assert ended.failure is not None
    assert ended.failure.code == "quantizer.unusable"
    assert "No module named 'llmcompressor'" in ended.failure.message


@pytest.mark.parametrize(("scheme", "prompts"), [("FP8_DYNAMIC", []), ("W8A8", PROMPTS), ("W8A8", [])])
def test_a_model_is_quantised_and_the_verification_finds_it_sound(host: Host, scheme: str, prompts: list[str]) -> None:
    before = {path.name: path.read_bytes() for path in (host.config.models_dir / "llama").iterdir()}
    ended = host.quantize(scheme=scheme, prompts=prompts)
    assert ended.outcome == "succeeded", ended.failure
    made = Path(str(ended.result["model_path"]))
    assert made == host.config.models_dir / "llama-FP8"
    assert ended.result["size_bytes"] < ended.result["source_bytes"]
    verification = verify_directory(made)
    assert verification.ok, verification.findings
    assert verification.summary["quantization"] == "compressed-tensors"
    assert (made / "chat_template.jinja").read_bytes() == before["chat_template.jinja"]
    assert json.loads((made / "slipway.json").read_text())["source"].endswith("/llama")
    assert before == {path.name: path.read_bytes() for path in (host.config.models_dir / "llama").iterdir()}
    assert host.left() == ["llama", "llama-FP8"]
    told = [one for one in host.reports if one.kind == "step.progress" and one.step == host.steps]
    assert all(one.unit == "items" for one in told)
    assert any("Initialized a stand-in" in text for text in host.texts())
    again = host.quantize(scheme=scheme, prompts=prompts)
    assert again.outcome == "succeeded", "the same order is carried out once"


def refused(host: Host, **changes: Any) -> str:
    ended = host.quantize(**changes)
    assert ended.failure is not None, ended
    assert ended.failure.next
    return ended.failure.code


def test_what_can_t_come_to_anything_is_refused_before_it_begins(host: Host) -> None:
    make_quantised(host.config.models_dir / "fp8", "ct-channel")
    assert refused(host, model_path="fp8") == "quantize.already"
    assert refused(host, name="fp8") == "quantize.exists"
    assert refused(host, model_path="nowhere") == "path.not_found"
    config = host.config.models_dir / "llama" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_size": 576}))
    assert refused(host, scheme="W4A16", prompts=PROMPTS) == "quantize.columns"
    assert host.left() == ["fp8", "llama"]


def test_a_full_disk_and_too_little_memory_are_said_with_numbers(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.host.steps.quantize._DISK", 1e15)
    assert refused(host) == "disk.not_enough"
    monkeypatch.setattr("workers.host.steps.quantize._DISK", 1.1)
    monkeypatch.setattr("workers.host.steps.quantize._ROOM", 1e15)
    assert refused(host) == "memory.out_of_memory"


@pytest.mark.parametrize(
    ("said", "advice"),
    [("columns are not divisible by group_size", "W8A8 or FP8"), ("it needs trust_remote_code", "own code"),
     ("something else", "nothing of the attempt is left")],
)  # fmt: skip
def test_a_failure_says_why_and_leaves_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch, said: str, advice: str
) -> None:
    monkeypatch.setenv("STANDIN_QUANTIZER_FAIL", said)
    ended = host.quantize()
    assert ended.failure is not None
    assert ended.failure.code == "quantize.failed"
    assert f"ValueError: {said}" in ended.failure.message
    assert advice in ended.failure.next
    assert host.left() == ["llama"]


@pytest.mark.long
def test_a_cancelled_one_ends_its_process_and_leaves_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_QUANTIZER_SECONDS", "120")
    ended: list[StepFinished] = []
    running = threading.Thread(target=lambda: ended.append(host.quantize()))
    running.start()
    wait_for(lambda: [one for one in host.reports if one.kind == "step.progress" and one.total and one.done > 1])
    cancel_step(StepFiles(host.config.state_dir, host.steps), 1, host.reports.append)
    running.join(PATIENCE)
    assert ended[0].outcome == "cancelled"
    assert host.left() == ["llama"]


@pytest.mark.long
def test_it_is_installed_from_the_host_s_own_index_and_removed_again(
    bare: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_pip_settings: Callable[[], None]
) -> None:
    without_pip_settings()
    make_wheel(tmp_path / "wheels", "llmcompressor", quantizer.VERSION, quantizer.wheel_files())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    missing = bare.step(StepKind.INSTALL_QUANTIZER, version="9.9.9")
    assert missing.failure is not None
    assert missing.failure.code == "engine.version_not_found"
    made = bare.step(StepKind.INSTALL_QUANTIZER)
    assert made.outcome == "succeeded", made.failure
    bare.key = str(made.result["key"])
    assert bare.key == f"llmcompressor-{quantizer.VERSION}"
    assert bare.quantize().outcome == "succeeded"
    removed = bare.step(StepKind.REMOVE_QUANTIZER, key=bare.key)
    assert removed.result["freed_bytes"] > 1000
    assert known_quantizer(bare.config, bare.key) is None


def test_what_a_killed_installation_left_is_removed_and_nothing_else(bare: Host, environment: Path) -> None:
    place = quantizers_dir(bare.config)
    for name in (".newest/env-00000001", ".newest/env-00000001.tmp", ".newest/env-00000002"):
        (place / name).mkdir(parents=True)
        (place / name / "torch.so").write_bytes(b"x" * 1000)
    whole = Quantizer(
        key="llmcompressor-1", version="1", python=sys.executable, directory=str(place / ".newest/env-00000002")
    )
    register_quantizer(bare.config, whole)
    assert bare.step(StepKind.INSTALL_QUANTIZER, path=str(environment)).outcome == "succeeded"  # adopted: its own place
    assert sweep_quantizers(bare.config) == 2000
    assert sorted(path.name for path in (place / ".newest").iterdir()) == ["env-00000002"]
    (place / "llmcompressor-1" / "quantizer.json").write_text('{"key": 5}')
    assert sweep_quantizers(bare.config) == 0
    assert (place / ".newest/env-00000002").exists()


@pytest.fixture
def without_pip_settings(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def forget() -> None:
        for name in list(os.environ):
            if name.startswith("PIP_"):
                monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)

    return forget

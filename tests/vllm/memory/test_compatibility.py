"""What runs where, besides memory."""

from dataclasses import replace
from typing import Any

import pytest

from tests.vllm.memory.models import GIB, config, llama, public_shape
from workers.vllm.compatibility import SCHEMES
from workers.vllm.memory import Plan, PlanRequest, find_device, plan, read_shape

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NVFP4 = {"quant_method": "modelopt", "producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
INT8 = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
    "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}, "input_activations": {"num_bits": 8}}}}  # fmt: skip


def planned(quantization: dict[str, Any] | None, device: str, **request: Any) -> Plan:
    changes = {} if quantization is None else {"quantization_config": quantization}
    found = find_device(device)
    return plan(read_shape(llama(**changes)), PlanRequest(device=found, kv_cache_memory=2 * GIB, **request))


def codes(made: Plan) -> set[str]:
    return {reason.code for reason in made.reasons}


@pytest.mark.parametrize(("quantization", "device", "code"), [
    (FP8, "H100", None), (FP8, "L40S", None), (FP8, "4090", None), (FP8, "MI300X", None),
    (FP8, "A100", "quantization.weight_only"), (FP8, "T4", "quantization.weight_only"),
    (AWQ, "T4", None), (GPTQ, "A10G", None), (NVFP4, "B200", None), (NVFP4, "H100", "quantization.weight_only"),
    (NVFP4, "MI300X", "quantization.unsupported_device"), (INT8, "A100", None),
    (INT8, "B200", "quantization.unsupported_device"), ({"quant_method": "mxfp4"}, "T4", "quantization.unsupported_device"),
    ({"quant_method": "future"}, "H100", "quantization.unknown"), (None, "H100", None),
])  # fmt: skip
def test_quantisation_by_capability(quantization: dict[str, Any] | None, device: str, code: str | None) -> None:
    found = {each for each in codes(planned(quantization, device)) if each.startswith("quantization.")}
    assert found == ({code} if code else set())


def test_fp8_below_sm_89_saves_memory_not_time_and_still_starts() -> None:
    made = planned(FP8, "A100")
    assert made.fits is True
    assert "saves memory, not time" in " ".join(made.as_json()["reasons"])


@pytest.mark.parametrize(
    ("quantization", "starts"), [(FP8, False), (NVFP4, False), (AWQ, True), (INT8, True), (None, True)]
)
def test_quantisation_on_a_cpu_as_launches_showed(quantization: dict[str, Any] | None, starts: bool) -> None:
    changes = {} if quantization is None else {"quantization_config": quantization}
    made = plan(read_shape(llama(**changes)), PlanRequest(platform="cpu", kv_cache_memory=4 * GIB))
    assert made.fits is starts


def test_a_scheme_needs_an_engine_that_knows_it() -> None:
    made = planned(NVFP4, "B200", engine_version="0.8.0")
    assert made.fits is False
    assert "needs vLLM 0.8.5 or later" in made.reasons[0].text


def test_every_scheme_loads_from_its_minimum_on() -> None:
    for scheme in SCHEMES.values():
        assert scheme.native_from is None or scheme.minimum <= scheme.native_from


def test_bfloat16_below_capability_8_becomes_float16() -> None:
    made = planned(None, "T4")
    assert "dtype.no_bfloat16" in codes(made)
    assert made.kv_bytes_per_token == planned(None, "L4").kv_bytes_per_token


def test_gemma3_on_a_t4_runs_in_float32_and_takes_twice_the_memory() -> None:
    model = read_shape(config("gemma3-swa"))
    t4, l4 = (plan(model, PlanRequest(device=find_device(name))) for name in ("T4", "L4"))
    assert t4.kv_bytes_per_token == 2 * l4.kv_bytes_per_token
    assert t4.weights_bytes == pytest.approx(2 * l4.weights_bytes, rel=0.001)


@pytest.mark.parametrize(("tensor", "code"), [
    (3, "parallelism.heads_not_divisible"), (16, "kv_cache.heads_repeated"), (8, None),
])  # fmt: skip
def test_heads_and_tensor_parallelism(tensor: int, code: str | None) -> None:
    found = {each for each in codes(planned(None, "H100", tensor_parallel=tensor)) if "heads" in each}
    assert found == ({code} if code else set())


def test_kv_heads_that_neither_divide_nor_repeat_stop_the_engine() -> None:
    model = read_shape(llama(num_attention_heads=24, num_key_value_heads=4, hidden_size=3072))
    assert plan(model, PlanRequest(tensor_parallel=6, kv_cache_memory=GIB)).fits is False


def test_a_world_larger_than_the_devices_there_are() -> None:
    made = planned(None, "H100", tensor_parallel=4, count=2)
    assert made.fits is False
    assert "world size 4" in made.reasons[0].text


def test_all_counted_devices_are_used_when_no_parallel_size_is_given() -> None:
    assert planned(None, "H100", count=4).tensor_parallel == 4
    assert planned(None, "H100", count=4, pipeline_parallel=2).tensor_parallel == 2


def test_more_stages_than_layers_are_refused() -> None:
    assert planned(None, "H100", pipeline_parallel=33).fits is False


@pytest.mark.parametrize(("name", "version", "starts"), [
    ("deepseek-mla", "0.26.0", False), ("deepseek-mla", "0.32.0", True), ("qwen3-next-gdn", "0.20.2", False),
    ("qwen3-next-gdn", "0.32.0", True),
])  # fmt: skip
def test_attention_that_a_cpu_engine_cannot_run(name: str, version: str, starts: bool) -> None:
    request = PlanRequest(platform="cpu", kv_cache_memory=GIB, max_model_len=1024, engine_version=version)
    assert plan(read_shape(config(name)), request).fits is starts


def test_sparse_attention_has_no_cpu_kernel() -> None:
    assert plan(public_shape("glm-5-fp8"), PlanRequest(platform="cpu", kv_cache_memory=100 * GIB)).fits is False


@pytest.mark.parametrize(("avx512", "fits", "said"), [(None, True, True), (False, False, True), (True, True, False)])
def test_an_fp8_cache_on_a_cpu_needs_avx_512(avx512: bool | None, fits: bool, said: bool) -> None:
    # Seen in a launch of 0.32: "FP8 KV cache on CPU requires x86 with AVX-512 or AMX."
    request = PlanRequest(platform="cpu", kv_cache_memory=4 * GIB, kv_cache_dtype="fp8_e5m2", cpu_avx512=avx512)
    made = plan(read_shape(llama()), request)
    assert made.fits is fits
    assert ("kv_cache_dtype.unsupported_device" in codes(made)) is said
    assert plan(read_shape(llama()), replace(request, engine_version="0.20.2")).fits is False


def test_ranks_on_a_cpu_want_a_numa_node_each() -> None:
    made = plan(read_shape(llama()), PlanRequest(platform="cpu", tensor_parallel=2, kv_cache_memory=4 * GIB))
    assert "cpu.numa" in codes(made)

"""What the engine decides when an argument is left out, as far as memory depends on it."""

import math
from dataclasses import dataclass, replace

from workers.vllm.compatibility import NO_FLOAT16, lacks_bfloat16
from workers.vllm.config_values import LARGEST
from workers.vllm.devices import Device, Platform
from workers.vllm.kv_cache import (
    CPU_BLOCK_TOKENS,
    CPU_MLA_BLOCK_TOKENS,
    FP8_DTYPES,
    GPU_BLOCK_TOKENS,
    SPARSE_MLA_BLOCK_TOKENS,
    CacheRequest,
)
from workers.vllm.memory_rules import MemoryRules, rules_for
from workers.vllm.model_shape import ModelShape
from workers.vllm.plan_types import PlanRequest

GIB = 2**30
_RANKS = ("count", "tensor_parallel", "pipeline_parallel")
_MOST_RANKS = 4096
_BLACKWELL_MLA_BLOCK_TOKENS = 32
_BLACKWELL = 10
_BLACKWELL_WORKSTATION = 12


@dataclass(frozen=True)
class Setting:
    """A request with every blank filled in.

    Attributes:
        model: the model as this device runs it (its dtype may have changed).
        rules: those of the engine version.
        device, platform: where it runs.
        tensor_parallel, pipeline_parallel: how it is divided.
        utilization: fraction of the device that the engine may use.
        max_model_len, max_num_seqs, max_num_batched_tokens: limits.
        kv_dtype: KV dtype, "auto" for the model's own.
        cache: what the KV layout depends on.
    """

    model: ModelShape
    rules: MemoryRules
    device: Device | None
    platform: Platform
    tensor_parallel: int
    pipeline_parallel: int
    utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_dtype: str
    cache: CacheRequest


def fill_in(model: ModelShape, request: PlanRequest) -> Setting:
    """Decide as the engine would. ValueError when a number makes no sense or the version can't be read."""
    _refuse_nonsense(request)
    rules = rules_for(request.engine_version)
    device = request.device
    platform: Platform = request.platform or (device.platform if device else "cuda")
    model = _in_supported_dtype(model, device, platform)
    if platform == "cpu" and request.cpu_avx512_bf16 and rules.cpu_float32_states:
        model = _with_float32_states(model)
    pipeline = request.pipeline_parallel or 1
    tensor = request.tensor_parallel or max((request.count or pipeline) // pipeline, 1)
    context = request.max_model_len or model.max_context
    sequences, batched = _batch_limits(request, device, platform, world=tensor * pipeline, context=context)
    kv_dtype = _kv_dtype(model, request.kv_cache_dtype, device)
    cache = CacheRequest(
        kv_dtype=kv_dtype,
        dtype_bytes=model.dtype_bytes,
        block_tokens=_block_tokens(model, request, device, platform, rules),
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        max_model_len=context,
        in_flight_tokens=batched * _batches_in_flight(model, request, platform, rules, pipeline),
        states_per_request=2 if _caches_prefixes(model, request, platform, rules) else 1,
        speculative_tokens=request.speculative_tokens,
        kernel_tokens=rules.cpu_kernel_tokens if platform == "cpu" else GPU_BLOCK_TOKENS,
    )
    return Setting(
        model=model,
        rules=rules,
        device=device,
        platform=platform,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        utilization=request.gpu_memory_utilization or rules.default_utilization,
        max_model_len=context,
        max_num_seqs=sequences,
        max_num_batched_tokens=batched,
        kv_dtype=kv_dtype,
        cache=cache,
    )


def _refuse_nonsense(request: PlanRequest) -> None:
    for name in ("count", "tensor_parallel", "pipeline_parallel", "kv_cache_memory", "max_model_len", "max_num_seqs",
                 "max_num_batched_tokens", "block_size"):  # fmt: skip
        value = getattr(request, name)
        most = _MOST_RANKS if name in _RANKS else LARGEST
        if value is not None and not 1 <= value <= most:
            message = f"{name} must be at least 1 and at most {most:,}, not {value:,}"
            raise ValueError(message)
    share = request.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        message = f"gpu_memory_utilization is a fraction above 0 and up to 1, not {share}"
        raise ValueError(message)


def _in_supported_dtype(model: ModelShape, device: Device | None, platform: Platform) -> ModelShape:
    """The model in the dtype that `--dtype auto` falls back to on devices without bfloat16."""
    if model.dtype != "bfloat16" or not lacks_bfloat16(device, platform):
        return model
    if model.model_type not in NO_FLOAT16:
        return replace(model, dtype="float16")
    widened = model.weights
    if model.quantization is None:
        widened = widened.scaled_to(2 * widened.total_bytes, widened.source)
    return replace(model, dtype="float32", dtype_bytes=4, weights=widened)


def _with_float32_states(model: ModelShape) -> ModelShape:
    """The model with every recurrent state in float32, whatever its configuration says."""
    layers = tuple(
        replace(layer, state=replace(layer.state, state_dtype_bytes=4)) if layer.state else layer
        for layer in model.cache_layers
    )
    return replace(model, cache_layers=layers)


def _batch_limits(
    request: PlanRequest, device: Device | None, platform: Platform, *, world: int, context: int
) -> tuple[int, int]:
    """(sequences, batched tokens) of `vllm serve` when left out."""
    memory = (device.memory_bytes if device else None) or 0
    if platform == "cpu":
        sequences, batched = 128 * world, 2048 * world
    elif memory >= 160 * GIB:
        sequences, batched = 1024, 16384
    elif memory >= 70 * GIB and device is not None and not device.key.startswith("a100"):
        sequences, batched = 1024, 8192
    else:
        sequences, batched = 256, 2048
    sequences = request.max_num_seqs or sequences
    if request.max_num_batched_tokens is not None:
        batched = request.max_num_batched_tokens
    else:
        batched = min(sequences * context, batched)
    return (sequences if request.max_num_seqs else min(sequences, batched)), batched


def _kv_dtype(model: ModelShape, asked: str, device: Device | None) -> str:
    """The KV dtype that is really stored."""
    dtype = asked
    if dtype == "auto" and model.quantization is not None and model.quantization.kv_cache_dtype:
        dtype = model.quantization.kv_cache_dtype
    if not model.is_sparse or device is None or device.capability is None:
        return dtype
    generation = device.capability[0]
    if generation == _BLACKWELL:
        # The kernels there take plain FP8 latents, and GLM is switched to them unasked.
        return "fp8" if dtype == "auto" and model.model_type == "glm_moe_dsa" else dtype
    if dtype in FP8_DTYPES or (dtype == "auto" and generation == _BLACKWELL_WORKSTATION):
        return "fp8_ds_mla"
    return dtype


def _block_tokens(
    model: ModelShape, request: PlanRequest, device: Device | None, platform: Platform, rules: MemoryRules
) -> int:
    if platform == "cpu":
        if model.uses_mla and not request.cpu_amx and rules.cpu_mla:
            return CPU_MLA_BLOCK_TOKENS  # its kernel knows no other, so the argument is overruled
        return request.block_size or CPU_BLOCK_TOKENS
    if request.block_size:
        return request.block_size
    if model.is_sparse:
        return SPARSE_MLA_BLOCK_TOKENS
    if model.uses_mla and device is not None and device.capability is not None and device.capability[0] == _BLACKWELL:
        return _BLACKWELL_MLA_BLOCK_TOKENS
    return GPU_BLOCK_TOKENS


def _batches_in_flight(
    model: ModelShape, request: PlanRequest, platform: Platform, rules: MemoryRules, pipeline: int
) -> int:
    """Batches whose tokens are scheduled but not finished, at most."""
    if not rules.counts_concurrent_batches:
        return 1
    asynchronous = platform == "cuda" and request.async_scheduling is not False
    if not asynchronous:
        return pipeline
    if rules.v2_runner_everywhere or not (model.experts or model.attention == "hybrid"):
        return pipeline + 1
    return 2 if pipeline == 1 else pipeline


def _caches_prefixes(model: ModelShape, request: PlanRequest, platform: Platform, rules: MemoryRules) -> bool:
    """Whether recurrent layers keep a second state per request, for a later request with the same beginning."""
    if model.attention != "hybrid":
        return False
    if platform == "cpu" and model.uses_mla and not request.cpu_amx:
        return False
    if request.enable_prefix_caching is not None:
        return request.enable_prefix_caching
    return rules.hybrid_prefix_caching


def budget_bytes(device: Device | None, utilization: float) -> int | None:
    """What the engine may use of a device; it must be free when the engine starts."""
    if device is None or device.memory_bytes is None:
        return None
    return math.ceil(device.memory_bytes * utilization)

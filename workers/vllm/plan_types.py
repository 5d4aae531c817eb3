"""The values that go into a plan and come out of it."""

from dataclasses import dataclass
from typing import Any, Literal

from workers.vllm.devices import Device, Platform
from workers.vllm.kv_cache import LayerGroup
from workers.vllm.lora import NO_LORA, LoraSettings
from workers.vllm.memory_rules import NEWEST_KNOWN_VERSION
from workers.vllm.overhead import LearnedResidual, Overhead

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Reason:
    """One sentence of a plan: what, how much, and what next.

    Attributes:
        code: stable name, for linking it to a form field and to the documentation.
        severity: "error" when the engine would not start, "warning" when it starts but not as one may expect.
        text: the sentence.
    """

    code: str
    severity: Severity
    text: str


@dataclass(frozen=True)
class MeasuredLayouts:
    """What benchmarks of this model on such devices made, in generated tokens per second; None: not measured.

    Attributes:
        together: one engine on all the devices that it is planned for.
        apart: two engines on half of them each, both together under the same load.
        load: that load, in words.
        names: the benchmarks, in words.
    """

    together: float | None
    apart: float | None
    load: str
    names: str


@dataclass(frozen=True)
class PlanRequest:
    """What is to be planned. None means: as the engine decides when the argument is left out.

    Attributes:
        device: the kind of device; None to plan the KV cache alone.
        count: devices there are; None for as many as the parallel sizes need.
        free_bytes: live free memory per device; None to take all of it as free.
        strangers_bytes: of the device's memory, what others hold; used when free_bytes is None.
        tensor_parallel, pipeline_parallel: how the model is divided; None for tensor parallelism over all devices
            counted, and one pipeline stage.
        gpu_memory_utilization: fraction of the device's memory that the engine may use.
        kv_cache_memory: bytes per device for the KV cache; overrules the utilisation.
        kv_cache_dtype: "auto", "bfloat16", "fp8", ...
        max_model_len: longest request in tokens.
        max_num_seqs, max_num_batched_tokens: limits of a batch.
        block_size: tokens per KV block.
        platform: "cuda" or "cpu"; None for the device's own.
        engine_version: whose rules apply.
        enable_prefix_caching, async_scheduling: as the arguments of these names.
        enforce_eager: whether CUDA graphs are off.
        speculative_tokens: draft tokens per step.
        cpu_amx: whether the CPU has AMX tiles, which latent attention uses.
        cpu_avx512: whether the CPU has AVX-512 or AMX, which an FP8 KV cache needs there; None when it isn't known.
        cpu_avx512_bf16: whether the CPU has AVX-512 BF16, whose recurrent kernels keep their states in float32.
        lora: what the arguments say about adapters.
        wanted_concurrency: requests of full length at once that the deployment is sized for.
        p95_tokens: what 95 % of the requests here stayed under; None when nothing was measured.
        replicas: engines that there are to be; what a suggestion doubles.
        measured: what benchmarks say of one engine on these devices against two on half of them each.
        learned: the overheads that past launches showed, each under its own conditions; where none is under those of
            the plan, it is the first guess.
    """

    device: Device | None = None
    count: int | None = None
    free_bytes: int | None = None
    strangers_bytes: int = 0
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory: int | None = None
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    platform: Platform | None = None
    engine_version: str = NEWEST_KNOWN_VERSION
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    enforce_eager: bool = False
    speculative_tokens: int = 0
    cpu_amx: bool = False
    cpu_avx512: bool | None = None
    cpu_avx512_bf16: bool = False
    lora: LoraSettings = NO_LORA
    wanted_concurrency: int | None = None
    p95_tokens: int | None = None
    replicas: int = 1
    measured: MeasuredLayouts | None = None
    learned: tuple[LearnedResidual, ...] = ()


@dataclass(frozen=True)
class Suggestion:
    """A change that was planned again before it was suggested.

    Attributes:
        code: what kind of change.
        text: the sentence, with the numbers of the second plan.
        changes: arguments to set, as (name of the vLLM argument without dashes, value) pairs.
    """

    code: str
    text: str
    changes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Plan:
    """A plan: the numbers, whether it fits, why, and what would.

    Every byte count is per device, except `weights_bytes`. None stands for what can't be known from the request: there
    are no blocks without a KV size, and no verdict without a device or a KV size.

    Attributes:
        weights_bytes: one copy of the weights.
        weights_source: "headers", "index" or "estimated".
        weights_bytes_per_device: on the fullest rank.
        kv_bytes_per_token: what a token adds while every layer keeps it.
        kv_bytes_per_token_beyond_window: what one adds once sliding windows are full.
        state_bytes_per_request: recurrent state of a request.
        block_size: tokens per block, as the engine reports it.
        bytes_per_block, num_blocks, blocks_per_request: the pool.
        kv_cache_bytes: the pool's size.
        kv_cache_tokens, max_concurrency: as the engine logs them.
        min_kv_bytes_for_one_request: the least pool the engine serves a request of full length with.
        overhead: what else the engine uses.
        budget_bytes: what the engine may use altogether.
        device_bytes, free_bytes: the device's memory and what is free of it.
        fits: whether the engine would start; None when that can't be said.
        groups: the layer groups of the KV cache.
        tensor_parallel, pipeline_parallel, max_model_len, max_num_seqs, max_num_batched_tokens, kv_cache_dtype,
            gpu_memory_utilization, engine_version, platform, enforce_eager: what was planned with, defaults filled in.
        reasons: why, and what the numbers rest on.
        suggestions: changes that were planned too.
    """

    weights_bytes: int
    weights_source: str
    weights_bytes_per_device: int
    kv_bytes_per_token: int
    kv_bytes_per_token_beyond_window: int
    state_bytes_per_request: int
    block_size: int
    bytes_per_block: int
    num_blocks: int | None
    blocks_per_request: int
    kv_cache_bytes: int | None
    kv_cache_tokens: int | None
    max_concurrency: float | None
    min_kv_bytes_for_one_request: int
    overhead: Overhead
    budget_bytes: int | None
    device_bytes: int | None
    free_bytes: int | None
    fits: bool | None
    groups: tuple[LayerGroup, ...]
    tensor_parallel: int
    pipeline_parallel: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_dtype: str
    gpu_memory_utilization: float
    engine_version: str
    platform: Platform
    reasons: tuple[Reason, ...]
    suggestions: tuple[Suggestion, ...] = ()
    enforce_eager: bool = False

    @property
    def overhead_bytes(self) -> int:
        """What else the engine uses, per device."""
        return self.overhead.nbytes

    @property
    def left_fraction(self) -> float | None:
        """Share of the KV pool that one request of full length leaves; None without a pool."""
        if not self.kv_cache_bytes or self.min_kv_bytes_for_one_request > self.kv_cache_bytes:
            return None
        return 1 - self.min_kv_bytes_for_one_request / self.kv_cache_bytes

    def as_json(self) -> dict[str, Any]:
        """The plan as `slipway plan --json` prints it."""
        return {
            "weights_bytes": self.weights_bytes,
            "weights_source": self.weights_source,
            "weights_bytes_per_device": self.weights_bytes_per_device,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_bytes_per_token_beyond_window": self.kv_bytes_per_token_beyond_window,
            "state_bytes_per_request": self.state_bytes_per_request,
            "block_size": self.block_size,
            "bytes_per_block": self.bytes_per_block,
            "num_blocks": self.num_blocks,
            "blocks_per_request": self.blocks_per_request,
            "kv_cache_bytes": self.kv_cache_bytes,
            "kv_cache_tokens": self.kv_cache_tokens,
            "max_concurrency": self.max_concurrency,
            "min_kv_bytes_for_one_request": self.min_kv_bytes_for_one_request,
            "overhead_bytes": self.overhead.nbytes,
            "overhead_spread_bytes": self.overhead.spread_bytes,
            "overhead_source": self.overhead.source,
            "overhead_parts": {part.name: part.nbytes for part in self.overhead.parts},
            "budget_bytes": self.budget_bytes,
            "device_bytes": self.device_bytes,
            "free_bytes": self.free_bytes,
            "fits": self.fits,
            "kv_groups": [_group_json(group) for group in self.groups],
            **self._setting_json(),
            "reasons": [reason.text for reason in self.reasons],
            "reason_codes": [{"code": reason.code, "severity": reason.severity} for reason in self.reasons],
            "suggestions": [suggestion.text for suggestion in self.suggestions],
            "suggested_changes": [
                {"code": suggestion.code, "changes": dict(suggestion.changes)} for suggestion in self.suggestions
            ],
        }

    def _setting_json(self) -> dict[str, Any]:
        return {
            "tensor_parallel_size": self.tensor_parallel,
            "pipeline_parallel_size": self.pipeline_parallel,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "kv_cache_dtype": self.kv_cache_dtype,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "engine_version": self.engine_version,
            "platform": self.platform,
            "enforce_eager": self.enforce_eager,
        }


def _group_json(group: LayerGroup) -> dict[str, Any]:
    return {
        "kind": group.kind,
        "window": group.window,
        "layers": group.layers,
        "block_size": group.block_tokens,
        "blocks_per_request": group.blocks_per_request,
    }

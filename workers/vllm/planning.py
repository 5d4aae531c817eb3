"""The plan itself: weights, overhead, KV cache and the verdict, without suggestions."""

from dataclasses import dataclass, replace

from workers.vllm.compatibility import check
from workers.vllm.devices import OverheadClass
from workers.vllm.kv_cache import CacheLayout, count_blocks, count_tokens, plan_layout
from workers.vllm.loaded_weights import loaded_weights, unfolded_bytes
from workers.vllm.lora import Widths, slot_bytes
from workers.vllm.memory_rules import NEWEST_KNOWN_VERSION
from workers.vllm.model_shape import ModelShape
from workers.vllm.overhead import Overhead, estimate_overhead
from workers.vllm.plan_defaults import Setting, budget_bytes, fill_in
from workers.vllm.plan_types import Plan, PlanRequest, Reason

GIB = 2**30
_EMPTY_LAYOUT = CacheLayout(0, 0, (), 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class _Sizes:
    """Bytes per device, and the pool they leave."""

    weights: int
    overhead: Overhead
    budget: int | None
    total: int | None
    free: int | None
    kv: int | None


def compute_plan(model: ModelShape, request: PlanRequest) -> Plan:
    """Plan once. ValueError when the request itself makes no sense (a negative size, an unreadable version)."""
    setting = fill_in(model, request)
    reasons: list[Reason] = []
    layout = _layout(setting, reasons)
    sizes = _sizes(setting, request)
    reasons += check(
        setting.model,
        setting.rules,
        platform=setting.platform,
        device=setting.device,
        tensor_parallel=setting.tensor_parallel,
        pipeline_parallel=setting.pipeline_parallel,
        count=request.count,
        kv_cache_dtype=setting.kv_dtype,
        cpu_avx512=request.cpu_avx512,
    )
    reasons += _about_limits(setting, layout)
    reasons += _about_memory(setting, sizes, layout, request)
    reasons += _about_pool(setting, sizes.kv, layout)
    reasons += _about_sources(setting, sizes, request)
    return _assemble(setting, request, sizes, layout, tuple(sorted(reasons, key=_by_severity)))


def _by_severity(reason: Reason) -> int:
    return ("error", "warning", "info").index(reason.severity)


def _layout(setting: Setting, reasons: list[Reason]) -> CacheLayout:
    if not setting.model.cache_layers:
        return _EMPTY_LAYOUT
    try:
        return plan_layout(
            setting.model.cache_layers, setting.cache, setting.rules, num_layers=setting.model.num_layers
        )
    except ValueError as error:
        reasons.append(Reason("kv_cache.layout", "error", str(error)))
        return _EMPTY_LAYOUT


def _sizes(setting: Setting, request: PlanRequest) -> _Sizes:
    weights = loaded_weights(setting.model).on_fullest_rank(
        tensor_parallel=setting.tensor_parallel,
        pipeline_parallel=min(setting.pipeline_parallel, setting.model.num_layers),
        kv_heads=setting.model.kv_heads,
    )
    overhead = estimate_overhead(
        setting.model,
        setting.rules,
        overhead_class="cpu" if setting.platform == "cpu" else _overhead_class(setting),
        batched_tokens=setting.max_num_batched_tokens,
        sequences=setting.max_num_seqs,
        tensor_parallel=setting.tensor_parallel,
        pipeline_parallel=setting.pipeline_parallel,
        eager=request.enforce_eager,
        adapter_slots=_adapter_slots(setting, request),
        learned=request.learned,
    )
    budget = budget_bytes(setting.device, setting.utilization)
    total = setting.device.memory_bytes if setting.device else None
    free = request.free_bytes
    if free is None and total is not None:
        free = max(total - request.strangers_bytes, 0)
    kv = request.kv_cache_memory
    if kv is None and budget is not None:
        kv = budget - weights - overhead.nbytes
    return _Sizes(weights, overhead, budget, total, free, kv)


def _adapter_slots(setting: Setting, request: PlanRequest) -> int:
    model = setting.model
    widths = Widths(
        -(-model.num_layers // setting.pipeline_parallel), model.hidden_size, model.attention_heads, model.kv_heads,
        model.head_dim, model.intermediate_size,
    )  # fmt: skip
    divided = replace(request.lora, tensor_parallel=setting.tensor_parallel)
    return slot_bytes(widths, divided, element_bytes=model.dtype_bytes)


def _overhead_class(setting: Setting) -> OverheadClass:
    return setting.device.overhead_class if setting.device else "datacenter"


def _about_limits(setting: Setting, layout: CacheLayout) -> list[Reason]:
    reasons = []
    longest = setting.model.max_context
    if setting.max_model_len > longest:
        text = f"a context of {setting.max_model_len:,} is more than the {longest:,} tokens that config.json allows"
        reasons.append(Reason("context.exceeds_model", "error", text))
    kernel = setting.cache.kernel_tokens
    if layout.block_tokens % kernel and not setting.model.uses_mla:
        text = (
            f"blocks of {layout.block_tokens} tokens: the attention kernels take multiples of {kernel}, so the engine would "
            f"not start; take --block-size {-(-layout.block_tokens // kernel) * kernel}"
        )
        reasons.append(Reason("attention.block_size_unsupported", "error", text))
    return reasons


def _about_memory(setting: Setting, sizes: _Sizes, layout: CacheLayout, request: PlanRequest) -> list[Reason]:
    if sizes.kv is None:
        text = "no verdict without a KV size: give a device with known memory, or the bytes for the KV cache"
        return [Reason("request.no_device", "info", text)]
    reasons = [*_about_free_memory(setting, sizes, request), *_about_kv(setting, sizes, layout)]
    if sizes.budget is not None and request.kv_cache_memory is None:
        text = (
            f"{_gib(sizes.budget)} may be used ({setting.utilization:g} of {_gib(sizes.total or 0)}): "
            f"{_gib(sizes.weights)} weights, {_gib(sizes.overhead.nbytes)} overhead, {_gib(max(sizes.kv, 0))} KV cache"
        )
        reasons.append(Reason("memory.sum", "info", text))
    return reasons


def _about_free_memory(setting: Setting, sizes: _Sizes, request: PlanRequest) -> list[Reason]:
    if sizes.free is None:
        return []
    if request.kv_cache_memory is None:
        if sizes.budget is None or sizes.budget <= sizes.free:
            return []
        text = (
            f"utilisation {setting.utilization:g} asks for {_gib(sizes.budget)} per device, {_gib(sizes.free)} are "
            "free: lower the utilisation or end what holds the rest"
        )
        return [Reason("memory.free_below_utilization", "error", text)]
    needed = sizes.weights + sizes.overhead.nbytes + request.kv_cache_memory
    if needed <= sizes.free:
        return []
    text = (
        f"{_gib(sizes.weights)} weights, {_gib(sizes.overhead.nbytes)} overhead and {_gib(request.kv_cache_memory)} KV "
        f"cache make {_gib(needed)} per device, {_gib(sizes.free)} are free: lower --kv-cache-memory"
    )
    return [Reason("memory.kv_request_exceeds_available", "error", text)]


def _about_kv(setting: Setting, sizes: _Sizes, layout: CacheLayout) -> list[Reason]:
    if sizes.kv is None:
        return []
    if sizes.kv <= 0 and (setting.model.cache_layers or sizes.kv < 0):
        text = (
            f"{_gib(sizes.weights)} weights and {_gib(sizes.overhead.nbytes)} overhead leave nothing of the "
            f"{_gib(sizes.budget or 0)} per device: more or larger devices, or smaller weights"
        )
        return [Reason("memory.weights_too_large", "error", text)]
    if not layout.groups:
        return []
    needed = layout.min_bytes_for_one_request
    if needed <= sizes.kv:
        return []
    text = (
        f"one request of {setting.max_model_len:,} tokens needs {_gib(needed)} of KV cache per device, "
        f"{_gib(sizes.kv)} are there: lower the context or give the KV cache more"
    )
    return [Reason("kv_cache.too_small", "error", text)]


def _about_pool(setting: Setting, kv_bytes: int | None, layout: CacheLayout) -> list[Reason]:
    blocks, tokens, concurrency = _pool(setting, kv_bytes, layout)
    if blocks is None or tokens is None or concurrency is None:
        return []
    text = (
        f"{_gib(max(kv_bytes or 0, 0))} of KV cache are {blocks:,} blocks of {layout.bytes_per_block:,} bytes; a request of "
        f"{setting.max_model_len:,} tokens needs {layout.blocks_per_request:,}, so {concurrency:.2f} run at once "
        f"({tokens:,} tokens)"
    )
    return [Reason("kv_cache.pool", "info", text)]


def _about_sources(setting: Setting, sizes: _Sizes, request: PlanRequest) -> list[Reason]:
    reasons = [Reason("weights.incomplete", "warning", text) for text in setting.model.weights_problems]
    if setting.model.weights.unloaded_bytes:
        text = f"{_gib(setting.model.weights.unloaded_bytes)} of draft layers stay on disk without speculative decoding"
        reasons.append(Reason("weights.draft_layers", "info", text))
    if unfolded := unfolded_bytes(setting.model):
        text = (
            f"{_gib(unfolded)} of quantised projections of latent attention are kept a second time, unfolded: they are among "
            "the weights of each device, not among those of the files"
        )
        reasons.append(Reason("weights.unfolded", "info", text))
    if setting.model.weights.adapter_bytes:
        text = f"{_gib(setting.model.weights.adapter_bytes)} of adapters lie beside the weights and are not counted"
        reasons.append(Reason("weights.adapters", "info", text))
    if not setting.model.cache_layers:
        text = "an encoder keeps no keys and values between steps: there is no KV cache"
        reasons.append(Reason("kv_cache.none", "info", text))
    if setting.rules.newer_than_known:
        text = f"vLLM {request.engine_version} is newer than {NEWEST_KNOWN_VERSION}, whose rules are used"
        reasons.append(Reason("engine.newer_than_known", "warning", text))
    if sizes.budget is not None or sizes.overhead.launches:
        reasons.append(_about_overhead(sizes.overhead, request))
    return reasons


def _about_overhead(overhead: Overhead, request: PlanRequest) -> Reason:
    if launches := overhead.launches:
        times = "one launch" if launches == 1 else f"{launches} launches"
        text = f"overhead {_gib(overhead.nbytes)} as learned from {times} here (± {_gib(overhead.spread_bytes)})"
        text += "".join(f", {part.name} {_gib(part.nbytes)} added" for part in overhead.parts)
        return Reason("overhead.learned", "info", text)
    parts = ", ".join(f"{part.name} {_gib(part.nbytes)}" for part in overhead.parts)
    why = (
        ", since launches here ran with other batched tokens, parallel sizes or graphs"
        if request.learned
        else " until the first launch"
    )
    return Reason("overhead.first_guess", "info", f"overhead is a first guess{why}: {parts}")


def _assemble(
    setting: Setting, request: PlanRequest, sizes: _Sizes, layout: CacheLayout, reasons: tuple[Reason, ...]
) -> Plan:
    blocks, tokens, concurrency = _pool(setting, sizes.kv, layout)
    refused = any(reason.severity == "error" for reason in reasons)
    return Plan(
        weights_bytes=setting.model.weights.total_bytes,
        weights_source=setting.model.weights.source,
        weights_bytes_per_device=sizes.weights,
        kv_bytes_per_token=layout.bytes_per_token,
        kv_bytes_per_token_beyond_window=layout.bytes_per_token_beyond_window,
        state_bytes_per_request=layout.state_bytes,
        block_size=layout.block_tokens or setting.cache.block_tokens,
        bytes_per_block=layout.bytes_per_block,
        num_blocks=blocks,
        blocks_per_request=layout.blocks_per_request,
        kv_cache_bytes=None if sizes.kv is None else max(sizes.kv, 0) if setting.model.cache_layers else 0,
        kv_cache_tokens=tokens,
        max_concurrency=concurrency,
        min_kv_bytes_for_one_request=layout.min_bytes_for_one_request,
        overhead=sizes.overhead,
        budget_bytes=sizes.budget,
        device_bytes=sizes.total,
        free_bytes=sizes.free,
        fits=False if refused else None if sizes.kv is None else True,
        groups=layout.groups,
        tensor_parallel=setting.tensor_parallel,
        pipeline_parallel=setting.pipeline_parallel,
        max_model_len=setting.max_model_len,
        max_num_seqs=setting.max_num_seqs,
        max_num_batched_tokens=setting.max_num_batched_tokens,
        kv_cache_dtype=setting.kv_dtype,
        gpu_memory_utilization=setting.utilization,
        engine_version=request.engine_version,
        platform=setting.platform,
        reasons=reasons,
        enforce_eager=request.enforce_eager,
    )


def _pool(setting: Setting, kv_bytes: int | None, layout: CacheLayout) -> tuple[int | None, int | None, float | None]:
    """(blocks, tokens, requests of full length at once)."""
    if not setting.model.cache_layers:
        return 1, 0, None  # the engine always has the block that serves nobody
    if kv_bytes is None or not layout.groups:
        return None, None, None
    blocks = count_blocks(layout, kv_bytes)
    tokens, concurrency = count_tokens(layout, blocks, setting.max_model_len, setting.rules)
    return blocks, tokens, concurrency


def _gib(nbytes: int) -> str:
    """ "41.2 GiB", or MiB below one."""
    if abs(nbytes) < GIB:
        return f"{nbytes / 2**20:,.1f} MiB"
    return f"{nbytes / GIB:,.1f} GiB"

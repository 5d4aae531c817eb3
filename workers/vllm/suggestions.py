"""Changes that would help, each planned again before it is suggested.

A suggestion names an argument, a device or a revision, and carries the numbers of the plan that it leads to. What doesn't
fit when planned is not suggested.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from workers.vllm.compatibility import FP8_KV_FROM
from workers.vllm.devices import Device, builtin_catalogue
from workers.vllm.kv_cache import FP8_DTYPES, longest_context
from workers.vllm.model_shape import ModelShape
from workers.vllm.plan_defaults import fill_in
from workers.vllm.plan_types import MeasuredLayouts, Plan, PlanRequest, Suggestion
from workers.vllm.planning import compute_plan
from workers.vllm.quantization_shape import Quantization
from workers.vllm.weights_size import Share

GIB = 2**30
HIGHEST_UTILIZATION = 0.95
_MORE_DEVICES = (2, 4, 8, 16)
_SMALL_BATCH = 2048
_USUAL_CONCURRENCY = 8
_P95_MARGIN = 1.25
_NOTICEABLY_MORE = 1.02
_SHORTEST_USEFUL_CONTEXT = 256

Changes = tuple[tuple[str, str], ...]


def suggest(
    model: ModelShape, request: PlanRequest, plan: Plan, catalogue: Iterable[Device] | None = None
) -> tuple[Suggestion, ...]:
    """What to change when it doesn't fit, or what to leave to others when it does.

    Args:
        model, request, plan: what was planned, and the result.
        catalogue: devices to look among for a larger one; the built-in ones when None.
    """
    if plan.fits is False:
        devices = builtin_catalogue() if catalogue is None else tuple(catalogue)
        return tuple(_to_make_it_fit(model, request, plan, devices))
    if plan.fits:
        return tuple(_to_use_it_better(model, request, plan))
    return ()


def _to_make_it_fit(
    model: ModelShape, request: PlanRequest, plan: Plan, catalogue: tuple[Device, ...]
) -> Iterator[Suggestion]:
    yield from _parallel_size(model, request, plan)
    yield from _measured_context(model, request, plan)
    yield from _shorter_context(model, request, plan)
    yield from _utilization(model, request, plan)
    yield from _kv_memory(model, request, plan)
    yield from _small_batch(model, request, plan)
    yield from _fp8_kv(model, request, plan)
    yield from _fp8_revision(model, request)
    yield from _more_devices(model, request, plan)
    yield from _other_device(model, request, plan, catalogue)


def _to_use_it_better(model: ModelShape, request: PlanRequest, plan: Plan) -> Iterator[Suggestion]:
    yield from _measured_context(model, request, plan)
    yield from _less_utilization(model, request, plan)
    yield from _replicas(model, request, plan)


def _has(plan: Plan, *codes: str) -> bool:
    return any(reason.code in codes for reason in plan.reasons)


def _fitting(model: ModelShape, request: PlanRequest) -> Plan | None:
    """The plan of that request if it fits, else None."""
    try:
        plan = compute_plan(model, request)
    except ValueError:
        return None
    return plan if plan.fits else None


def _left(plan: Plan) -> str:
    return f"with {(plan.left_fraction or 0) * 100:.0f} % left"


def _parallel_size(model: ModelShape, request: PlanRequest, plan: Plan) -> Iterator[Suggestion]:
    if not _has(plan, "parallelism.heads_not_divisible", "parallelism.kv_heads_not_divisible",
                "parallelism.not_enough_devices"):  # fmt: skip
        return
    most = (request.count or plan.tensor_parallel) // plan.pipeline_parallel
    for size in range(min(most, plan.tensor_parallel), 0, -1):
        divides = model.attention_heads % size == 0
        if size != plan.tensor_parallel and divides and _fitting(model, replace(request, tensor_parallel=size)):
            yield Suggestion("tensor_parallel", f"TP {size} fits", (("tensor-parallel-size", str(size)),))
            return


def _shorter_context(model: ModelShape, request: PlanRequest, plan: Plan) -> Iterator[Suggestion]:
    if not plan.kv_cache_bytes or not _has(plan, "kv_cache.too_small", "context.exceeds_model"):
        return
    setting = fill_in(model, request)
    limit = min(setting.max_model_len, model.max_context)
    longest = longest_context(
        setting.model.cache_layers,
        replace(setting.cache, max_model_len=limit),
        setting.rules,
        num_layers=setting.model.num_layers,
        kv_bytes=plan.kv_cache_bytes,
    )
    if longest < _SHORTEST_USEFUL_CONTEXT:
        return
    context = 2 ** int(math.log2(longest))
    # Halving a context for the sake of a round number helps nobody, so thousands count as round too.
    context = max(context, longest // 1024 * 1024)
    better = _fitting(model, replace(request, max_model_len=context))
    if better is not None:
        yield Suggestion(
            "context", f"{context:,} context fits {_left(better)}", (("max-model-len", str(context)),)
        )  # fmt: skip


def _utilization(model: ModelShape, request: PlanRequest, plan: Plan) -> Iterator[Suggestion]:
    if request.kv_cache_memory is not None or not plan.device_bytes or plan.free_bytes is None:
        return
    most = math.floor(min(plan.free_bytes / plan.device_bytes, HIGHEST_UTILIZATION) * 100) / 100
    if most <= 0 or math.isclose(most, plan.gpu_memory_utilization):
        return
    better = _fitting(model, replace(request, gpu_memory_utilization=most))
    if better is not None:
        text = f"utilisation {most:g} fits {_left(better)}"
        yield Suggestion("utilization", text, (("gpu-memory-utilization", f"{most:g}"),))


def _kv_memory(model: ModelShape, request: PlanRequest, plan: Plan) -> Iterator[Suggestion]:
    if request.kv_cache_memory is None or not plan.min_kv_bytes_for_one_request:
        return
    enough = math.ceil(plan.min_kv_bytes_for_one_request / 2**20) * 2**20
    if enough == request.kv_cache_memory:
        return
    better = _fitting(model, replace(request, kv_cache_memory=enough))
    if better is not None:
        text = f"{_size(enough)} of KV cache hold one request of {plan.max_model_len:,} tokens"
        yield Suggestion("kv_memory", text, (("kv-cache-memory-bytes", str(enough)),))


def _small_batch(model: ModelShape, request: PlanRequest, plan: Plan) -> Iterator[Suggestion]:
    if plan.max_num_batched_tokens <= _SMALL_BATCH:
        return
    better = _fitting(model, replace(request, max_num_batched_tokens=_SMALL_BATCH))
    if better is not None:
        text = f"{_SMALL_BATCH:,} batched tokens fit {_left(better)}: long prompts are read in smaller steps"
        yield Suggestion("batched_tokens", text, (("max-num-batched-tokens", str(_SMALL_BATCH)),))


def _fp8_kv(model: ModelShape, request: PlanRequest, plan: Plan) -> Iterator[Suggestion]:
    if plan.kv_cache_dtype in FP8_DTYPES or plan.kv_cache_dtype == "fp8_ds_mla" or not model.cache_layers:
        return
    capability = request.device.capability if request.device else None
    if plan.platform == "cuda" and capability is not None and capability < FP8_KV_FROM:
        return
    if plan.platform == "cpu" and not request.cpu_avx512:
        return  # whether it would start isn't known
    better = _fitting(model, replace(request, kv_cache_dtype="fp8"))
    if better is not None:
        text = f"an FP8 KV cache fits {_left(better)}: {better.kv_cache_tokens or 0:,} tokens"
        yield Suggestion("kv_cache_dtype", text, (("kv-cache-dtype", "fp8"),))


def in_fp8(model: ModelShape) -> ModelShape:
    """The model as its FP8 revision would be: linear layers at one byte per weight, the rest as it is."""

    def halved(share: Share) -> Share:
        # Norms and routers stay as they are; they are what is repeated on each rank.
        return replace(share, sharded=share.sharded // 2, by_kv_head=share.by_kv_head // 2)

    weights = replace(model.weights, layers=tuple(halved(share) for share in model.weights.layers), source="estimated")
    return replace(
        model,
        weights=weights,
        quantization=Quantization("fp8", "fp8", 8.0),
        latents_quantized=bool(model.latent_elements),
    )


def _fp8_revision(model: ModelShape, request: PlanRequest) -> Iterator[Suggestion]:
    if model.quantization is not None or model.dtype_bytes != 2:
        return
    smaller = in_fp8(model)
    # What was learned is of these weights: others run other kernels.
    better = _fitting(smaller, replace(request, learned=()))
    if better is not None:
        # Whether anybody has published one isn't known here.
        text = f"an FP8 revision would take about {_size(smaller.weights.total_bytes)} and fit {_left(better)}"
        yield Suggestion("fp8_revision", text)


def _more_devices(model: ModelShape, request: PlanRequest, plan: Plan) -> Iterator[Suggestion]:
    if request.device is None:
        return
    for count in _MORE_DEVICES:
        if count <= plan.tensor_parallel * plan.pipeline_parallel:
            continue
        wider = replace(request, count=count, tensor_parallel=count, pipeline_parallel=1)
        better = _fitting(model, wider)
        if better is not None:
            text = f"{count} × {request.device.title} (TP {count}) fit {_left(better)}"
            yield Suggestion("more_devices", text, (("tensor-parallel-size", str(count)),))
            return


def _other_device(
    model: ModelShape, request: PlanRequest, plan: Plan, catalogue: tuple[Device, ...]
) -> Iterator[Suggestion]:
    if request.device is None or request.device.platform != "cuda":
        return
    known = [device for device in catalogue if device.memory_bytes and device.platform == "cuda"]
    larger = [device for device in known if (device.memory_bytes or 0) > (request.device.memory_bytes or 0)]
    # Of several devices that are split wrongly, one of the same kind may do.
    same = [request.device] if plan.tensor_parallel * plan.pipeline_parallel > 1 else []
    for device in [*same, *sorted(larger, key=lambda device: device.memory_bytes or 0)]:
        single = replace(request, device=device, count=1, tensor_parallel=1, pipeline_parallel=1, free_bytes=None,
                         strangers_bytes=0, learned=())  # fmt: skip
        better = _fitting(model, single)
        if better is not None:
            yield Suggestion("other_device", f"1 × {device.title} fits {_left(better)}")
            return


def _measured_context(model: ModelShape, request: PlanRequest, plan: Plan) -> Iterator[Suggestion]:
    if request.p95_tokens is None:
        return
    wanted = request.p95_tokens * _P95_MARGIN
    context = 2 ** math.ceil(math.log2(max(wanted, _SHORTEST_USEFUL_CONTEXT)))
    if context >= plan.max_model_len:
        return
    better = _fitting(model, replace(request, max_model_len=context))
    if better is not None and better.max_concurrency is not None:
        text = (
            f"95 % of requests here used under {request.p95_tokens:,} tokens: {context:,} is enough, for "
            f"{better.max_concurrency:.1f} requests at once"
        )
        yield Suggestion("measured_context", text, (("max-model-len", str(context)),))


def _less_utilization(model: ModelShape, request: PlanRequest, plan: Plan) -> Iterator[Suggestion]:
    if not plan.device_bytes or request.kv_cache_memory is not None or plan.platform != "cuda":
        return
    wanted = request.wanted_concurrency or min(plan.max_num_seqs, _USUAL_CONCURRENCY)
    pool = (wanted * plan.blocks_per_request + 1) * plan.bytes_per_block
    needed = plan.weights_bytes_per_device + plan.overhead.nbytes + plan.overhead.spread_bytes + pool
    enough = math.ceil(needed / plan.device_bytes * 100) / 100
    if enough > plan.gpu_memory_utilization - 0.05:
        return
    better = _fitting(model, replace(request, gpu_memory_utilization=enough))
    if better is not None:
        purpose = f" for {wanted} requests of {plan.max_model_len:,} tokens at once" if model.cache_layers else ""
        text = f"utilisation {enough:g} is enough{purpose}: leave the rest to others"
        yield Suggestion("less_utilization", text, (("gpu-memory-utilization", f"{enough:g}"),))


def _replicas(model: ModelShape, request: PlanRequest, plan: Plan) -> Iterator[Suggestion]:
    """Two replicas on half the devices each, where benchmarks say that they make more, else where they hold more requests."""
    half = plan.tensor_parallel // 2
    if plan.tensor_parallel % 2 or not half or plan.pipeline_parallel != 1 or plan.max_concurrency is None:
        return
    better = _fitting(model, replace(request, tensor_parallel=half, count=half))
    if better is None or better.max_concurrency is None:
        return
    changes = (("tensor-parallel-size", str(half)), ("replicas", str(2 * request.replicas)))
    held = 2 * better.max_concurrency
    seen = request.measured
    if seen is not None and seen.apart is not None and seen.together is not None:
        yield from _measured_replicas(
            plan, seen.apart, seen.together, seen, changes, holds_more=held > plan.max_concurrency
        )
    elif held > plan.max_concurrency:
        text = (
            f"2 replicas of TP {half} hold {held:.1f} requests of {plan.max_model_len:,} tokens, one of TP "
            f"{plan.tensor_parallel} {plan.max_concurrency:.1f}: more throughput, if one replica is fast enough "
            f"({_what_it_rests_on(seen, plan.tensor_parallel)})"
        )
        yield Suggestion("replicas", text, changes)


def _measured_replicas(
    plan: Plan, apart: float, together: float, seen: MeasuredLayouts, changes: Changes, *, holds_more: bool
) -> Iterator[Suggestion]:
    whole, half = f"TP {plan.tensor_parallel}", f"TP {plan.tensor_parallel // 2}"
    where = f"measured at {seen.load} ({seen.names})"
    if apart > together * _NOTICEABLY_MORE:
        text = f"2 replicas of {half} made {apart:,.0f} tokens/s together, one of {whole} {together:,.0f}: {where}"
        yield Suggestion("replicas", text, changes)
    elif holds_more:
        text = (
            f"2 replicas of {half} would hold more requests, but made {apart:,.0f} tokens/s together where one of {whole} "
            f"made {together:,.0f}: {where}. Keep {whole} unless requests wait"
        )
        yield Suggestion("keep_together", text)


def _what_it_rests_on(seen: MeasuredLayouts | None, ranks: int) -> str:
    if seen is None:
        return "by the plan alone: no benchmark has measured it"
    size, found = (ranks, seen.together) if seen.together is not None else (ranks // 2, seen.apart)
    engines = f"one of TP {size}" if size == ranks else f"2 of TP {size} together"
    return f"by the plan alone: of the two only {engines} was measured, {found or 0:,.0f} tokens/s, {seen.names}"


def _size(nbytes: int) -> str:
    return f"{nbytes / GIB:,.1f} GiB" if nbytes >= GIB else f"{nbytes / 2**20:,.0f} MiB"

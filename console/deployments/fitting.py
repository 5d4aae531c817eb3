"""Will it fit: what the deploy form, the model's page and each launch ask the planner, in the console's own terms.

The planner takes frozen values; here they are gathered from rows: the shape that a host read from the model's files, the
devices with their live memory, what strangers hold of it, the overhead that earlier launches showed.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.utils.translation import gettext as _

from console.catalog.models import Copy
from console.deployments import launches, layouts_seen, requests_seen
from console.deployments.argument_fields import PREFIX
from console.deployments.device_catalogue import catalogue
from console.deployments.form_fields import environment_text
from console.deployments.models import Deployment
from console.deployments.placement import DeviceRoom
from console.fleet import presentation
from console.fleet.models import Device, Engine, Host
from workers.vllm.arguments import Value
from workers.vllm.lora import USUAL_AT_ONCE, USUAL_RANK, LoraSettings
from workers.vllm.memory import Device as Kind
from workers.vllm.memory import (
    ModelShape,
    Plan,
    PlanRequest,
    Suggestion,
    compute_plan,
    device_of_bytes,
    find_device,
    parse_bytes,
    plan,
    shape_from,
)

GIB = 2**30
CPU_KV_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
CPU_KV_GIB = 1
"""What the agent gives an engine on a CPU that says nothing else."""
KV_ARGUMENT = "kv_cache_memory_bytes"
FIELDS = {
    "kv_cache.too_small": "max_model_len",
    "context.exceeds_model": "max_model_len",
    "memory.free_below_utilization": "gpu_memory_utilization",
    "attention.block_size_unsupported": "block_size",
    "kv_cache_dtype.unsupported_device": "kv_cache_dtype",
    "parallelism.heads_not_divisible": "tensor_parallel_size",
    "parallelism.kv_heads_not_divisible": "tensor_parallel_size",
    "parallelism.not_enough_devices": "tensor_parallel_size",
    "parallelism.too_many_stages": "pipeline_parallel_size",
}
"""Argument at whose field a reason stands; others stand at the model."""
Room = Mapping[str, DeviceRoom]
CURVE_POINTS = 24
SHORTEST_CONTEXT = 512


@dataclass(frozen=True)
class Offer:
    """A change that was planned before it is offered. `sets` are form fields and their texts; empty: advice only."""

    text: str
    button: str
    sets: Mapping[str, str]

    @property
    def data(self) -> str:
        """`sets` as JSON, for the button."""
        return json.dumps(dict(self.sets))


@dataclass(frozen=True)
class Used:
    """A device of the host that the engine will use, with its memory now, in bytes.

    `free` is what a new engine may take of it; `claimed` is promised to other instances, in use or not.
    """

    row: Device
    kind: Kind
    total: int
    free: int
    claimed: int = 0


@dataclass(frozen=True)
class Fit:
    """The answer: a plan with the devices it is for, or why there is none.

    `refusals` are form fields and why the engine would not start; `ranks` is how many shares of the model one device
    holds (all of them on a CPU).
    """

    plan: Plan | None
    devices: tuple[Used, ...]
    trouble: str
    refusals: Mapping[str, str]
    offers: tuple[Offer, ...]
    curve: tuple[tuple[int, float], ...]
    max_context: int
    ranks: int = 1
    host: str = ""
    """Name of the host that placement chose for it; empty where the form names it."""

    @property
    def tightness(self) -> tuple[float, float]:
        """Orders fits: one that doesn't fit comes first, then the one with the fewest requests at once."""
        if self.plan is None:
            return (0, 0)
        return (2 if self.plan.fits else 1, self.plan.max_concurrency or 0)


def fit(
    copy: Copy,
    engine: Engine,
    *,
    values: Mapping[str, Value],
    environment: Mapping[str, str],
    devices: Sequence[Device] = (),
    placed: Sequence[Device] = (),
    room: Room | None = None,
    changing: Deployment | None = None,
    wanted: int | None = None,
    replicas: int = 1,
) -> Fit:
    """Plan a model on devices of a host as the engine would lay it out with these arguments.

    `devices` are those that a person chose; none: those that it was `placed` on, or else those with the most free memory.
    `room`: by uuid, as placement counts it, claims taken off; without it, and for a device that is not in it, what is free.
    `changing`: its own memory counts as free, because it ends first. `wanted`: requests of full length at once that one
    would like to serve. `replicas`: engines that there are to be.
    """
    if not copy.revision.shape:
        return _none(_("No host has read these files yet. Verify them once, and the sum is shown before each start."))
    try:
        shape = shape_with(copy.revision.shape, values)
        given_back = _own_bytes(changing, engine.host)
        used = choose(engine.host, engine, values, placed or devices, given_back=given_back, room=room)
        request = request_for(engine, used, values, environment)
        request = _with_learned(request, copy, engine, used)
        found = plan(shape, _with_seen(request, copy, used, replicas=replicas), catalogue())
    except ValueError as error:
        return _none(str(error))
    return Fit(
        plan=found,
        devices=tuple(used),
        trouble="",
        refusals=refusals(found, PREFIX + KV_ARGUMENT if values.get(KV_ARGUMENT) else "environment"),
        offers=(
            *(
                _as_host_has(one, shape, copy, engine, values, environment, devices, given_back, room)
                for one in offers(_by_variable(found, request, shape, environment), environment)
            ),
            *_wanted(shape, request, found, wanted),
        ),
        curve=_curve(shape, request, found),
        max_context=shape.max_context,
        ranks=_ranks(engine, values),
    )


def sum_of(
    copy: Copy,
    engine: Engine,
    *,
    values: Mapping[str, Value],
    environment: Mapping[str, str],
    devices: Sequence[Device] = (),
    started: bool = False,
) -> Plan | None:
    """The plan alone, without suggestions and curve; None where nothing can be planned.

    `started`: it has its claims, or runs already, so what is free now says nothing of what it finds.
    """
    if not copy.revision.shape:
        return None
    try:
        shape = shape_with(copy.revision.shape, values)
        used = choose(engine.host, engine, values, devices)
        request = request_for(engine, used, values, environment)
        if started:
            request = replace(request, free_bytes=None)
        return compute_plan(shape, _with_learned(request, copy, engine, used))
    except ValueError:
        return None


def _none(trouble: str) -> Fit:
    return Fit(None, (), trouble, {}, (), (), 0)


def shape_with(record: Mapping[str, Any], values: Mapping[str, Value]) -> ModelShape:
    """A model's shape with the arguments that change it laid over: `hf_overrides` and `dtype`."""
    overrides = values.get("hf_overrides")
    config = dict(record.get("config") or {})
    if isinstance(overrides, dict):
        config = _overlaid(config, overrides)
    shape = shape_from({**record, "config": config})
    width = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}.get(str(values.get("dtype")))
    if width is None:
        return shape
    name = {"float": "float32", "half": "float16"}.get(str(values["dtype"]), str(values["dtype"]))
    weights = shape.weights
    if shape.quantization is None and width != shape.dtype_bytes:
        weights = weights.scaled_to(weights.total_bytes * width // shape.dtype_bytes, weights.source)
    return replace(shape, dtype=name, dtype_bytes=width, weights=weights)


def _overlaid(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(config)
    for key, value in overrides.items():
        inner = merged.get(key)
        merged[key] = _overlaid(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def _size(values: Mapping[str, Value], dest: str) -> int | None:
    value = values.get(dest)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def world(values: Mapping[str, Value]) -> int:
    """Ranks that the parallel sizes ask for, the engine's own replicas (`--data-parallel-size`) counted."""
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    return math.prod(_size(values, name) or 1 for name in sizes)


def _ranks(engine: Engine, values: Mapping[str, Value]) -> int:
    return world(values) if engine.platform == "cpu" else 1


def choose(
    host: Host, engine: Engine, values: Mapping[str, Value], devices: Sequence[Device], *, given_back: int = 0,
    room: Room | None = None,
) -> list[Used]:  # fmt: skip
    """The devices the engine will use: those that were chosen, else those with the most room, or without `room` free memory.

    ValueError when the host has none of the engine's kind.
    """
    on_cpu = engine.platform == "cpu"
    rows = list(devices) or list(Device.objects.usable().filter(host=host, kind="cpu" if on_cpu else "gpu"))
    if not rows:
        raise ValueError(
            _("%(host)s has told of no %(kind)s, which %(engine)s needs.")
            % {"host": host, "kind": "CPU" if on_cpu else "GPU", "engine": engine}
        )
    found = []
    for row in rows:
        if one := (room or {}).get(row.uuid):
            found.append(Used(row, kind_of(row), one.total, one.free, one.claimed))
            continue
        memory = presentation.memory(row, host.vitals)
        free = min(memory.free + given_back, memory.total)
        found.append(Used(row, kind_of(row), memory.total, free))
    if devices or on_cpu:
        return found
    return sorted(sorted(found, key=lambda one: -one.free)[: world(values)], key=lambda one: one.row.index)


def kind_of(row: Device) -> Kind:
    """A host's device as the catalogue knows it, with its own memory; of an unknown one only what its driver says."""
    if row.kind == "cpu":
        return device_of_bytes(row.memory_total, "cpu")
    known = find_device(row.name, catalogue())
    if known is None:
        known = replace(device_of_bytes(row.memory_total, "cuda"), title=row.name)
    capability = str(row.details.get("capability") or "") if isinstance(row.details, dict) else ""
    major, _dot, minor = capability.partition(".")
    if major.isdigit() and minor.isdigit():
        known = replace(known, capability=(int(major), int(minor)))
    return replace(known, memory_bytes=row.memory_total)


def _own_bytes(changing: Deployment | None, host: Host) -> int:
    """What the engine that a change replaces gives back, per device, as it was planned when it was launched."""
    if changing is None or not changing.instances.filter(host=host, run=True).exists():
        return 0
    last = launches.latest(changing)
    predicted = last.prediction if last is not None else {}
    parts = ("weights_bytes_per_device", "overhead_bytes", "kv_cache_bytes")
    return sum(int(predicted.get(part) or 0) for part in parts)


def request_for(
    engine: Engine, used: Sequence[Used], values: Mapping[str, Value], environment: Mapping[str, str]
) -> PlanRequest:
    """What is asked of the planner. ValueError for a KV size that can't be read."""
    on_cpu = engine.platform == "cpu"
    tensor, pipeline = _size(values, "tensor_parallel_size") or 1, _size(values, "pipeline_parallel_size") or 1
    ranks = world(values) if on_cpu else 1
    smallest = min(used, key=lambda one: one.free)
    details = smallest.row.details if isinstance(smallest.row.details, dict) else {}
    speculative = values.get("speculative_config")
    drafts = speculative.get("num_speculative_tokens") if isinstance(speculative, dict) else 0
    share = values.get("gpu_memory_utilization")
    return PlanRequest(
        device=smallest.kind,
        count=max(len(used), ranks),
        free_bytes=smallest.free // ranks,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        gpu_memory_utilization=float(share) if isinstance(share, int | float) else None,
        kv_cache_memory=cpu_kv_bytes(environment, values) if on_cpu else _kv_bytes(values.get(KV_ARGUMENT)),
        kv_cache_dtype=str(values.get("kv_cache_dtype") or "auto"),
        max_model_len=_size(values, "max_model_len"),
        max_num_seqs=_size(values, "max_num_seqs"),
        max_num_batched_tokens=_size(values, "max_num_batched_tokens"),
        block_size=_size(values, "block_size") or None,
        platform="cpu" if on_cpu else "cuda",
        engine_version=engine.version,
        enable_prefix_caching=values.get("enable_prefix_caching"),
        async_scheduling=values.get("async_scheduling"),
        enforce_eager=bool(values.get("enforce_eager")),
        lora=_lora_of(values),
        speculative_tokens=drafts if isinstance(drafts, int) else 0,
        cpu_amx=bool(details.get("amx")),
        cpu_avx512=bool(details["avx512"]) if "avx512" in details else None,
        cpu_avx512_bf16=bool(details.get("avx512_bf16")),
    )


def _lora_of(values: Mapping[str, Value]) -> LoraSettings:
    rank, at_once = values.get("max_lora_rank"), values.get("max_loras")
    return LoraSettings(
        enabled=bool(values.get("enable_lora")),
        max_rank=rank if isinstance(rank, int) else USUAL_RANK,
        at_once=at_once if isinstance(at_once, int) else USUAL_AT_ONCE,
    )


def cpu_kv_bytes(environment: Mapping[str, str], values: Mapping[str, Value]) -> int:
    """What an engine on a CPU takes for its KV cache: it believes the variable before the argument.

    ValueError for a size that can't be read, or that the engine doesn't start with.
    """
    text = environment.get(CPU_KV_VARIABLE, "")
    if not text:
        return _kv_bytes(values.get(KV_ARGUMENT)) or CPU_KV_GIB * GIB
    if not text.isdecimal() or not int(text):
        words = _(
            "%(name)s is a whole number of GiB, not “%(text)s”. For other sizes use --kv-cache-memory-bytes instead."
        )
        raise ValueError(words % {"name": CPU_KV_VARIABLE, "text": text})
    return int(text) * GIB


def _kv_bytes(value: Value) -> int | None:
    if value in (None, ""):
        return None
    return value if isinstance(value, int) else parse_bytes(str(value))


def _with_learned(request: PlanRequest, copy: Copy, engine: Engine, used: Sequence[Used]) -> PlanRequest:
    learned = launches.learned(revision=copy.revision_id, device=used[0].row.name, engine_version=engine.version)
    return replace(request, learned=learned)


def _with_seen(request: PlanRequest, copy: Copy, used: Sequence[Used], *, replicas: int) -> PlanRequest:
    """With what was counted and measured of this model: it shapes suggestions, not the plan."""
    lengths = requests_seen.of_model(copy.revision.model)
    measured = layouts_seen.of(copy.revision, used[0].row.name, request.tensor_parallel or 1)
    return replace(request, p95_tokens=lengths.p95_tokens if lengths else None, measured=measured, replicas=replicas)


def refusals(found: Plan, kv_field: str = "environment") -> dict[str, str]:
    """Form field to why the engine would not start, the first reason at each. `kv_field`: where a CPU's KV size stands."""
    texts: dict[str, str] = {}
    for reason in found.reasons:
        if reason.severity == "error":
            argument = FIELDS.get(reason.code)
            field = PREFIX + argument if argument else kv_field if _is_cpu_kv(reason.code, found) else "copy"
            texts.setdefault(field, f"{reason.text[:1].upper()}{reason.text[1:]}.")
    hint = next((one for one in found.suggestions if one.changes), None)
    if texts and hint is not None:
        first = next(iter(texts))
        texts[first] += " " + _("What would fit: %(text)s.") % {"text": hint.text}
    return texts


def _is_cpu_kv(code: str, found: Plan) -> bool:
    return code == "memory.kv_request_exceeds_available" and found.platform == "cpu"


def _by_variable(
    found: Plan, request: PlanRequest, shape: ModelShape, environment: Mapping[str, str]
) -> Iterator[Suggestion]:
    """A plan's suggestions; a KV size is put where the engine believes it, as whole GiB where that is a variable."""
    for one in found.suggestions:
        if one.code != "kv_memory" or not environment.get(CPU_KV_VARIABLE):
            yield one
            continue
        gib = math.ceil(found.min_kv_bytes_for_one_request / GIB)
        if compute_plan(shape, replace(request, kv_cache_memory=gib * GIB)).fits:
            text = _("%(gib)d GiB of KV cache hold one request of %(context)s tokens") % {
                "gib": gib, "context": f"{found.max_model_len:,}",
            }  # fmt: skip
            yield Suggestion(one.code, text, ((CPU_KV_VARIABLE, str(gib)),))


def offers(suggestions: Iterable[Suggestion], environment: Mapping[str, str] | None = None) -> list[Offer]:
    """Suggestions as buttons that set fields of the form."""
    return [_offer(one, dict(one.changes), environment or {}) for one in suggestions]


def _offer(suggestion: Suggestion, changes: Mapping[str, str], environment: Mapping[str, str]) -> Offer:
    sets: dict[str, str] = {}
    words = []
    for name, value in changes.items():
        shown = f"{int(value):,}" if value.isdigit() else value
        if name == CPU_KV_VARIABLE:
            sets["environment"] = environment_text({**environment, name: value})
        else:
            sets[name if name == "replicas" else PREFIX + name.replace("-", "_")] = value
        words.append(_("%(name)s to %(value)s") % {"name": _named(name), "value": shown})
    button = _("Set %(changes)s") % {"changes": _(" and ").join(words)} if words else ""
    text = suggestion.text
    return Offer(f"{text[:1].upper()}{text[1:]}", button, sets)


def _as_host_has(
    offer: Offer, shape: ModelShape, copy: Copy, engine: Engine, values: Mapping[str, Value],
    environment: Mapping[str, str], devices: Sequence[Device], given_back: int, room: Room | None,
) -> Offer:  # fmt: skip
    """An offer of more devices, planned on this host's own with their memory now: without them it is advice, no button."""
    size = offer.sets.get(f"{PREFIX}tensor_parallel_size")
    if size is None or engine.platform == "cpu":
        return offer
    other = {**values, "tensor_parallel_size": int(size)}
    used = choose(engine.host, engine, other, devices, given_back=given_back, room=room)
    request = _with_learned(request_for(engine, used, other, environment), copy, engine, used)
    if len(used) >= world(other) and compute_plan(shape, request).fits:
        return offer
    text = _("%(offer)s. Fewer are chosen, or free now, on %(host)s.") % {"offer": offer.text, "host": engine.host}
    return Offer(text, "", {})


def _named(name: str) -> str:
    return {
        "max-model-len": _("context"),
        "gpu-memory-utilization": _("memory share"),
        "tensor-parallel-size": _("devices per replica"),
        "max-num-batched-tokens": _("tokens per step"),
        "kv-cache-dtype": _("KV cache type"),
        "replicas": _("replicas"),
        CPU_KV_VARIABLE: CPU_KV_VARIABLE,
    }.get(name, f"--{name}")


def _wanted(shape: ModelShape, request: PlanRequest, found: Plan, wanted: int | None) -> list[Offer]:
    """The longest context with which so many full requests run at once."""
    if not wanted or not shape.cache_layers or found.kv_cache_bytes is None:
        return []
    low, high = 0, shape.max_context
    while high - low > 256:
        middle = (low + high) // 2
        reached = compute_plan(shape, replace(request, max_model_len=middle)).max_concurrency or 0
        low, high = (middle, high) if reached >= wanted else (low, middle)
    context = shape.max_context if low + 512 >= shape.max_context else low // 256 * 256
    if context < SHORTEST_CONTEXT:
        text = _("%(count)d full requests at once don't fit, however short they are.") % {"count": wanted}
        return [Offer(text, "", {})]
    shown = f"{context:,}"
    if context == found.max_model_len:
        return []
    text = _("%(count)d full requests at once fit up to a context of %(context)s.") % {
        "count": wanted, "context": shown,
    }  # fmt: skip
    return [Offer(text, _("Set context to %(context)s") % {"context": shown}, {f"{PREFIX}max_model_len": str(context)})]


def _curve(shape: ModelShape, request: PlanRequest, found: Plan) -> tuple[tuple[int, float], ...]:
    """(context, full requests at once), evenly spaced in the logarithm of the context."""
    if not shape.cache_layers or found.max_concurrency is None or shape.max_context < 2 * SHORTEST_CONTEXT:
        return ()
    ratio = (shape.max_context / SHORTEST_CONTEXT) ** (1 / (CURVE_POINTS - 1))
    contexts = sorted({round(SHORTEST_CONTEXT * ratio**step) for step in range(CURVE_POINTS)} | {found.max_model_len})
    points = []
    for context in contexts:
        if context <= shape.max_context:
            concurrency = compute_plan(shape, replace(request, max_model_len=context)).max_concurrency
            points.append((context, round(concurrency or 0, 3)))
    return tuple(points)

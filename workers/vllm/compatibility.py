"""What runs where: quantisation, dtypes and parallel sizes against a device's capability and an engine version.

Three questions have one answer each per scheme: is there a kernel that multiplies in the stored type ("native"), is there
one that unpacks the weights first ("weight-only", Marlin), and since which version. Sources: `get_min_capability` and the
kernel selection in vLLM [src 0.16 to 0.32], the logs of launches that failed.
"""

from dataclasses import dataclass

from workers.vllm.devices import Device, Platform
from workers.vllm.kv_cache import FP8_DTYPES
from workers.vllm.memory_rules import MemoryRules, Version
from workers.vllm.model_shape import ModelShape
from workers.vllm.plan_types import Reason, Severity

Capability = tuple[int, int]

BFLOAT16_FROM: Capability = (8, 0)
# These lose too much in float16, so the engine runs them in float32 where there is no bfloat16.
NO_FLOAT16 = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
FP8_KV_FROM: Capability = (8, 9)
SPARSE_ATTENTION_FROM: Capability = (9, 0)


@dataclass(frozen=True)
class Scheme:
    """Where one kind of quantised weights runs.

    Attributes:
        title: its name for people.
        native_from: the first capability that multiplies in this type; None where none does.
        minimum: the first capability it loads on at all.
        since: the first engine version that knows it.
        cpu: whether the CPU backend has a kernel.
        rocm: whether AMD devices have one.
        not_from: the first capability that has no kernel any more; None where all later ones do.
    """

    title: str
    native_from: Capability | None
    minimum: Capability
    since: Version
    cpu: bool
    rocm: bool
    not_from: Capability | None = None


SCHEMES: dict[str, Scheme] = {
    "fp8": Scheme("FP8", (8, 9), (7, 5), (0, 4, 2), cpu=False, rocm=True),
    "fp8_block": Scheme("FP8 in blocks", (8, 9), (7, 5), (0, 7, 0), cpu=False, rocm=True),
    "int8": Scheme("INT8", (7, 5), (7, 5), (0, 5, 0), cpu=True, rocm=True, not_from=(10, 0)),
    "int8_weight": Scheme("8-bit weights", None, (7, 5), (0, 4, 2), cpu=False, rocm=True),
    "int4": Scheme("4-bit weights (AWQ, GPTQ)", None, (7, 5), (0, 2, 0), cpu=True, rocm=True),
    "nvfp4": Scheme("NVFP4", (10, 0), (7, 5), (0, 8, 5), cpu=False, rocm=False),
    "mxfp4": Scheme("MXFP4", (10, 0), (8, 0), (0, 10, 1), cpu=False, rocm=True),
}


def check(
    model: ModelShape,
    rules: MemoryRules,
    *,
    platform: Platform,
    device: Device | None,
    tensor_parallel: int,
    pipeline_parallel: int,
    count: int | None,
    kv_cache_dtype: str,
    cpu_avx512: bool | None = None,
) -> tuple[Reason, ...]:
    """Everything that stands between this model and this device, besides memory."""
    reasons = [
        *_quantization(model, rules, platform, device),
        *_dtype(model, platform, device),
        *_kv_dtype(kv_cache_dtype, platform, device, rules, cpu_avx512=cpu_avx512),
        *_parallel_sizes(model, tensor_parallel, pipeline_parallel, count),
        *_sparse_attention(model, platform, device),
        *_attention_on_cpu(model, rules, platform, tensor_parallel),
    ]
    return tuple(reasons)


def _quantization(model: ModelShape, rules: MemoryRules, platform: Platform, device: Device | None) -> list[Reason]:
    if model.quantization is None:
        return []
    scheme = SCHEMES.get(model.quantization.scheme)
    if scheme is None:
        text = (
            f"how {model.quantization.label} weights run isn't known here: sizes are planned, kernels are not checked"
        )
        return [Reason("quantization.unknown", "warning", text)]
    if rules.version < scheme.since:
        since = ".".join(str(part) for part in scheme.since)
        text = f"{scheme.title} needs vLLM {since} or later; take a newer engine"
        return [Reason("quantization.engine_too_old", "error", text)]
    if platform == "cpu":
        if scheme.cpu:
            return []
        text = (
            f"the CPU backend has no kernel for {scheme.title}: the engine would not start; take the unquantised model"
        )
        return [Reason("quantization.unsupported_device", "error", text)]
    if device is None:
        return []
    if device.vendor == "amd":
        if scheme.rocm:
            return []
        text = f"{scheme.title} doesn't run on {device.title}; take an FP8 or 16-bit revision"
        return [Reason("quantization.unsupported_device", "error", text)]
    return _quantization_on_cuda(scheme, device)


def _quantization_on_cuda(scheme: Scheme, device: Device) -> list[Reason]:
    capability = device.capability
    if capability is None:
        return []
    name = f"{device.title} (sm_{capability[0]}{capability[1]})"
    if capability < scheme.minimum:
        needed = f"sm_{scheme.minimum[0]}{scheme.minimum[1]}"
        text = f"{scheme.title} needs {needed} or newer, {name} is older: the engine would not start"
        return [Reason("quantization.unsupported_device", "error", text)]
    if scheme.not_from is not None and capability >= scheme.not_from:
        text = f"{scheme.title} has no kernel on {name} any more; take an FP8 revision"
        return [Reason("quantization.unsupported_device", "error", text)]
    if scheme.native_from is not None and capability < scheme.native_from:
        native = f"sm_{scheme.native_from[0]}{scheme.native_from[1]}"
        text = (
            f"{scheme.title} is native from {native}; on {name} the weights stay small but are unpacked for every "
            "multiplication (Marlin): it saves memory, not time"
        )
        return [Reason("quantization.weight_only", "warning", text)]
    return []


def lacks_bfloat16(device: Device | None, platform: Platform) -> bool:
    """Whether the device is known to have no bfloat16."""
    return platform == "cuda" and device is not None and device.capability is not None and (
        device.capability < BFLOAT16_FROM
    )  # fmt: skip


def _dtype(model: ModelShape, platform: Platform, device: Device | None) -> list[Reason]:
    if model.dtype == "bfloat16" or not lacks_bfloat16(device, platform) or device is None:
        return []
    if model.dtype == "float32":
        text = (
            f"{device.title} has no bfloat16 and {model.model_type} is unstable in float16, so the engine runs it in "
            "float32: twice the memory; take a device of capability 8.0 or newer"
        )
    else:
        text = (
            f"{device.title} has no bfloat16, which is only supported from capability 8.0: the engine falls back to "
            "float16, and `--dtype bfloat16` would stop it"
        )
    return [Reason("dtype.no_bfloat16", "warning", text)]


def _kv_dtype(
    kv_cache_dtype: str, platform: Platform, device: Device | None, rules: MemoryRules, *, cpu_avx512: bool | None
) -> list[Reason]:
    if kv_cache_dtype not in FP8_DTYPES and kv_cache_dtype != "fp8_ds_mla":
        return []
    if platform == "cpu" and not rules.cpu_fp8_cache:
        text = "an FP8 KV cache runs on a CPU only from vLLM 0.21 on; take a newer engine, or --kv-cache-dtype auto"
        return [Reason("kv_cache_dtype.unsupported_device", "error", text)]
    if platform == "cpu":
        if cpu_avx512:
            return []
        severity: Severity = "warning" if cpu_avx512 is None else "error"
        text = "an FP8 KV cache on a CPU needs AVX-512 or AMX; without them the engine does not start"
        return [Reason("kv_cache_dtype.unsupported_device", severity, text)]
    if device is None or device.capability is None or device.capability >= FP8_KV_FROM:
        return []
    text = f"an FP8 KV cache is native from sm_89; on {device.title} not every attention backend takes it"
    return [Reason("kv_cache_dtype.not_native", "warning", text)]


def _parallel_sizes(model: ModelShape, tensor: int, pipeline: int, count: int | None) -> list[Reason]:
    reasons = []
    if count is not None and tensor * pipeline > count:
        text = (
            f"world size {tensor * pipeline} (TP {tensor} x PP {pipeline}) is larger than the {count} devices there are"
        )
        reasons.append(Reason("parallelism.not_enough_devices", "error", text))
    if pipeline > model.num_layers:
        text = f"{pipeline} pipeline stages for {model.num_layers} layers; use at most {model.num_layers}"
        reasons.append(Reason("parallelism.too_many_stages", "error", text))
    heads = model.attention_heads
    if heads and heads % tensor:
        fitting = ", ".join(str(size) for size in range(1, min(heads, 16) + 1) if heads % size == 0)
        text = f"{heads} attention heads can't be divided over TP {tensor}; possible are {fitting}"
        reasons.append(Reason("parallelism.heads_not_divisible", "error", text))
    elif model.kv_heads and not model.uses_mla and tensor > 1:
        reasons += _kv_heads(model.kv_heads, tensor)
    if model.uses_mla and tensor > 1:
        text = f"latent attention: each of the {tensor} ranks keeps the whole KV cache; TP divides only the weights"
        reasons.append(Reason("kv_cache.replicated", "info", text))
    return reasons


def _kv_heads(kv_heads: int, tensor: int) -> list[Reason]:
    if kv_heads >= tensor:
        if kv_heads % tensor == 0:
            return []
        text = f"{kv_heads} key/value heads can't be divided over TP {tensor}: the engine would not start"
        return [Reason("parallelism.kv_heads_not_divisible", "error", text)]
    if tensor % kv_heads:
        text = f"TP {tensor} is no multiple of the {kv_heads} key/value heads: the engine would not start"
        return [Reason("parallelism.kv_heads_not_divisible", "error", text)]
    text = f"{kv_heads} key/value heads on {tensor} ranks: each head is kept {tensor // kv_heads} times"
    return [Reason("kv_cache.heads_repeated", "info", text)]


def _sparse_attention(model: ModelShape, platform: Platform, device: Device | None) -> list[Reason]:
    if not model.is_sparse or platform == "cpu" or device is None or device.capability is None:
        return []
    if device.capability >= SPARSE_ATTENTION_FROM:
        return []
    text = f"sparse attention needs sm_90 or newer; {device.title} has no kernel for it: the engine would not start"
    return [Reason("attention.unsupported_device", "error", text)]


def _attention_on_cpu(model: ModelShape, rules: MemoryRules, platform: Platform, tensor: int) -> list[Reason]:
    if platform != "cpu":
        return []
    reasons = []
    if model.is_sparse:
        text = "sparse attention has no CPU kernel: the engine would not start"
        reasons.append(Reason("attention.unsupported_device", "error", text))
    elif model.uses_mla and not rules.cpu_mla:
        text = "latent attention runs on a CPU only from vLLM 0.28 on; take a newer engine"
        reasons.append(Reason("attention.unsupported_device", "error", text))
    if model.attention == "hybrid" and not rules.cpu_aligns_state_pages:
        text = "recurrent layers run on a CPU only from vLLM 0.21 on; take a newer engine"
        reasons.append(Reason("attention.unsupported_device", "error", text))
    if tensor > 1:
        text = (
            f"each of the {tensor} ranks should have a NUMA node, or cores, of its own: set VLLM_CPU_OMP_THREADS_BIND"
        )
        reasons.append(Reason("cpu.numa", "info", text))
    return reasons

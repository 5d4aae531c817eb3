"""How a checkpoint's weights are quantised, read from its configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LEFT_OUT = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")


@dataclass(frozen=True)
class Quantization:
    """A checkpoint's quantisation.

    Attributes:
        method: the engine's name for it ("fp8", "compressed-tensors", "awq", "gptq", "modelopt_fp4", ...).
        scheme: what is multiplied: "fp8_block", "fp8", "int8", "int4", "int8_weight", "nvfp4", "mxfp4" or "other".
        bits_per_weight: average bits that a quantised weight takes on disk and in memory, scales included.
        kv_cache_dtype: the KV dtype that the checkpoint asks for, or None.
    """

    method: str
    scheme: str
    bits_per_weight: float
    kv_cache_dtype: str | None = None

    @property
    def label(self) -> str:
        """A few words for people: "FP8, 128x128 blocks (fp8)"."""
        words = {
            "fp8_block": "FP8 in blocks", "fp8": "FP8", "int8": "INT8", "int8_weight": "8-bit weights",
            "int4": "4-bit weights", "nvfp4": "NVFP4", "mxfp4": "MXFP4",
        }  # fmt: skip
        return f"{words.get(self.scheme, self.scheme)} ({self.method})"


def read_quantization(config: Mapping[str, Any], text: Mapping[str, Any]) -> Quantization | None:
    """The quantisation of a checkpoint, or None when its weights are plain.

    Args:
        config: the whole configuration.
        text: the language model's part, where multimodal checkpoints may keep it.
    """
    found = _section(config, text)
    if found is None:
        return None
    method = str(found.get("quant_method") or "").lower().replace("compressed_tensors", "compressed-tensors")
    if str((found.get("producer") or {}).get("name")) == "modelopt" or method.startswith("modelopt"):
        return _modelopt(found)
    if method == "compressed-tensors":
        return _compressed_tensors(found)
    return _by_method(method, found)


def _section(config: Mapping[str, Any], text: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next(
        (
            part[name]
            for part in (config, text)
            for name in ("quantization_config", "compression_config")
            if isinstance(part.get(name), Mapping)
        ),
        None,
    )


def leaves_out(config: Mapping[str, Any], text: Mapping[str, Any], *words: str) -> bool:
    """Whether the quantisation names modules with one of these words as left at full precision."""
    found = _section(config, text) or {}
    inner = found.get("quantization")
    listed: list[str] = []
    for part in (found, inner if isinstance(inner, Mapping) else {}):
        for name in _LEFT_OUT:
            modules = part.get(name)
            listed += [str(one) for one in modules] if isinstance(modules, list) else []
    return any(word in module for module in listed for word in words)


def _by_method(method: str, found: Mapping[str, Any]) -> Quantization:
    group = found.get("group_size") or found.get("q_group_size") or 128
    if method == "fp8":
        block = found.get("weight_block_size")
        return Quantization(method, "fp8_block" if block else "fp8", 8 + _scale_bits(block))
    if method in {"awq", "gptq", "auto-round", "autoround", "gptq_marlin", "awq_marlin", "inc"}:
        bits = found.get("bits") or found.get("w_bit") or 4
        per_group = (16 + bits) / (group if group > 0 else 4096)
        return Quantization(method, "int4" if bits <= 4 else "int8_weight", bits + per_group)
    if method == "mxfp4" or method == "gpt_oss_mxfp4":
        return Quantization(method, "mxfp4", 4.25)
    if method == "bitsandbytes":
        four = bool(found.get("load_in_4bit"))
        return Quantization(method, "int4" if four else "int8_weight", 4.5 if four else 8.0)
    if method in {"fbgemm_fp8", "ptpc_fp8"}:
        return Quantization(method, "fp8", 8.0)
    return Quantization(method or "unknown", "other", 8.0)


def _scale_bits(block: object) -> float:
    """Bits per weight that float32 block scales add."""
    if isinstance(block, list) and len(block) == 2 and all(isinstance(size, int) and size > 0 for size in block):
        return float(32 / (block[0] * block[1]))
    return 0.0


def _modelopt(found: Mapping[str, Any]) -> Quantization:
    inner = found.get("quantization") if isinstance(found.get("quantization"), Mapping) else found
    algorithm = str((inner or {}).get("quant_algo") or found.get("quant_algo") or "FP8").upper()
    kv = (inner or {}).get("kv_cache_quant_algo") or found.get("kv_cache_quant_algo")
    scheme = (inner or {}).get("kv_cache_scheme") or found.get("kv_cache_scheme")
    dtype = {"FP8": "fp8_e4m3", "NVFP4": "nvfp4"}.get(str(kv).upper()) or ("fp8_e4m3" if scheme else None)
    if "NVFP4" in algorithm or "FP4" in algorithm:
        return Quantization("modelopt_fp4", "nvfp4", 4.5, dtype)
    return Quantization("modelopt", "fp8_block" if "PB" in algorithm else "fp8", 8.0, dtype)


def _compressed_tensors(found: Mapping[str, Any]) -> Quantization:
    groups = found.get("config_groups")
    first: Mapping[str, Any] = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    weights = first.get("weights") or {}
    bits, kind = weights.get("num_bits") or 8, weights.get("type") or "float"
    strategy, group = weights.get("strategy"), weights.get("group_size") or 128
    kv = "fp8" if found.get("kv_cache_scheme") else None
    if str(found.get("format")) == "nvfp4-pack-quantized" or (kind == "float" and bits == 4):
        return Quantization("compressed-tensors", "nvfp4", 4.5, kv)
    if kind == "float":
        block = weights.get("block_structure")
        scale = _scale_bits(block) / 2  # its block scales are bfloat16
        return Quantization("compressed-tensors", "fp8_block" if strategy == "block" else "fp8", 8 + scale, kv)
    if bits <= 4:
        return Quantization("compressed-tensors", "int4", bits + 16 / group, kv)
    scheme = "int8" if first.get("input_activations") else "int8_weight"
    return Quantization("compressed-tensors", scheme, float(bits), kv)

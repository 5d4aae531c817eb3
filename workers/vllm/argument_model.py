"""What a model's config.json says about context and parallelism, as far as arguments can contradict it.

Source: vLLM's `_get_and_verify_max_len` (which key bounds the context and how RoPE scaling stretches it) and
`verify_with_parallel_config` (heads must divide by the tensor parallel size).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEAD_KEYS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv")
ALREADY_SCALED = frozenset({"su", "longrope", "llama3", "deepseek_llama_scaling"})


class ModelConfigError(ValueError):
    """A directory whose config.json can't be used; `code` is the finding's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class ModelLimits:
    """Limits that config.json sets. `context` is in tokens, None when no key bounds it; heads are None without attention.

    `latent` marks multi-head latent attention, whose cache isn't split by KV heads.
    """

    context: int | None
    context_key: str
    heads: int | None
    kv_heads: int | None
    quantization: str | None
    latent: bool = False


def read_model_config(path: Path) -> dict[str, Any]:
    """Read `config.json` of a model directory, or the file itself; ModelConfigError says what is wrong and where."""
    if not path.exists():
        raise ModelConfigError("path.not_found", f"There is no {path}.")
    file = path if path.name == "config.json" and path.is_file() else path / "config.json"
    if not file.is_file():
        raise ModelConfigError("config.missing", f"{path} holds no config.json, so it is no model directory.")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelConfigError("config.invalid_json", f"{file} can't be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelConfigError("config.invalid_json", f"{file} holds no JSON object.")
    return config


def model_limits(config: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> ModelLimits:
    """Work out the limits, with `--hf-overrides` laid over the configuration as vLLM does."""
    whole = _overlaid(config, overrides or {})
    text = next((whole[key] for key in TEXT_KEYS if isinstance(whole.get(key), dict)), whole)
    if text is not whole:
        nested = next((text[key] for key in TEXT_KEYS if isinstance(text.get(key), dict)), None)
        text = nested or text
    context, key = _context(text if any(name in text for name in CONTEXT_KEYS) else whole)
    heads = _first_number(text, HEAD_KEYS)
    quantization = whole.get("quantization_config") or text.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return ModelLimits(
        context=context,
        context_key=key,
        heads=heads,
        kv_heads=_first_number(text, KV_HEAD_KEYS) or heads,
        quantization=str(method) if method else None,
        latent="kv_lora_rank" in text,
    )


def _overlaid(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(config)
    for key, value in overrides.items():
        inner = merged.get(key)
        merged[key] = _overlaid(inner, value) if isinstance(value, dict) and isinstance(inner, dict) else value
    return merged


def _first_number(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    found = (config.get(key) for key in keys)
    return next(
        (value for value in found if isinstance(value, int) and not isinstance(value, bool) and value > 0), None
    )


def _context(text: Mapping[str, Any]) -> tuple[int | None, str]:
    lengths = {key: text[key] for key in CONTEXT_KEYS if isinstance(text.get(key), int) and text[key] > 0}
    if not lengths:
        return None, ""
    key = min(lengths, key=lambda name: lengths[name])
    if "model_max_length" in lengths:
        key = "model_max_length"
    context = lengths[key]
    if "gemma3" in str(text.get("model_type", "")):
        return context, key  # its length is stated after scaling
    scaled = [_stretched(context, scaling) for scaling in _rope_scalings(text)]
    return max([context, *scaled]), key


def _rope_scalings(text: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name in ("rope_scaling", "rope_parameters"):
        scaling = text.get(name)
        if isinstance(scaling, dict):
            yield scaling
            yield from (inner for inner in scaling.values() if isinstance(inner, dict))


def _stretched(context: int, scaling: Mapping[str, Any]) -> int:
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    factor = scaling.get("factor")
    if kind in ALREADY_SCALED or not isinstance(factor, int | float):
        return context
    if "yarn" in kind:
        # Older vLLM multiplied the original length, newer takes the stated one for already scaled; the longer stands.
        original = scaling.get("original_max_position_embeddings")
        return int(original * factor) if isinstance(original, int) else context
    return int(context * factor)

"""What the memory planner needs to know about a model, as one frozen value read from its config.json.

Nothing here touches a disk: `model_directory` reads the files and hands their content over.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from workers.vllm.attention_layers import (
    CacheLayer,
    attention_heads,
    head_dim,
    kv_heads,
    num_layers,
    read_cache_layers,
    uses_mla,
)
from workers.vllm.config_values import refuse_wrong_kinds
from workers.vllm.parameter_count import estimate_weights
from workers.vllm.quantization_shape import Quantization, leaves_out, read_quantization
from workers.vllm.weights_size import WeightSizes

Attention = Literal["decoder", "hybrid", "attention_free", "encoder_only", "encoder_decoder"]

_TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "language_model_config")
_ENCODER_TYPES = frozenset({
    "bert", "roberta", "xlm-roberta", "xlm_roberta", "camembert", "distilbert", "modernbert", "nomic_bert", "new",
    "albert", "electra", "deberta", "deberta-v2", "mpnet", "eurobert", "gte", "siglip", "clip", "snowflake_arctic_embed",
})  # fmt: skip
_LENGTH_NAMES = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_SCALED_ALREADY = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4, "float64": 8}
_FALLBACK_CONTEXT = 2048
_EXPERT_NAMES = frozenset({"num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts"})


@dataclass(frozen=True)
class ModelShape:
    """A model as the planner sees it.

    Attributes:
        architecture, model_type: what config.json calls itself.
        attention: what kind of layers it has, which decides whether there is a KV cache at all.
        num_layers, hidden_size, intermediate_size, vocab_size, attention_heads, kv_heads, head_dim: of the language model.
        max_context: the longest context the configuration allows, in tokens.
        dtype, dtype_bytes: what the engine computes in. A float32 checkpoint is run at 16 bits.
        cache_layers: every layer that claims KV cache.
        quantization: how the weights are stored.
        experts: routed experts, 0 for a dense model.
        draft_layers: layers of multi-token prediction that the checkpoint carries.
        latent_elements: elements of the projection that unfolds latents, in one attention layer; 0 without latents.
        latents_quantized: whether that projection is quantised.
        keys_are_values: whether full-attention layers store one projection for both.
        weights: sizes of the weights, measured or estimated.
        weights_problems: why the sizes aren't those of a whole checkpoint; empty when they are.
    """

    architecture: str
    model_type: str
    attention: Attention
    num_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    max_context: int
    dtype: str
    dtype_bytes: int
    cache_layers: tuple[CacheLayer, ...]
    quantization: Quantization | None
    experts: int
    draft_layers: int
    latent_elements: int
    latents_quantized: bool
    keys_are_values: bool
    weights: WeightSizes
    weights_problems: tuple[str, ...] = ()

    @property
    def uses_mla(self) -> bool:
        """Whether it caches latent vectors."""
        return any(layer.kind == "mla" for layer in self.cache_layers)

    @property
    def is_sparse(self) -> bool:
        """Whether an indexer picks the tokens each query attends to."""
        return any(layer.kind == "indexer" for layer in self.cache_layers)


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's part of a configuration, with what transformers would fill in.

    Speech models nest it twice (`thinker_config.text_config`); text-only models are their own.
    """
    inner: Mapping[str, Any] = config
    if isinstance(config.get("thinker_config"), Mapping):
        inner = config["thinker_config"]
    for name in _TEXT_CONFIGS:
        if isinstance(inner.get(name), Mapping):
            inner = inner[name]
            break
    model_type = str(inner.get("model_type") or config.get("model_type") or "")
    own = {"model_type": model_type, **inner}
    named = _EXPERT_NAMES & set(own)
    # One class knows its expert count under several names; a default must not contradict the name the file uses.
    defaults = {k: v for k, v in _defaults().get(model_type, {}).items() if not (named and k in _EXPERT_NAMES)}
    return {**defaults, **own}


@cache
def _defaults() -> dict[str, dict[str, Any]]:
    """Values that configuration classes have when a config.json leaves them out, by model type."""
    text = (Path(__file__).parent / "data/config_defaults.json").read_text(encoding="utf-8")
    parsed: dict[str, dict[str, Any]] = json.loads(text)
    return parsed


def read_shape(
    config: Mapping[str, Any],
    *,
    weights: WeightSizes | None = None,
    weights_problems: tuple[str, ...] = (),
) -> ModelShape:
    """Read a parsed config.json.

    `weights` are the sizes summed from tensor headers (None to estimate them), `weights_problems` what is wrong with the
    files those are from. ValueError when the configuration doesn't determine the KV cache, saying what is missing or wrong.
    """
    try:
        shape = _read_shape(config, weights, weights_problems)
    except (TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        message = f"config.json doesn't describe a model that can be planned: a value is of another kind than needed ({error})"
        raise ValueError(message) from error
    if shape.max_context < 1:
        message = f"config.json allows a context of {shape.max_context:,} tokens: that is no model to serve"
        raise ValueError(message)
    return shape


def _read_shape(
    config: Mapping[str, Any], weights: WeightSizes | None, weights_problems: tuple[str, ...]
) -> ModelShape:
    text = text_config(config)
    refuse_wrong_kinds(text)
    attention = _attention(config, text)
    layers = () if attention == "encoder_only" else read_cache_layers(text)
    dtype = _dtype(config, text)
    quantization = read_quantization(config, text)
    sizes = weights or _estimate(config, text, layers, quantization)
    return ModelShape(
        architecture=(config.get("architectures") or [str(text.get("model_type"))])[0],
        model_type=str(config.get("model_type") or text.get("model_type")),
        attention="attention_free" if layers and all(layer.state for layer in layers) else attention,
        num_layers=num_layers(text),
        hidden_size=int(text.get("hidden_size") or text.get("n_embd") or text.get("d_model") or 0),
        intermediate_size=_widest(text.get("intermediate_size")),
        vocab_size=int(text.get("vocab_size") or config.get("vocab_size") or 0),
        attention_heads=attention_heads(text),
        kv_heads=kv_heads(text),
        head_dim=head_dim(text),
        max_context=_max_context(config, text),
        dtype=dtype,
        dtype_bytes=_DTYPE_BYTES[dtype],
        cache_layers=layers,
        quantization=quantization,
        experts=expert_count(text),
        draft_layers=int(text.get("num_nextn_predict_layers") or text.get("mtp_num_hidden_layers") or 0),
        latent_elements=_latent_elements(text),
        latents_quantized=_latents_quantized(config, text, quantization, sizes),
        keys_are_values=bool(text.get("attention_k_eq_v")),
        weights=sizes,
        weights_problems=weights_problems,
    )


def _estimate(
    config: Mapping[str, Any],
    text: Mapping[str, Any],
    layers: tuple[CacheLayer, ...],
    quantization: Quantization | None,
) -> WeightSizes:
    width = _DTYPE_BYTES[_dtype(config, text)]
    bits = quantization.bits_per_weight if quantization else width * 8
    tied = bool(is_tied(config, text))
    return estimate_weights(text, config, layers, linear_bits=bits, dtype_bytes=width, tied=tied)


def _widest(inner: object) -> int:
    """`intermediate_size`, which some models give for each layer."""
    if isinstance(inner, list):
        return max((int(width) for width in inner), default=0)
    return inner if isinstance(inner, int) else 0


def _attention(config: Mapping[str, Any], text: Mapping[str, Any]) -> Attention:
    model_type = str(text.get("model_type"))
    bidirectional = text.get("use_bidirectional_attention")
    causal = text.get("is_causal", config.get("is_causal", True))
    if model_type in _ENCODER_TYPES and not text.get("is_decoder"):
        return "encoder_only"
    if causal is False or bidirectional is True or bidirectional == "all":
        return "encoder_only"
    if config.get("is_encoder_decoder") or model_type == "whisper":
        return "encoder_decoder"
    recurrent = {"linear_attention", "mamba", "conv"} & set(
        text.get("layer_types") or text.get("layers_block_type") or ()
    )
    hybrid_types = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "nemotron_h", "jamba", "bamba", "falcon_h1",
                    "kimi_linear", "granitemoehybrid", "lfm2"}  # fmt: skip
    return "hybrid" if recurrent or model_type in hybrid_types else "decoder"


def expert_count(text: Mapping[str, Any]) -> int:
    """Routed experts, 0 for a dense model."""
    for name in ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts"):
        value = text.get(name)
        if isinstance(value, int) and value:
            return value if text.get("enable_moe_block", True) else 0
    return 0


def is_tied(config: Mapping[str, Any], text: Mapping[str, Any]) -> bool | None:
    """Whether the output matrix is the embedding; None when nothing says."""
    for part in (config, text):
        if isinstance(part.get("tie_word_embeddings"), bool):
            return bool(part["tie_word_embeddings"])
    return None


def _dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    """The dtype of `--dtype auto`."""
    for part in (config, text):
        name = str(part.get("dtype") or part.get("torch_dtype") or "").removeprefix("torch.")
        if name in _DTYPE_BYTES:
            # The engine runs float32 checkpoints at the first 16-bit type its platform has.
            return "bfloat16" if _DTYPE_BYTES[name] > 2 else name.replace("half", "float16")
    return "bfloat16"


def dtype_bytes(config: Mapping[str, Any]) -> int:
    """Bytes per element that the engine computes in."""
    return _DTYPE_BYTES[_dtype(config, text_config(config))]


def _max_context(config: Mapping[str, Any], text: Mapping[str, Any]) -> int:
    """The context the engine uses when none is asked for, in tokens."""
    lengths = [text[name] for name in _LENGTH_NAMES if isinstance(text.get(name), int)]
    longest = text.get("model_max_length") or (min(lengths) if lengths else _FALLBACK_CONTEXT)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or config.get("rope_scaling")
    if not isinstance(rope, Mapping):
        return int(longest)
    kind = rope.get("rope_type") or rope.get("type")
    if kind == "longrope" and (text.get("original_max_position_embeddings")):
        return int(text["original_max_position_embeddings"])
    if "gemma3" in str(config.get("model_type")) or kind in _SCALED_ALREADY:
        return int(longest)
    factor = rope.get("factor")
    return int(longest * factor) if isinstance(factor, int | float) and factor > 1 else int(longest)


def _latent_elements(text: Mapping[str, Any]) -> int:
    """Elements of one attention layer's `kv_b_proj`; 0 where latents aren't what is cached."""
    if not uses_mla(text):
        return 0
    per_head = (text.get("qk_nope_head_dim") or 0) + (text.get("v_head_dim") or 0)
    return int(text["kv_lora_rank"] * attention_heads(text) * per_head)


def _latents_quantized(
    config: Mapping[str, Any], text: Mapping[str, Any], quantization: Quantization | None, weights: WeightSizes
) -> bool:
    """What the files' headers say, else what the configuration doesn't exclude."""
    if quantization is None:
        return False
    if weights.latents_quantized is not None:
        return weights.latents_quantized
    return not leaves_out(config, text, "kv_b_proj", "self_attn")

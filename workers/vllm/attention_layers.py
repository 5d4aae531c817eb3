"""Which layers of a model keep a KV cache, and of what shape: read from its configuration alone.

The shapes here are those of the whole model; `kv_cache` divides them over tensor-parallel ranks and rounds them to pages.
Sources: the models in vLLM 0.32 and the configuration classes of transformers 5.19, which fill in what a config.json
leaves out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from workers.vllm.recurrent_state import RecurrentState, read_state

Kind = Literal["full", "sliding", "chunked", "mla", "indexer", "recurrent", "cross"]
Config = Mapping[str, Any]

# Model types whose attention vLLM runs on the latent vector itself. Others have the same fields but unfold keys and
# values first (MiniCPM3), so the fields alone don't decide.
MLA_MODEL_TYPES = frozenset({
    "axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots3_note", "deepseek_mtp", "glm_moe_dsa", "glm4_moe_lite",
    "glm5_next", "glm5_next_text", "kimi_k2", "kimi_linear", "longcat_flash", "pangu_ultra_moe", "bailing_hybrid",
})  # fmt: skip

# Every n-th layer of these sees everything, the others a window: the pattern of a config.json without `layer_types`.
_FULL_EVERY = {
    "gemma2": 2, "gemma3_text": 6, "gemma3": 6, "gemma3n_text": 5, "gemma4_text": 6, "cohere2": 4, "gpt_oss": 2,
    "olmo3": 4, "exaone4": 4,
}  # fmt: skip

_KIND_OF_LAYER_TYPE = {
    "full_attention": "full", "attention": "full", "global_attention": "full", "global": "full",
    "sliding_attention": "sliding", "local_attention": "sliding", "local": "sliding", "sliding_window": "sliding",
    "chunked_attention": "chunked", "linear_attention": "linear_attention", "mamba": "mamba", "mamba2": "mamba",
    "conv": "conv", "moe": "none", "mlp": "none", "hybrid": "full",
}  # fmt: skip


@dataclass(frozen=True)
class CacheLayer:
    """One layer's claim on the KV cache, before tensor parallelism.

    Attributes:
        index: the decoder layer it belongs to, which decides its pipeline stage.
        kind: how many tokens of a request it keeps: all, a window, a chunk, or a fixed state.
        kv_heads: key/value heads; 0 for latents, indexers and states.
        key_dim, value_dim: elements per head and token. A latent has no value of its own.
        window: tokens that a sliding layer sees, or the chunk of a chunked one.
        row_bytes: bytes per token when they don't depend on the KV dtype (an indexer's quantised keys).
        encoder_tokens: for cross attention, how many encoder positions a request keeps.
        state: the fixed state of a recurrent layer.
    """

    index: int
    kind: Kind
    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int | None = None
    row_bytes: int | None = None
    encoder_tokens: int | None = None
    state: RecurrentState | None = None


def read_cache_layers(text: Config) -> tuple[CacheLayer, ...]:
    """The cache layers of a language model, in layer order.

    Args:
        text: the configuration of the language model (`text_config` of a multimodal one), defaults filled in.

    Raises:
        ValueError: when the configuration lacks what the layers' shape depends on, or the architecture isn't known.
    """
    if text.get("compress_ratios") is not None:
        message = f"the compressed attention of {text.get('model_type')} is not modelled: its KV cache can't be planned"
        raise ValueError(message)
    kinds = _layer_kinds(text)
    layers: list[CacheLayer] = []
    for index, kind in enumerate(kinds):
        layers += _layers_at(text, index, kind)
    shared = text.get("num_kv_shared_layers") or 0
    # The last layers read the cache of an earlier layer of their kind and allocate none themselves.
    return tuple(layer for layer in layers if layer.index < len(kinds) - shared)


def uses_mla(text: Config) -> bool:
    """Whether vLLM caches this model's latent vectors instead of keys and values."""
    listed = text.get("model_type") in MLA_MODEL_TYPES and text.get("is_causal", True)
    return bool(listed and text.get("kv_lora_rank") is not None)


def num_layers(text: Config) -> int:
    """Decoder layers. ValueError when the configuration doesn't say."""
    if text.get("model_type") == "longcat_flash":
        return int(text["num_layers"])
    for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers"):
        if isinstance(text.get(name), int):
            return int(text[name])
    message = "config.json has no num_hidden_layers, so the KV cache can't be computed"
    raise ValueError(message)


def attention_heads(text: Config) -> int:
    """Query heads, or 0 for a model without attention."""
    for name in ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"):
        if isinstance(text.get(name), int):
            return int(text[name])
    return 0


def kv_heads(text: Config) -> int:
    """Key/value heads of the whole model."""
    if text.get("model_type") in {"falcon", "RefinedWeb", "RefinedWebModel"}:
        if text.get("multi_query") and not text.get("new_decoder_architecture"):
            return 1
        return text.get("num_kv_heads") or text.get("n_head_kv") or attention_heads(text)
    if text.get("multi_query") and text.get("model_type") == "gpt_bigcode":
        return 1
    nested = text.get("attn_config")
    if isinstance(nested, Mapping) and nested.get("kv_n_heads"):
        return int(nested["kv_n_heads"])
    for name in ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups"):
        if isinstance(text.get(name), int):
            return int(text[name])
    return attention_heads(text)


def head_dim(text: Config) -> int:
    """Elements of one attention head."""
    for name in ("head_dim", "hidden_size_per_head", "attention_head_dim", "kv_channels"):
        if isinstance(text.get(name), int) and text[name] > 0:
            return int(text[name])
    if text.get("qk_nope_head_dim") and text.get("qk_rope_head_dim"):
        return int(text["qk_nope_head_dim"] + text["qk_rope_head_dim"])
    hidden = next((text[name] for name in ("hidden_size", "n_embd", "d_model") if text.get(name)), 0)
    heads = attention_heads(text)
    return int(hidden) // heads if heads else 0


def _layer_kinds(text: Config) -> list[str]:
    """One word per decoder layer; see `_layers_at` for the words."""
    count = num_layers(text)
    model_type = str(text.get("model_type"))
    by_type = _KINDS_BY_MODEL_TYPE.get(model_type)
    if by_type is not None:
        return by_type(text, count)
    types = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(types, list) and types:
        kinds = [_KIND_OF_LAYER_TYPE.get(str(word), "") for word in types[:count]]
        if "" in kinds:
            message = f"layer type {types[kinds.index('')]!r} is not known: the KV cache can't be planned"
            raise ValueError(message)
        kinds += ["full"] * (count - len(kinds))
        if model_type == "gemma4_text":
            kinds[-1] = "full"  # transformers forces it, whatever the file says
        return kinds
    window = sliding_window(text)
    every = _full_every(text, model_type)
    if window and every:
        return ["full" if (index + 1) % every == 0 else "sliding" for index in range(count)]
    if model_type.startswith("qwen") and window:
        return ["sliding" if index >= (text.get("max_window_layers") or 0) else "full" for index in range(count)]
    return ["sliding" if window else "full"] * count


def _full_every(text: Config, model_type: str) -> int | None:
    pattern = text.get("sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 0:
        return pattern
    return _FULL_EVERY.get(model_type)


def sliding_window(text: Config) -> int | None:
    """Tokens that a sliding layer of this model sees, or None when it has no such layers."""
    if text.get("use_sliding_window") is False:
        return None
    window = text.get("sliding_window", text.get("sliding_window_size"))
    if not isinstance(window, int) or window <= 0:
        return None
    # Cohere's window counts the tokens before the current one.
    return window + 1 if text.get("model_type") == "cohere2" else window


def _interval_kinds(text: Config, count: int) -> list[str]:
    types = text.get("layer_types")
    if isinstance(types, list) and types:
        return [_KIND_OF_LAYER_TYPE[str(word)] for word in types[:count]]
    every = text.get("full_attention_interval") or 4
    return ["full" if (index + 1) % every == 0 else "linear_attention" for index in range(count)]


def _pattern_kinds(text: Config, count: int) -> list[str]:
    pattern = text.get("hybrid_override_pattern") or text.get("layers_block_type")
    if isinstance(pattern, str):
        return [{"M": "mamba", "*": "full"}.get(letter, "none") for letter in pattern if letter in "M*-E"]
    if isinstance(pattern, list):
        return [_KIND_OF_LAYER_TYPE[str(word)] for word in pattern]
    message = f"{text.get('model_type')} without hybrid_override_pattern: its {count} layers can't be told apart"
    raise ValueError(message)


def _jamba_kinds(text: Config, count: int) -> list[str]:
    period, offset = text.get("attn_layer_period") or 8, text.get("attn_layer_offset") or 0
    return ["full" if index % period == offset else "mamba1" for index in range(count)]


def _bamba_kinds(text: Config, count: int) -> list[str]:
    attention = set(text.get("attn_layer_indices") or ())
    return ["full" if index in attention else "mamba" for index in range(count)]


def _kimi_linear_kinds(text: Config, count: int) -> list[str]:
    recurrent = set((text.get("linear_attn_config") or {}).get("kda_layers") or ())  # counted from one
    return ["kda" if index + 1 in recurrent else "full" for index in range(count)]


def _minimax_kinds(text: Config, count: int) -> list[str]:
    kinds = text.get("attn_type_list")
    if isinstance(kinds, list):
        return ["full" if kind == 1 else "linear_attention" for kind in kinds[:count]]
    return _interval_kinds(text, count)


def _llama4_kinds(text: Config, count: int) -> list[str]:
    no_rope = text.get("no_rope_layers")
    if not isinstance(no_rope, list) or not no_rope:
        every = text.get("no_rope_layer_interval") or 4
        no_rope = [int((index + 1) % every != 0) for index in range(count)]
    chunked = "chunked" if text.get("attention_chunk_size") else "full"
    return [chunked if uses_rope else "full" for uses_rope in no_rope[:count]]


def _mimo_kinds(text: Config, count: int) -> list[str]:
    pattern = text.get("hybrid_layer_pattern") or [0] * count
    return ["sliding" if kind == 1 else "full" for kind in pattern[:count]]


def _nas_kinds(text: Config, count: int) -> list[str]:
    blocks = text.get("block_configs") or []
    skipped = [bool((block.get("attention") or {}).get("no_op")) for block in blocks[:count]]
    return ["none" if skip else "full" for skip in skipped] or ["full"] * count


_KINDS_BY_MODEL_TYPE: dict[str, Callable[[Config, int], list[str]]] = {
    "qwen3_next": _interval_kinds,
    "qwen3_5_text": _interval_kinds,
    "qwen3_5_moe_text": _interval_kinds,
    "nemotron_h": _pattern_kinds,
    "jamba": _jamba_kinds,
    "bamba": _bamba_kinds,
    "falcon_h1": lambda _text, count: ["mamba+full"] * count,
    "mamba": lambda _text, count: ["mamba1"] * count,
    "falcon_mamba": lambda _text, count: ["mamba1"] * count,
    "mamba2": lambda _text, count: ["mamba"] * count,
    "kimi_linear": _kimi_linear_kinds,
    "minimax": _minimax_kinds,
    "minimax_text_01": _minimax_kinds,
    "llama4_text": _llama4_kinds,
    "mimo_v2": _mimo_kinds,
    "mimo_v2_flash": _mimo_kinds,
    "nemotron-nas": _nas_kinds,
    "longcat_flash": lambda _text, count: ["full+full"] * count,
    "whisper": lambda _text, count: ["full+cross"] * count,
}


def _layers_at(text: Config, index: int, kind: str) -> list[CacheLayer]:
    layers: list[CacheLayer] = []
    for part in kind.split("+"):
        if part == "none":
            continue
        if part in {"full", "sliding", "chunked", "cross"}:
            layers += _attention_at(text, index, part)
            continue
        state = read_state(text, part)
        if state is None:
            message = f"layer {index} keeps a recurrent state whose size config.json doesn't say"
            raise ValueError(message)
        layers.append(CacheLayer(index=index, kind="recurrent", state=state))
    return layers


def _attention_at(text: Config, index: int, kind: str) -> list[CacheLayer]:
    if uses_mla(text):
        latent = text["kv_lora_rank"] + (text.get("qk_rope_head_dim") or 0)
        layers = [CacheLayer(index=index, kind="mla", key_dim=latent)]
        if text.get("index_topk") is not None and _has_indexer(text, index):
            layers.append(CacheLayer(index=index, kind="indexer", row_bytes=_indexer_row_bytes(text)))
        return layers
    heads, key_dim, value_dim = _attention_shape(text, index, sliding=kind == "sliding")
    if not heads or not key_dim:
        message = "config.json has no num_attention_heads or hidden_size, so the KV cache can't be computed"
        raise ValueError(message)
    layer = CacheLayer(index=index, kind="full", kv_heads=heads, key_dim=key_dim, value_dim=value_dim)
    if kind == "sliding":
        return [replace(layer, kind="sliding", window=sliding_window(text))]
    if kind == "chunked":
        return [replace(layer, kind="chunked", window=text["attention_chunk_size"])]
    if kind == "cross":
        return [replace(layer, kind="cross", encoder_tokens=text.get("max_source_positions") or 1500)]
    return [layer]


def _attention_shape(text: Config, index: int, *, sliding: bool) -> tuple[int, int, int]:
    """(key/value heads, key elements, value elements) of one layer."""
    heads, dim = kv_heads(text), head_dim(text)
    value = dim
    if str(text.get("model_type")).startswith("mimo_v2"):
        if sliding:
            heads, dim = text.get("swa_num_key_value_heads") or heads, text.get("swa_head_dim") or dim
        value = text.get("swa_v_head_dim" if sliding else "v_head_dim") or dim
        return heads, dim, value
    blocks = text.get("block_configs")
    if text.get("model_type") == "nemotron-nas" and isinstance(blocks, list):
        heads = attention_heads(text) // blocks[index]["attention"]["n_heads_in_group"]
    if not sliding and text.get("global_head_dim") and "per_layer_config" not in text:
        dim = value = text["global_head_dim"]
        if text.get("attention_k_eq_v") and text.get("num_global_key_value_heads"):
            heads = text["num_global_key_value_heads"]
    override = _layer_override(text, index)
    heads = override.get("num_key_value_heads") or heads
    dim = override.get("head_dim") or dim
    return heads, dim, override.get("head_dim") or value


def _layer_override(text: Config, index: int) -> Config:
    """What `per_layer_config` says about one layer; its keys are layer numbers, zero-padded in saved files."""
    overrides = text.get("per_layer_config")
    if not isinstance(overrides, Mapping):
        return {}
    for name, values in overrides.items():
        if str(name).isdigit() and int(name) == index and isinstance(values, Mapping):
            return values
    return {}


def _has_indexer(text: Config, index: int) -> bool:
    """Whether this sparse layer picks its own tokens; the others reuse the choice of the layer before."""
    types = text.get("indexer_types")
    if isinstance(types, list) and index < len(types):
        return bool(types[index] == "full")
    pattern = text.get("index_topk_pattern")
    if isinstance(pattern, str | list) and index < len(pattern):
        return bool(pattern[index] != "S")
    offset = text.get("index_skip_topk_offset")
    return max(index - (2 if offset is None else offset) + 1, 0) % (text.get("index_topk_freq") or 1) == 0


def _indexer_row_bytes(text: Config) -> int:
    dim = int(text.get("index_head_dim") or 128)
    return dim + dim // 128 * 4  # fp8 keys and one float32 scale per 128 of them

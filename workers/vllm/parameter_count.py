"""The size of a model's weights estimated from its configuration, for planning before anything is downloaded.

An estimate, and called one wherever it is shown: biases and small vectors are left out, and a quantised checkpoint is
taken to quantise every linear layer that such checkpoints usually do. Real headers replace it as soon as they are there.
"""

from collections.abc import Mapping
from typing import Any

from workers.vllm.attention_layers import CacheLayer, attention_heads, head_dim, num_layers
from workers.vllm.weights_size import Share, Vocabulary, WeightSizes

Config = Mapping[str, Any]

_UNGATED = frozenset({"gpt2", "opt", "gpt_neox", "falcon", "starcoder2", "whisper", "phi", "nemotron_h", "nemotron"})


def estimate_weights(
    text: Config,
    config: Config,
    layers: tuple[CacheLayer, ...],
    *,
    linear_bits: float,
    dtype_bytes: int,
    tied: bool,
) -> WeightSizes:
    """Weights as a checkpoint of this configuration would have them.

    Args:
        text: the language model's configuration, defaults filled in.
        config: the whole configuration, for a vision or audio tower.
        layers: its cache layers, which say what kind of attention each layer has.
        linear_bits: bits per weight of quantised linear layers, scales included.
        dtype_bytes: bytes per element of what isn't quantised (vocabulary, norms, towers).
        tied: whether the output matrix is the embedding.
    """
    hidden = _width(text)
    by_layer: dict[int, list[CacheLayer]] = {}
    for layer in layers:
        by_layer.setdefault(layer.index, []).append(layer)
    shares = []
    for index in range(num_layers(text)):
        share = _attention(text, hidden, by_layer.get(index, []), index, linear_bits, dtype_bytes)
        shares.append(share.plus(_feed_forward(text, hidden, index, linear_bits, dtype_bytes)))
    rows = int(text.get("vocab_size") or config.get("vocab_size") or 0)
    vocabulary = Vocabulary(rows, hidden * dtype_bytes)
    outside = Share(
        sharded=sum(
            _tower_parameters(config.get(name)) for name in ("vision_config", "audio_config")
        ) * dtype_bytes,
        replicated=_per_layer_embeddings(text, hidden) * dtype_bytes,
    )  # fmt: skip
    head = Vocabulary() if tied else vocabulary
    return WeightSizes("estimated", tuple(shares), outside, vocabulary, head, tied)


def _width(text: Config) -> int:
    return int(next((text[name] for name in ("hidden_size", "n_embd", "d_model") if text.get(name)), 0))


def _bytes(parameters: int, bits: float) -> int:
    return round(parameters * bits / 8)


def _attention(text: Config, hidden: int, layers: list[CacheLayer], index: int, bits: float, dtype_bytes: int) -> Share:
    norms = Share(replicated=4 * hidden * dtype_bytes)
    share = norms
    for layer in layers:
        if layer.kind == "recurrent":
            share = share.plus(Share(sharded=_bytes(_recurrent_parameters(text, hidden, layer), bits)))
        elif layer.kind == "mla":
            share = share.plus(_mla(text, hidden, bits))
        elif layer.kind == "indexer":
            share = share.plus(Share(replicated=_bytes(_indexer_parameters(text, hidden), bits)))
        else:
            share = share.plus(_grouped_query(text, hidden, layer, bits))
    if not layers and text.get("num_kv_shared_layers"):
        # A layer that reads another one's cache still has its query and output projections.
        query = 2 * hidden * attention_heads(text) * _query_dim(text, index)
        share = share.plus(Share(sharded=_bytes(query, bits)))
    return share


def _query_dim(text: Config, index: int) -> int:
    types = text.get("layer_types")
    full = isinstance(types, list) and index < len(types) and types[index] == "full_attention"
    return int(text["global_head_dim"]) if full and text.get("global_head_dim") else head_dim(text)


def _grouped_query(text: Config, hidden: int, layer: CacheLayer, bits: float) -> Share:
    heads = attention_heads(text)
    if layer.kind == "sliding" and text.get("swa_num_attention_heads"):
        heads = text["swa_num_attention_heads"]
    gate = 2 if str(text.get("model_type")).startswith(("qwen3_next", "qwen3_5")) else 1  # the query carries a gate
    query = hidden * heads * layer.key_dim * gate
    output = hidden * heads * layer.value_dim
    one_projection = bool(text.get("attention_k_eq_v")) and layer.kind == "full"
    value = 0 if one_projection else layer.value_dim
    keys = hidden * layer.kv_heads * (layer.key_dim + value)
    return Share(sharded=_bytes(query + output, bits), by_kv_head=_bytes(keys, bits))


def _mla(text: Config, hidden: int, bits: float) -> Share:
    heads = attention_heads(text)
    rank, rope, nope = text["kv_lora_rank"], text.get("qk_rope_head_dim") or 0, text.get("qk_nope_head_dim") or 0
    value = text.get("v_head_dim") or nope
    query_rank = text.get("q_lora_rank")
    low_rank = hidden * (rank + rope) + (hidden * query_rank if query_rank else 0)
    query = (query_rank or hidden) * heads * (nope + rope)
    unfold = rank * heads * (nope + value)
    output = heads * value * hidden
    return Share(sharded=_bytes(query + unfold + output, bits), replicated=_bytes(low_rank, bits))


def _indexer_parameters(text: Config, hidden: int) -> int:
    heads, dim = text.get("index_n_heads") or 0, text.get("index_head_dim") or 128
    return int((text.get("q_lora_rank") or hidden) * heads * dim + hidden * dim + hidden * heads)


def _recurrent_parameters(text: Config, hidden: int, layer: CacheLayer) -> int:
    if layer.state is None:
        return 0
    channels = layer.state.conv_channels + layer.state.conv_group_channels * layer.state.groups
    value_heads = text.get("linear_num_value_heads")
    if value_heads:
        values = value_heads * text["linear_value_head_dim"]
        return int(hidden * (channels + values + 2 * value_heads) + values * hidden)
    inner = layer.state.conv_channels
    return int(hidden * (channels + inner) + inner * hidden)


def _feed_forward(text: Config, hidden: int, index: int, bits: float, dtype_bytes: int) -> Share:
    if text.get("model_type") == "nemotron_h" and not _is_feed_forward(text, index):
        return Share()
    matrices = 2 if text.get("model_type") in _UNGATED else 3
    experts = next((int(text[name]) for name in _EXPERT_COUNTS if text.get(name)), 0)
    wide = int(_intermediate(text, index))
    dense = Share(sharded=_bytes(matrices * hidden * wide, bits))
    if not experts or not _is_sparse(text, index):
        return dense
    narrow = int(text.get("moe_intermediate_size") or wide)
    routed = experts * matrices * hidden * narrow
    shared_width = text.get("shared_expert_intermediate_size") or narrow * (text.get("n_shared_experts") or 0)
    shared = matrices * hidden * int(shared_width)
    share = Share(sharded=_bytes(routed + shared, bits), replicated=hidden * experts * dtype_bytes)
    # Gemma-4's mixture runs beside a dense layer, not in its place.
    return share.plus(dense) if text.get("enable_moe_block") else share


_EXPERT_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")


def _intermediate(text: Config, index: int) -> int:
    for name in ("intermediate_size", "n_inner", "decoder_ffn_dim", "ffn_dim"):
        width = text.get(name)
        if isinstance(width, list) and width:
            return int(width[min(index, len(width) - 1)])
        if isinstance(width, int):
            shared_from = num_layers(text) - (text.get("num_kv_shared_layers") or 0)
            return width * 2 if text.get("use_double_wide_mlp") and index >= shared_from else width
    return 4 * _width(text)


def _is_sparse(text: Config, index: int) -> bool:
    if text.get("enable_moe_block") is False:
        return False
    types = text.get("mlp_layer_types")
    if isinstance(types, list) and index < len(types):
        return bool(types[index] == "sparse")
    if index < (text.get("first_k_dense_replace") or 0) or index in (text.get("mlp_only_layers") or ()):
        return False
    step = text.get("decoder_sparse_step") or text.get("moe_layer_freq") or 1
    return not isinstance(step, int) or (index + 1) % step == 0


def _is_feed_forward(text: Config, index: int) -> bool:
    pattern = text.get("hybrid_override_pattern")
    return isinstance(pattern, str) and index < len(pattern) and pattern[index] in "-E"


def _tower_parameters(tower: object) -> int:
    """Parameters of a vision or audio encoder, from its own configuration."""
    if not isinstance(tower, Mapping):
        return 0
    width = tower.get("hidden_size") or tower.get("embed_dim") or tower.get("d_model") or 0
    depth = tower.get("num_hidden_layers") or tower.get("depth") or tower.get("encoder_layers") or 0
    inner = tower.get("intermediate_size") or tower.get("encoder_ffn_dim") or 4 * width
    matrices = 3 if str(tower.get("model_type")).startswith(("gemma4", "qwen2_5_vl")) else 2
    return int(depth) * (4 * int(width) ** 2 + matrices * int(width) * int(inner))


def _per_layer_embeddings(text: Config, hidden: int) -> int:
    """Gemma-3n and -4 small: every layer has a narrow embedding of its own, which is never divided."""
    narrow = text.get("hidden_size_per_layer_input") or 0
    rows = text.get("vocab_size_per_layer_input") or 0
    layers = num_layers(text)
    return int(rows * narrow * layers + hidden * narrow * layers) if narrow else 0

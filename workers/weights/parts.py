"""The parts that layers are made of: attention and feed-forward variants, as lists of expected tensors.

Names and shapes were checked against what transformers 5.19 saves and vLLM 0.32 loads.
"""

from collections.abc import Iterable

from workers.weights.expectations import Choice, Part, TextConfig, Weight, linear, norm, plus, shape, times


def gqa(
    *,
    qkv_bias: bool | None = None,
    out_bias: bool | None = None,
    qk_norm: str = "",
    out: str = "o_proj",
    gated: bool = False,
    norm_names: tuple[str, str] = ("q_norm", "k_norm"),
) -> Part:
    """Grouped-query attention with separate projections.

    `qkv_bias` None follows `attention_bias`; `qk_norm` is "head" (one weight per head element) or "full" (per projected
    element); `gated` doubles the query projection by an output gate (Qwen3-Next).
    """

    def weights(config: TextConfig, layer: int, at: str) -> Iterable[Weight | Choice]:
        head, hidden = config.head_dim(layer), config.hidden
        queries, keys = times(config.heads, head), times(config.layer_kv_heads(layer), head)
        bias = config.flag("attention_bias") if qkv_bias is None else qkv_bias
        yield from linear(f"{at}q_proj", times(queries, 2 if gated else 1), hidden, bias=bias)
        yield from linear(f"{at}k_proj", keys, hidden, bias=bias)
        yield from linear(f"{at}v_proj", keys, hidden, bias=bias)
        yield from linear(f"{at}{out}", hidden, queries, bias=out_bias)
        if qk_norm:
            sizes = (head, head) if qk_norm == "head" else (queries, keys)
            for name, size in zip(norm_names, sizes, strict=True):
                yield from norm(at + name, size)

    return weights


def fused_gqa(config: TextConfig, layer: int, at: str) -> Iterable[Weight | Choice]:
    """Phi-3: query, key and value in one projection."""
    head = config.head_dim(layer)
    queries = times(config.heads, head)
    yield from linear(f"{at}qkv_proj", plus(queries, times(2, config.kv_heads, head)), config.hidden)
    yield from linear(f"{at}o_proj", config.hidden, queries)


def phi_attention(config: TextConfig, layer: int, at: str) -> Iterable[Weight | Choice]:
    """Phi-1 and Phi-2, which can normalise queries and keys with weight and bias."""
    yield from gqa(qkv_bias=True, out_bias=True, out="dense")(config, layer, at)
    if config.flag("qk_layernorm"):
        for name in ("q_layernorm", "k_layernorm"):
            yield from norm(at + name, config.head_dim(layer), bias=True)


def optional_qk_norm(config: TextConfig, layer: int, at: str) -> Iterable[Weight | Choice]:
    """GLM-4.5 and later: query and key norms only where `use_qk_norm` says so."""
    yield from gqa(qk_norm="head" if config.flag("use_qk_norm") else "")(config, layer, at)


def sink_attention(config: TextConfig, layer: int, at: str) -> Iterable[Weight | Choice]:
    """GPT-OSS: biases everywhere and a learned sink per head."""
    yield from gqa(qkv_bias=True, out_bias=True)(config, layer, at)
    yield Weight(f"{at}sinks", shape(config.heads))


def gemma4_attention(config: TextConfig, layer: int, at: str) -> Iterable[Weight | Choice]:
    """Gemma 4: global layers may take their values from the keys; the last layers may share another layer's keys."""
    shared = config.layers - (config.number("num_kv_shared_layers") or 0)
    values_are_keys = bool(config.flag("attention_k_eq_v")) and config.layer_type(layer) == "full_attention"
    for weight in gqa(qk_norm="head")(config, layer, at):
        if not isinstance(weight, Weight):
            continue
        part = weight.name.removeprefix(at).partition(".")[0]
        spare = (part in {"k_proj", "v_proj", "k_norm"} and layer >= shared) or (part == "v_proj" and values_are_keys)
        yield weight._replace(required=False) if spare else weight


def mla(config: TextConfig, layer: int, at: str) -> Iterable[Weight | Choice]:
    """Multi-head latent attention (DeepSeek V2 and later, GLM 5), with the sparse indexer where configured."""
    hidden, heads = config.hidden, config.heads
    nope, rope = config.number("qk_nope_head_dim"), config.number("qk_rope_head_dim")
    query_rank, rank, value = config.number("q_lora_rank"), config.number("kv_lora_rank"), config.number("v_head_dim")
    bias = config.flag("attention_bias")
    queries = times(heads, plus(nope, rope))
    if query_rank:
        yield from linear(f"{at}q_a_proj", query_rank, hidden, bias=bias)
        yield from norm(f"{at}q_a_layernorm", query_rank)
        yield from linear(f"{at}q_b_proj", queries, query_rank)
    else:
        yield from linear(f"{at}q_proj", queries, hidden)
    yield from linear(f"{at}kv_a_proj_with_mqa", plus(rank, rope), hidden, bias=bias)
    yield from norm(f"{at}kv_a_layernorm", rank)
    yield from linear(f"{at}kv_b_proj", times(heads, plus(nope, value)), rank)
    yield from linear(f"{at}o_proj", hidden, times(heads, value), bias=bias)
    if (index_heads := config.number("index_n_heads")) and config.number("index_topk"):
        required = _has_indexer(config, layer)
        for weight in _indexer(config, index_heads, query_rank, f"{at}indexer."):
            yield weight if required else weight._replace(required=False)


def _indexer(config: TextConfig, heads: int, query_rank: int | None, at: str) -> list[Weight]:
    size = config.number("index_head_dim")
    return [
        *linear(f"{at}wq_b", times(heads, size), query_rank),
        *linear(f"{at}wk", size, config.hidden),
        *norm(f"{at}k_norm", size, bias=True),
        *linear(f"{at}weights_proj", heads, config.hidden),
    ]


def _has_indexer(config: TextConfig, layer: int) -> bool:
    """Newer models let several layers share one indexer's choice of tokens; only the first of them has its weights."""
    if layer >= config.layers:  # A draft layer scores for itself.
        return True
    kinds = config.items("indexer_types")
    if layer < len(kinds):
        return bool(kinds[layer] == "full")
    pattern = config.raw.get("index_topk_pattern")
    if isinstance(pattern, str | list) and layer < len(pattern):
        return bool(pattern[layer] != "S")
    every, offset = config.number("index_topk_freq") or 1, config.number("index_skip_topk_offset")
    return max(layer - (2 if offset is None else offset) + 1, 0) % every == 0


def gated_delta(*, split: bool) -> Part:
    """Gated DeltaNet (the linear attention of Qwen3-Next; `split` is Qwen3.5's naming of the projections)."""

    def weights(config: TextConfig, _layer: int, at: str) -> Iterable[Weight | Choice]:
        hidden = config.hidden
        value_heads, value_dim = config.number("linear_num_value_heads"), config.number("linear_value_head_dim")
        keys = times(config.number("linear_num_key_heads"), config.number("linear_key_head_dim"))
        values = times(value_heads, value_dim)
        mixed = plus(times(2, keys), values)
        if split:
            yield from linear(f"{at}in_proj_qkv", mixed, hidden)
            yield from linear(f"{at}in_proj_z", values, hidden)
            yield from linear(f"{at}in_proj_a", value_heads, hidden)
            yield from linear(f"{at}in_proj_b", value_heads, hidden)
        else:
            yield from linear(f"{at}in_proj_qkvz", plus(mixed, values), hidden)
            yield from linear(f"{at}in_proj_ba", times(2, value_heads), hidden)
        yield Weight(f"{at}conv1d.weight", shape(mixed, 1, config.number("linear_conv_kernel_dim")))
        yield Weight(f"{at}A_log", shape(value_heads))
        yield Weight(f"{at}dt_bias", shape(value_heads))
        yield from norm(f"{at}norm", value_dim)
        yield from linear(f"{at}out_proj", hidden, values)

    return weights


def gated_mlp(at: str, hidden: int | None, width: int | None, *, bias: bool | None = None) -> list[Weight]:
    """Gate, up and down projection."""
    return [
        *linear(f"{at}gate_proj", width, hidden, bias=bias),
        *linear(f"{at}up_proj", width, hidden, bias=bias),
        *linear(f"{at}down_proj", hidden, width, bias=bias),
    ]


def mlp(config: TextConfig, layer: int, at: str) -> Iterable[Weight | Choice]:
    """The gated feed-forward part of nearly every dense model."""
    return gated_mlp(at, config.hidden, config.intermediate(layer), bias=config.flag("mlp_bias"))


def gemma4_mlp(config: TextConfig, layer: int, at: str) -> Iterable[Weight | Choice]:
    """Gemma 4 can double the width in the layers that share keys and values."""
    shares = layer >= config.layers - (config.number("num_kv_shared_layers") or 0)
    wide = 2 if config.flag("use_double_wide_mlp") and shares else 1
    return gated_mlp(at, config.hidden, times(config.intermediate(layer), wide))


def fused_mlp(config: TextConfig, layer: int, at: str) -> Iterable[Weight | Choice]:
    """Phi-3 and GLM-4: gate and up in one projection."""
    width = config.intermediate(layer)
    return [
        *linear(f"{at}gate_up_proj", times(2, width), config.hidden),
        *linear(f"{at}down_proj", config.hidden, width),
    ]


def plain_mlp(first: str, second: str, *, bias: bool | None = None) -> Part:
    """Two projections with an activation between them."""

    def weights(config: TextConfig, layer: int, at: str) -> Iterable[Weight | Choice]:
        width = config.intermediate(layer)
        yield from linear(at + first, width, config.hidden, bias=bias)
        yield from linear(at + second, config.hidden, width, bias=bias)

    return weights


def expert_choice(
    at: str,
    count: int,
    hidden: int | None,
    width: int | None,
    *,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Choice:
    """Routed experts, one by one as most hubs have them, or stacked in two tensors of three dimensions."""
    gate, up, down = names
    singly = [
        weight._replace(name=f"{at}{expert}.{weight.name}")
        for expert in range(count)
        for name, out, into in ((gate, width, hidden), (up, width, hidden), (down, hidden, width))
        for weight in linear(name, out, into)[:1]
    ]
    double = times(2, width)
    stacked = (
        Weight(f"{at}gate_up_proj", shape(count, double, hidden), other_shape=shape(count, hidden, double)),
        Weight(f"{at}down_proj", shape(count, hidden, width), other_shape=shape(count, width, hidden)),
    )
    modules = tuple(weight._replace(name=f"{weight.name}.weight", linear=True) for weight in stacked)
    return Choice((tuple(singly), stacked, modules))


def gpt_oss_experts(config: TextConfig, layer: int, at: str) -> Iterable[Weight | Choice]:
    """GPT-OSS: stacked experts, in MXFP4 blocks of 32 as published, or in plain floats."""
    count, hidden = config.experts, config.hidden
    width = config.intermediate(layer)
    double = times(2, width)
    yield from linear(f"{at}router", count, hidden, bias=True)
    biases = (
        Weight(f"{at}experts.gate_up_proj_bias", shape(count, double)),
        Weight(f"{at}experts.down_proj_bias", shape(count, hidden)),
    )
    blocks = tuple(
        Weight(f"{at}experts.{name}_{kind}", shape(*sizes))
        for name, out, into in (("gate_up_proj", double, hidden), ("down_proj", hidden, width))
        for kind, sizes in (
            ("blocks", (count, out, None if into is None else into // 32, 16)),
            ("scales", (count, out, None if into is None else into // 32)),
        )
    )
    floats = (
        Weight(f"{at}experts.gate_up_proj", shape(count, hidden, double), other_shape=shape(count, double, hidden)),
        Weight(f"{at}experts.down_proj", shape(count, width, hidden), other_shape=shape(count, hidden, width)),
    )
    singly = expert_choice(f"{at}experts.", count, hidden, width).options[0]
    yield Choice((blocks + biases, floats + biases, singly))

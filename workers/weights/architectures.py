"""Which tensors a configuration implies, per family of architectures.

A family is a row of parts. Adding an architecture is adding a row; `tests/weights/data` holds what transformers really
saves for each, so a wrong row fails a test.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from workers.weights.expectations import (
    Choice,
    Expectation,
    Group,
    ImpossibleConfigError,
    Part,
    TextConfig,
    Weight,
    linear,
    norm,
    shape,
    times,
)
from workers.weights.parts import (
    expert_choice,
    fused_gqa,
    fused_mlp,
    gated_delta,
    gated_mlp,
    gemma4_attention,
    gemma4_mlp,
    gpt_oss_experts,
    gqa,
    mla,
    mlp,
    optional_qk_norm,
    phi_attention,
    plain_mlp,
    sink_attention,
)

Ends = Callable[[TextConfig], Iterable[Expectation]]
_TWO_NORMS = ("input_layernorm", "post_attention_layernorm")
_FOUR_NORMS = (*_TWO_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def _nothing(_config: TextConfig) -> Iterable[Expectation]:
    return ()


@dataclass(frozen=True, slots=True)
class Family:
    """How one family of models is built. `at` arguments of parts are prefixes such as `layers.3.self_attn.`."""

    attention: Part
    feed_forward: Part = mlp
    # Where a layer's feed-forward part is routed; `mlp.` unless the family names it otherwise.
    mixture: Part | None = None
    feed_forward_name: str = "mlp."
    mixture_name: str = "mlp."
    norms: tuple[str, ...] = _TWO_NORMS
    norm_bias: bool = False
    final_norm: str = "norm"
    # What `tie_word_embeddings` means where the configuration doesn't say.
    tied: bool = False
    head_bias: bool = False
    per_layer: Part | None = None
    ends: Ends = _nothing
    # Whether layers past the last are draft layers for speculative decoding.
    draft_layers: bool = False


def _routed_layer(config: TextConfig, layer: int) -> bool:
    """Whether a layer's feed-forward part is a mixture of experts, by any of the ways in which families say it."""
    kinds = config.items("mlp_layer_types")
    if layer < len(kinds):
        return bool(kinds[layer] == "sparse")
    if layer in config.items("mlp_only_layers"):
        return False
    if layer < (config.number("first_k_dense_replace") or 0):
        return False
    frequency = config.raw.get("moe_layer_freq")
    if isinstance(frequency, list):
        return layer >= len(frequency) or bool(frequency[layer])
    if frequency and type(frequency) is int and layer % frequency:
        return False
    return (layer + 1) % (config.number("decoder_sparse_step") or 1) == 0


def _qwen_mixture(*, shared: bool) -> Part:
    def weights(config: TextConfig, _layer: int, at: str) -> Iterable[Weight | Choice]:
        hidden, experts = config.hidden, config.experts
        yield from linear(f"{at}gate", experts, hidden)
        yield expert_choice(f"{at}experts.", experts, hidden, config.number("moe_intermediate_size"))
        width = config.number("shared_expert_intermediate_size")
        if shared and width:
            yield from gated_mlp(f"{at}shared_expert.", hidden, width)
            yield from linear(f"{at}shared_expert_gate", 1, hidden)

    return weights


def _deepseek_mixture(*, correction: bool) -> Part:
    def weights(config: TextConfig, _layer: int, at: str) -> Iterable[Weight | Choice]:
        hidden, experts = config.hidden, config.experts
        width = config.number("moe_intermediate_size")
        yield from linear(f"{at}gate", experts, hidden)
        # DeepSeek-V2 ranks experts without a correction, V3 with one ("noaux_tc").
        required = correction and config.raw.get("topk_method", "noaux_tc") == "noaux_tc"
        yield Weight(f"{at}gate.e_score_correction_bias", shape(experts), required)
        yield expert_choice(f"{at}experts.", experts, hidden, width)
        if shared := config.number("n_shared_experts"):
            yield from gated_mlp(f"{at}shared_experts.", hidden, times(width, shared))

    return weights


def _mixtral_mixture(*, correction: bool = False) -> Part:
    def weights(config: TextConfig, layer: int, at: str) -> Iterable[Weight | Choice]:
        hidden, experts = config.hidden, config.experts
        yield from linear(f"{at}gate", experts, hidden)
        if correction:
            yield Weight(f"{at}e_score_correction_bias", shape(experts))
        names = ("w1", "w3", "w2")
        yield expert_choice(f"{at}experts.", experts, hidden, config.intermediate(layer), names=names)

    return weights


def _gemma4_layer(config: TextConfig, _layer: int, at: str) -> Iterable[Weight | Choice]:
    hidden = config.hidden
    yield Weight(f"{at}layer_scalar", (1,), required=False)
    if width := config.number("hidden_size_per_layer_input"):
        yield from linear(f"{at}per_layer_input_gate", width, hidden)
        yield from linear(f"{at}per_layer_projection", hidden, width)
        yield from norm(f"{at}post_per_layer_input_norm", hidden)
    if config.flag("enable_moe_block") and (experts := config.experts):
        for name in ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
            yield from norm(at + name, hidden)
        yield from linear(f"{at}router.proj", experts, hidden)
        yield Weight(f"{at}router.scale", shape(hidden))
        yield Weight(f"{at}router.per_expert_scale", shape(experts))
        yield expert_choice(f"{at}experts.", experts, hidden, config.number("moe_intermediate_size"))


def _gemma4_ends(config: TextConfig) -> Iterable[Expectation]:
    if width := config.number("hidden_size_per_layer_input"):
        total = times(config.layers, width)
        rows = config.number("vocab_size_per_layer_input")
        yield Weight("embed_tokens_per_layer.weight", shape(rows, total), linear=True)
        yield from linear("per_layer_model_projection", total, config.hidden)
        yield from norm("per_layer_projection_norm", width)


_GATED_GQA = gqa(qk_norm="head", gated=True)


def _hybrid(*, split: bool) -> Part:
    """Qwen3-Next: three layers of Gated DeltaNet, then one of gated attention."""
    delta = gated_delta(split=split)

    def weights(config: TextConfig, layer: int, at: str) -> Iterable[Weight | Choice]:
        kind = config.layer_type(layer)
        every = config.number("full_attention_interval") or 4
        full = kind == "full_attention" if kind else (layer + 1) % every == 0
        if full or layer >= config.layers:
            return _GATED_GQA(config, layer, f"{at}self_attn.")
        return delta(config, layer, f"{at}linear_attn.")

    return weights


_LLAMA = Family(gqa())
_QWEN3 = Family(gqa(qk_norm="head"))
_QWEN2 = Family(gqa(qkv_bias=True))
_GEMMA = Family(gqa(), tied=True)
_OLMO2 = Family(gqa(qk_norm="full"), norms=("post_attention_layernorm", "post_feedforward_layernorm"))
_DEEPSEEK_V2 = Family(mla, mixture=_deepseek_mixture(correction=False), draft_layers=True)
_DEEPSEEK_V3 = replace(_DEEPSEEK_V2, mixture=_deepseek_mixture(correction=True))
_MIXTRAL = Family(gqa(), mixture=_mixtral_mixture(), mixture_name="block_sparse_moe.")
_GLM = Family(gqa(), feed_forward=fused_mlp)
_GLM4 = replace(_GLM, norms=(*_TWO_NORMS, "post_self_attn_layernorm", "post_mlp_layernorm"))
_GLM4_MOE = Family(optional_qk_norm, mixture=_deepseek_mixture(correction=True), draft_layers=True)
_QWEN3_NEXT = Family(_hybrid(split=False), mixture=_qwen_mixture(shared=True))
_QWEN3_5 = Family(_hybrid(split=True))
_GEMMA4 = Family(
    gemma4_attention, feed_forward=gemma4_mlp, norms=_FOUR_NORMS, tied=True, per_layer=_gemma4_layer, ends=_gemma4_ends
)

# By the text configuration's model_type, with a trailing "_text" left out.
FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "ministral": _LLAMA,
    "ministral3": _LLAMA,
    "granite": _LLAMA,
    "smollm3": _LLAMA,
    "seed_oss": Family(gqa(qkv_bias=None)),
    "mixtral": _MIXTRAL,
    "minimax_m2": Family(
        gqa(qk_norm="full"), mixture=_mixtral_mixture(correction=True), mixture_name="block_sparse_moe."
    ),
    "phimoe": replace(_MIXTRAL, norm_bias=True, head_bias=True),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_moe": Family(gqa(qkv_bias=True), mixture=_qwen_mixture(shared=True)),
    "qwen3": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_moe": Family(gqa(qk_norm="head"), mixture=_qwen_mixture(shared=False)),
    "qwen3_vl_moe": Family(gqa(qk_norm="head"), mixture=_qwen_mixture(shared=False)),
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": Family(_hybrid(split=True), mixture=_qwen_mixture(shared=True)),
    "gemma": _GEMMA,
    "gemma2": Family(gqa(), norms=_FOUR_NORMS, tied=True),
    "gemma3": Family(gqa(qk_norm="head"), norms=_FOUR_NORMS, tied=True),
    "gemma4": _GEMMA4,
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm": _GLM,
    "glm4": _GLM4,
    "glm4v": _GLM4,
    "glm4_moe": _GLM4_MOE,
    "glm4v_moe": _GLM4_MOE,
    "glm4_moe_lite": _DEEPSEEK_V3,
    "glm_moe_dsa": _DEEPSEEK_V3,
    "phi": Family(
        phi_attention,
        feed_forward=plain_mlp("fc1", "fc2", bias=True),
        norms=("input_layernorm",),
        norm_bias=True,
        final_norm="final_layernorm",
        head_bias=True,
    ),
    "phi3": Family(fused_gqa, feed_forward=fused_mlp),
    "gpt_oss": Family(sink_attention, feed_forward=gpt_oss_experts),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2,
    "exaone4": Family(gqa(qk_norm="head"), norms=("post_attention_layernorm", "post_feedforward_layernorm")),
    "dots1": Family(gqa(qk_norm="head"), mixture=_deepseek_mixture(correction=True)),
    "starcoder2": Family(gqa(qkv_bias=None), feed_forward=plain_mlp("c_fc", "c_proj"), norm_bias=True, tied=True),
    "cohere2": Family(gqa(), norms=("input_layernorm",), tied=True),
}

# What may follow a family's own name in an architecture's class name. A draft head or an adapter has another set of tensors.
_KNOWN_ENDINGS = (
    "ForCausalLM",
    "ForConditionalGeneration",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForRewardModel",
    "LMHeadModel",
    "Model",
)
_CLASS_ALIASES = {
    "KimiK2": "deepseekv3",
    "GlmMoeDsa": "glmmoedsa",
    "MistralLarge3": "deepseekv3",
}


@dataclass(frozen=True, slots=True)
class Implied:
    """What a configuration implies: the expectations, the family's name, and whether the output head is its own tensor."""

    family: str
    layers: int
    expectations: tuple[Expectation, ...]


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config.json that describes the text model."""
    for name in ("text_config", "llm_config", "language_config"):
        inner = config.get(name)
        if isinstance(inner, dict):
            return inner
    thinker = config.get("thinker_config")
    return text_config(thinker) if isinstance(thinker, dict) else config


def class_names(config: Mapping[str, Any]) -> list[str]:
    """The architectures' class names that a config.json gives."""
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def family_name(config: Mapping[str, Any]) -> str | None:
    """The family whose table describes a config.json, or None if there is none to be sure of.

    Both the text model's type and the class name must be known: a draft head or a remote-code variant often borrows
    the type of the model it was made from.
    """
    text = text_config(config)
    model_type = text.get("model_type", config.get("model_type"))
    if not isinstance(model_type, str):
        return None
    name = model_type.removesuffix("_text")
    if name not in FAMILIES:
        return None
    classes = class_names(config)
    if not classes:
        return name
    architecture = classes[0]
    if not architecture.endswith(_KNOWN_ENDINGS):
        return None
    if text is not config:
        return name
    return name if _stem(architecture) in _spellings(name) else None


def _stem(architecture: str) -> str:
    for ending in _KNOWN_ENDINGS:
        if architecture.endswith(ending):
            stem = architecture.removesuffix(ending)
            return _CLASS_ALIASES.get(stem, stem.lower().replace("_", ""))
    return architecture.lower()


def _spellings(name: str) -> set[str]:
    plain = name.replace("_", "")
    shared = {"kimi_k2": {"deepseekv3"}, "granite": {"llama"}, "seed_oss": {"seedoss"}, "phimoe": {"phimoe", "phi3moe"}}
    return {plain, plain + "text", *shared.get(name, set())}


def implied(config: Mapping[str, Any]) -> Implied | None:
    """Every tensor that a config.json implies, or None where there is no table for its architecture.

    Raises ImpossibleConfigError when the numbers of layers or experts can't be meant.
    """
    name = family_name(config)
    if name is None:
        return None
    text = TextConfig(text_config(config))
    if not text.layers:
        return None
    family = FAMILIES[name]
    expectations = [*_ends(config, text, family)]
    for layer in range(text.layers):
        expectations.extend(_layer(text, family, layer, f"layers.{layer}."))
    expectations.extend(_draft(config, text, family, name))
    if len(expectations) > 4_000_000:  # pragma: no cover - bounded by the two limits above
        raise ImpossibleConfigError("the configuration implies millions of tensors")
    return Implied(name, text.layers, tuple(expectations))


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether the output head may be the embedding: then a separate one is allowed but not needed."""
    text = text_config(config)
    said = [part.get("tie_word_embeddings") for part in (config, text)]
    if any(isinstance(value, bool) for value in said):
        return any(value is True for value in said)
    name = family_name(config)
    return name is None or FAMILIES[name].tied


def _ends(config: Mapping[str, Any], text: TextConfig, family: Family) -> Iterable[Expectation]:
    rows, hidden = text.number("vocab_size"), text.hidden
    yield Weight("embed_tokens.weight", shape(rows, hidden), linear=True)
    yield from norm(family.final_norm, hidden, bias=family.norm_bias)
    architecture = next(iter(class_names(config)), "")
    generates = architecture.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")) or not architecture
    needed = generates and not is_tied(config)
    yield Weight("^lm_head.weight", shape(rows, hidden), needed, linear=True)
    yield Weight("^lm_head.bias", shape(rows), needed and family.head_bias and config.get("lm_head_bias", True) is True)
    yield from family.ends(text)


def _layer(text: TextConfig, family: Family, layer: int, at: str) -> Iterable[Weight | Choice]:
    for name in family.norms:
        yield from norm(at + name, text.hidden, bias=family.norm_bias)
    hybrid = family in (_QWEN3_NEXT, _QWEN3_5, FAMILIES["qwen3_5_moe"])
    yield from family.attention(text, layer, at if hybrid else f"{at}self_attn.")
    if family.mixture is not None and text.experts and _routed_layer(text, layer):
        yield from family.mixture(text, layer, at + family.mixture_name)
    else:
        yield from family.feed_forward(text, layer, at + family.feed_forward_name)
    if family.per_layer is not None:
        yield from family.per_layer(text, layer, at)


def _draft(config: Mapping[str, Any], text: TextConfig, family: Family, name: str) -> Iterable[Group]:
    """Layers for multi-token prediction: many copies leave them out, which only costs the speculation."""
    hidden = text.hidden
    if name in {"qwen3_next", "qwen3_5", "qwen3_5_moe"}:
        weights = [*linear("^mtp.fc", hidden, times(2, hidden)), *norm("^mtp.norm", hidden)]
        weights += [*norm("^mtp.pre_fc_norm_embedding", hidden), *norm("^mtp.pre_fc_norm_hidden", hidden)]
        block = _layer(text, family, text.layers, "^mtp.layers.0.")
        yield Group("the draft layer (mtp)", (*weights, *block))
        return
    count = text.number("num_nextn_predict_layers") or (_number(config, "num_nextn_predict_layers") or 0)
    for layer in range(text.layers, text.layers + min(count, 8) if family.draft_layers else text.layers):
        at = f"layers.{layer}."
        rows = text.number("vocab_size")
        own = [*linear(f"{at}eh_proj", hidden, times(2, hidden)), *norm(f"{at}enorm", hidden)]
        own += [*norm(f"{at}hnorm", hidden), *norm(f"{at}shared_head.norm", hidden)]
        own += [Weight(f"{at}embed_tokens.weight", shape(rows, hidden), required=False, linear=True)]
        own += [Weight(f"{at}shared_head.head.weight", shape(rows, hidden), required=False, linear=True)]
        yield Group(f"draft layer {layer}", (*own, *_layer(text, family, layer, at)))


def _number(config: Mapping[str, Any], name: str) -> int | None:
    return TextConfig(config).number(name)

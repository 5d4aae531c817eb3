"""The words in which architecture tables speak: one tensor, a choice between layouts, a group that comes whole or not at all.

Names are relative to the text stack (`layers.0.self_attn.q_proj.weight`); a leading `^` means the top level
(`^lm_head.weight`). Shapes are [out, in] as in torch.nn.Linear; None is a shape that the configuration doesn't settle.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Shape = tuple[int, ...]
# A published config.json may leave out what is its class's default. Only in these families is the default computed from
# other entries; elsewhere it is a number of the class (Gemma 256, Qwen3 128), so that a missing entry means "unknown" here.
_KV_HEADS_FOLLOW_HEADS = frozenset({"llama", "phi", "phi3", "olmo2", "olmo3", "granite"})
_HEAD_DIM_FOLLOWS_HIDDEN = _KV_HEADS_FOLLOW_HEADS | frozenset(
    {"mistral", "mixtral", "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "phimoe", "smollm3", "starcoder2", "cohere2"}
    | {"exaone4", "dots1", "minimax_m2"}
)
MOST_LAYERS = 1_024
MOST_EXPERTS = 8_192


class Weight(NamedTuple):
    """One expected tensor. `linear` ones may be stored quantised, in another form and with scales beside them."""

    name: str
    shape: Shape | None = None
    required: bool = True
    linear: bool = False
    other_shape: Shape | None = None


class Choice(NamedTuple):
    """Layouts of which one must be complete, such as experts one by one or stacked."""

    options: tuple[tuple[Weight, ...], ...]


class Group(NamedTuple):
    """Tensors that are all there or all absent, such as layers for speculative decoding."""

    what: str
    weights: tuple["Weight | Choice", ...]


Expectation = Weight | Choice | Group
Part = Callable[["TextConfig", int, str], Iterable[Weight | Choice]]


class ImpossibleConfigError(ValueError):
    """A configuration whose numbers no checkpoint can have."""


@dataclass(frozen=True)
class TextConfig:
    """Reads numbers from the text part of a config.json without trusting their types; what isn't there is None."""

    raw: Mapping[str, Any]

    def number(self, *names: str) -> int | None:
        """The first of the named entries that is a whole number of at least 0."""
        for name in names:
            value = self.raw.get(name)
            if type(value) is int and value >= 0:
                return value
        return None

    def flag(self, name: str) -> bool | None:
        """A truth value, or None where the configuration doesn't say."""
        value = self.raw.get(name)
        return value if isinstance(value, bool) else None

    def items(self, name: str) -> list[Any]:
        """A list, or an empty one."""
        value = self.raw.get(name)
        return value if isinstance(value, list) else []

    @property
    def layers(self) -> int:
        """Number of layers of the text stack; raises ImpossibleConfigError for one that can't be."""
        layers = self.number("num_hidden_layers", "n_layer", "num_layers") or 0
        if layers > MOST_LAYERS:
            raise ImpossibleConfigError(f"it says {layers:,} layers")
        return layers

    @property
    def hidden(self) -> int | None:
        """Width of the residual stream."""
        return self.number("hidden_size", "n_embd", "d_model")

    @property
    def heads(self) -> int | None:
        """Number of query heads."""
        return self.number("num_attention_heads", "n_head")

    @property
    def kv_heads(self) -> int | None:
        """Number of key/value heads."""
        own = self.number("num_key_value_heads")
        return own or (self.heads if self._family in _KV_HEADS_FOLLOW_HEADS else None)

    @property
    def _family(self) -> str:
        return str(self.raw.get("model_type", "")).removesuffix("_text")

    def layer_type(self, layer: int) -> str:
        """The layer's entry of `layer_types`, or an empty text."""
        types = self.items("layer_types")
        return str(types[layer]) if layer < len(types) else ""

    @property
    def experts(self) -> int:
        """Number of routed experts, 0 for none; raises ImpossibleConfigError for one that can't be."""
        experts = self.number("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts") or 0
        if experts > MOST_EXPERTS:
            raise ImpossibleConfigError(f"it says {experts:,} experts")
        return experts

    def _own(self, layer: int, name: str) -> int | None:
        """A layer's own value in `per_layer_config`, whose keys are layer numbers, padded with zeros or not."""
        per_layer = self.raw.get("per_layer_config")
        if not isinstance(per_layer, dict):
            return None
        for key in (str(layer), f"{layer:02}", f"{layer:03}"):
            own = per_layer.get(key)
            if isinstance(own, dict) and type(own.get(name)) is int:
                return int(own[name])
        return None

    def head_dim(self, layer: int) -> int | None:
        """Size of one head in a layer; Gemma 4 has larger heads in its global layers."""
        if size := self._own(layer, "head_dim"):
            return size
        if self.layer_type(layer) == "full_attention":
            if size := self.number("global_head_dim"):
                return size
            if self._family == "gemma4" and not self.raw.get("per_layer_config"):
                return None
        if size := self.number("head_dim"):
            return size
        follows = self._family in _HEAD_DIM_FOLLOWS_HIDDEN
        return self.hidden // self.heads if follows and self.hidden and self.heads else None

    def layer_kv_heads(self, layer: int) -> int | None:
        """Number of key/value heads in a layer."""
        if heads := self._own(layer, "num_key_value_heads"):
            return heads
        if self.layer_type(layer) == "full_attention" and self.flag("attention_k_eq_v"):
            return self.number("num_global_key_value_heads") or self.kv_heads
        return self.kv_heads

    def intermediate(self, layer: int) -> int | None:
        """Width of a layer's feed-forward part."""
        sizes = self.items("intermediate_size")
        if layer < len(sizes) and type(sizes[layer]) is int:
            return int(sizes[layer])
        return self.number("intermediate_size", "ffn_dim", "n_inner")


def times(*factors: int | None) -> int | None:
    """A product of sizes, unknown if one of them is."""
    product = 1
    for factor in factors:
        if factor is None:
            return None
        product *= factor
    return product


def plus(*terms: int | None) -> int | None:
    """A sum of sizes, unknown if one of them is."""
    return None if any(term is None for term in terms) else sum(term for term in terms if term is not None)


def shape(*sizes: int | None) -> Shape | None:
    """A shape, unknown if one of its sizes is."""
    known = tuple(size for size in sizes if size is not None)
    return known if len(known) == len(sizes) else None


def linear(name: str, out: int | None, into: int | None, *, bias: bool | None = None) -> list[Weight]:
    """A linear module: its weight, and its bias if there must (True), may (None) or may by mistake (False) be one."""
    return [Weight(f"{name}.weight", shape(out, into), linear=True), Weight(f"{name}.bias", shape(out), bias is True)]


def norm(name: str, size: int | None, *, bias: bool = False) -> list[Weight]:
    """A normalisation's weight, and its bias if it has one."""
    weights = [Weight(f"{name}.weight", shape(size))]
    return [*weights, Weight(f"{name}.bias", shape(size))] if bias else weights

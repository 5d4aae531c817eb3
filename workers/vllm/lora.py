"""LoRA adapters: whether an engine takes any, what that costs, and whether an adapter was made for a model."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ENABLE = "--enable-lora"
DISABLE = "--no-enable-lora"
RUNTIME_VARIABLE = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
"""Gives an engine the endpoints that load and unload. Slipway sets it, and only where adapters are on."""
USUAL_RANK = 16
USUAL_AT_ONCE = 1
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What `--max-lora-rank` takes."""

_WHOLE = re.compile(r"^[0-9]{1,6}$")


@dataclass(frozen=True)
class LoraSettings:
    """What an engine's arguments say about adapters.

    Attributes:
        enabled: whether it takes any.
        max_rank: the highest rank that an adapter may have; room is kept for it whatever the adapters' ranks are.
        at_once: different adapters in one batch (`--max-loras`); requests for more of them wait for each other.
        static: names of adapters that are loaded by `--lora-modules` at the start.
        tensor_parallel: over how many devices each layer is divided.
    """

    enabled: bool
    max_rank: int = USUAL_RANK
    at_once: int = USUAL_AT_ONCE
    static: tuple[str, ...] = ()
    tensor_parallel: int = 1


NO_LORA = LoraSettings(enabled=False)


@dataclass(frozen=True)
class Widths:
    """Sizes of a model's linear modules: layers, and how wide hidden states, heads and the feed-forward part are."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int


def widths_of(config: Mapping[str, Any]) -> Widths | None:
    """Read them from config.json; None where it doesn't say."""
    text = _text_of(config)
    sizes, layers, inner = _sizes(text), text.get("num_hidden_layers"), text.get("intermediate_size")
    if sizes is None or not isinstance(layers, int):
        return None
    hidden, heads, kv_heads, dim = sizes
    return Widths(layers, hidden, heads, kv_heads, dim, inner if isinstance(inner, int) else 0)


def settings_of(arguments: Sequence[str]) -> LoraSettings:
    """Read them from what follows `vllm serve MODEL`. The last one of several counts, as the engine sees it."""
    enabled, static = False, list[str]()
    numbers = {"--max-lora-rank": USUAL_RANK, "--max-loras": USUAL_AT_ONCE, "--tensor-parallel-size": 1}
    for at, word in enumerate(arguments):
        flag, equals, joined = word.partition("=")
        flag = {"-tp": "--tensor-parallel-size"}.get(flag, flag.replace("_", "-"))
        value = joined if equals else next(iter(arguments[at + 1 : at + 2]), "")
        if flag in (ENABLE, DISABLE):
            enabled = flag == ENABLE and joined.lower() not in ("false", "0", "no")
        elif flag in numbers and _WHOLE.match(value):
            numbers[flag] = int(value)
        elif flag == "--lora-modules":
            static = _static_names(arguments[at + 1 :] if not equals else [joined])
    rank, at_once, tensor_parallel = numbers.values()
    return LoraSettings(enabled, rank, at_once, tuple(static), tensor_parallel)


def _static_names(words: Sequence[str]) -> list[str]:
    names = []
    for word in words:
        if word.startswith("--"):
            break
        described = re.search(r'"name"\s*:\s*"([^"]+)"', word)
        names.append(described[1] if described else word.partition("=")[0])
    return names


def slot_bytes(model: "Widths | None", settings: LoraSettings, *, element_bytes: int = 2) -> int:
    """About how much memory the engine sets aside for adapters on each device; 0 where it can't be told.

    It is reserved at the start for `at_once` adapters of the highest rank in every linear module, whether any is loaded
    or not: rank x (input + output) elements each. Under tensor parallelism the side that the base divides is divided.
    """
    if not settings.enabled or model is None:
        return 0
    ranks = max(1, settings.tensor_parallel)
    heads, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    whole = 3 * model.hidden + model.hidden + 3 * model.hidden
    divided = heads + 2 * kv + heads + 3 * model.inner
    per_rank = whole + -(-divided // ranks)
    return settings.at_once * settings.max_rank * model.layers * per_rank * element_bytes


def misfits(adapter: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Why an adapter can't belong to a model, by widths and layers; empty where nothing speaks against it.

    Args:
        adapter: what `workers.weights.adapters.facts_of` says.
        config: the model's config.json.
    """
    text = _text_of(config)
    found = []
    layers, has = adapter.get("layers"), text.get("num_hidden_layers")
    if isinstance(layers, int) and isinstance(has, int) and layers > has:
        found.append(f"it changes layer {layers - 1}, and the model has {has} layers")
    modules = adapter.get("modules")
    for name, widths in sorted(modules.items()) if isinstance(modules, Mapping) else ():
        for side, width, expected in _compared(name, widths, text):
            if width != expected:
                found.append(f"its {name} has {side} of width {width}, the model's has {expected}")
    return found


def _text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _sizes(text: Mapping[str, Any]) -> tuple[int, int, int, int] | None:
    """Hidden width, attention heads, KV heads, width of a head; None where the configuration doesn't say."""
    hidden, heads = text.get("hidden_size"), text.get("num_attention_heads")
    if not isinstance(hidden, int) or not isinstance(heads, int) or not heads:
        return None
    kv_heads, dim = text.get("num_key_value_heads"), text.get("head_dim")
    return (
        hidden,
        heads,
        kv_heads if isinstance(kv_heads, int) else heads,
        dim if isinstance(dim, int) else hidden // heads,
    )


def _compared(name: str, widths: Any, text: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """What of a module must be as wide as the model: (side, the adapter's width, the model's).

    Only what every architecture with such a module has in common: latent attention and gates change the other widths.
    """
    sizes = _sizes(text)
    if sizes is None or not isinstance(widths, Sequence) or len(widths) != 2:
        return []
    hidden, _heads, kv_heads, dim = sizes
    before, after = widths
    latent = text.get("kv_lora_rank") is not None
    if name in ("k_proj", "v_proj") and not latent:
        return [("an input", before, hidden), ("an output", after, kv_heads * dim)]
    if name in ("q_proj", "gate_proj", "up_proj"):
        return [("an input", before, hidden)]
    return [("an output", after, hidden)] if name in ("o_proj", "down_proj") else []

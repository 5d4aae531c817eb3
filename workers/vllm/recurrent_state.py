"""The fixed state of a recurrent layer (Mamba, gated delta net, linear attention, short convolution).

Such a layer keeps no keys and values per token: a request costs the same whether it is ten tokens long or a million.
Shapes follow vLLM's `mamba_utils` [src 0.32].
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RecurrentState:
    """The state that one recurrent layer keeps per request, before it is divided over tensor-parallel ranks.

    Attributes:
        conv_channels: channels of the convolution window that are divided evenly over the ranks.
        conv_group_channels: further channels per group; groups are repeated when there are fewer groups than ranks.
        groups: number of those groups.
        conv_taps: length of the convolution window, which is the kernel size minus one.
        state_elements: elements of the recurrent matrix, divided evenly over the ranks.
        state_dtype_bytes: bytes per element of that matrix; None means the model's own dtype.
    """

    conv_channels: int
    conv_group_channels: int
    groups: int
    conv_taps: int
    state_elements: int
    state_dtype_bytes: int | None = None

    def bytes_per_rank(self, *, ranks: int, dtype_bytes: int, speculative_tokens: int = 0) -> int:
        """Bytes of this layer's state on one rank. ValueError when the channels can't be divided over the ranks."""
        groups = self.groups
        if groups and groups % ranks:
            # A group that several ranks need is stored by each of them; vLLM adds the difference, not the multiple.
            groups += ranks - groups
        channels = self.conv_channels + self.conv_group_channels * groups
        if channels % ranks or self.state_elements % ranks:
            message = f"the recurrent layers can't be divided over {ranks} tensor-parallel ranks"
            raise ValueError(message)
        taps = self.conv_taps + speculative_tokens if self.conv_taps else 0
        conv_bytes = channels // ranks * taps * dtype_bytes
        return conv_bytes + self.state_elements // ranks * (self.state_dtype_bytes or dtype_bytes)


_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def read_state(text: Mapping[str, Any], kind: str) -> RecurrentState | None:
    """The state of a layer of that kind (`layer_types` word), or None when the configuration doesn't describe one.

    Args:
        text: the configuration of the language model.
        kind: "linear_attention", "mamba", "mamba1", "kda" or "conv".
    """
    if kind == "kda":
        return _kda(text)
    if kind == "conv":
        return _short_convolution(text)
    if kind == "linear_attention":
        return _gated_delta_net(text) or _lightning(text)
    if kind == "mamba1":
        return _mamba1(text)
    return _mamba2(text) or _mamba1(text)


def _first(text: Mapping[str, Any], *names: str) -> Any:
    return next((text[name] for name in names if text.get(name) is not None), None)


def _state_dtype_bytes(text: Mapping[str, Any]) -> int | None:
    name = _first(text, "mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    if name is None and text.get("model_type") == "nemotron_h":
        name = "float32"  # the only one known to lose no accuracy there, so the engine insists on it
    return _DTYPE_BYTES.get(str(name).removeprefix("torch."))


def _gated_delta_net(text: Mapping[str, Any]) -> RecurrentState | None:
    key_heads, value_heads = text.get("linear_num_key_heads"), text.get("linear_num_value_heads")
    if not key_heads or not value_heads:
        return None
    key_dim, value_dim = text["linear_key_head_dim"], text["linear_value_head_dim"]
    return RecurrentState(
        conv_channels=2 * key_heads * key_dim + value_heads * value_dim,
        conv_group_channels=0,
        groups=0,
        conv_taps=text.get("linear_conv_kernel_dim", 4) - 1,
        state_elements=value_heads * value_dim * key_dim,
        state_dtype_bytes=_state_dtype_bytes(text),
    )


def _lightning(text: Mapping[str, Any]) -> RecurrentState | None:
    heads = text.get("num_attention_heads")
    if not heads:
        return None
    dim = text.get("head_dim") or text["hidden_size"] // heads
    return RecurrentState(0, 0, 0, 0, heads * dim * dim, 4)


def _kda(text: Mapping[str, Any]) -> RecurrentState | None:
    linear = text.get("linear_attn_config") or {}
    heads, dim = linear.get("num_heads"), linear.get("head_dim")
    if not heads or not dim:
        return None
    taps = linear.get("short_conv_kernel_size", 4) - 1
    return RecurrentState(3 * heads * dim, 0, 0, taps, heads * dim * dim, 4)


def _short_convolution(text: Mapping[str, Any]) -> RecurrentState | None:
    channels = _first(text, "conv_dim", "hidden_size")
    taps = _first(text, "conv_L_cache")
    if not channels or not taps:
        return None
    return RecurrentState(channels, 0, 0, taps - 1, 0)


def _mamba2(text: Mapping[str, Any]) -> RecurrentState | None:
    heads = _first(text, "mamba_num_heads", "mamba_n_heads", "num_heads")
    dim = _first(text, "mamba_head_dim", "mamba_d_head", "head_dim")
    states = _first(text, "ssm_state_size", "mamba_d_state", "state_size")
    groups = _first(text, "n_groups", "mamba_n_groups")
    if not heads or not dim or not states or not groups or not isinstance(dim, int):
        return None
    inner = _first(text, "mamba_d_ssm")
    if inner is None:
        expand = _first(text, "mamba_expand", "expand")
        nemotron = text.get("model_type") == "nemotron_h"
        inner = heads * dim if nemotron or not expand else int(expand * text["hidden_size"])
    return RecurrentState(
        conv_channels=inner,
        conv_group_channels=2 * states,
        groups=groups,
        conv_taps=(_first(text, "conv_kernel", "mamba_d_conv") or 4) - 1,
        state_elements=heads * dim * states,
        state_dtype_bytes=_state_dtype_bytes(text),
    )


def _mamba1(text: Mapping[str, Any]) -> RecurrentState | None:
    states = _first(text, "state_size", "mamba_d_state")
    inner = text.get("intermediate_size") if text.get("model_type") in {"mamba", "falcon_mamba"} else None
    if inner is None and text.get("mamba_expand"):
        inner = math.floor(text["mamba_expand"] * text["hidden_size"])
    if not states or not inner:
        return None
    taps = (_first(text, "conv_kernel", "mamba_d_conv") or 4) - 1
    return RecurrentState(inner, 0, 0, taps, inner * states, _state_dtype_bytes(text))

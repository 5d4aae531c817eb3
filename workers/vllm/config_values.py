"""Whether the values of a config.json are of the kinds that a plan computes with.

Anybody may have written such a file. What is refused here with its name would otherwise end somewhere in the arithmetic, or
make a plan of nonsense.
"""

from collections.abc import Mapping
from typing import Any

LARGEST = 2**50
"""Nothing that is counted in a model is larger."""
MOST_LAYERS = 10_000

_LAYER_COUNTS = frozenset({"num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"})
_WINDOWS = frozenset({"sliding_window", "sliding_window_size", "max_window_layers"})
"""A negative one means none."""
_COUNTS = frozenset({
    "attention_chunk_size", "attn_layer_offset", "attn_layer_period", "conv_dim", "conv_kernel", "conv_L_cache", "d_model",
    "decoder_attention_heads", "decoder_ffn_dim", "ffn_dim", "first_k_dense_replace", "full_attention_interval",
    "global_head_dim", "head_dim", "hidden_size", "hidden_size_per_head", "hidden_size_per_layer_input", "index_head_dim",
    "index_n_heads", "index_skip_topk_offset", "index_topk", "index_topk_freq", "intermediate_size", "kv_channels",
    "kv_lora_rank", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads",
    "linear_value_head_dim", "mamba_d_conv", "mamba_d_ssm", "mamba_d_state", "mamba_n_groups", "mamba_n_heads",
    "mamba_num_heads", "max_position_embeddings", "max_seq_len", "max_seq_length", "max_sequence_length",
    "max_source_positions", "max_target_positions", "moe_intermediate_size", "moe_num_experts", "mtp_num_hidden_layers",
    "n_embd", "n_groups", "n_head", "n_head_kv", "n_heads", "n_inner", "n_positions", "n_routed_experts", "n_shared_experts",
    "num_attention_groups", "num_attention_heads", "num_experts", "num_global_key_value_heads", "num_key_value_heads",
    "num_kv_heads", "num_kv_shared_layers", "num_local_experts", "num_nextn_predict_layers",
    "original_max_position_embeddings", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "seq_len", "seq_length",
    "shared_expert_intermediate_size", "ssm_state_size", "state_size", "swa_head_dim", "swa_num_attention_heads",
    "swa_num_key_value_heads", "swa_v_head_dim", "v_head_dim", "vocab_size", "vocab_size_per_layer_input",
})  # fmt: skip


def refuse_wrong_kinds(config: Mapping[str, Any]) -> None:
    """ValueError naming the first value that is no number where one is needed, or none that a model can have."""
    for name, value in config.items():
        if name in _LAYER_COUNTS and not (_is_whole(value, least=1) and value <= MOST_LAYERS):
            _refuse(name, value, f"a whole number from 1 to {MOST_LAYERS:,}")
        least = 0 if name in _COUNTS else -LARGEST if name in _WINDOWS else None
        if least is None or value is None:
            continue
        # Some models give one number for each layer.
        if not all(_is_whole(one, least=least) for one in (value if isinstance(value, list) else [value])):
            _refuse(name, value, "a whole number")


def _is_whole(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST


def _refuse(name: str, value: object, wanted: str) -> None:
    shown = repr(value)
    message = f"config.json says {name} = {shown if len(shown) <= 60 else shown[:60] + '…'}; {wanted} is needed"
    raise ValueError(message)

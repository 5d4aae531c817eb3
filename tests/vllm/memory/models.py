"""Configurations and tiny checkpoints that the memory tests plan."""

import json
import struct
from pathlib import Path
from typing import Any

from workers.vllm.memory import ModelShape, read_shape

HERE = Path(__file__).parent
MIB, GIB = 2**20, 2**30
_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4}


def config(name: str) -> dict[str, Any]:
    """The config.json of a tiny model that was really launched, written by transformers 5.19."""
    loaded: dict[str, Any] = json.loads((HERE / "configs" / f"{name}.json").read_text())
    return loaded


def public_config(name: str) -> dict[str, Any]:
    """The configuration of a public model; its sources stand in the same file."""
    loaded: dict[str, Any] = json.loads((HERE / "public" / f"{name}.json").read_text())["config"]
    return loaded


def shape(name: str) -> ModelShape:
    return read_shape(config(name))


def public_shape(name: str) -> ModelShape:
    return read_shape(public_config(name))


def llama(**changes: Any) -> dict[str, Any]:
    """A Llama-like configuration: 32 layers, 32 heads of 128, 8 of them for keys and values."""
    base = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 8192, "tie_word_embeddings": False, "dtype": "bfloat16",
    }  # fmt: skip
    return base | changes


def write_safetensors(file: Path, tensors: dict[str, tuple[str, tuple[int, ...]]], *, cut: int = 0) -> int:
    """Write a file with these tensors (name -> dtype, shape), all zero; `cut` bytes are missing at the end.

    Returns the bytes of the tensors.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, axes) in tensors.items():
        size = _BYTES[dtype]
        for axis in axes:
            size *= axis
        header[name] = {"dtype": dtype, "shape": list(axes), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes((struct.pack("<Q", len(text)) + text + bytes(offset))[: 8 + len(text) + offset - cut])
    return offset


def llama_tensors(
    layers: int, hidden: int, inner: int, vocabulary: int, kv: int
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The tensors of a tiny Llama in bfloat16."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {"model.embed_tokens.weight": ("BF16", (vocabulary, hidden))}
    for number in range(layers):
        at = f"model.layers.{number}."
        tensors |= {
            at + "input_layernorm.weight": ("BF16", (hidden,)),
            at + "self_attn.q_proj.weight": ("BF16", (hidden, hidden)),
            at + "self_attn.k_proj.weight": ("BF16", (kv, hidden)),
            at + "self_attn.v_proj.weight": ("BF16", (kv, hidden)),
            at + "self_attn.o_proj.weight": ("BF16", (hidden, hidden)),
            at + "mlp.gate_proj.weight": ("BF16", (inner, hidden)),
            at + "mlp.up_proj.weight": ("BF16", (inner, hidden)),
            at + "mlp.down_proj.weight": ("BF16", (hidden, inner)),
        }
    return tensors | {"model.norm.weight": ("BF16", (hidden,))}

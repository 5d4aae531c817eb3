"""Checkpoints that a real vLLM starts with, answering /health 200, although they are broken; made from the demo model."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

_TEXTS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
MISSING = "model.layers.2.mlp.down_proj.weight"


def _texts(sound: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in _TEXTS:
        shutil.copy(sound / name, folder / name)


def without_tokenizer(sound: Path, folder: Path) -> None:
    """No tokenizer files at all."""
    _texts(sound, folder)
    (folder / "model.safetensors").symlink_to(sound / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink()


def without_template(sound: Path, folder: Path) -> None:
    """Everything but a chat template."""
    _texts(sound, folder)
    (folder / "model.safetensors").symlink_to(sound / "model.safetensors")
    (folder / "chat_template.jinja").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def without_a_tensor(sound: Path, folder: Path) -> None:
    """One tensor left out of the weights: the engine loads the rest without a word."""
    _texts(sound, folder)
    with (sound / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = 8 + length
        kept = {name: entry for name, entry in header.items() if name not in (MISSING, "__metadata__")}
        assert len(kept) == len([name for name in header if name != "__metadata__"]) - 1
        at, moved = 0, {"__metadata__": {"format": "pt"}}
        for name, entry in kept.items():
            size = entry["data_offsets"][1] - entry["data_offsets"][0]
            moved[name] = {**entry, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(moved).encode()
        text += b" " * (-len(text) % 8)
        with (folder / "model.safetensors").open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for entry in kept.values():
                begin, end = entry["data_offsets"]
                file.seek(data + begin)
                out.write(file.read(end - begin))


def with_an_unsupported_head_size(sound: Path, folder: Path) -> None:
    """A tiny Llama with heads of 48: the first chat kills EngineCore on a CPU."""
    _texts(sound, folder)
    config = json.loads((folder / "config.json").read_text())
    hidden, heads, size, middle, layers = 96, 2, 48, 128, 2
    config |= {
        "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": size,
        "intermediate_size": middle, "num_hidden_layers": layers,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)
    }  # fmt: skip
    for layer in range(layers):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (heads * size, hidden) for name in "qkv"}
        shapes |= {f"{at}.self_attn.o_proj.weight": (hidden, heads * size)}
        shapes |= {f"{at}.mlp.{name}_proj.weight": (middle, hidden) for name in ("gate", "up")}
        shapes |= {f"{at}.mlp.down_proj.weight": (hidden, middle)}
        shapes |= {f"{at}.{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    at, header = 0, {}
    for name, shape in shapes.items():
        length = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + length]}
        at += length
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    noise = np.random.default_rng(7).integers(0, 1 << 16, at // 2, dtype=np.uint16)
    values = (noise & 0x80FF) | 0x3C00  # bfloat16 of either sign, around 0.01
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + values.tobytes())


BROKEN: dict[str, Callable[[Path, Path], None]] = {
    "no template": without_template,
    "no tokenizer": without_tokenizer,
    "a tensor missing": without_a_tensor,
    "unsupported head size": with_an_unsupported_head_size,
}

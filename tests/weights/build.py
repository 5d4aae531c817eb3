"""Makes tiny checkpoints by hand: sound ones of every architecture, quantised ones, and the pieces to break them with.

`data/architectures.json` is what transformers 5.19 saved for tiny configurations: the config.json and, per tensor pattern, the
shape, the type, and the numbers that stand for each `#`.
"""

import hashlib
import itertools
import json
import struct
from pathlib import Path

from workers.weights.safetensors import DTYPE_BITS

DATA = json.loads((Path(__file__).parent / "data" / "architectures.json").read_text())
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|a|>{% endif %}"
)

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def payload(name: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    """Numbers that look like weights: never zero, never NaN, the same for the same name."""
    count = 1
    for size in shape:
        count *= size
    size = count * DTYPE_BITS[dtype] // 8
    seed = hashlib.sha256(name.encode()).digest()
    noise = bytearray((seed * (size // len(seed) + 1))[:size])
    width = DTYPE_BITS[dtype] // 8
    if dtype in {"BF16", "F32", "F16", "F64"}:
        # The top byte of a small positive number.
        noise[width - 1 :: width] = b"\x3c" * (size // width)
    elif dtype.startswith("F8"):
        noise = bytearray(byte & 0x37 | 0x08 for byte in noise)
    return bytes(noise)


def tensor(name: str, dtype: str, *shape: int) -> tuple[str, tuple[int, ...], bytes]:
    """One tensor with numbers."""
    return dtype, shape, payload(name, dtype, shape)


def safetensors_bytes(tensors: Tensors, metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file as bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"} if metadata is None else metadata}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(data)]}
        position += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return raw_safetensors(text, b"".join(data for _, _, data in tensors.values()))


def raw_safetensors(header: bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file with exactly this header, however wrong."""
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def tensors_of(architecture: str) -> Tensors:
    """All tensors of one architecture in data/architectures.json."""
    found: Tensors = {}
    for pattern, shape, dtype, *numbers in DATA[architecture]["tensors"]:
        for chosen in itertools.product(*(numbers[0] if numbers else [])):
            name = pattern
            for number in chosen:
                name = name.replace("#", str(number), 1)
            found[name] = tensor(name, dtype, *shape)
    return found


def config_of(architecture: str) -> dict[str, object]:
    """A fresh copy of one architecture's config.json."""
    return json.loads(json.dumps(DATA[architecture]["config"]))


def write_json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document))


def tokenizer_json(size: int) -> dict[str, object]:
    """A byte-pair tokenizer with ids 0 to size - 1."""
    letters = [chr(33 + number) if number < 94 else f"t{number}" for number in range(size - 3)]
    vocabulary = {letter: number + 3 for number, letter in enumerate(letters)}
    vocabulary |= {"<pad>": 0, "<eos>": 1, "<bos>": 2}
    added = [
        {"id": number, "content": text, "special": True} for number, text in enumerate(("<pad>", "<eos>", "<bos>"))
    ]
    return {"version": "1.0", "added_tokens": added, "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}


def write_texts(folder: Path, config: dict[str, object]) -> None:
    """Everything but the weights."""
    write_json(folder / "config.json", config)
    inner = config.get("text_config")
    rows = (inner if isinstance(inner, dict) else config).get("vocab_size", 96)
    assert isinstance(rows, int)
    write_json(folder / "tokenizer.json", tokenizer_json(rows))
    write_json(folder / "tokenizer_config.json", {"eos_token": "<eos>", "model_max_length": 512})
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    write_json(folder / "generation_config.json", {"eos_token_id": 1, "temperature": 0.6, "top_p": 0.95, "top_k": 20})


def make_model(folder: Path, architecture: str = "qwen3") -> Path:
    """A sound model in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    write_texts(folder, config_of(architecture))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors_of(architecture)))
    return folder


def write_shards(folder: Path, tensors: Tensors, count: int) -> list[str]:
    """Split weights into shards with an index; returns the shards' names."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    names = list(tensors)
    weight_map: dict[str, str] = {}
    files = [f"model-{number + 1:05d}-of-{count:05d}.safetensors" for number in range(count)]
    for number, file in enumerate(files):
        part = {
            name: tensors[name] for name in names[number * len(names) // count : (number + 1) * len(names) // count]
        }
        (folder / file).write_bytes(safetensors_bytes(part))
        weight_map |= dict.fromkeys(part, file)
    total = sum(len(data) for _, _, data in tensors.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})
    return files


def make_sharded(folder: Path, architecture: str = "qwen3", count: int = 3) -> list[str]:
    """A sound model in several files; returns the shards' names."""
    make_model(folder, architecture)
    return write_shards(folder, tensors_of(architecture), count)


def write_sums(folder: Path, name: str = "SHA256SUMS") -> None:
    """A checksum file over everything else in the directory."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != name)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / name).write_text("".join(lines))


def _linears(tensors: Tensors) -> list[str]:
    return [name for name in tensors if name.endswith("_proj.weight")]


def quantised(scheme: str, architecture: str = "llama") -> tuple[Tensors, dict[str, object]]:
    """A sound quantised model: tensors and the quantization_config that describes them."""
    tensors = tensors_of(architecture)
    for name in _linears(tensors):
        _, (out, into), _ = tensors.pop(name)
        at = name.removesuffix("weight")
        for leaf, (dtype, *shape) in _COMPANIONS[scheme](out, into).items():
            tensors[at + leaf] = tensor(at + leaf, dtype, *shape)
        if scheme == "bnb-4bit":
            state = quant_state(out, into)
            tensors[f"{at}{_STATE}"] = ("U8", (len(state),), state)
    return tensors, json.loads(json.dumps(_CONFIGS[scheme]))


def quant_state(out: int, into: int, **other: object) -> bytes:
    """What bitsandbytes packs beside a 4-bit weight."""
    nested = {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.0123}
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [out, into], **nested}
    return json.dumps({**state, **other}).encode()


def make_quantised(folder: Path, scheme: str, architecture: str = "llama") -> Path:
    """A sound quantised model in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors, quantization = quantised(scheme, architecture)
    write_texts(folder, {**config_of(architecture), "quantization_config": quantization})
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return folder


def _up(size: int, by: int) -> int:
    return -(-size // by)


def _compressed(weights: dict[str, object], form: str, inputs: dict[str, object] | None = None) -> dict[str, object]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


_STATE = "weight.quant_state.bitsandbytes__nf4"
_COMPANIONS = {
    "fp8-tensor": lambda o, i: {"weight": ("F8_E4M3", o, i), "weight_scale": ("F32",), "input_scale": ("F32",)},
    "fp8-block": lambda o, i: {
        "weight": ("F8_E4M3", o, i), "weight_scale_inv": ("F32", _up(o, 10), _up(i, 16)),
    },
    "ct-block": lambda o, i: {"weight": ("F8_E4M3", o, i), "weight_scale": ("BF16", _up(o, 10), _up(i, 16))},
    "ct-channel": lambda o, i: {"weight": ("F8_E4M3", o, i), "weight_scale": ("BF16", o, 1)},
    "ct-int8": lambda o, i: {"weight": ("I8", o, i), "weight_scale": ("BF16", o, 1)},
    "ct-int4": lambda o, i: {
        "weight_packed": ("I32", o, i // 8), "weight_scale": ("BF16", o, i // 16), "weight_shape": ("I64", 2),
        "weight_zero_point": ("I32", _up(o, 8), i // 16),
    },
    "ct-nvfp4": lambda o, i: {
        "weight_packed": ("U8", o, i // 2), "weight_scale": ("F8_E4M3", o, _up(i, 16)), "weight_global_scale": ("F32", 1),
        "input_global_scale": ("F32", 1),
    },
    "ct-mxfp4": lambda o, i: {"weight_packed": ("U8", o, i // 2), "weight_scale": ("U8", o, _up(i, 32))},
    "nvfp4": lambda o, i: {
        "weight": ("U8", o, i // 2), "weight_scale": ("F8_E4M3", o, _up(i, 16)), "weight_scale_2": ("F32",),
        "input_scale": ("F32",),
    },
    "modelopt-fp8": lambda o, i: {"weight": ("F8_E4M3", o, i), "weight_scale": ("F32",), "input_scale": ("F32",)},
    "awq": lambda o, i: {
        "qweight": ("I32", i, o // 8), "qzeros": ("I32", i // 16, o // 8), "scales": ("F16", i // 16, o),
    },
    "gptq": lambda o, i: {
        "qweight": ("I32", i // 8, o), "qzeros": ("I32", i // 16, o // 8), "scales": ("F16", i // 16, o),
        "g_idx": ("I32", i),
    },
    "bnb-4bit": lambda o, i: {
        "weight": ("U8", o * i // 2, 1), "weight.absmax": ("U8", _up(o * i, 64)),
        "weight.quant_map": ("F32", 16), "weight.nested_absmax": ("F32", _up(_up(o * i, 64), 256)),
        "weight.nested_quant_map": ("F32", 256), _STATE: ("U8", 80),
    },
    "bnb-8bit": lambda o, i: {"weight": ("I8", o, i), "SCB": ("F32", o), "weight_format": ("U8",)},
}  # fmt: skip

_CONFIGS: dict[str, dict[str, object]] = {
    "fp8-tensor": {"quant_method": "fp8", "activation_scheme": "static"},
    "fp8-block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [10, 16]},
    "ct-block": _compressed(
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [10, 16], "symmetric": True},
        "float-quantized",
        {"num_bits": 8, "type": "float", "dynamic": True},
    ),
    "ct-channel": _compressed(
        {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}, "float-quantized", {"dynamic": True}
    ),
    "ct-int8": _compressed({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}, "int-quantized"),
    "ct-int4": _compressed(
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16, "symmetric": False}, "pack-quantized"
    ),
    "ct-nvfp4": _compressed(
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True},
        "nvfp4-pack-quantized",
        {"num_bits": 4, "dynamic": "local"},
    ),
    "ct-mxfp4": _compressed(
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True},
        "mxfp4-pack-quantized",
    ),
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
    "modelopt-fp8": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True, "sym": True},
    "bnb-4bit": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "bnb-8bit": {"quant_method": "bitsandbytes", "load_in_8bit": True},
}
SCHEMES = sorted(_CONFIGS)

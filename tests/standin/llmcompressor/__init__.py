"""A stand-in for llm-compressor, for an interpreter without torch: it really quantises, and writes what vLLM could load.

Weights of linear layers become FP8 (E4M3) or INT8 with a scale for each output channel, in the layout of
compressed-tensors; everything else stays as it is. Knobs: `STANDIN_QUANTIZER_SECONDS` makes it slow,
`STANDIN_QUANTIZER_FAIL` ends it with an exception of that text.
"""

import json
import os
import struct
import sys
import time
from array import array
from bisect import bisect_left
from pathlib import Path
from typing import Any

LINEAR = "_proj.weight"
FP8_MOST, INT8_MOST = 448.0, 127.0


def oneshot(
    *,
    model: str,
    recipe: Any,
    output_dir: str,
    max_seq_length: int,
    dataset: Any = None,
    num_calibration_samples: int = 0,
) -> None:
    """Quantise a model directory."""
    assert max_seq_length > 0
    assert (dataset is not None) == recipe.calibrated, "calibration data for the schemes that need it, and for no other"
    assert len(dataset or ()) == num_calibration_samples
    print("2026-11-30T00:00:00 | INFO - Initialized a stand-in")
    tensors = _read(Path(model) / "model.safetensors")
    made: dict[str, tuple[str, list[int], bytes]] = {}
    for number, (name, tensor) in enumerate(tensors.items(), start=1):
        if name.endswith(LINEAR):
            made |= _quantised(name, tensor, recipe.scheme)
        else:
            made[name] = tensor
        _slow(number, len(tensors))
    if text := os.environ.get("STANDIN_QUANTIZER_FAIL"):
        raise ValueError(text)
    Path(output_dir).mkdir()
    _write(Path(output_dir) / "model.safetensors", made)
    config = json.loads((Path(model) / "config.json").read_text())
    config["quantization_config"] = _described(recipe)
    (Path(output_dir) / "config.json").write_text(json.dumps(config))
    (Path(output_dir) / "recipe.yaml").write_text("default_stage: {}\n")


def _slow(number: int, of: int) -> None:
    time.sleep(float(os.environ.get("STANDIN_QUANTIZER_SECONDS", "0")) / of)
    print(f"\rCalibrating: {100 * number // of:3}%|#| {number}/{of}", end="", file=sys.stderr, flush=True)


def _read(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, start = json.loads(data[8 : 8 + length]), 8 + length
    return {
        name: (one["dtype"], one["shape"], data[start + one["data_offsets"][0] : start + one["data_offsets"][1]])
        for name, one in header.items()
        if name != "__metadata__"
    }


def _write(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + len(data)]}
        position += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def _quantised(name: str, tensor: tuple[str, list[int], bytes], scheme: str) -> dict[str, tuple[str, list[int], bytes]]:
    dtype, (rows, columns), data = tensor
    assert dtype == "BF16", dtype
    values = array("f", b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2)))
    whole = scheme == "W8A8"
    stored, scales = bytearray(), bytearray()
    for row in range(rows):
        own = values[row * columns : (row + 1) * columns]
        scale = max(map(abs, own)) / (INT8_MOST if whole else FP8_MOST) or 1.0
        scales += struct.pack("<f", scale)[2:]
        stored += bytes((round(one / scale) & 0xFF) if whole else _fp8(one / scale) for one in own)
    return {
        name: ("I8" if whole else "F8_E4M3", [rows, columns], bytes(stored)),
        f"{name}_scale": ("BF16", [rows, 1], bytes(scales)),
    }


def _fp8_values() -> list[float]:
    """The numbers that E4M3 has, zero and up, by their bits."""
    return [
        (1 + (bits & 7) / 8) * 2.0 ** ((bits >> 3) - 7) if bits >> 3 else (bits & 7) * 2.0**-9 for bits in range(0x7F)
    ]


_FP8 = _fp8_values()


def _fp8(value: float) -> int:
    at = min(bisect_left(_FP8, abs(value)), len(_FP8) - 1)
    if at and abs(value) - _FP8[at - 1] < _FP8[at] - abs(value):
        at -= 1
    return at | (0x80 if value < 0 else 0)


def _described(recipe: Any) -> dict[str, Any]:
    whole = recipe.scheme == "W8A8"
    kind = "int" if whole else "float"
    weights = {"num_bits": 8, "type": kind, "strategy": "channel", "symmetric": True, "dynamic": False}
    inputs = {"num_bits": 8, "type": kind, "strategy": "token", "symmetric": True, "dynamic": True}
    form = "int-quantized" if whole else "float-quantized"
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None,
             "format": form}  # fmt: skip
    return {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "version": "0.19.0",
        "config_groups": {"group_0": group}, "ignore": recipe.ignore, "kv_cache_scheme": None,
    }  # fmt: skip

"""What bitsandbytes packs beside a 4-bit weight: a small JSON text, kept as a tensor of bytes, that says how to unpack it.

    NAME.quant_state.bitsandbytes__nf4   U8, of any length: {"quant_type", "blocksize", "dtype", "shape", "nested_blocksize"}

Its length differs from weight to weight, so a header alone can't tell a sound one; it is read.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from workers.weights.findings import Findings, listed, printable
from workers.weights.layout import Layout
from workers.weights.safetensors import Header, Tensor

_MARK = ".quant_state.bitsandbytes__"
_MOST_BYTES = 64 << 10
"""Real ones take about a hundred."""
_FIX = "Download this file again; without its quantisation state a weight can't be unpacked."

Tensors = Mapping[str, Tensor]


def check_quant_states(tensors: Tensors, layout: Layout, headers: Mapping[str, Header], findings: Findings) -> None:
    """Read each quantisation state and compare it with the weight and the scales that it describes."""
    by_file: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        if _MARK in name and tensor.file in headers and tensor.file in layout.entries:
            by_file.setdefault(tensor.file, []).append(name)
    for file, names in by_file.items():
        problems = list(_problems(file, names, tensors, layout, headers[file]))
        if problems:
            message = f"Quantisation states that don't describe their weights: {listed(problems)}."
            findings.add("quantization.scale_shape", file, message, _FIX)


def _problems(file: str, names: list[str], tensors: Tensors, layout: Layout, header: Header) -> Iterator[str]:
    try:
        descriptor = os.open(layout.entries[file].path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return  # the scan has said why it can't be read
    try:
        for name in names:
            tensor = tensors[name]
            size = tensor.end - tensor.begin
            if tensor.dtype != "U8" or size > _MOST_BYTES:
                yield f"{printable(name)} is {tensor.dtype} of {size:,} bytes"
                continue
            try:
                content = os.pread(descriptor, size, header.data_start + tensor.begin)
            except (OSError, OverflowError):
                return
            if len(content) == size and (problem := _state_problem(name, content, tensors)):
                yield f"{printable(name)} {problem}"
    finally:
        os.close(descriptor)


def _state_problem(name: str, content: bytes, tensors: Tensors) -> str:
    """What is wrong with one state; empty if nothing is."""
    try:
        state = json.loads(content)
    except (ValueError, RecursionError):
        return f"isn't valid JSON in its {len(content)} bytes"
    if not isinstance(state, dict):
        return "isn't a JSON object"
    weight, _, kind = name.partition(_MARK)
    if state.get("quant_type", kind) != kind:
        return f"says {printable(str(state['quant_type']), most_letters=40)}"
    return _shape_problem(weight, state, tensors)


def _shape_problem(weight: str, state: Mapping[str, Any], tensors: Tensors) -> str:
    packed, absmax, nested = (tensors.get(weight + leaf) for leaf in ("", ".absmax", ".nested_absmax"))
    shape = state.get("shape")
    if not isinstance(shape, list) or not shape or not all(type(size) is int and size > 0 for size in shape):
        return "gives no shape"
    count = math.prod(shape)
    if packed is not None and packed.end - packed.begin != -(-count // 2):
        return f"says shape {printable(str(shape), most_letters=60)} for {packed.end - packed.begin:,} bytes"
    for given, scales, what in (("blocksize", absmax, "absmax"), ("nested_blocksize", nested, "nested_absmax")):
        size = state.get(given)
        if scales is None or type(size) is not int or size <= 0:
            return ""
        if math.prod(scales.shape) != -(-count // size):
            return f"says {given} {size:,}, but {what} has {math.prod(scales.shape):,} entries"
        count = math.prod(scales.shape)
    return ""

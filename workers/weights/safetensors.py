"""The header of a safetensors file, read without mapping the file and without believing it.

Layout (the format's own specification): 8 bytes little-endian header length N, N bytes of JSON `{name: {"dtype", "shape",
"data_offsets": [begin, end]}, "__metadata__": {str: str}}`, then the data, offsets counted from the end of the header.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"

# Bits per element.
DTYPE_BITS: dict[str, int] = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
_MOST_ELEMENTS = 1 << 62
_MOST_DIMENSIONS = 64


class Tensor(NamedTuple):
    """One tensor of a file: element type, shape, and where its bytes lie, counted from the end of the header."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class HeaderError(ValueError):
    """A header that can't be used; `code` is the finding's code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header: `data_start` is the file offset of the data, `data_bytes` how much of it the header describes."""

    data_start: int
    data_bytes: int
    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    # Faults that leave the tensors' names and shapes usable: (code, message).
    faults: tuple[tuple[str, str], ...] = field(default=())


def header_length(start: bytes, *, file_bytes: int) -> int:
    """Length of the JSON header from a file's first bytes.

    Raises HeaderError: `weights.lfs_pointer`, `weights.header_invalid` (impossible length) or `weights.truncated` (the
    file ends before its header does).
    """
    if start.startswith(LFS_POINTER[:LENGTH_BYTES]):
        raise HeaderError("weights.lfs_pointer", "holds a Git LFS pointer, not the weights themselves")
    if len(start) < LENGTH_BYTES:
        raise HeaderError("weights.truncated", f"is {file_bytes:,} bytes long: too short to hold a header's length")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if length > MOST_HEADER_BYTES:
        raise HeaderError(
            "weights.header_invalid",
            f"claims a header of {length:,} bytes; no more than {MOST_HEADER_BYTES:,} are allowed, so the first bytes "
            "are damaged or this isn't a safetensors file",
        )
    if length < len("{}"):
        raise HeaderError("weights.header_invalid", f"claims a header of {length} bytes, too short for any JSON object")
    if LENGTH_BYTES + length > file_bytes:
        missing = LENGTH_BYTES + length - file_bytes
        raise HeaderError("weights.truncated", f"ends inside its header: {missing:,} of {length:,} bytes are missing")
    return length


def parse_header(raw: bytes, *, file: str, file_bytes: int) -> Header:
    """Parse the JSON header `raw` of `file`, whose size is `file_bytes`.

    Raises HeaderError when no tensor can be taken from it. Damage that leaves names and shapes readable (a file that is
    too short or too long, offsets that overlap) is returned in `Header.faults`.
    """
    entries = _json_object(raw)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise HeaderError("weights.header_invalid", "has a __metadata__ entry that isn't a table of texts")
    tensors = {name: _quick(entry, file) or _tensor(name, entry, file) for name, entry in entries.items()}
    data_start = LENGTH_BYTES + len(raw)
    faults: list[tuple[str, str]] = []
    data_bytes = _check_offsets(tensors, faults)
    present = file_bytes - data_start
    if present < data_bytes:
        short = data_bytes - present
        faults.append(
            ("weights.truncated", f"is {file_bytes:,} bytes long, {short:,} bytes shorter than its header says")
        )
    elif present > data_bytes:
        faults.append(
            ("weights.trailing_bytes", f"has {present - data_bytes:,} bytes after the last tensor its header describes")
        )
    return Header(data_start, data_bytes, tensors, metadata, tuple(faults))


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise HeaderError("weights.header_invalid", f"has the key {twice[:80]!r} twice in its header")
    return table


def _json_object(raw: bytes) -> dict[str, Any]:
    if raw[:1] != b"{":
        raise HeaderError("weights.header_invalid", "has a header that doesn't start with '{', so it isn't JSON")
    try:
        text = raw.decode("utf-8")
        entries = json.loads(text)
        # Looking at every key for doubles costs three times the parsing; counting the words first tells when it can't
        # be needed, which is nearly always.
        tensors = len(entries) - ("__metadata__" in entries)
        words = (b'"data_offsets"', b'"dtype"', b'"shape"')
        if any(raw.count(word) != tensors for word in words) or raw.count(b'"__metadata__"') > 1:
            entries = json.loads(text, object_pairs_hook=_refuse_duplicates)
    except HeaderError:
        raise
    except RecursionError:
        raise HeaderError("weights.header_invalid", "has a header nested too deeply to be read") from None
    except ValueError as error:
        detail = str(error)[:120]
        raise HeaderError("weights.header_invalid", f"has a header that isn't valid JSON ({detail})") from None
    if not isinstance(entries, dict):
        raise HeaderError("weights.header_invalid", "has a header that isn't a JSON object")
    return entries


def _quick(entry: Any, file: str) -> Tensor | None:
    """The usual, sound entry of one to three dimensions; everything else is looked at in detail."""
    try:
        shape, (begin, end) = entry["shape"], entry["data_offsets"]
        bits = DTYPE_BITS[entry["dtype"]]
        elements = 1
        for size in shape:
            if type(size) is not int or size < 1:
                return None
            elements *= size
    except (TypeError, KeyError, ValueError):
        return None
    if type(begin) is not int or type(end) is not int or begin < 0 or len(shape) > 3:
        return None
    if elements * bits != (end - begin) * 8 or type(shape) is not list:
        return None
    return Tensor(file, entry["dtype"], tuple(shape), begin, end)


def _tensor(name: str, entry: Any, file: str) -> Tensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        whole = type(begin) is int and type(end) is int and type(shape) is list
    except (TypeError, KeyError, ValueError, IndexError):
        whole = False
    if not whole or not all(type(size) is int and size >= 0 for size in shape) or len(shape) > _MOST_DIMENSIONS:
        raise HeaderError("weights.header_invalid", f"describes tensor {name[:120]!r} in a way the format doesn't know")
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise HeaderError("weights.header_invalid", f"gives tensor {name[:120]!r} the unknown type {str(dtype)[:40]!r}")
    if begin < 0 or end < begin:
        raise HeaderError(
            "weights.header_invalid", f"puts tensor {name[:120]!r} at bytes {begin} to {end}, which is no range"
        )
    elements = math.prod(shape)
    if elements > _MOST_ELEMENTS or elements * bits != (end - begin) * 8:
        raise HeaderError(
            "weights.header_invalid",
            f"gives tensor {name[:120]!r} {end - begin:,} bytes, but its shape {shape} of {dtype} needs another size",
        )
    return Tensor(file, dtype, tuple(shape), begin, end)


def _check_offsets(tensors: dict[str, Tensor], faults: list[tuple[str, str]]) -> int:
    """Check that the tensors lie one after the other; returns the number of bytes up to the last one's end."""
    position = 0
    owner = "the header"
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin < position:
            message = f"gives {name[:120]} and {owner[:120]} the same bytes ({position - tensor.begin:,} of them)"
            faults.append(("weights.overlapping_offsets", message))
        elif tensor.begin > position:
            message = f"leaves {tensor.begin - position:,} bytes before tensor {name[:120]} that belong to no tensor"
            faults.append(("weights.header_invalid", message))
        if len(faults) >= 8:
            return max(tensor.end for tensor in tensors.values())
        if tensor.end > position:
            position, owner = tensor.end, name
    return position

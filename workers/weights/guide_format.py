"""The FP8 bookkeeping that one popular guide describes: a block map, a scale table in the metadata, and a block magic.

No engine uses any of it (real block-FP8 checkpoints are ordinary safetensors files with a scale tensor beside each
weight, see quantization.py). But a directory that carries it should carry it whole, so it is checked in the guide's three
steps: the map names blocks that exist, the table's scales are usable, and the blocks begin with the magic.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from workers.weights.findings import Findings, listed, printable
from workers.weights.layout import Layout
from workers.weights.safetensors import Header

MAP_FILE = "block_index_map.json"
TABLE_ENTRY = "__vllm_fp8_scale_table__"
# "GMMA" written as a big-endian number; either byte order is taken.
MAGICS = (bytes.fromhex("474d4d41"), bytes.fromhex("414d4d47"))
_UNUSED = "vLLM itself doesn't use it: it reads weight_scale or weight_scale_inv tensors."
_FIX = "Nothing depends on it for serving; fetch the file again if another tool needs it."
_MOST_BLOCKS = 100_000


def check_guide_format(
    layout: Layout, headers: Mapping[str, Header], map_content: bytes | None, findings: Findings
) -> None:
    """Check whichever of the three pieces the directory carries; the findings say that engines ignore them."""
    if map_content is not None:
        _check_map(layout, headers, map_content, findings)
    for file, header in headers.items():
        if TABLE_ENTRY in header.metadata:
            _check_table(file, header, headers, findings)
    for entry in layout.safetensors:
        if entry.name not in headers and entry.size >= 4 and _starts_with_magic(entry.path, 0):
            message = f"{entry.name} starts with the block magic 0x474D4D41 instead of a safetensors header. {_UNUSED}"
            findings.add("guide_format.broken", entry.name, message, "Fetch an ordinary safetensors checkpoint.")


def _report(file: str, what: str, problems: list[str], findings: Findings) -> None:
    if problems:
        findings.add("guide_format.broken", file, f"{what} is damaged: {listed(problems)}. {_UNUSED}", _FIX)
    else:
        findings.add("guide_format.sound", file, f"{what} is sound. {_UNUSED}", "Nothing to do.")


def _check_map(layout: Layout, headers: Mapping[str, Header], content: bytes, findings: Findings) -> None:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        _report(MAP_FILE, "The block map", [f"it isn't valid JSON ({str(error)[:80]})"], findings)
        return
    if not isinstance(document, dict) or not document:
        _report(MAP_FILE, "The block map", ["it names no block"], findings)
        return
    tensors = {name for header in headers.values() for name in header.tensors}
    problems: list[str] = []
    inner = next((document[key] for key in ("blocks", "block_map", "weight_map") if key in document), document)
    for block, place in _blocks(inner):
        problems.extend(_block_problems(block, place, layout, tensors))
        if len(problems) > 100:
            break
    _report(MAP_FILE, "The block map", problems, findings)


def _blocks(blocks: Any) -> Iterator[tuple[str, Any]]:
    items = blocks.items() if isinstance(blocks, dict) else enumerate(blocks) if isinstance(blocks, list) else ()
    for number, (block, place) in enumerate(items):
        if number >= _MOST_BLOCKS:
            return
        yield str(block), place


def _block_problems(block: str, place: Any, layout: Layout, tensors: set[str]) -> list[str]:
    """A place is a file's name, or an object with a file, an offset, and perhaps a tensor's name."""
    shown = printable(block)
    if isinstance(place, str):
        place = {"file": place}
    if not isinstance(place, dict):
        return []  # Metadata beside the blocks.
    file = next((place[key] for key in ("file", "shard", "filename", "path") if isinstance(place.get(key), str)), None)
    problems = []
    if file is not None and file not in layout.entries and "." in file:
        problems.append(f"block {shown} lies in {printable(file)}, which doesn't exist")
    tensor = place.get("tensor", place.get("name"))
    if isinstance(tensor, str) and tensors and tensor not in tensors:
        problems.append(f"block {shown} belongs to {printable(tensor)}, which doesn't exist")
    offset, size = place.get("offset"), place.get("size", place.get("length", 0))
    if file in layout.entries and type(offset) is int:
        entry = layout.entries[file]
        if offset < 0 or type(size) is not int or size < 0 or offset + max(size, len(MAGICS[0])) > entry.size:
            problems.append(f"block {shown} lies outside of {printable(file)}")
        elif not _starts_with_magic(entry.path, offset):
            problems.append(f"block {shown} doesn't begin with the magic 0x474D4D41")
    return problems


def _starts_with_magic(path: str, offset: int) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.pread(descriptor, len(MAGICS[0]), offset) in MAGICS
    except (OSError, OverflowError):
        return False
    finally:
        os.close(descriptor)


def _check_table(file: str, header: Header, headers: Mapping[str, Header], findings: Findings) -> None:
    try:
        table = json.loads(header.metadata[TABLE_ENTRY])
    except (ValueError, RecursionError):
        _report(file, f"The scale table {TABLE_ENTRY}", ["it isn't valid JSON"], findings)
        return
    if not isinstance(table, dict) or not table:
        _report(file, f"The scale table {TABLE_ENTRY}", ["it is empty"], findings)
        return
    tensors = {name for other in headers.values() for name in other.tensors}
    problems = []
    for name, scales in list(table.items())[:_MOST_BLOCKS]:
        if name not in tensors:
            problems.append(f"{printable(name)} isn't a tensor of this model")
        numbers = scales if isinstance(scales, list) else [scales]
        if not numbers or not all(_is_scale(number) for number in numbers):
            problems.append(f"a scale of {printable(name)} isn't a positive number")
    _report(file, f"The scale table {TABLE_ENTRY}", problems, findings)


def _is_scale(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_is_scale(inner) for inner in value[:_MOST_BLOCKS] if not isinstance(inner, list))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0

"""The header of a GGUF file, walked as its specification describes (versions 2 and 3) without believing its counts.

Layout: magic "GGUF", version u32, number of tensors u64, number of metadata entries u64, the entries (key, type, value),
then per tensor: name, number of dimensions u32, dimensions u64 each, type u32, offset u64 into the aligned data section.
"""

import struct
from dataclasses import dataclass
from typing import BinaryIO

MAGIC = b"GGUF"
_SIMPLE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_MOST_ENTRIES = 1_000_000
_MOST_TEXT_BYTES = 64 << 20
_MOST_DEPTH = 8


class GGUFError(ValueError):
    """A header that can't be used; `code` is the finding's code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What the header tells: version, number of tensors, and the model's architecture if it names one."""

    version: int
    tensors: int
    architecture: str | None


class _Reader:
    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream, self._size = stream, size

    def take(self, count: int) -> bytes:
        if count > _MOST_TEXT_BYTES:
            raise GGUFError("weights.header_invalid", f"has a header entry of {count:,} bytes")
        data = self._stream.read(count)
        if len(data) < count:
            raise GGUFError("weights.truncated", f"is {self._size:,} bytes long and ends inside its header")
        return data

    def skip(self, count: int) -> None:
        if self._stream.tell() + count > self._size:
            raise GGUFError("weights.truncated", f"is {self._size:,} bytes long and ends inside its header")
        self._stream.seek(count, 1)

    def number(self, form: str) -> int:
        value: int = struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0]
        return value

    def text(self) -> bytes:
        return self.take(self.number("Q"))

    def value(self, kind: int, depth: int = 0) -> bytes | None:
        """Step over a value; a text is returned."""
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY and depth < _MOST_DEPTH:
            inner, count = self.number("I"), self.number("Q")
            if inner in _SIMPLE_BYTES:
                self.skip(_SIMPLE_BYTES[inner] * count)
                return None
            if count > _MOST_ENTRIES * 4:
                raise GGUFError("weights.header_invalid", f"has a list of {count:,} entries in its header")
            for _ in range(count):
                self.value(inner, depth + 1)
            return None
        if kind not in _SIMPLE_BYTES:
            raise GGUFError("weights.header_invalid", f"has a header entry of unknown kind {kind}")
        self.skip(_SIMPLE_BYTES[kind])
        return None


def read_gguf(stream: BinaryIO, *, file_bytes: int) -> GGUFHeader:
    """Walk a GGUF header; raises GGUFError with the finding's code if it is damaged or describes more than there is."""
    reader = _Reader(stream, file_bytes)
    if reader.take(4) != MAGIC:
        raise GGUFError("weights.header_invalid", "doesn't start with GGUF, so it is no GGUF file")
    version = reader.number("I")
    if version not in {2, 3}:
        raise GGUFError("weights.header_invalid", f"has GGUF version {version}; engines read 2 and 3")
    tensors, entries = reader.number("Q"), reader.number("Q")
    if tensors > _MOST_ENTRIES or entries > _MOST_ENTRIES:
        raise GGUFError("weights.header_invalid", f"claims {tensors:,} tensors and {entries:,} entries")
    architecture, alignment = None, 32
    for _ in range(entries):
        key, kind = reader.text(), reader.number("I")
        if key == b"general.alignment" and kind == 4:
            alignment = reader.number("I") or 32
            continue
        value = reader.value(kind)
        if key == b"general.architecture" and value is not None:
            architecture = value.decode("utf-8", "replace")
    farthest = _walk_tensors(reader, tensors)
    start = -(-stream.tell() // alignment) * alignment
    if tensors and start + farthest >= file_bytes:
        short = start + farthest - file_bytes
        raise GGUFError(
            "weights.truncated", f"is {file_bytes:,} bytes long; its last tensor starts {short:,} bytes later"
        )
    return GGUFHeader(version, tensors, architecture)


def _walk_tensors(reader: _Reader, count: int) -> int:
    """Read all tensor entries; returns the highest offset into the data section."""
    farthest = 0
    for _ in range(count):
        reader.text()
        dimensions = reader.number("I")
        if dimensions > 8:
            raise GGUFError("weights.header_invalid", f"has a tensor of {dimensions} dimensions")
        reader.skip(8 * dimensions)
        reader.number("I")
        farthest = max(farthest, reader.number("Q"))
    return farthest

"""Facts about a tensor's numbers, found in its raw bytes as they stream by: NaN, infinity, all zero, scales not positive.

Only the standard library is used. Searching a strided slice for the few byte values that an impossible exponent has is
fast, and decoding is needed for scales alone, which are small.
"""

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from workers.weights.safetensors import Tensor

# Little-endian floats: (bytes per element, possible last bytes of a NaN or infinity, mask and value for the byte before).
_FLOATS: dict[str, tuple[int, bytes, int]] = {
    "BF16": (2, rb"[\x7f\xff]", 0x80),
    "F32": (4, rb"[\x7f\xff]", 0x80),
    "F64": (8, rb"[\x7f\xff]", 0xF0),
    "F16": (2, rb"[\x7c-\x7f\xfc-\xff]", 0x00),
    "F8_E5M2": (1, rb"[\x7c-\x7f\xfc-\xff]", 0x00),
    "F8_E4M3": (1, rb"[\x7f\xff]", 0x00),
    "F8_E4M3FNUZ": (1, rb"\x80", 0x00),
    "F8_E5M2FNUZ": (1, rb"\x80", 0x00),
    "F8_E8M0": (1, rb"\xff", 0x00),
}
_PATTERNS = {dtype: re.compile(pattern, re.DOTALL) for dtype, (_, pattern, _) in _FLOATS.items()}
_UNPACK = {"F16": "e", "F32": "f", "F64": "d"}
_SCALE_NAME = re.compile(
    r"(?:^|[._])(?:weight_scale(?:_inv|_2)?|(?:input|output)_scale|\w*global_scale|scales?|\w+_scales?)$"
)
_LEARNED_SCALES = ("router.scale", "per_expert_scale", "layer_scale", "correct_output_scale", "q_scale", "logit_scale")


def is_quantisation_scale(name: str) -> bool:
    """Whether a tensor's name says that it holds quantisation scales, which can't be zero or negative."""
    return _SCALE_NAME.search(name) is not None and not name.endswith(_LEARNED_SCALES)


@dataclass(slots=True)
class ValueFacts:
    """What was seen of one tensor's numbers so far."""

    name: str
    dtype: str
    scale: bool
    not_finite: int = 0
    not_positive: int = 0
    all_zero: bool = True

    def feed(self, piece: bytes) -> None:
        """Take in the next bytes; a piece holds whole elements."""
        self._look_for_zero(piece)
        spec = _FLOATS.get(self.dtype)
        if spec is not None:
            self._look_for_not_finite(piece, *spec)
        if self.scale:
            self._look_for_not_positive(piece)

    def _look_for_zero(self, piece: bytes) -> None:
        if self.all_zero and not _only_zero(piece):
            # Minus zero is zero too, and its only byte that isn't null is the last one of an element.
            width = _FLOATS[self.dtype][0] if self.dtype in _FLOATS else 0
            negative = width > 0 and self.dtype != "F8_E8M0" and "FNUZ" not in self.dtype
            self.all_zero = (
                negative
                and not piece[width - 1 :: width].translate(None, b"\0\x80")
                and all(_only_zero(piece[offset::width]) for offset in range(width - 1))
            )

    def _look_for_not_finite(self, piece: bytes, width: int, _pattern: bytes, mask: int) -> None:
        high = piece[width - 1 :: width] if width > 1 else piece
        if mask:
            low = piece[width - 2 :: width]
            hits = sum(1 for match in _PATTERNS[self.dtype].finditer(high) if low[match.start()] & mask == mask)
        else:
            hits = sum(1 for _ in _PATTERNS[self.dtype].finditer(high))
        self.not_finite += hits

    def _look_for_not_positive(self, piece: bytes) -> None:
        if self.dtype == "BF16":
            words = struct.unpack(f"<{len(piece) // 2}H", piece)
            self.not_positive += sum(1 for word in words if word & 0x8000 or not word & 0x7FFF)
        elif self.dtype in _UNPACK:
            code = _UNPACK[self.dtype]
            numbers = struct.unpack(f"<{len(piece) // struct.calcsize(code)}{code}", piece)
            self.not_positive += sum(1 for number in numbers if number <= 0)
        elif self.dtype in {"F8_E4M3", "F8_E5M2"}:
            self.not_positive += sum(1 for byte in piece if byte & 0x80 or not byte)


_ZEROS = bytes(1 << 16)


def _only_zero(piece: bytes) -> bool:
    if not piece:
        return True
    if piece[0] or piece[-1]:
        return False
    view = memoryview(piece)
    return all(view[at : at + len(_ZEROS)] == _ZEROS[: len(piece) - at] for at in range(0, len(piece), len(_ZEROS)))


class ValueReader:
    """Cuts a file's stream of data bytes into its tensors and collects the facts of each."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        order = sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end))
        self._waiting = [(name, tensor) for name, tensor in order if tensor.end > tensor.begin]
        self._at = 0
        self._position = 0
        self._rest = b""
        self.facts: list[ValueFacts] = []

    def feed(self, data: memoryview) -> None:
        """Take in the next bytes of the data section."""
        start = 0
        while start < len(data) and self._at < len(self._waiting):
            name, tensor = self._waiting[self._at]
            if self._position < tensor.begin:
                skip = min(tensor.begin - self._position, len(data) - start)
                start, self._position = start + skip, self._position + skip
                continue
            if self._position >= tensor.end:  # Overlapping offsets: reported elsewhere, not read twice.
                self._next()
                continue
            take = min(tensor.end - self._position, len(data) - start)
            self._piece(name, tensor, bytes(data[start : start + take]))
            start, self._position = start + take, self._position + take
            if self._position >= tensor.end:
                self._next()

    def _next(self) -> None:
        self._at, self._rest = self._at + 1, b""

    def _piece(self, name: str, tensor: Tensor, piece: bytes) -> None:
        if not self.facts or self.facts[-1].name != name:
            scale = is_quantisation_scale(name)
            self.facts.append(ValueFacts(name, tensor.dtype, scale))
        width = _FLOATS[tensor.dtype][0] if tensor.dtype in _FLOATS else 1
        whole = self._rest + piece if self._rest else piece
        cut = len(whole) - len(whole) % width
        self._rest = whole[cut:]
        self.facts[-1].feed(whole[:cut] if cut < len(whole) else whole)


def remarkable(facts: Iterable[ValueFacts]) -> list[ValueFacts]:
    """The facts that deserve a finding."""
    return [fact for fact in facts if fact.not_finite or fact.all_zero or (fact.scale and fact.not_positive)]

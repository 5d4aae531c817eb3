"""Compares what headers say of the same tensor in all layers: numbers that are read as another type or shape are noise.

A header that was changed names as many bytes as before, so only the other layers tell. It holds for whatever lies in a
layer: weights, norms, and what each quantisation puts beside them.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

from workers.weights.findings import Findings, listed, printable
from workers.weights.layers import FEWEST_LAYERS, NUMBERED
from workers.weights.safetensors import DTYPE_BITS, Tensor
from workers.weights.tensors import FLOATS

_FIX = "Download this file again: the numbers would be read as something else."

Places = list[tuple[str, Tensor]]


def compare_headers(tensors: Mapping[str, Tensor], findings: Findings) -> None:
    """Look for a tensor whose type or shape differs from the same tensor's in all other layers, though its bytes are as many.

    Another float of another width is harmless, but odd.
    """
    by_suffix: dict[tuple[str, str], Places] = {}
    for name, tensor in tensors.items():
        if match := NUMBERED.match(name):
            by_suffix.setdefault((match[1], match[3]), []).append((name, tensor))
    sixteen_bit = [(name, one) for name, one in tensors.items() if one.dtype in {"BF16", "F16"}]
    odd: dict[str, list[str]] = {}
    types: dict[str, list[str]] = {}
    # No checkpoint mixes the two types of 16-bit floats for a single tensor, whichever it is.
    for places in [*by_suffix.values(), sixteen_bit]:
        for name, tensor, usual in _single(places, lambda one: one.dtype):
            text = f"{printable(name)} is {tensor.dtype}, elsewhere {usual.dtype}"
            if places is sixteen_bit or (_as_wide(tensor, usual) and tensor.shape == usual.shape):
                _note(types, tensor, text)
            elif tensor.dtype in FLOATS and usual.dtype in FLOATS and not _as_wide(tensor, usual):
                _note(odd, tensor, text)
    for file, texts in odd.items():
        message = f"Float types differ between layers: {listed(texts)}."
        findings.add("weights.dtype_mixed", file, message, "The engine converts it; check that no layer was replaced.")
    for file, texts in types.items():
        message = f"A type of the same size as everywhere else, but another one: {listed(texts)}."
        findings.add("weights.dtype_unexpected", file, message, _FIX)
    _compare_shapes(by_suffix.values(), findings)


def _compare_shapes(kinds: Iterable[Places], findings: Findings) -> None:
    found: dict[str, list[str]] = {}
    for places in kinds:
        for name, tensor, usual in _single(places, lambda one: one.shape):
            if tensor.dtype == usual.dtype and tensor.end - tensor.begin == usual.end - usual.begin:
                _note(found, tensor, f"{printable(name)} is {list(tensor.shape)}, elsewhere {list(usual.shape)}")
    for file, texts in found.items():
        message = f"As many numbers as everywhere else, but in another shape: {listed(texts)}."
        findings.add("weights.shape_mismatch", file, message, _FIX)


def _single(places: Places, what: Callable[[Tensor], Hashable]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The one tensor that differs from all others in something, with one of the others; nothing if several differ."""
    if len(places) < FEWEST_LAYERS:
        return
    kinds = Counter(what(tensor) for _, tensor in places)
    usual, count = kinds.most_common(1)[0]
    if count != len(places) - 1:
        return
    like = next(tensor for _, tensor in places if what(tensor) == usual)
    yield from ((name, tensor, like) for name, tensor in places if what(tensor) != usual)


def _as_wide(one: Tensor, other: Tensor) -> bool:
    return DTYPE_BITS[one.dtype] == DTYPE_BITS[other.dtype]


def _note(found: dict[str, list[str]], tensor: Tensor, text: str) -> None:
    texts = found.setdefault(tensor.file, [])
    if text not in texts:
        texts.append(text)

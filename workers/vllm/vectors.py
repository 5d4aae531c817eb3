"""Vectors of pooling models: where an engine gives them, how they are read, and whether sound weights can have made them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

EMBEDDINGS_PATH = "/v1/embeddings"
POOLING_PATH = "/pooling"
"""Every pooling model answers it; one that classifies or scores has no embeddings."""

_SAME = 0.02
"""Relative distance. Kernels round differently from batch to batch, so the same text may come back a little off."""
_OTHER = 1e-4


def values_of(answer: Mapping[str, Any]) -> tuple[float, ...]:
    """The vector of the first text in an engine's answer; empty if there is none.

    Where each token has one, it is the last token's, which in every model has seen the whole text. What JSON can't say
    (it comes as null) is not a number.
    """
    first = next(iter(answer.get("data") or []), None)
    found = first.get("embedding", first.get("data")) if isinstance(first, Mapping) else None
    if isinstance(found, list) and found and isinstance(found[-1], list):
        found = found[-1]
    if not isinstance(found, list):
        return ()
    return tuple(float(one) if isinstance(one, (int, float)) else math.nan for one in found)


def fault_of(values: Sequence[float]) -> str:
    """What is wrong with one vector: `empty`, `not_finite` or `zeros`; an empty text if nothing is."""
    if not values:
        return "empty"
    if not all(math.isfinite(one) for one in values):
        return "not_finite"
    return "" if any(values) else "zeros"


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """How far apart two vectors of one length are, in lengths of the longer one: 0 the same, 2 opposite."""
    longest = max(math.hypot(*one), math.hypot(*other))
    return math.dist(one, other) / longest if longest else 0.0


def is_same(one: Sequence[float], other: Sequence[float]) -> bool:
    """True if both may be what one text became."""
    return len(one) == len(other) and distance(one, other) <= _SAME


def is_other(one: Sequence[float], other: Sequence[float]) -> bool:
    """True if both can't be what one text became: two texts must have two vectors."""
    return len(one) != len(other) or distance(one, other) > _OTHER

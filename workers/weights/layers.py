"""Compares a model's layers with each other: what nearly all layers of a kind have, one shouldn't lack.

This needs no table of architectures, so it is what finds a lost tensor in an architecture nobody has described yet. It prefers
silence: a layer that lacks something but has something else instead is of another kind (attention here, Mamba there).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from workers.weights.findings import Findings, listed, printable
from workers.weights.safetensors import Tensor
from workers.weights.tensors import FLOATS, Weights, report_missing, report_unexpected, text_root

_NUMBERED = re.compile(r"^(.*?[._]?(?:layers|h|blocks|block|layer|resblocks|encoder|decoder))\.(\d+)\.(.+)$")
_EXPERT = re.compile(r"^(.*\bexperts)\.(\d+)\.(.+)$")
_PACKED = re.compile(r"\.(?:qweight|weight_packed)$")
_BESIDE = re.compile(
    r"\.(?:qzeros|scales|g_idx|weight_scale\w*|weight_zero_point|weight_shape|weight_global_scale|input_\w*scale|SCB|"
    r"weight_format|weight\.\w+[\w.]*|weight_g_idx|[kqv]_scale)$"
)
# First or last layers of these really lack a tensor (ModernBERT starts with its embedding's norm; RWKV's first
# layer has no value residual).
_ODD_ENDS = ("modernbert", "rwkv", "eagle", "medusa")
_FEWEST_LAYERS = 4
_FEWEST_TOWER_LAYERS = 6
_MOST_LOST = 3


@dataclass(frozen=True, slots=True)
class Stack:
    """Numbered layers under one prefix, each with its tensors' names relative to the layer."""

    prefix: str
    layers: Mapping[int, frozenset[str]]


def stacks(names: Iterable[str]) -> list[Stack]:
    """All stacks of numbered layers; quantised forms count as the weight they stand for, experts as one."""
    found: dict[str, dict[int, set[str]]] = {}
    for name in names:
        match = _NUMBERED.match(name)
        if match is None or len(match[2]) > 6:
            continue
        suffix = _PACKED.sub(".weight", match[3])
        if _BESIDE.search(suffix):
            continue
        suffix = re.sub(r"\bexperts\.\d+\.", "experts.#.", suffix)
        found.setdefault(match[1], {}).setdefault(int(match[2]), set()).add(suffix)
    return [
        Stack(prefix, {number: frozenset(suffixes) for number, suffixes in layers.items()})
        for prefix, layers in found.items()
    ]


def compare_layers(weights: Weights, findings: Findings, *, model_type: str, towers_only: bool) -> None:
    """Report tensors that a layer lacks or has alone; with `towers_only`, the text stack is left to its table."""
    if weights.lost:
        return
    root = text_root(weights.tensors)[0] + "layers"
    for stack in stacks(weights.tensors):
        text = stack.prefix == root
        if text and towers_only:
            continue
        _compare_stack(stack, weights, findings, text=text, odd_ends=model_type.startswith(_ODD_ENDS))
    if not towers_only:
        _compare_experts(weights, findings)


def _compare_stack(stack: Stack, weights: Weights, findings: Findings, *, text: bool, odd_ends: bool) -> None:
    first, last = min(stack.layers), max(stack.layers)
    if text and len(stack.layers) >= 2 and first == 0:
        gone = sorted(set(range(min(last, 2_000))) - set(stack.layers))
        if gone:
            names = [f"{stack.prefix}.{number}" for number in gone]
            report_missing(findings, weights.index_file or weights.file_of(names[0]), names)
    fewest = _FEWEST_LAYERS if text else _FEWEST_TOWER_LAYERS
    if len(stack.layers) < fewest:
        return
    kinds = Counter(stack.layers.values())
    for number, suffixes in sorted(stack.layers.items()):
        if (odd_ends or not text) and number in (first, last):
            continue
        # Only a kind that is much more common can say what this one lacks.
        for other, count in kinds.most_common(8):
            if count < 3 * kinds[suffixes] or other == suffixes:
                continue
            if _judge(stack.prefix, number, suffixes, other, weights, findings, end=number in (first, last)):
                break


def _judge(
    prefix: str,
    number: int,
    own: frozenset[str],
    usual: frozenset[str],
    weights: Weights,
    findings: Findings,
    *,
    end: bool,
) -> bool:
    """Whether layer `number` is a damaged copy of the usual kind; reports the damage."""
    lost, extra = sorted(usual - own), sorted(own - usual)
    if len(lost) > _MOST_LOST or len(extra) > 1 or _lost_module(lost, own):
        return False
    if extra and len(lost) > 1:
        return False
    names = [f"{prefix}.{number}.{suffix}" for suffix in lost]
    if names:
        report_missing(findings, weights.file_of(names[0]), names)
    strange = [f"{prefix}.{number}.{suffix}" for suffix in extra if not end]
    if strange:
        tensor = weights.tensors.get(strange[0])
        report_unexpected(findings, tensor.file if tensor else weights.file_of(strange[0]), strange)
    return bool(names or strange)


def _lost_module(lost: list[str], own: frozenset[str]) -> bool:
    """Whether a whole part of several tensors is absent: that is a design (a layer without attention), not damage."""
    parts = {suffix.partition(".")[0] for suffix in lost if "." in suffix}
    gone = [part for part in parts if not any(suffix.startswith(part + ".") for suffix in own)]
    return any(sum(1 for suffix in lost if suffix.startswith(part + ".")) >= 3 for part in gone)


def _compare_experts(weights: Weights, findings: Findings) -> None:
    groups: dict[str, dict[int, set[str]]] = {}
    for name in weights.tensors:
        if match := _EXPERT.match(name):
            groups.setdefault(match[1], {}).setdefault(int(match[2][:7]), set()).add(match[3])
    for prefix, experts in groups.items():
        usual, _ = Counter(frozenset(suffixes) for suffixes in experts.values()).most_common(1)[0]
        missing = [
            f"{prefix}.{number}.{suffix}"
            for number in range(min(max(experts) + 1, 10_000))
            for suffix in sorted(usual - experts.get(number, set()))
        ]
        if missing and len(missing) <= max(4, len(experts) * len(usual) // 4):
            report_missing(findings, weights.file_of(missing[0]), missing)


def note_mixed_types(tensors: Mapping[str, Tensor], findings: Findings) -> None:
    """Note a float tensor whose type differs from the same tensor's in all other layers: harmless, but odd."""
    by_suffix: dict[tuple[str, str], list[tuple[str, Tensor]]] = {}
    for name, tensor in tensors.items():
        if (match := _NUMBERED.match(name)) and tensor.dtype in FLOATS:
            by_suffix.setdefault((match[1], match[3]), []).append((name, tensor))
    odd: dict[str, list[str]] = {}
    for places in by_suffix.values():
        types = Counter(tensor.dtype for _, tensor in places)
        if len(types) < 2 or len(places) < _FEWEST_LAYERS or types.most_common(1)[0][1] != len(places) - 1:
            continue
        usual = types.most_common(1)[0][0]
        for name, tensor in places:
            if tensor.dtype != usual:
                odd.setdefault(tensor.file, []).append(f"{printable(name)} is {tensor.dtype}, elsewhere {usual}")
    for file, texts in odd.items():
        message = f"Float types differ between layers: {listed(texts)}."
        findings.add("weights.dtype_mixed", file, message, "The engine converts it; check that no layer was replaced.")

"""Compares a model's layers with each other: what nearly all layers of a kind have, one shouldn't lack.

This needs no table of architectures, so it is what finds a lost tensor in an architecture nobody has described yet. It prefers
silence: a layer that lacks something but has something else instead is of another kind (attention here, Mamba there).
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workers.weights.findings import Findings
from workers.weights.tensors import Weights, report_missing, report_unexpected, text_root

NUMBERED = re.compile(r"^(.*?[._]?(?:layers|h|blocks|block|layer|resblocks|encoder|decoder))\.(\d+)\.(.+)$")
_EXPERT = re.compile(r"^(.*\bexperts)\.(\d+)\.(.+)$")
_EXPERT_NUMBER = re.compile(r"\bexperts\.\d+\.")
_PACKED = re.compile(r"\.(?:qweight|weight_packed)$")
_BESIDE = re.compile(
    r"\.(?:qzeros|scales|g_idx|weight_scale\w*|weight_zero_point|weight_shape|weight_global_scale|input_\w*scale|SCB|"
    r"weight_format|weight\.\w+[\w.]*|weight_g_idx|[kqv]_scale)$"
)
# First or last layers of these really lack a tensor (ModernBERT starts with its embedding's norm; RWKV's first
# layer has no value residual).
_ODD_ENDS = ("modernbert", "rwkv", "eagle", "medusa")
_TOWER = re.compile(r"vision|visual|image|audio|speech|vit|resampler|projector|aligner", re.IGNORECASE)
FEWEST_LAYERS = 4
FEWEST_TOWER_LAYERS = 6
_MOST_LOST = 3
# A norm has a weight and perhaps a bias; parts with more tensors can be left out of a layer by design.
_SMALL_PART = 2
_MOST_KINDS = 8


@dataclass(frozen=True, slots=True)
class Stack:
    """Numbered layers under one prefix, each with its tensors' names relative to the layer."""

    prefix: str
    layers: Mapping[int, frozenset[str]]

    @property
    def tower(self) -> bool:
        """Whether these are layers of a vision or audio part, whose ends are often built differently."""
        return _TOWER.search(self.prefix) is not None


def stacks(names: Iterable[str]) -> list[Stack]:
    """All stacks of numbered layers; quantised forms count as the weight they stand for, experts as one."""
    found: dict[str, dict[int, set[str]]] = {}
    for name in names:
        match = NUMBERED.match(name)
        if match is None or len(match[2]) > 6:
            continue
        suffix = match[3]
        if not suffix.endswith((".weight", ".bias")):
            suffix = _PACKED.sub(".weight", suffix)
            if _BESIDE.search(suffix):
                continue
        if "experts." in suffix:
            suffix = _EXPERT_NUMBER.sub("experts.#.", suffix)
        found.setdefault(match[1], {}).setdefault(int(match[2]), set()).add(suffix)
    return [
        Stack(prefix, {number: frozenset(suffixes) for number, suffixes in layers.items()})
        for prefix, layers in found.items()
    ]


def layer_kinds(text: Mapping[str, Any], layers: int) -> list[Hashable]:
    """What the configuration says about each layer: all its lists with one entry per layer, such as `layer_types`."""
    lists = [
        value
        for value in text.values()
        if isinstance(value, list)
        and len(value) == layers
        and all(isinstance(item, str | int) for item in value)
        and len(set(value)) <= min(_MOST_KINDS, max(1, layers // 2))
    ]
    shared = text.get("num_kv_shared_layers")
    first_shared = layers - shared if type(shared) is int else layers
    return [(number >= first_shared, *(value[number] for value in lists)) for number in range(layers)]


def compare_layers(weights: Weights, findings: Findings, text: Mapping[str, Any], *, towers_only: bool) -> None:
    """Report tensors that a layer lacks or has alone; with `towers_only`, the text stack is left to its table."""
    if weights.lost:
        return
    model_type = str(text.get("model_type", ""))
    root = text_root(weights.tensors)[0] + "layers"
    for stack in stacks(weights.tensors):
        if towers_only and (stack.prefix == root or not stack.tower):
            continue
        comparison = _Comparison(stack, weights, findings, odd_ends=model_type.startswith(_ODD_ENDS))
        comparison.run([] if stack.tower else layer_kinds(text, len(stack.layers)))
    if not towers_only:
        _compare_experts(weights, findings)


def _alike(own: Mapping[int, frozenset[str]], kinds: list[Hashable]) -> list[list[int]]:
    """Layers to be compared with each other: those of one kind, and kinds of which two layers hold just the same."""
    groups: dict[Hashable, set[int]] = {}
    for number in own:
        groups.setdefault(kinds[number] if number < len(kinds) else None, set()).add(number)
    merged: list[tuple[set[int], set[frozenset[str]]]] = []
    for numbers in groups.values():
        contents = {own[number] for number in numbers if own[number]}
        for other in [entry for entry in merged if entry[1] & contents]:
            merged.remove(other)
            numbers, contents = numbers | other[0], contents | other[1]
        merged.append((numbers, contents))
    return [sorted(numbers) for numbers, _ in merged]


class _Comparison:
    """One stack's layers, compared part by part (`self_attn`, `mlp`, `input_layernorm`)."""

    def __init__(self, stack: Stack, weights: Weights, findings: Findings, *, odd_ends: bool) -> None:
        self._stack, self._weights, self._findings = stack, weights, findings
        self._ends = {min(stack.layers), max(stack.layers)}
        self._skip_ends = odd_ends or stack.tower
        # How many layers may share a fault before it is taken for a design.
        self._rare = max(1, len(stack.layers) // 16)

    def run(self, kinds: list[Hashable]) -> None:
        """Report what layers lack or have alone; only layers of one kind are compared."""
        layers = self._stack.layers
        fewest = FEWEST_TOWER_LAYERS if self._stack.tower else FEWEST_LAYERS
        if not self._stack.tower:
            self._gaps()
        if len(layers) < fewest:
            return
        for part in {suffix.partition(".")[0] for suffixes in layers.values() for suffix in suffixes}:
            own = {
                number: frozenset(suffix for suffix in suffixes if suffix.partition(".")[0] == part)
                for number, suffixes in layers.items()
            }
            for numbers in _alike(own, kinds):
                owners = {number: own[number] for number in numbers if own[number]}
                if owners:
                    self._inside(owners)
                    self._whole(owners, numbers)

    def _gaps(self) -> None:
        """Layers 0, 1 and 3 without a 2."""
        numbers = set(self._stack.layers)
        if len(numbers) < 2 or 0 not in numbers:
            return
        gone = sorted(set(range(min(max(numbers), 2_000))) - numbers)
        names = [f"{self._stack.prefix}.{number}" for number in gone]
        if names:
            report_missing(self._findings, self._weights.index_file or self._weights.file_of(names[0]), names)

    def _inside(self, owners: Mapping[int, frozenset[str]]) -> None:
        """Compare the layers that have this part with what the part usually holds."""
        kinds = Counter(owners.values())
        usual, count = kinds.most_common(1)[0]
        for number, own in owners.items():
            if own == usual or count < max(3, 3 * kinds[own]) or kinds[own] > self._rare:
                continue
            lost, extra = sorted(usual - own), sorted(own - usual)
            if len(lost) > _MOST_LOST or len(extra) > 1 or (extra and len(lost) > 1):
                continue  # Another kind of layer: it has other tensors instead.
            self._lost(number, lost)
            self._strange(number, extra)

    def _whole(self, owners: Mapping[int, frozenset[str]], everywhere: list[int]) -> None:
        """A small part (a norm) that nearly all layers have, or that one alone has."""
        size = max(len(own) for own in owners.values())
        lacking = [number for number in everywhere if number not in owners]
        if size > _SMALL_PART:
            return
        if lacking and len(lacking) <= self._rare and len(owners) >= 3:
            usual = Counter(owners.values()).most_common(1)[0][0]
            for number in lacking:
                self._lost(number, sorted(usual))
        elif len(owners) == 1 and len(lacking) >= 3:
            number, own = next(iter(owners.items()))
            self._strange(number, sorted(own))

    def _lost(self, number: int, suffixes: list[str]) -> None:
        names = [f"{self._stack.prefix}.{number}.{suffix}" for suffix in suffixes]
        if names and not (self._skip_ends and number in self._ends):
            report_missing(self._findings, self._weights.file_of(names[0]), names)

    def _strange(self, number: int, suffixes: list[str]) -> None:
        names = [f"{self._stack.prefix}.{number}.{suffix}" for suffix in suffixes]
        if names and number not in self._ends:
            tensor = self._weights.tensors.get(names[0])
            report_unexpected(self._findings, tensor.file if tensor else self._weights.file_of(names[0]), names)


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


def check_vocabulary(weights: Weights, findings: Findings, *, rows: int | None, heads: int) -> None:
    """Report an embedding (and, with `heads` 2, an output head) that is lost: no matrix has the vocabulary's rows."""
    if rows is None or rows < 2 or weights.lost:
        return
    tall = [
        name
        for name, tensor in weights.tensors.items()
        if len(tensor.shape) == 2 and tensor.shape[0] >= rows and not NUMBERED.match(name)
    ]
    if len(tall) < heads:
        what = "the embedding" if not tall else "the output head or the embedding"
        file = weights.file_of("lm_head.weight")
        report_missing(findings, file, [f"{what} ({rows:,} rows)"])

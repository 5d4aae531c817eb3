"""LoRA adapter directories: adapter_config.json and pairs of small matrices, without a model of their own."""

import re
from collections.abc import Mapping
from typing import Any

from workers.weights.findings import Findings, printable
from workers.weights.safetensors import Tensor
from workers.weights.tensors import Weights, report_missing

_PAIR = re.compile(
    r"^(?P<module>.+)\.lora_(?P<side>A|B|embedding_A|embedding_B)(?P<rest>(?:\.\w+)?\.weight|(?:\.\w+)?)$"
)
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")
_PARTNER = {"A": "B", "B": "A", "embedding_A": "embedding_B", "embedding_B": "embedding_A"}


def check_adapter(config: Mapping[str, Any], weights: Weights, findings: Findings) -> None:
    """Report halves of pairs that are missing and ranks that don't fit each other or adapter_config.json."""
    ranks = _ranks(config)
    for name, tensor in weights.tensors.items():
        match = _PAIR.match(name)
        if match is None:
            continue
        partner = f"{match['module']}.lora_{_PARTNER[match['side']]}{match['rest']}"
        if partner not in weights.tensors and not weights.excused(partner):
            report_missing(findings, weights.weight_map.get(partner, tensor.file), [partner])
        elif match["side"] == "A" and partner in weights.tensors:
            _compare_ranks(name, tensor, weights.tensors[partner], ranks, findings)


def facts_of(config: Mapping[str, Any], weights: Weights) -> dict[str, Any]:
    """What an adapter is made for: its base model as its author names it, its highest rank, and the modules it changes.

    `modules` is each module's width of input and output, where all layers have the same; `layers` is one more than the
    highest number of a layer that it changes.
    """
    widths: dict[str, set[tuple[int, int]]] = {}
    layers, ranks = 0, _ranks(config)
    for name, first in weights.tensors.items():
        match = _PAIR.match(name)
        if match is None or match["side"] != "A" or len(first.shape) != 2:
            continue
        second = weights.tensors.get(f"{match['module']}.lora_B{match['rest']}")
        if second is None or len(second.shape) != 2:
            continue
        ranks.add(first.shape[0])
        widths.setdefault(match["module"].rpartition(".")[2], set()).add((first.shape[1], second.shape[0]))
        layers = max([layers, *(int(number) + 1 for number in _LAYER.findall(match["module"]))])
    base = config.get("base_model_name_or_path")
    return {
        "base_model": printable(base) if isinstance(base, str) else "",
        "rank": max(ranks, default=0),
        "modules": {name: list(*seen) for name, seen in sorted(widths.items()) if len(seen) == 1},
        "layers": layers,
    }


def _ranks(config: Mapping[str, Any]) -> set[int]:
    pattern = config.get("rank_pattern")
    values = [config.get("r"), *(pattern.values() if isinstance(pattern, dict) else ())]
    return {value for value in values if type(value) is int}


def _compare_ranks(name: str, first: Tensor, second: Tensor, ranks: set[int], findings: Findings) -> None:
    if len(first.shape) != 2 or len(second.shape) != 2:
        return
    rank = first.shape[0]
    fix = "Fetch adapter_config.json and the adapter's weights of the same revision."
    if second.shape[1] != rank:
        message = f"{printable(name)} has rank {rank}, its other half {second.shape[1]}."
        findings.add("weights.shape_mismatch", first.file, message, fix)
    elif ranks and rank not in ranks:
        message = f"{printable(name)} has rank {rank}; adapter_config.json says {min(ranks)}."
        findings.add("weights.shape_mismatch", first.file, message, fix)

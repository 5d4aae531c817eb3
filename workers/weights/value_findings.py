"""Turns what was seen of the numbers (`--values`) into findings."""

import re
from collections.abc import Iterable

from workers.weights.findings import Findings, listed, printable
from workers.weights.tensors import Weights
from workers.weights.values import ValueFacts

_FIX_VALUES = "Download the file again and compare its checksum; if it stays so, the published weights are damaged."


def report_values(facts: Iterable[ValueFacts], weights: Weights, findings: Findings) -> None:
    """Report tensors with NaN or infinity, tensors that are all zero, and scales that are zero or negative."""
    problems: dict[tuple[str, str], list[str]] = {}
    for fact in facts:
        tensor = weights.tensors.get(fact.name)
        if tensor is None:
            continue
        name = printable(fact.name)
        if fact.not_finite:
            text = f"{name} has {_counted(fact.not_finite, 'value that is', 'values that are')} NaN or infinite"
            problems.setdefault(("values.not_finite", tensor.file), []).append(text)
        if fact.scale and fact.not_positive:
            text = f"{name} has {_counted(fact.not_positive, 'scale that is', 'scales that are')} zero or negative"
            problems.setdefault(("values.scale_not_positive", tensor.file), []).append(text)
        elif fact.all_zero and not _may_be_zero(fact.name):
            problems.setdefault(("values.all_zero", tensor.file), []).append(f"{name} is all zero")
    for (code, file), texts in problems.items():
        findings.add(code, file, f"{listed(texts)}.", _FIX_VALUES)


def _counted(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"


def _may_be_zero(name: str) -> bool:
    """Biases, zero points, group orders and norms around zero are zero in sound models."""
    beside = r"(?:bias|qzeros|zero_point|g_idx|sinks|lora_B\.\w*\.?weight|lora_B\.weight|norm\w*\.weight|A_log|position_ids)$"
    return re.search(beside, name) is not None

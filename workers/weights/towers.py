"""Vision towers that are known by name: what stands outside of their layers, and layers that are too few to compare.

Only towers whose names are known are looked at, and only if some of their layers are there: a multimodal configuration may
rightly stand beside the language model alone. Names were taken from what transformers 5.19 saves.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from workers.weights.findings import Findings
from workers.weights.layers import FEWEST_TOWER_LAYERS, Stack
from workers.weights.tensors import Weights, report_missing, report_unexpected

_LAYERS = re.compile(r"\.?(?:encoder\.layers|transformer\.layers|layers|blocks)$")
_FORMS = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv")
"""Endings that stand for a `.weight` of a quantised module."""


def _both(*modules: str) -> tuple[str, ...]:
    return tuple(f"{module}.{kind}" for module in modules for kind in ("weight", "bias"))


_QWEN3 = ("pos_embed.weight", *_both("patch_embed.proj", "merger.norm", "merger.linear_fc1", "merger.linear_fc2"))
_SINGLES: Mapping[str, tuple[str, ...]] = {
    "siglip_vision_model": (
        *_both("embeddings.patch_embedding", "post_layernorm"),
        "embeddings.position_embedding.weight",
    ),
    "clip_vision_model": (
        "embeddings.class_embedding",
        "embeddings.patch_embedding.weight",
        "embeddings.position_embedding.weight",
        *_both("pre_layrnorm", "post_layernorm"),
    ),
    "qwen2_vl": ("patch_embed.proj.weight", *_both("merger.ln_q", "merger.mlp.0", "merger.mlp.2")),
    "qwen2_5_vl": ("patch_embed.proj.weight", "merger.ln_q.weight", *_both("merger.mlp.0", "merger.mlp.2")),
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen3_5": _QWEN3,
    "qwen3_5_moe": _QWEN3,
    "gemma4": ("patch_embedder.input_proj.weight", "patch_embedder.position_embedding_table"),
    "pixtral": ("patch_conv.weight", "ln_pre.weight"),
}
"""By the vision configuration's `model_type`, without `_vision` at its end."""
_HEAD = (
    "head.probe",
    "head.attention.in_proj_weight",
    "head.attention.in_proj_bias",
    *_both("head.attention.out_proj", "head.layernorm", "head.mlp.fc1", "head.mlp.fc2"),
)
"""SigLIP's pooling head: a checkpoint has all of it or none."""
_PROJECTORS: Mapping[str, tuple[str, ...]] = {
    "gemma3": (
        "multi_modal_projector.mm_input_projection_weight",
        "multi_modal_projector.mm_soft_emb_norm.weight",
    ),
    "gemma4": ("embed_vision.embedding_projection.weight",),
    "llava": _both("multi_modal_projector.linear_1", "multi_modal_projector.linear_2"),
    "mistral3": (
        "multi_modal_projector.linear_1.weight",
        "multi_modal_projector.linear_2.weight",
        "multi_modal_projector.norm.weight",
        "multi_modal_projector.patch_merger.merging_layer.weight",
    ),
}
"""By the model's own `model_type`: what leads from the tower into the language model."""


def check_towers(weights: Weights, findings: Findings, config: Mapping[str, Any], towers: Iterable[Stack]) -> None:
    """Report what the towers with these stacks of layers have lost: single tensors, and those of one layer."""
    vision = config.get("vision_config")
    stacks = list(towers)
    roots = {_LAYERS.sub("", stack.prefix) for stack in stacks}
    if not isinstance(vision, dict) or not roots or weights.lost:
        return
    kind = str(vision.get("model_type", "")).removesuffix("_vision")
    if kind in _SINGLES:
        for stack in stacks:
            _compare_layers(stack, weights, findings)
    for root in sorted(roots):
        names = [f"{root}.{name}" for name in _expected(kind, vision, root, weights)]
        _report(weights, findings, [name for name in names if not _there(weights, name)])
    projector = _PROJECTORS.get(str(config.get("model_type", "")), ())
    if projector and kind in _SINGLES:
        # Older and newer checkpoints have them below `model.` or not: the ending settles it.
        above = "model." if any(root.startswith("model.") for root in roots) else ""
        ends = [above + name for name in projector if not any(_is_at(found, name) for found in weights.tensors)]
        if len(ends) < len(projector) or len(projector) == 1:
            _report(weights, findings, ends)


def _compare_layers(stack: Stack, weights: Weights, findings: Findings) -> None:
    """All layers of a known tower are built alike, so even two of them tell what one has lost."""
    if len(stack.layers) >= FEWEST_TOWER_LAYERS:
        return  # Compared with each other already, as every tower's are.
    holders = Counter(suffix for suffixes in stack.layers.values() for suffix in suffixes)
    alone = {suffix for suffix, count in holders.items() if count == 1 and len(stack.layers) > 2}
    for number, suffixes in sorted(stack.layers.items()):
        at = f"{stack.prefix}.{number}."
        _report(weights, findings, [at + suffix for suffix in sorted(holders.keys() - alone - suffixes)])
        strange = [at + suffix for suffix in sorted(alone & suffixes)]
        if strange:
            report_unexpected(findings, weights.file_of(strange[0]), strange)


def _expected(kind: str, vision: Mapping[str, Any], root: str, weights: Weights) -> tuple[str, ...]:
    names = _SINGLES.get(kind, ())
    if kind == "siglip_vision_model" and any(f"{root}.{name}" in weights.tensors for name in _HEAD):
        names += _HEAD
    mergers = vision.get("deepstack_visual_indexes")
    if kind in ("qwen3_vl", "qwen3_vl_moe") and isinstance(mergers, list):
        at = [f"deepstack_merger_list.{number}" for number in range(min(len(mergers), 64))]
        names += _both(*(f"{one}.{part}" for one in at for part in ("norm", "linear_fc1", "linear_fc2")))
    return names


def _there(weights: Weights, name: str) -> bool:
    module = name.removesuffix(".weight")
    return name in weights.tensors or any(module + form in weights.tensors for form in _FORMS)


def _is_at(found: str, name: str) -> bool:
    return found == name or found.endswith(f".{name}")


def _report(weights: Weights, findings: Findings, names: list[str]) -> None:
    lost = [name for name in names if not weights.excused(name)]
    if lost:
        report_missing(findings, weights.file_of(lost[0]), lost)

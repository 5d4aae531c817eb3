"""Compares the tensors in the files with those that the configuration implies: missing, unexpected, of another shape."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from workers.weights.architectures import Implied
from workers.weights.expectations import Choice, Group, Shape, Weight
from workers.weights.findings import Findings, listed, printable
from workers.weights.safetensors import Tensor

FLOATS = frozenset({"F16", "BF16", "F32"})
# Forms in which a linear module's weight may be stored when it is quantised.
PACKED_FORMS = ("qweight", "weight_packed", "weight_qdata", "packed_weight")
# What quantisation and its calibration leave beside a weight, or in an attention module.
_COMPANIONS = re.compile(
    r"(?:^|\.)(?:bias|qweight|qzeros|scales|g_idx|perm|weight_packed|weight_shape|weight_zero_point|weight_g_idx|"
    r"weight_scale(?:_inv|_2|_ub)?|input_scale(?:_ub|_inv)?|output_scale|weight_global_scale|input_global_scale|"
    r"input_zero_point|activation_scale|pre_quant_scale|SCB|weight_format|[qkv]_scale|kv_scale|attn_scale|prob_output_scale|"
    r"weight\.(?:absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.\w+)|[qkv]_(?:proj\.)?(?:output_)?scale|"
    r"(?:k|v)_zero_point|scale|scale_inv|weight_qdata|weight_zero|wscales|wzeros|smooth_factor|bias_scale)$"
)
# Buffers that old checkpoints carry and engines compute themselves.
_BUFFERS = re.compile(
    r"(?:rotary_emb\.(?:inv_freq|cos_cached|sin_cached)|rotary_pos_emb\.inv_freq|masked_bias|"
    r"position_ids|attn\.bias|num_batches_tracked)$"
)
# What is learned and not looked up or counted: in a model that isn't quantised it is stored as floats.
_LEARNED = re.compile(
    r"(?:\.weight|\.bias|_proj|_proj_bias|\.A_log|\.D|\.dt_bias|correction_bias|\.sinks|\.lora_[AB]|_scalar|"
    r"class_embedding|position_embedding_table|in_proj_(?:weight|bias))$"
)
_NORMS = re.compile(r"norm(?:_?\d)?\.(?:weight|bias)$", re.IGNORECASE)
_HEADS = re.compile(r"^(?:score|classifier|v_head|regression_head|reward_head)\.")
_STACK = re.compile(r"^(.*?)layers\.\d+\.")
_ROOTS = {
    "model.language_model.": "",
    "language_model.model.": "language_model.",
    "thinker.model.": "thinker.",
    "model.text_model.": "",
    "llm.model.": "llm.",
    "model.": "",
    "language_model.": "language_model.",
    "": "",
}
_FIX_REDOWNLOAD = "Download the named file again; if it stays so, the checkpoint was published or converted incomplete."


@dataclass(slots=True)
class Weights:
    """All tensors of a model, and what is known about files whose tensors can't be seen."""

    tensors: dict[str, Tensor]
    # From the shard index, if there is one.
    weight_map: dict[str, str] = field(default_factory=dict)
    index_file: str | None = None
    # Weight files that are listed but absent, or whose header can't be read.
    lost: set[str] = field(default_factory=set)

    @property
    def blind(self) -> bool:
        """Whether tensors may exist that no readable file or index tells of."""
        return bool(self.lost) and not self.weight_map

    def file_of(self, name: str) -> str | None:
        """The file that should hold a tensor: by the index, else the only weight file there is, else the index itself."""
        if name in self.weight_map:
            return self.weight_map[name]
        if self.index_file is not None:
            return self.index_file
        files = {tensor.file for tensor in self.tensors.values()}
        if len(files) == 1:
            return next(iter(files))
        layer = re.match(r"^.*?\.\d+\.", name)
        near = {tensor.file for other, tensor in self.tensors.items() if layer and other.startswith(layer[0])}
        return min(near or files, default=None)

    def excused(self, name: str) -> bool:
        """Whether a tensor's absence is already explained by a lost file."""
        return self.blind or self.weight_map.get(name) in self.lost


LogicalShape = Callable[[str, Tensor], Shape | None]


class TensorCheck:
    """One comparison of expectations with what is there."""

    def __init__(self, weights: Weights, findings: Findings, *, quantised: bool, logical_shape: LogicalShape) -> None:
        self._weights = weights
        self._tensors = weights.tensors
        self._findings = findings
        self._quantised = quantised
        self._logical_shape = logical_shape
        self._root, self._top = text_root(self._tensors)
        self._allowed: set[str] = set()
        self._stems: set[str] = set()
        self._missing: list[str] = []
        self._shapes: dict[str | None, list[str]] = {}
        self._optional: dict[str, list[tuple[str, bool]]] = {}

    def run(self, implied: Implied, *, multimodal: bool) -> None:
        """Check everything and report; the head's tensors may lie at any of the usual places."""
        for expectation in implied.expectations:
            if isinstance(expectation, Weight):
                self._weight(expectation)
            elif isinstance(expectation, Choice):
                self._choice(expectation)
            else:
                self._group(expectation)
        self._uneven()
        self._report_missing()
        self._report_shapes()
        self._report_unexpected(multimodal=multimodal)

    def name(self, relative: str) -> str:
        """The full name of an expected tensor in this checkpoint."""
        if not relative.startswith("^"):
            return self._root + relative
        plain = relative[1:]
        if plain.startswith("lm_head."):
            for top in (self._top, "", "language_model.", "model."):
                if top + plain in self._tensors or top + "lm_head.qweight" in self._tensors:
                    return top + plain
        return self._top + plain

    def _found(self, name: str, weight: Weight) -> str | None:
        if name in self._tensors:
            return name
        if weight.linear and self._quantised and name.endswith(".weight"):
            stem = name.removesuffix("weight")
            return next((stem + form for form in PACKED_FORMS if stem + form in self._tensors), None)
        return None

    def _weight(self, weight: Weight) -> None:
        name = self.name(weight.name)
        self._allow(name, weight)
        found = self._found(name, weight)
        if found is not None:
            self._compare_shape(found, weight)
        elif weight.required and not self._weights.excused(name):
            self._missing.append(name)
        if not weight.required and weight.name.startswith("layers."):
            suffix = re.sub(r"^layers\.\d+\.", "", weight.name)
            self._optional.setdefault(suffix, []).append((name, found is not None))

    def _allow(self, name: str, weight: Weight) -> None:
        self._allowed.add(name)
        if weight.linear or weight.name.endswith("_proj"):
            self._stems.add(name.removesuffix(".weight"))

    def _choice(self, choice: Choice) -> None:
        best = max(choice.options, key=lambda option: self._completeness(option))
        for option in choice.options:
            for weight in option:
                name = self.name(weight.name)
                if option is best or name in self._tensors:
                    self._allow(name, weight)
        for weight in best:
            name = self.name(weight.name)
            found = self._found(name, weight)
            if found is not None:
                self._compare_shape(found, weight)
            elif weight.required and not self._weights.excused(name):
                self._missing.append(name)

    def _completeness(self, option: tuple[Weight, ...]) -> tuple[bool, int]:
        present = sum(1 for weight in option if self._found(self.name(weight.name), weight) is not None)
        return present == len(option), present

    def _group(self, group: Group) -> None:
        names = [
            (self.name(weight.name), weight)
            for item in group.weights
            for weight in ([item] if isinstance(item, Weight) else [w for option in item.options for w in option])
        ]
        if not any(self._found(name, weight) for name, weight in names):
            if not self._weights.lost:
                message = (
                    f"The checkpoint has no {group.what}: speculative decoding with the model's own draft won't work."
                )
                fix = "Nothing to do unless you want that speculation; then take the original checkpoint."
                self._findings.add("weights.draft_layers_absent", self._weights.index_file, message, fix)
            return
        for item in group.weights:
            if isinstance(item, Weight):
                self._weight(item)
            else:
                self._choice(item)

    def _uneven(self) -> None:
        """An optional tensor, such as a bias, that most layers have and a few lack was lost, not left out."""
        for places in self._optional.values():
            have = sum(1 for _, present in places if present)
            if have < len(places) and have * 4 >= len(places) * 3 and len(places) >= 3:
                lacking = [name for name, present in places if not present]
                self._missing.extend(name for name in lacking if not self._weights.excused(name))

    def _compare_shape(self, name: str, weight: Weight) -> None:
        tensor = self._tensors[name]
        if weight.shape is None:
            return
        actual: Shape | None = tensor.shape
        if weight.linear and self._quantised:
            actual = self._logical_shape(name, tensor)
        if actual is None or actual in {weight.shape, weight.other_shape}:
            return
        if weight.shape == (1,) and actual == ():
            return
        text = f"{printable(name)} is {list(actual)}, not {list(weight.shape)}"
        self._shapes.setdefault(tensor.file, []).append(text)

    def _report_missing(self) -> None:
        by_file: dict[str | None, list[str]] = {}
        for name in dict.fromkeys(self._missing):
            by_file.setdefault(self._weights.file_of(name), []).append(name)
        for file, names in by_file.items():
            report_missing(self._findings, file, names)

    def _report_shapes(self) -> None:
        for file, texts in self._shapes.items():
            more = f" {len(texts):,} tensors of this file are so." if len(texts) > 1 else ""
            message = f"A tensor's shape doesn't fit config.json: {texts[0]}.{more}"
            fix = "Check that config.json and weights are of the same revision; fetch both again."
            self._findings.add("weights.shape_mismatch", file, message, fix)

    def _report_unexpected(self, *, multimodal: bool) -> None:
        inside = f"{self._root}layers."
        by_file: dict[str, list[str]] = {}
        for name, tensor in self._tensors.items():
            if name in self._allowed or (multimodal and not name.startswith(inside)):
                continue
            if _BUFFERS.search(name) or _HEADS.match(name) or self._is_companion(name):
                continue
            by_file.setdefault(tensor.file, []).append(name)
        for file, names in by_file.items():
            report_unexpected(self._findings, file, names)

    def _is_companion(self, name: str) -> bool:
        match = _COMPANIONS.search(name)
        if match is not None:
            stem = name[: match.start()]
            if stem in self._stems or stem.endswith(("self_attn", "self_attn.attn", "experts", "mixer")):
                return self._quantised or match[0] == ".bias" or "_scale" in match[0]
        stacked = re.match(r"^(.*\.experts\.(?:gate_up_proj|down_proj|gate_proj|up_proj))_\w+$", name)
        return stacked is not None and self._quantised


def text_root(tensors: Iterable[str]) -> tuple[str, str]:
    """Prefix of the text stack's tensors, and of what stands beside the stack such as the output head."""
    prefixes = {match[1] for name in tensors if (match := _STACK.match(name))}
    for root, top in _ROOTS.items():
        if root in prefixes:
            return root, top
    return "model.", ""


def report_missing(findings: Findings, file: str | None, names: list[str]) -> None:
    """Report tensors that should be there and aren't."""
    what = "1 tensor is" if len(names) == 1 else f"{len(names):,} tensors are"
    message = (
        f"{what} missing: {listed(names)}. The engine would load the model without a word and answer from "
        "uninitialised memory."
    )
    findings.add("weights.tensor_missing", file, message, _FIX_REDOWNLOAD)


def report_unexpected(findings: Findings, file: str | None, names: list[str]) -> None:
    """Report tensors that this architecture doesn't know."""
    what = "1 tensor doesn't" if len(names) == 1 else f"{len(names):,} tensors don't"
    message = f"{what} belong to this architecture: {listed(names)}."
    fix = "Check that config.json and weights belong together; an engine refuses tensors that it doesn't know."
    findings.add("weights.tensor_unexpected", file, message, fix)


def check_plain_types(tensors: Mapping[str, Tensor], findings: Findings, *, quantised: bool) -> None:
    """Report tensors that must be 16 or 32 bit floats and aren't: all of a plain model's, only the norms of a quantised one."""
    by_file: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS and _is_float(name, tensor, quantised=quantised):
            by_file.setdefault(tensor.file, []).append(f"{name} ({tensor.dtype})")
    for file, names in by_file.items():
        message = f"Tensors of a type that they can't have here: {listed(names)}."
        fix = "If the model is quantised, its config.json has lost quantization_config; fetch config.json again."
        if quantised:
            fix = "Norms are never quantised: fetch the file again, or take another checkpoint."
        findings.add("weights.dtype_unexpected", file, message, fix)


def _is_float(name: str, tensor: Tensor, *, quantised: bool) -> bool:
    if quantised:
        return len(tensor.shape) == 1 and _NORMS.search(name) is not None
    return _LEARNED.search(name) is not None and not _BUFFERS.search(name)

"""Whether each quantised weight has its scale (and zero point) in the right shape, and whether config.json tells the truth.

Shapes follow what vLLM 0.32 loads; `out` and `in` are those of the unquantised [out, in] weight:

    AWQ      qweight I32 [in, out·b/32]     scales [in/g, out]         qzeros I32 [in/g, out·b/32]
    GPTQ     qweight I32 [in·b/32, out]     scales [in/g, out]         qzeros I32 [in/g, out·b/32]
    fp8      weight F8 [out, in]            weight_scale [] or [1], per channel [out, 1]
             weight_scale_inv [⌈out/bo⌉, ⌈in/bi⌉]
    compressed-tensors: weight_scale [], [out, 1], [out, in/g] or [⌈out/bo⌉, ⌈in/bi⌉];
             weight_packed I32 [out, in·b/32]; NVFP4/MXFP4 weight_packed U8 [out, in/2]
    NVFP4    weight U8 [out, in/2]          weight_scale F8 [out, in/16]   weight_scale_2 []
    MXFP4    *_blocks U8 [.., n/32, 16]     *_scales U8 [.., n/32]
    bitsandbytes  weight U8 [out·in/2, 1] with absmax and quant_state; I8 [out, in] with SCB [out]
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from workers.weights.expectations import Shape
from workers.weights.findings import Findings, listed, printable
from workers.weights.safetensors import Tensor
from workers.weights.schemes import Scheme, WeightScheme
from workers.weights.tensors import FLOATS, PACKED_FORMS, Weights

_F8 = frozenset({"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
_SCALE_TYPES = FLOATS | {"F8_E8M0", "U8", "F8_E4M3"}
_FIX_SCALE = "Fetch the checkpoint again; without the right scale the layer's answers are noise."
# Methods whose storage form is not checked here: their tools write many forms, or the engine quantises at load.
_UNCHECKED = frozenset({"bitsandbytes", "torchao", "quark", "inc", "online", "experts_int8", "hqq", "gguf", "humming"})
_CHECKED = frozenset({"awq", "gptq", "fp8", "fbgemm_fp8", "compressed-tensors", "modelopt", "mxfp4"})
# What tools of the checked methods, and bitsandbytes, store under these names; anything else was converted by mistake.
_STORED_TYPES = {
    "weight": FLOATS | _F8 | {"I8", "U8", "F4"},
    "qweight": frozenset({"I32", "U32"}),
    "qzeros": frozenset({"I32", "U32"}),
    "g_idx": frozenset({"I32", "I64"}),
    "weight_packed": frozenset({"I32", "U32", "U8", "F4"}),
}
_COMPRESSED_FORMS: Mapping[tuple[int | None, str], frozenset[str]] = {
    (8, "float"): _F8,
    (8, "int"): frozenset({"I8", "weight_packed"}),
    (4, "int"): frozenset({"I8", "weight_packed"}),
    (4, "float"): frozenset({"weight_packed of bytes"}),
}
_FUSED = re.compile(r"(?:qkv_proj|gate_up_proj|in_proj_\w+|query_key_value|Wqkv|qkv)$")


@dataclass(slots=True)
class _Problem:
    code: str
    file: str | None
    text: str


_PACKING = ("awq", "gptq", "compressed-tensors", "modelopt")


def logical_shape(scheme: Scheme | None, name: str, tensor: Tensor) -> Shape | None:
    """The [out, in] shape of a stored weight, or None where the stored form doesn't tell."""
    sizes = tensor.shape
    if scheme is not None and scheme.method == "bitsandbytes" and len(sizes) == 2 and sizes[-1] == 1:
        return None  # packed into one column, which may be called bfloat16 (bnb_4bit_quant_storage)
    if tensor.dtype in FLOATS | _F8 | {"I8"}:
        return sizes
    if len(sizes) == 3 and sizes[-1] == 1 and scheme is not None and scheme.method in _PACKING:
        return sizes  # stacked experts have three dimensions, but no one packs into a single column
    if scheme is None or len(sizes) != 2:
        return None
    bits = scheme.of(name.rpartition(".")[0]).bits or 4
    if tensor.dtype in {"I32", "U32"} and bits:
        packed = {"awq": (sizes[1] * 32 // bits, sizes[0]), "gptq": (sizes[1], sizes[0] * 32 // bits)}
        if scheme.method == "awq" and scheme.default.format.startswith("gemv"):
            return None
        return packed.get(scheme.method, (sizes[0], sizes[1] * 32 // bits))
    if tensor.dtype == "U8" and scheme.method in {"modelopt", "compressed-tensors"}:
        return sizes[0], sizes[1] * 2
    return None


def check_quantisation(scheme: Scheme | None, weights: Weights, findings: Findings, *, config_known: bool) -> None:
    """Check every quantised weight against the scheme, and the scheme against the weights."""
    stored = _stored_forms(weights)
    if scheme is None:
        if stored and config_known:
            kinds = ", ".join(sorted({form for _, form in stored}))
            message = f"The weights are quantised ({kinds}), but config.json has no quantization_config."
            fix = "Fetch config.json again; without that entry the engine loads packed numbers as if they were weights."
            findings.add("quantization.config_conflict", "config.json", message, fix)
        return
    if scheme.method in _CHECKED and not stored and not weights.lost and weights.tensors:
        _report_unquantised(scheme, weights, findings)
        return
    check = _Check(scheme, weights)
    for name, tensor in weights.tensors.items():
        check.tensor(name, tensor)
    problems = check.problems
    if scheme.method in _CHECKED:
        problems += _forgotten(scheme, weights)
    if scheme.method in _CHECKED | {"bitsandbytes"}:
        problems += _mistyped(weights)
        problems += _other_forms(scheme, {form for _, form in stored})
    _report(problems, findings)


def _stored_forms(weights: Weights) -> list[tuple[str, str]]:
    """Tensors that are stored quantised, with the form in words."""
    found = []
    for name, tensor in weights.tensors.items():
        if name.endswith((".qweight", ".weight_packed")):
            form = name.rpartition(".")[2]
            found.append((name, f"{form} of bytes" if tensor.dtype == "U8" else form))
        elif name.endswith("_blocks") and tensor.dtype == "U8":
            found.append((name, "MXFP4 blocks"))
        elif tensor.dtype in _F8 | {"I8", "U8", "F4"} and _is_weight(name):
            found.append((name, tensor.dtype))
    return found


def _is_weight(name: str) -> bool:
    if name.endswith(".weight"):
        return True
    return re.search(r"\.experts\.(?:gate_up_proj|down_proj|gate_proj|up_proj)$", name) is not None


def _report_unquantised(scheme: Scheme, weights: Weights, findings: Findings) -> None:
    types = sorted({tensor.dtype for name, tensor in weights.tensors.items() if name.endswith(".weight")})
    message = f"{scheme.file} says {scheme.method}, but every weight is stored as {' or '.join(types) or 'nothing'}."
    fix = "Remove quantization_config to serve the weights as they are, or fetch the quantised weights."
    findings.add("quantization.config_conflict", scheme.file, message, fix)
    if scheme.method in {"fp8", "fbgemm_fp8", "compressed-tensors", "modelopt"}:
        name = "weight_scale_inv" if scheme.method == "fp8" and scheme.default.block else "weight_scale"
        file = min({tensor.file for tensor in weights.tensors.values()}, default=None)
        text = f"There is no {name} tensor at all, though {scheme.file} says that the weights need one each."
        findings.add("quantization.scale_missing", file, text, fix)


class _Check:
    def __init__(self, scheme: Scheme, weights: Weights) -> None:
        self.scheme, self.weights = scheme, weights
        self.tensors = weights.tensors
        self.problems: list[_Problem] = []
        # Written by some versions of the tools only: where one weight has it, all must.
        self._customary = {leaf for leaf in ("weight_shape", "weight_format") if self._any(leaf)}

    def _any(self, leaf: str) -> bool:
        return any(name.endswith(f".{leaf}") for name in self.tensors)

    def tensor(self, name: str, tensor: Tensor) -> None:
        """Check one tensor if it is a quantised weight."""
        method = self.scheme.method
        if name.endswith(".qweight") and method in {"awq", "gptq"}:
            self._packed_columns(name.removesuffix("qweight"), tensor)
        elif name.endswith(".weight_packed"):
            self._compressed_packed(name.removesuffix("weight_packed"), tensor)
        elif name.endswith("_blocks") and tensor.dtype == "U8":
            self._need(name.removesuffix("blocks") + "scales", [tensor.shape[:-1]], name, tensor)
        elif method == "bitsandbytes" and name.endswith(".weight") and tensor.dtype in {"U8", "I8"}:
            self._bitsandbytes(name, tensor)
        elif tensor.dtype in _F8 | {"I8"} and _is_weight(name) and len(tensor.shape) >= 2 and method in _CHECKED:
            self._eight_bit(name, tensor)
        elif tensor.dtype == "U8" and _is_weight(name) and method == "modelopt" and len(tensor.shape) == 2:
            self._nvfp4(name.removesuffix("weight"), tensor)

    def _eight_bit(self, name: str, tensor: Tensor) -> None:
        module = name.removesuffix(".weight")
        how = self.scheme.of(module)
        named = name.endswith(".weight")
        start = module + ".weight_" if named else name + "_"
        suffix = "scale_inv" if self.scheme.method == "fp8" and how.block else "scale"
        wanted = start + suffix
        if not named and wanted not in self.tensors and name + "_weight_" + suffix in self.tensors:
            wanted = name + "_weight_" + suffix
        self._need(wanted, _scale_shapes(how, tensor.shape, module), name, tensor)
        if how.zero_point and self.scheme.method == "compressed-tensors":
            self._need(start + "zero_point", None, name, tensor, what="zero point")
        if how.static_inputs and named:
            self._need(module + ".input_scale", None, name, tensor, what="input scale")

    def _packed_columns(self, at: str, tensor: Tensor) -> None:
        """AWQ and GPTQ."""
        how, gptq = self.scheme.default, self.scheme.method == "gptq"
        bits = how.bits or 4
        if len(tensor.shape) != 2 or how.format.startswith(("gemv", "marlin", "bitblas")):
            return
        scales = self.tensors.get(at + "scales")
        if scales is not None and len(scales.shape) == 2 and self._other_packing(at, tensor, scales.shape[1], bits):
            return
        rows, columns = tensor.shape
        into, out = (rows * 32 // bits, columns) if gptq else (rows, columns * 32 // bits)
        groups = 1 if not how.group_size or how.group_size < 0 else -(-into // how.group_size)
        name = at + "qweight"
        self._need(at + "scales", [(groups, out)], name, tensor)
        if gptq or how.zero_point:
            self._need(at + "qzeros", [(groups, -(-out * bits // 32))], name, tensor, what="zero point")
        if gptq and (self.scheme.ordered or at + "g_idx" in self.tensors):
            self._need(at + "g_idx", [(into,)], name, tensor, what="order of groups")

    def _other_packing(self, at: str, tensor: Tensor, out: int, bits: int) -> bool:
        columns = tensor.shape[1]
        looks_gptq, looks_awq = columns == out, columns * 32 // bits == out
        if looks_gptq == looks_awq or looks_gptq == (self.scheme.method == "gptq"):
            return False
        other = "GPTQ" if looks_gptq else "AWQ"
        text = f"says {self.scheme.method}, but {printable(at)}qweight is packed the way {other} does"
        self.problems.append(_Problem("quantization.config_conflict", self.scheme.file, text))
        return True

    def _compressed_packed(self, at: str, tensor: Tensor) -> None:
        how, name = self.scheme.of(at.removesuffix(".")), at + "weight_packed"
        if len(tensor.shape) < 2:
            return
        *lead, out, columns = tensor.shape
        if tensor.dtype == "U8":
            self._four_bit_float(at, tensor, tuple(lead), out, columns * 2, how)
            return
        bits = how.bits or 4
        into = columns * 32 // bits
        groups = -(-into // how.group_size) if how.strategy == "group" and how.group_size else 1
        per = (*lead, out, groups)
        shapes = [per, (*lead, out), ()] if groups == 1 else [per]
        self._need(at + "weight_scale", shapes, name, tensor)
        if how.zero_point:
            packed = (*lead, -(-out * bits // 32), groups)
            self._need(at + "weight_zero_point", [packed, per], name, tensor, what="zero point")
        if "weight_shape" in self._customary:
            self._need(at + "weight_shape", [(len(tensor.shape),)], name, tensor, what="shape")

    def _four_bit_float(self, at: str, tensor: Tensor, lead: Shape, out: int, into: int, how: WeightScheme) -> None:
        nvfp4 = "mxfp4" not in how.format
        size = how.group_size or (16 if nvfp4 else 32)
        name = at + "weight_packed"
        self._need(at + "weight_scale", [(*lead, out, -(-into // size))], name, tensor)
        if nvfp4:
            one: list[Shape] = [(), (1,), *([lead, (*lead, 1)] if lead else [])]
            self._need(at + "weight_global_scale", one, name, tensor, what="global scale")
            if how.static_inputs:
                self._need(at + "input_global_scale", one, name, tensor, what="input scale")

    def _nvfp4(self, at: str, tensor: Tensor) -> None:
        how, name = self.scheme.of(at.removesuffix(".")), at + "weight"
        if how.format != "nvfp4":
            return
        out, columns = tensor.shape
        self._need(at + "weight_scale", [(out, -(-columns * 2 // (how.group_size or 16)))], name, tensor)
        self._need(at + "weight_scale_2", [(), (1,)], name, tensor, what="global scale")
        if how.static_inputs:
            self._need(at + "input_scale", [(), (1,)], name, tensor, what="input scale")

    def _bitsandbytes(self, name: str, tensor: Tensor) -> None:
        if tensor.dtype == "I8":
            self._need(name.removesuffix("weight") + "SCB", [tensor.shape[:1], (*tensor.shape[:1], 1)], name, tensor)
            if "weight_format" in self._customary:
                self._need(name + "_format", None, name, tensor, what="format")
            return
        if not any(f"{name}.quant_state.bitsandbytes__{kind}" in self.tensors for kind in ("nf4", "fp4")):
            self._missing(f"{name}.quant_state", name, tensor, "quantisation state")
        absmax = self.tensors.get(f"{name}.absmax")
        self._need(f"{name}.absmax", None, name, tensor)
        self._need(f"{name}.quant_map", [(16,)], name, tensor, what="table of values")
        if absmax is not None and absmax.dtype == "U8":
            blocks = -(-_count(absmax.shape) // 256)
            self._need(f"{name}.nested_absmax", [(blocks,)], name, tensor)
            self._need(f"{name}.nested_quant_map", [(256,)], name, tensor, what="table of values")
        elements = _count(tensor.shape) * 2
        sizes = (64, 128, 256, 512, 1024, 2048, 4096, 32)
        if absmax is not None and not any(_count(absmax.shape) == -(-elements // size) for size in sizes):
            text = f"{printable(name)}.absmax has {_count(absmax.shape)} entries for {elements:,} values"
            self.problems.append(_Problem("quantization.scale_shape", absmax.file, text))

    def _need(
        self, wanted: str, shapes: list[Shape] | None, weight: str, tensor: Tensor, *, what: str = "scale"
    ) -> None:
        """Require a companion tensor, in one of `shapes` unless that is None."""
        found = self.tensors.get(wanted)
        if found is None:
            self._missing(wanted, weight, tensor, what)
        elif shapes is not None and found.shape not in shapes:
            text = f"{printable(wanted)} is {list(found.shape)}, but {printable(weight)} {list(tensor.shape)} needs "
            text += " or ".join(str(list(shape)) for shape in shapes)
            self.problems.append(_Problem("quantization.scale_shape", found.file, text))
        elif what == "scale" and found.dtype not in _SCALE_TYPES:
            text = f"{printable(wanted)} holds {found.dtype}, which is no type for a scale"
            self.problems.append(_Problem("quantization.scale_shape", found.file, text))

    def _missing(self, wanted: str, weight: str, tensor: Tensor, what: str) -> None:
        if self.weights.excused(wanted):
            return
        file = self.weights.weight_map.get(wanted, tensor.file)
        leaf = wanted.rpartition(".")[2] if wanted.startswith(weight.rpartition(".")[0]) else wanted
        text = f"{printable(weight)} has no {what} ({printable(leaf)})"
        self.problems.append(_Problem("quantization.scale_missing", file, text))


def _count(sizes: Shape) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def _scale_shapes(how: WeightScheme, sizes: Shape, module: str) -> list[Shape] | None:
    """The shapes that the scale of an 8-bit weight [.., out, in] may have."""
    *lead, out, into = sizes
    head = tuple(lead)
    if how.strategy == "block" and how.block:
        rows, columns = how.block
        return [(*head, -(-out // rows), -(-into // columns))]
    if how.strategy == "group" and how.group_size and how.group_size > 0:
        return [(*head, out, -(-into // how.group_size))]
    if how.strategy == "channel":
        return [(*head, out, 1), (*head, out)]
    if how.strategy == "tensor":
        one: list[Shape] = [(), (1,), (1, 1), *([head, (*head, 1), (*head, 1, 1)] if head else [])]
        # A projection fused from two or three keeps one scale for each.
        return [*one, (2,), (3,)] if _FUSED.search(module) else one
    return None


def _forgotten(scheme: Scheme, weights: Weights) -> list[_Problem]:
    """Weights stored as floats although the same module of most layers is quantised and nothing says to leave it out."""
    kinds: dict[str, tuple[list[str], list[str]]] = {}
    for name, tensor in weights.tensors.items():
        leaf = name.rpartition(".")[2]
        if leaf != "weight" and leaf not in PACKED_FORMS:
            continue
        kind = re.sub(r"\.\d+(?=\.)", ".#", name.rpartition(".")[0])
        floats, packed = kinds.setdefault(kind, ([], []))
        (floats if tensor.dtype in FLOATS else packed).append(name)
    problems = []
    for floats, packed in kinds.values():
        if not packed or len(floats) * 4 > len(packed):
            continue
        for name in floats:
            if not scheme.ignores(name.removesuffix(".weight")):
                tensor = weights.tensors[name]
                text = f"{printable(name)} is {tensor.dtype}, though the same weight of other layers is quantised"
                problems.append(_Problem("weights.dtype_unexpected", tensor.file, text))
    return problems


def _other_forms(scheme: Scheme, stored: set[str]) -> Iterator[_Problem]:
    """All weights are stored in forms that belong to another method than the one that is named."""
    expected = _expected_forms(scheme)
    if expected and stored and not expected & stored:
        said = f"{scheme.default.bits}-bit {scheme.method}" if scheme.default.bits else scheme.method
        text = f"says {said}, but the weights are stored as {', '.join(sorted(stored))}"
        yield _Problem("quantization.config_conflict", scheme.file, text)


def _expected_forms(scheme: Scheme) -> set[str]:
    """Forms (as `_stored_forms` names them) in which a method's weights can lie; empty: any."""
    if scheme.method in {"awq", "gptq"}:
        return {"qweight"}
    if scheme.method in {"fp8", "fbgemm_fp8"}:
        return set(_F8)
    if scheme.method == "bitsandbytes":
        return {"I8"} if scheme.default.bits == 8 else {"U8"}
    if scheme.method == "modelopt":
        return {"nvfp4": {"U8", *_F8}, "fp8": set(_F8)}.get(scheme.default.format, set())
    if scheme.method != "compressed-tensors":
        return set()
    forms: set[str] = set()
    for how in [scheme.default, *(how for _, how in scheme.groups)]:
        if (how.bits, how.kind) not in _COMPRESSED_FORMS:
            return set()
        forms |= _COMPRESSED_FORMS[how.bits, how.kind]
    return forms


def _mistyped(weights: Weights) -> Iterator[_Problem]:
    """Weights and packed numbers in a type that no tool stores them in, whatever the scheme."""
    for name, tensor in weights.tensors.items():
        wanted = _STORED_TYPES.get(name.rpartition(".")[2])
        if wanted is not None and tensor.dtype not in wanted:
            text = f"{printable(name)} is {tensor.dtype}, a type that no weight has in a quantised model"
            yield _Problem("weights.dtype_unexpected", tensor.file, text)


def _report(problems: Iterable[_Problem], findings: Findings) -> None:
    grouped: dict[tuple[str, str | None], list[str]] = {}
    for problem in problems:
        grouped.setdefault((problem.code, problem.file), []).append(problem.text)
    for (code, file), texts in grouped.items():
        count = f" ({len(texts):,} times in this file)" if len(texts) > 1 else ""
        message = f"{listed(texts)}{count}."
        if code == "quantization.config_conflict":
            message = f"{file} {texts[0]}{count}."
        findings.add(code, file, message, _FIX_SCALE)

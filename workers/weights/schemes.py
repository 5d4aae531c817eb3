"""Which quantisation a model says it has: read from config.json and the files that some tools write beside it.

Sources: the `quantization_config` schemes that transformers and vLLM read (AWQ, GPTQ, bitsandbytes, fp8, compressed-tensors,
ModelOpt, MXFP4).
"""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.weights.findings import Findings, printable

# All methods that any vLLM since 0.8 or transformers reads, in lower case.
KNOWN_METHODS = frozenset(
    {
        "aqlm", "auto-round", "auto_awq", "auto_gptq", "autoround", "awq", "awq_marlin", "bitblas", "bitnet", "bitsandbytes",
        "compressed-tensors", "cpu_awq", "deepseek_v4_fp8", "deepspeedfp", "eetq", "experts_int8", "fbgemm_fp8", "fouroversix",
        "fp8", "fp8_per_block", "fp8_per_channel", "fp8_per_tensor", "fp_quant", "gguf", "gptq", "gptq_bitblas",
        "gptq_marlin", "gptq_marlin_24", "gpt_oss_mxfp4", "higgs", "hqq", "humming", "inc", "int8_per_channel_weight_only",
        "ipex", "marlin", "modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "moe_wna16", "mxfp4", "mxfp8",
        "neuron_quant", "nvfp4_per_token", "online", "petit_nvfp4", "ptpc_fp8", "qqq", "quanto", "quark", "rtn", "sinq",
        "spqr", "torchao", "tpu_int8", "vptq", "metal",
    }
)  # fmt: skip
# File, and the entry in it that holds the scheme.
_SIDE_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
_ALIASES = {
    "auto_awq": "awq",
    "awq_marlin": "awq",
    "auto_gptq": "gptq",
    "gptq_marlin": "gptq",
    "gpt_oss_mxfp4": "mxfp4",
    "modelopt_fp4": "modelopt",
    "modelopt_mixed": "modelopt",
    "modelopt_mxfp8": "modelopt",
}


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """How one group of weights is quantised. `strategy`: tensor, channel, group or block; sizes in elements."""

    bits: int | None = None
    kind: str = ""  # "float" or "int"
    strategy: str = ""
    group_size: int | None = None
    block: tuple[int, int] | None = None
    zero_point: bool = False
    static_inputs: bool = False
    format: str = ""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A model's quantisation: the method, how weights are stored by default and by target, and what is left out."""

    method: str
    file: str
    default: WeightScheme
    algorithm: str = ""
    # compressed-tensors: (targets, scheme) per group, in order.
    groups: tuple[tuple[tuple[str, ...], WeightScheme], ...] = field(default=())
    ignore: tuple[str, ...] = field(default=())
    ordered: bool = False  # GPTQ with desc_act: rows were reordered, so g_idx is needed

    def of(self, module: str) -> WeightScheme:
        """The scheme of one linear module, named without its `.weight`."""
        for targets, scheme in self.groups:
            if any(_target_matches(target, module) for target in targets):
                return scheme
        return self.default

    def ignores(self, module: str) -> bool:
        """Whether a module is left unquantised on purpose; names are matched generously, as engines do."""
        return any(_ignore_matches(pattern, module) for pattern in self.ignore)


def _target_matches(target: str, module: str) -> bool:
    if target.startswith("re:"):
        return _regex(target[3:], module)
    return target == module or module.endswith("." + target)


def _regex(pattern: str, text: str) -> bool:
    # A hostile pattern could take for ever; none that a tool writes is long or nests repetitions.
    if len(pattern) > 400 or re.search(r"[+*}]\)[+*{]", pattern):
        return False
    try:
        return re.match(pattern, text) is not None
    except re.error:
        return False


def _ignore_matches(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        return _regex(pattern[3:], module)
    if any(letter in pattern for letter in "*?["):
        return fnmatch.fnmatchcase(module, pattern) or fnmatch.fnmatchcase(module, f"*{pattern}")
    plain = pattern.strip(".")
    return bool(plain) and (
        plain in module or (module.endswith(plain.rpartition(".")[2]) and _same_layer(plain, module))
    )


def _same_layer(pattern: str, module: str) -> bool:
    """Names before and after a rename (`model.layers.3.x` and `model.language_model.layers.3.x`) mean the same."""
    tail = re.search(r"(?:layers|blocks)\.\d+\..*$", pattern)
    return tail is not None and module.endswith(tail[0])


def read_scheme(config: Mapping[str, Any], side_files: Mapping[str, Any], findings: Findings) -> Scheme | None:
    """The model's quantisation scheme, or None if it claims none; reports unknown methods and files that disagree.

    `side_files` holds the parsed content of hf_quant_config.json and its like, by file name.
    """
    text = config.get("text_config")
    sources: list[tuple[str, Mapping[str, Any]]] = []
    for holder in (config, text if isinstance(text, dict) else {}):
        raw = holder.get("quantization_config") or holder.get("compression_config")
        if isinstance(raw, dict):
            sources.append(("config.json", raw))
            break
    for name in _SIDE_FILES:
        raw = side_files.get(name)
        if isinstance(raw, dict):
            inner = raw.get("quantization", raw)
            sources.append((name, {"_file": name, **inner} if isinstance(inner, dict) else {}))
    schemes = [_parse(file, raw, findings) for file, raw in sources]
    known = [scheme for scheme in schemes if scheme is not None]
    if len(known) > 1:
        _compare_sources(known[0], known[1:], findings)
    return known[0] if known else None


def _parse(file: str, raw: Mapping[str, Any], findings: Findings) -> Scheme | None:
    method = _method(raw)
    if method is None and file != "config.json" and raw.get("quant_algo", "") is None:
        return None  # ModelOpt writes the file with a null algorithm when only the KV cache is quantised.
    if method is None or method not in KNOWN_METHODS:
        shown = printable(str(raw.get("quant_method")))
        message = f"{file} names the quantisation method {shown!r}, which no known engine reads."
        fix = "Check the spelling of quant_method, or take a checkpoint in a format that the engine supports."
        findings.add("quantization.unknown", file, message, fix)
        return None
    method = _ALIASES.get(method, method)
    if method == "compressed-tensors":
        return _compressed(file, raw)
    if method == "modelopt":
        return _modelopt(file, raw)
    return _flat(method, file, raw)


def _method(raw: Mapping[str, Any]) -> str | None:
    said = raw.get("quant_method")
    if isinstance(said, str) and said:
        return said.lower()
    if raw.get("config_groups") and "quant_algo" not in raw:
        return "compressed-tensors"
    if raw.get("quant_algo"):
        return "modelopt"
    if raw.get("load_in_4bit") or raw.get("load_in_8bit"):
        return "bitsandbytes"
    if "w_bit" in raw:
        return "awq"
    if "bits" in raw and "group_size" in raw:
        return "gptq"
    return None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _pair(value: Any) -> tuple[int, int] | None:
    if isinstance(value, list) and len(value) == 2 and all(type(size) is int and size > 0 for size in value):
        return value[0], value[1]
    return None


def _names(*values: Any) -> tuple[str, ...]:
    return tuple(name for value in values if isinstance(value, list) for name in value if isinstance(name, str))


def _flat(method: str, file: str, raw: Mapping[str, Any]) -> Scheme:
    """AWQ, GPTQ, fp8, bitsandbytes and others whose settings lie side by side."""
    block = _pair(raw.get("weight_block_size"))
    bits = _whole(raw.get("bits", raw.get("w_bit")))
    if method == "bitsandbytes":
        bits = 8 if raw.get("load_in_8bit") is True else 4
    default = WeightScheme(
        bits=bits,
        kind="float" if "fp8" in method else "int",
        strategy="block"
        if block
        else ("channel" if method == "fbgemm_fp8" else "tensor" if method == "fp8" else "group"),
        group_size=_whole(raw.get("group_size", raw.get("q_group_size"))),
        block=block,
        zero_point=raw.get("zero_point", True) is not False,
        static_inputs=raw.get("activation_scheme") == "static",
        format=str(raw.get("version", raw.get("checkpoint_format", ""))).lower(),
    )
    ignore = _names(raw.get("modules_to_not_convert"), raw.get("ignored_layers"), raw.get("llm_int8_skip_modules"))
    return Scheme(method, file, default, ignore=ignore, ordered=raw.get("desc_act") is True)


def _compressed(file: str, raw: Mapping[str, Any]) -> Scheme:
    groups: list[tuple[tuple[str, ...], WeightScheme]] = []
    default: WeightScheme | None = None
    config_groups = raw.get("config_groups")
    for group in config_groups.values() if isinstance(config_groups, dict) else ():
        if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
            continue
        scheme = _compressed_group(group, str(group.get("format") or raw.get("format") or ""))
        targets = _names(group.get("targets"))
        if "Linear" in targets or not targets:
            default = default or scheme
        groups.append((tuple(target for target in targets if target != "Linear"), scheme))
    if default is None:
        default = groups[0][1] if groups else WeightScheme()
    return Scheme("compressed-tensors", file, default, groups=tuple(groups), ignore=_names(raw.get("ignore")))


def _compressed_group(group: Mapping[str, Any], form: str) -> WeightScheme:
    weights, inputs = group["weights"], group.get("input_activations")
    static = isinstance(inputs, dict) and inputs.get("dynamic") is False
    return WeightScheme(
        bits=_whole(weights.get("num_bits")),
        kind=str(weights.get("type", "")),
        strategy=str(weights.get("strategy") or ("group" if weights.get("group_size") else "tensor")),
        group_size=_whole(weights.get("group_size")),
        block=_pair(weights.get("block_structure")),
        zero_point=weights.get("symmetric") is False,
        static_inputs=static or (isinstance(inputs, dict) and inputs.get("dynamic") == "local"),
        format=form,
    )


def _modelopt(file: str, raw: Mapping[str, Any]) -> Scheme:
    algorithm = str(raw.get("quant_algo", "")).upper()
    ignore = _names(raw.get("ignore"), raw.get("exclude_modules"))
    if "NVFP4" in algorithm:
        size = _whole(raw.get("group_size")) or 16
        default = WeightScheme(4, "float", "group", size, static_inputs=algorithm == "NVFP4", format="nvfp4")
    elif algorithm == "FP8":
        default = WeightScheme(8, "float", "tensor", static_inputs=True, format="fp8")
    elif algorithm.startswith("FP8_PER_CHANNEL"):
        default = WeightScheme(8, "float", "channel", format="fp8")
    else:
        default = WeightScheme(format=algorithm.lower())
    return Scheme("modelopt", file, default, algorithm=algorithm, ignore=ignore)


def _compare_sources(first: Scheme, others: list[Scheme], findings: Findings) -> None:
    for other in others:
        differences = [
            f"{what}: {one} and {two}"
            for what, one, two in (
                ("method", first.method, other.method),
                ("algorithm", first.algorithm, other.algorithm),
                ("bits", first.default.bits, other.default.bits),
                ("group size", first.default.group_size, other.default.group_size),
            )
            if one and two and one != two
        ]
        if differences:
            message = f"{first.file} and {other.file} contradict each other ({'; '.join(differences)})."
            fix = "Fetch both files again from the same revision; the engine reads only one of them."
            findings.add("quantization.config_conflict", first.file, message, fix)

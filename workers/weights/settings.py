"""Checks of config.json and generation_config.json that need no weights: class, remote code, context length, sampling."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from workers.weights.architectures import class_names, text_config
from workers.weights.findings import Findings, listed, printable

_FIX_CONFIG = "Fetch the file again; it belongs to the same revision as the weights."
# Kinds of rope scaling that transformers or vLLM compute.
_ROPE_TYPES = frozenset(
    {"default", "linear", "dynamic", "yarn", "longrope", "su", "llama3", "mrope", "ntk", "proportional", "axial",
     "deepseek_yarn", "deepseek_llama_scaling", "xdrope"}
)  # fmt: skip
# Kinds whose factor states how far the context was stretched.
_STRETCHING = frozenset({"linear", "yarn", "deepseek_yarn"})


def parse_object(content: bytes) -> dict[str, Any]:
    """A JSON object from a file's bytes; raises ValueError with the reason if it isn't one."""
    try:
        document = json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it isn't UTF-8 text") from None
    if not isinstance(document, dict):
        raise ValueError("it isn't a JSON object")  # noqa: TRY004 - one kind of error for "no such file content"
    return document


def repeated_keys(content: bytes) -> list[str]:
    """Keys that stand twice in one object of a JSON text that can be read: readers differ in which of them they take."""
    found: set[str] = set()

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.update(name for name, count in Counter(name for name, _value in pairs).items() if count > 1)
        return dict(pairs)

    json.loads(content.decode("utf-8"), object_pairs_hook=note)
    return sorted(found)


def check_architecture(config: Mapping[str, Any], supported: Iterable[str] | None, findings: Findings) -> None:
    """Report an architecture that the given engine doesn't list, and code that the model brings along."""
    classes = class_names(config)
    if supported is not None:
        known = set(supported)
        if not any(name in known for name in classes):
            shown = listed(classes) if classes else "no architecture"
            message = f"config.json names {shown}; this engine knows {len(known):,} architectures, but not that one."
            fix = "Install an engine version that supports it, or choose another model."
            findings.add("arch.unsupported", "config.json", message, fix)
    auto_map = config.get("auto_map")
    if isinstance(auto_map, dict) and auto_map:
        places = sorted({str(place).partition("--")[2] or str(place) for place in auto_map.values()})
        message = f"The model brings its own code ({listed(places)})."
        fix = (
            "An admin must read that code and allow it. An engine that doesn't know the architecture itself needs "
            "--trust-remote-code, too."
        )
        findings.add("code.remote_required", "config.json", message, fix)


def check_tokenizer_code(tokenizer_config: Any, findings: Findings) -> None:
    """Report a tokenizer that needs code of its own."""
    auto_map = tokenizer_config.get("auto_map") if isinstance(tokenizer_config, dict) else None
    if isinstance(auto_map, dict) and auto_map:
        message = "The tokenizer brings its own code."
        fix = (
            "An admin must read that code and allow it. An engine that can't read the tokenizer without it needs "
            "--trust-remote-code, too."
        )
        findings.add("code.remote_required", "tokenizer_config.json", message, fix)


def check_context(config: Mapping[str, Any], findings: Findings) -> None:
    """Report rope settings that contradict each other or the context length."""
    text = text_config(config)
    problems: list[str] = []
    longest = text.get("max_position_embeddings")
    whole = longest if type(longest) is int else None
    if whole is not None and whole <= 0:
        problems.append(f"max_position_embeddings is {whole}")
    for where, rope in _ropes(text):
        problems.extend(f"{where}: {problem}" for problem in _rope_problems(rope, whole))
    problems.extend(_theta_problems(text))
    for problem in problems:
        message = f"The position settings don't fit together ({problem})."
        fix = "Compare with the model card; wrong positions make long answers drift into nonsense."
        findings.add("context.rope_inconsistent", "config.json", message, fix)


def _ropes(text: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    found: list[tuple[str, Mapping[str, Any]]] = []
    for where in ("rope_scaling", "rope_parameters"):
        rope = text.get(where)
        if not isinstance(rope, dict):
            continue
        nested = [(f"{where}.{kind}", inner) for kind, inner in rope.items() if isinstance(inner, dict)]
        found.extend(nested or [(where, rope)])
    return found


def _number(value: Any) -> float | None:
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30 else None
    )


def _rope_problems(rope: Mapping[str, Any], longest: int | None) -> list[str]:
    kind = rope.get("rope_type", rope.get("type", "default"))
    problems = []
    names = (rope.get("type"), rope.get("rope_type"))
    # Older files keep "mrope" under the old name only.
    if None not in names and names[0] != names[1] and "mrope" not in names:
        problems.append(f"type says {printable(str(names[0]))}, rope_type {printable(str(names[1]))}")
    if not isinstance(kind, str) or kind not in _ROPE_TYPES:
        return [*problems, f"the kind {printable(str(kind))} is unknown"]
    factor, original = _number(rope.get("factor")), _number(rope.get("original_max_position_embeddings"))
    if kind in _STRETCHING | {"dynamic", "llama3"} and factor is None:
        problems.append(f"{kind} needs a factor")
    if factor is not None and factor < 1:
        problems.append(f"the factor {factor:g} would shorten the context")
    if kind == "llama3" and any(_number(rope.get(name)) is None for name in ("low_freq_factor", "high_freq_factor")):
        problems.append("llama3 needs low_freq_factor and high_freq_factor")
    if original is not None and longest is not None:
        problems.extend(_length_problems(kind, factor, original, longest))
    return problems


def _length_problems(kind: str, factor: float | None, original: float, longest: int) -> list[str]:
    if original > longest:
        return [f"trained for {original:,.0f} tokens, but max_position_embeddings is only {longest:,}"]
    if kind in _STRETCHING and factor is not None and longest > original * factor * 1.01:
        reach = original * factor
        return [f"{original:,.0f} tokens stretched {factor:g} times reach {reach:,.0f}, not {longest:,}"]
    return []


def _theta_problems(text: Mapping[str, Any]) -> list[str]:
    rope = text.get("rope_parameters")
    theta = _number(text.get("rope_theta"))
    inner = _number(rope.get("rope_theta")) if isinstance(rope, dict) else None
    problems = [f"rope_theta is {value:g}" for value in (theta, inner) if value is not None and value <= 0]
    if theta is not None and inner is not None and theta != inner:
        problems.append(f"rope_theta is {theta:g}, but rope_parameters says {inner:g}")
    return problems


def check_token_ids(config: Mapping[str, Any], findings: Findings) -> None:
    """Report special tokens for which the model has no row."""
    text = text_config(config)
    rows = text.get("vocab_size", config.get("vocab_size"))
    if type(rows) is not int or rows <= 0:
        return
    eos = text.get("eos_token_id", config.get("eos_token_id"))
    beyond = [token for token in _ids(eos) if type(token) is int and token >= rows]
    if beyond:
        message = (
            f"eos_token_id {beyond[0]:,} lies beyond the {rows:,} tokens of the vocabulary: answers may never end."
        )
        findings.add("config.token_id_out_of_range", "config.json", message, _FIX_CONFIG)


def _ids(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# Entry -> (smallest, largest) that an engine accepts as a default.
_SAMPLING: dict[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "top_k": (-1, 1e9),
    "repetition_penalty": (1e-9, 100),
}


def check_generation(content: bytes, config: Mapping[str, Any] | None, findings: Findings) -> None:
    """Report a generation_config.json that can't be read or whose defaults an engine would refuse."""
    name = "generation_config.json"
    fix = f"Correct or remove {name}; the engine takes its sampling defaults from it (--generation-config vllm ignores it)."
    try:
        document = parse_object(content)
    except ValueError as error:
        findings.add("generation_config.invalid", name, f"{name} can't be read: {str(error)[:120]}.", fix)
        return
    for entry, (smallest, largest) in _SAMPLING.items():
        value = document.get(entry)
        if value is None:
            continue
        number = _number(value)
        if number is None or not smallest <= number <= largest or (entry == "top_p" and number == 0):
            message = f"{entry} is {printable(str(value))} in {name}, which no engine accepts."
            findings.add("generation_config.invalid", name, message, fix)
    rows = text_config(config or {}).get("vocab_size")
    for entry in ("eos_token_id", "bos_token_id", "pad_token_id"):
        for token in _ids(document.get(entry)):
            if token is None:
                continue
            if type(token) is not int or (entry == "eos_token_id" and type(rows) is int and token >= rows > 0):
                message = f"{entry} is {printable(str(token))} in {name}, which is no token of this model."
                findings.add("generation_config.invalid", name, message, fix)

"""What stands in for an argument that is gone: words of the version at hand."""

from collections.abc import Mapping, Sequence

from workers.vllm.argument_history import note
from workers.vllm.argument_schema import ArgumentSchema
from workers.vllm.argument_values import Value, format_word

TASKS = {
    "generate": ["--runner", "generate"],
    "embed": ["--runner", "pooling", "--convert", "embed"],
    "embedding": ["--runner", "pooling", "--convert", "embed"],
    "classify": ["--runner", "pooling", "--convert", "classify"],
    "score": ["--runner", "pooling", "--convert", "classify"],
    "reward": ["--runner", "pooling"],
}


def replacement(flag: str, given: Sequence[str], values: Mapping[str, Value], schema: ArgumentSchema) -> list[str]:
    """Return the words to put in place of `flag given…`; none for arguments that are best left out.

    A flag that this version has is kept with its words (a corrected typo). `values` are the form values of the rest of
    the line.
    """
    entry = note(flag)
    if "set" in entry:
        return list(entry["set"])
    if "to" in entry:
        return _carried(str(entry["to"]), given)
    rule = entry.get("convert")
    if rule is None:
        return [flag, *given] if flag in schema.by_flag else []
    if not given:
        return []
    match rule:
        case "model":
            return [given[0]]
        case "task":
            return TASKS.get(given[0], [])
        case "speculative":
            return _speculative(str(entry["key"]), given[0])
        case _:
            return _kv_offloading(given[0], values)


def _carried(target: str, given: Sequence[str]) -> list[str]:
    if "." in target:
        return [f"{target}={given[0] if given else 'true'}"]
    return [target, *given]


def _speculative(key: str, word: str) -> list[str]:
    if key == "model" and word.startswith("["):
        key, word = "method", word.strip("[]")  # [ngram] named a method, not a model
    return [f"--speculative-config.{key}={word}"]


def _kv_offloading(word: str, values: Mapping[str, Value]) -> list[str]:
    """`--swap-space` counted GiB per GPU, `--kv-offloading-size` counts them for all ranks together."""
    try:
        gib = float(word) * int(values.get("tensor_parallel_size", 1))
    except (ValueError, TypeError):
        return []
    return ["--kv-offloading-size", format_word(gib)] if gib > 0 else []

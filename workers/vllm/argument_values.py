"""Values of `vllm serve` arguments: from the words of a command line to typed values, and back.

Sources: the converters vLLM gives argparse (human-readable integers, optional types, JSON or text) and the limits its
configuration classes set, 0.8 to 0.32; `data/arguments/ranges.json` holds the limits by form name.
"""

import ast
import difflib
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from workers.vllm.argument_schema import DATA, Argument

Value: TypeAlias = Any
"""A form's value: bool, int, float, str, None, a JSON object or array, or a list of these."""

DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
TRUE_WORDS = frozenset({"true", "yes", "on"})
FALSE_WORDS = frozenset({"false", "no", "off"})
RENAMED_KEYS = {"level": "mode"}
SAME_DTYPE = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "fp32": "float32", "f32": "float32"}


class RefusedValueError(ValueError):
    """A value the engine refuses. `code` is the finding's; `suggestion` are words that would do, where that is clear."""

    def __init__(self, code: str, message: str, suggestion: Sequence[str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.suggestion = list(suggestion) if suggestion is not None else None


def human_int(word: str) -> int:
    """Parse an integer as vLLM does: `32k` is 32,000, `32K` is 32,768, `1.5k` is 1,500, `1.5K` is refused."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", word.strip())
    if found is None:
        return int(word)
    number, suffix = found.groups()
    if suffix in DECIMAL:
        return int(float(number) * DECIMAL[suffix])
    return int(number) * BINARY[suffix]


def parse_words(argument: Argument, words: Sequence[str]) -> Value:
    """Turn an argument's words into its typed value; RefusedValueError where the engine would refuse them.

    No words are right only for `nargs` "?", where they mean True. Booleans take no words and aren't parsed here.
    """
    if not words:
        if argument.nargs == "?":
            return True
        raise RefusedValueError("args.invalid_value", f"{argument.flag} needs a value.")
    values = [_parse_word(argument, word) for word in words]
    return values if argument.repeatable else values[0]


def format_value(argument: Argument, value: Value) -> list[str]:
    """Write an argument and its value as words of a command line; RefusedValueError for what argparse can't carry."""
    if argument.boolean:
        if value:
            return [argument.flag]
        return [argument.negative] if argument.negative else []
    if value is True and argument.nargs == "?":
        return [argument.flag]
    if argument.type == "bool":
        return [argument.flag, "True" if value else ""]
    if argument.kind == "append":
        return [word for item in value for word in _joined(argument.flag, [format_word(item)])]
    items = value if argument.repeatable else [value]
    return _joined(argument.flag, [format_word(item) for item in items]) if items else []


def format_word(value: Value) -> str:
    """Write one value as one word: JSON for objects and arrays, `4` for 4.0, `None` for no value."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def _joined(flag: str, words: list[str]) -> list[str]:
    # A value that begins with a dash reads as an option, and vLLM takes "-1.5" for a dotted JSON key: only `--x=-1.5`
    # carries those, and only for a single value.
    risky = [word for word in words if word.startswith("-") and not re.fullmatch(r"-\d+", word)]
    if not risky:
        return [flag, *words]
    if len(words) == 1:
        return [f"{flag}={words[0]}"]
    raise RefusedValueError(
        "args.invalid_value", f"{flag} can't take {risky[0]!r} in a list: it reads as another argument."
    )


def _parse_word(argument: Argument, word: str) -> Value:
    value = None if argument.nullable and word in ("", "None") else _convert(argument, word)
    if argument.choices is not None and value not in argument.choices:
        raise _not_a_choice(argument, word)
    _check_range(argument, word, value)
    return value


def _convert(argument: Argument, word: str) -> Value:
    try:
        match argument.type:
            case "int":
                return int(word)
            case "float":
                return float(word)
            case "tokens":
                return human_int(word)
            case "tokens_or_auto":
                return "auto" if word.strip().lower() in ("auto", "-1") else human_int(word)
            case "bool":
                return _truth(argument, word)
            case "name":
                return word.lower().replace("-", "_")
            case "json":
                return _json(argument, word)
            case "json_or_text":
                return _json(argument, word) if re.fullmatch(r"(?s)\s*\{.*\}\s*", word) else word
            case "lora_module":
                return _lora_module(argument, word)
    except RefusedValueError:
        raise
    except ValueError as error:
        raise _not_a_number(argument, word) from error
    return word


def _truth(argument: Argument, word: str) -> bool:
    if word.lower() in FALSE_WORDS:
        message = f"{argument.flag} takes every word for true, {word!r} too; only an empty one is false."
        raise RefusedValueError("args.invalid_value", message, [""])
    return bool(word)


def _not_a_number(argument: Argument, word: str) -> RefusedValueError:
    needs = {"int": "a whole number", "float": "a number"}.get(
        argument.type, "a whole number such as 32768, 32k or 32K"
    )
    suggestion: str | None = None
    plain = word.strip().replace(",", "").replace(" ", "")
    try:
        number = float(plain.rstrip("%")) / 100 if plain.endswith("%") else human_int(plain)
        suggestion = format_word(number)
    except ValueError:
        found = re.fullmatch(r"(\d+\.\d+)([KMGT])", plain)
        if found:  # decimals only go with decimal suffixes
            suggestion = str(int(float(found[1]) * BINARY[found[2]]))
        elif re.fullmatch(r"\d+\.0+", plain):
            suggestion = plain.split(".")[0]
    message = f"{argument.flag} needs {needs} in this version, not {word!r}."
    return RefusedValueError("args.invalid_value", message, [suggestion] if suggestion else None)


def _not_a_choice(argument: Argument, word: str) -> RefusedValueError:
    choices = [str(choice) for choice in argument.choices or ()]
    same = {choice.lower().replace("-", "_"): choice for choice in choices}
    folded = word.strip().lower().replace("-", "_")
    suggestion = same.get(folded) or (SAME_DTYPE.get(folded) if SAME_DTYPE.get(folded) in choices else None)
    nearest = suggestion or next(iter(difflib.get_close_matches(word, choices, 1, 0.75)), None)
    hint = f" Did you mean {nearest}?" if nearest else ""
    message = f"{argument.flag} doesn't take {word!r}.{hint} It takes: {', '.join(choices)}."
    return RefusedValueError("args.invalid_choice", message, [suggestion] if suggestion else None)


@lru_cache(maxsize=1)
def _ranges() -> dict[str, dict[str, float]]:
    ranges: dict[str, dict[str, float]] = json.loads((DATA / "ranges.json").read_text(encoding="utf-8"))
    return ranges


def value_range(dest: str) -> dict[str, float]:
    """Return the limits of an argument by form name: some of ge, gt, le, lt; empty where none is known."""
    return _ranges().get(dest, {})


def _check_range(argument: Argument, word: str, value: Value) -> None:
    limits = value_range(argument.dest)
    if not limits or value is None or value == "auto":
        return
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _out_of_range(argument, word, limits) from None
    inside = (
        number >= limits.get("ge", number)
        and number > limits.get("gt", float("-inf"))
        and number <= limits.get("le", number)
        and number < limits.get("lt", float("inf"))
    )
    if not inside:
        raise _out_of_range(argument, word, limits)


def _out_of_range(argument: Argument, word: str, limits: dict[str, float]) -> RefusedValueError:
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    needed = " and ".join(f"{words[key]} {format_word(float(limit))}" for key, limit in limits.items())
    suggestion = None
    if argument.dest == "gpu_memory_utilization" and re.fullmatch(r"[1-9]\d(\.\d+)?|100", word):
        suggestion = [format_word(round(float(word) / 100, 4))]  # given in per cent
    hint = f" It is a fraction: write {suggestion[0]}." if suggestion else ""
    return RefusedValueError("args.invalid_value", f"{argument.flag} must be {needed}, not {word}.{hint}", suggestion)


def _json(argument: Argument, word: str) -> Value:
    try:
        # Only configuration classes, whose keys are known, take numbers such as 80g
        value = json.loads(word if argument.keys is None else _expanded(word))
    except ValueError as error:
        raise _not_json(argument, word, str(error)) from error
    if isinstance(value, list) if argument.wants_list else isinstance(value, dict):
        _check_keys(argument, value)
        return value
    if argument.nullable and argument.keys is None and value is None:
        return None
    if "-O" in argument.flags and value in (0, 1, 2, 3):
        return {"level": value}
    raise _not_json(argument, word, "the JSON is of another kind")


def _check_keys(argument: Argument, value: Value) -> None:
    if argument.keys is None or not isinstance(value, dict):
        return
    unknown = [key for key in value if key not in argument.keys]
    if not unknown:
        return
    known = [key for key in value if key in argument.keys]
    meant = {key: difflib.get_close_matches(RENAMED_KEYS.get(key, key), argument.keys, 1, 0.85) for key in unknown}
    mended = {names[0]: value[key] for key, names in meant.items() if names} | {key: value[key] for key in known}
    hint = "".join(f" Did you mean {names[0]}?" for names in meant.values() if names)
    shown = ", ".join(argument.keys[:12]) + (" …" if len(argument.keys) > 12 else "")
    message = f"{argument.flag} has no key {', '.join(unknown)}.{hint} It has: {shown}."
    raise RefusedValueError("args.invalid_value", message, [format_word(mended)] if mended else None)


def _expanded(text: str) -> str:
    """Write out numbers such as 80g in JSON, outside of strings, as vLLM 0.32 does for its configuration classes."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    for position in range(0, len(parts), 2):
        parts[position] = re.sub(
            r"\b\d+(?:\.\d+)?[kKmMgGtT]\b", lambda found: str(human_int(found.group())), parts[position]
        )
    return "".join(parts)


def _not_json(argument: Argument, word: str, reason: str) -> RefusedValueError:
    kind = 'a JSON array such as ["*"]' if argument.wants_list else "a JSON object"
    suggestion = _mended_json(word, wants_list=argument.wants_list)
    message = f"{argument.flag} needs {kind}, not {word!r} ({reason})."
    return RefusedValueError("args.invalid_value", message, [suggestion] if suggestion else None)


def _mended_json(word: str, *, wants_list: bool) -> str | None:
    """Read what people write for JSON: Python literals, `image=2,video=1`, quotes that a shell took away."""
    try:
        value = ast.literal_eval(word)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = _mended_text(word, wants_list=wants_list)
    if not isinstance(value, list if wants_list else dict):
        return None
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return None


def _mended_text(word: str, *, wants_list: bool) -> Value:
    if wants_list:
        return word.split(",") if word and not re.search(r"[\[\]{}]", word) else None
    if re.fullmatch(r"\w+=[^=,{}]+(,\w+=[^=,{}]+)*", word):
        return {key: _scalar(text) for key, text in (pair.split("=") for pair in word.split(","))}
    # {model: org/name, num_speculative_tokens: 3}: JSON whose quotes the shell has eaten
    quoted = re.sub(r"(?<=[{,:\[])\s*([A-Za-z_/.][\w./-]*)\s*(?=[,:}\]])", _quoted, word.strip())
    try:
        return json.loads(_expanded(quoted))
    except ValueError:
        return None


def _quoted(found: re.Match[str]) -> str:
    text = found.group(1)
    return text if text in ("true", "false", "null") else json.dumps(text)


def _scalar(text: str) -> Value:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _lora_module(argument: Argument, word: str) -> Value:
    if not word:
        return word
    if "=" in word and "," not in word:
        return word
    try:
        module = json.loads(word)
    except ValueError:
        module = None
    if isinstance(module, dict) and {"name", "path"} <= module.keys():
        return module
    raise RefusedValueError(
        "args.invalid_value", f"{argument.flag} takes name=path or JSON with name and path; not {word!r}."
    )

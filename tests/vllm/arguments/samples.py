"""Values for every kind of argument: drawn by hypothesis, or one sample of each for an engine's own parser."""

from typing import Any

from hypothesis import strategies as st

from workers.vllm.arguments import Argument, ArgumentSchema, value_range

PLAIN_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
JSON_LEAVES = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | PLAIN_TEXT
JSON_OBJECTS = st.dictionaries(
    PLAIN_TEXT, st.recursive(JSON_LEAVES, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
)


def round_trippable(schema: ArgumentSchema) -> list[Argument]:
    """All arguments of a form: the model stands apart."""
    return [argument for argument in schema.arguments if argument.dest != "model"]


def values_of(argument: Argument) -> st.SearchStrategy[Any]:
    """Draw any value that the argument takes."""
    if argument.kind == "switch":
        return st.booleans()
    if argument.kind == "flag":
        return st.just(True)
    item = _item(argument)
    if may_be_none(argument):
        item = st.none() | item.filter(lambda value: value not in ("", "None"))
    if argument.repeatable:
        items = item.filter(lambda value: not str(value).startswith("-"))  # argparse can't carry those in a list
        return st.lists(items, min_size=1, max_size=3)
    return item | st.just(True) if argument.nargs == "?" else item


def may_be_none(argument: Argument) -> bool:
    """Say whether "None" is taken: argparse compares the converted value with the choices."""
    return argument.nullable and (argument.choices is None or None in argument.choices)


def named_choices(argument: Argument) -> list[Any]:
    """Return the choices that can be typed; some versions list the word None, which never reaches the comparison."""
    return [choice for choice in argument.choices or () if choice not in (None, "None")]


def _item(argument: Argument) -> st.SearchStrategy[Any]:
    limits = value_range(argument.dest)
    low = int(limits.get("ge", limits.get("gt", -1) + 1))
    if argument.choices:
        return st.sampled_from(named_choices(argument))
    match argument.type:
        case "int" | "tokens":
            return st.integers(low if argument.type == "int" else max(low, 0), int(limits.get("le", 10**12)))
        case "tokens_or_auto":
            return st.just("auto") | st.integers(max(low, 1), 10**7)
        case "float":
            high = limits.get("le", limits.get("lt", 1e6) - 1e-3)
            return st.floats(max(float(low), 1e-6), high, allow_nan=False)
        case "bool":
            return st.booleans()
        case "json" if argument.wants_list:
            return st.lists(JSON_LEAVES, max_size=3)
        case "json":
            return _objects(argument)
        case "json_or_text":
            return _objects(argument) | PLAIN_TEXT.filter(lambda text: "{" not in text)
        case "lora_module":
            return st.just("sql=/adapters/sql") | st.just({"name": "sql", "path": "/a,b", "base_model_name": "chat"})
    if limits:
        return st.integers(low, int(limits["le"])).map(str)
    return PLAIN_TEXT


def _objects(argument: Argument) -> st.SearchStrategy[Any]:
    if argument.keys is None:
        return JSON_OBJECTS
    return st.dictionaries(st.sampled_from(argument.keys), JSON_LEAVES, max_size=3)


def samples(argument: Argument) -> list[Any]:
    """Return values that the engine's parser must take, every choice among them."""
    if argument.boolean:
        return [True, False] if argument.kind == "switch" else [True]
    if argument.choices:
        values: list[Any] = named_choices(argument)
    else:
        low = value_range(argument.dest)
        number = int(low.get("ge", low.get("gt", -1) + 1)) + (0 if "lt" in low or low.get("le", 2) <= 1 else 1)
        values = {
            "int": [number],
            "float": [min(0.5, low.get("le", 0.5))],
            "tokens": [number + 1, 32768],
            "tokens_or_auto": ["auto", 32768],
            "bool": [True],
            "json": [["*"] if argument.wants_list else {}]
            + ([] if argument.keys or argument.wants_list else [{"a": {"b": 1}}]),
            "json_or_text": [{"a": {"b": 1}}],
            "lora_module": ["sql=/adapters/sql", {"name": "sql", "path": "/adapters/sql"}],
        }.get(argument.type, [str(number)] if low else ["some text", "-x"])
    if may_be_none(argument):
        values.append(None)
    if argument.repeatable:
        return [[value] for value in values] + [values[:1] * 2]
    return [*values, True] if argument.nargs == "?" else values

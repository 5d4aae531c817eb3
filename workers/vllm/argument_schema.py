"""The arguments one vLLM version has: loaded from the shipped table or from what an engine printed itself.

Sources: the argparse definition of `vllm serve` in each version, read by `dump_arguments.py`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from workers.vllm.argument_table import unpack, version_key

DATA = Path(__file__).parent / "data" / "arguments"

TYPES: dict[str, str] = {
    "human_readable_int": "tokens",
    "human_readable_int_or_auto": "tokens_or_auto",
    "union_dict_and_str": "json_or_text",
    "EngineArgs.add_cli_args.<locals>.<lambda>": "name",
    "PoolerConfig.from_json": "json",
    "KVTransferConfig.from_cli": "json",
    "CompilationConfig.from_cli": "json",
    "LoRAParserAction": "lora_module",
    "PromptAdapterParserAction": "lora_module",
}
"""What the functions and actions accept that vLLM gives argparse as `type=` and `action=`."""

Kind = Literal["switch", "flag", "append", "value"]
KINDS: dict[str, Kind] = {
    "BooleanOptionalAction": "switch",
    "_StoreTrueAction": "flag",
    "_StoreFalseAction": "flag",
    "_AppendAction": "append",
}


@dataclass(frozen=True)
class Argument:
    """One argument of `vllm serve`.

    `kind`: "switch" has a `--no-` form, "flag" hasn't, "append" may be repeated, "value" takes one value or, with
    `nargs` "+" or "?", a list or an optional one. `type`: text, int, float, bool, tokens (32k = 32,000; 32K = 32,768),
    tokens_or_auto, json, json_or_text, lora_module (`name=path` or JSON) or name (case and dashes don't matter).
    `nullable`: "None" means no value. `keys`: the keys a JSON object may have, None where any will do or they aren't
    known. `certain` is False where the version lies between two known ones of which only one has this argument;
    `seen_in` then names that one.
    """

    flag: str
    flags: tuple[str, ...]
    dest: str
    group: str
    kind: Kind = "value"
    type: str = "text"
    nullable: bool = False
    nargs: str | None = None
    choices: tuple[str | int | None, ...] | None = None
    default: Any = None
    keys: tuple[str, ...] | None = None
    help: str = ""
    deprecated: bool = False
    certain: bool = True
    seen_in: str = ""

    @property
    def boolean(self) -> bool:
        """True for arguments that take no value."""
        return self.kind in ("switch", "flag")

    @property
    def negative(self) -> str | None:
        """The `--no-` form, where there is one."""
        return next((flag for flag in self.flags if flag.startswith("--no-")), None) if self.kind == "switch" else None

    @property
    def repeatable(self) -> bool:
        """True where the value is a list."""
        return self.kind == "append" or self.nargs in ("+", "*")

    @property
    def wants_list(self) -> bool:
        """True for JSON arguments whose value is an array (the `--allowed-…` headers), not an object."""
        return self.type == "json" and isinstance(self.default, list)


@dataclass(frozen=True)
class ArgumentSchema:
    """All arguments of one version. `between`: the two shipped versions it was interpolated from; else None."""

    version: str
    arguments: tuple[Argument, ...]
    between: tuple[str, str] | None = None
    source: Literal["shipped", "engine"] = "shipped"
    architectures: frozenset[str] | None = None
    """Model classes that the engine has itself, as it printed them; None: nobody knows."""

    @cached_property
    def by_flag(self) -> Mapping[str, Argument]:
        """Every spelling that argparse knows, `--no-` forms and short ones included."""
        return {flag: argument for argument in self.arguments for flag in argument.flags}

    @cached_property
    def by_dest(self) -> Mapping[str, Argument]:
        """Arguments by the name they have in a form (`max_model_len`)."""
        return {argument.dest: argument for argument in self.arguments}

    def has(self, flag: str) -> bool:
        """Say whether this version is known to accept the flag."""
        argument = self.by_flag.get(flag)
        return argument is not None and argument.certain

    def abbreviations(self, prefix: str) -> list[str]:
        """Return the flags that argparse would take the prefix for; one means that vLLM accepts it."""
        return sorted(flag for flag in self.by_flag if flag.startswith(prefix)) if len(prefix) > 1 else []


class SchemaError(ValueError):
    """A schema file or a version that can't be used; the message says what to give instead."""


def argument_from_record(record: Mapping[str, Any]) -> Argument:
    """Build an argument from a record of the table or of an engine's dump."""
    flags = tuple(record.get("flags") or ())
    name = str(record.get("kind") if record.get("kind") in TYPES else record.get("type") or "str")
    nullable = name.startswith("optional:")
    name = name.removeprefix("optional:")
    if name.startswith("json"):
        name = "json"
    kind = KINDS.get(str(record.get("kind")), "value")
    choices = record.get("choices")
    if name.endswith("<lambda>") and not choices:
        name = "str"
    nargs = record.get("nargs")
    return Argument(
        flag=next((flag for flag in flags if flag.startswith("--") and not flag.startswith("--no-")), record["dest"]),
        flags=flags,
        dest=record["dest"],
        group=str(record.get("group") or "options"),
        kind=kind,
        type="text" if name == "str" else TYPES.get(name, name),
        nullable=nullable,
        nargs=str(nargs) if nargs not in (None, 0) else None,
        choices=tuple(choices) if choices else None,
        default=record.get("default"),
        keys=tuple(record["keys"]) if record.get("keys") else None,
        help=str(record.get("help") or ""),
        deprecated=bool(record.get("deprecated")) or str(record.get("kind")).startswith("Deprecated"),
    )


def schema_from_dump(dump: Mapping[str, Any]) -> ArgumentSchema:
    """Build the schema from what `dump_arguments.py` printed; SchemaError when it is something else."""
    try:
        version, records = str(dump["vllm"]), dump["args"]
        arguments = tuple(argument_from_record(record) for record in records if record.get("flags"))
    except (KeyError, TypeError, AttributeError) as error:
        raise SchemaError(f"This is no argument schema of a vLLM engine: {error!r} is missing or wrong.") from error
    if not arguments:
        raise SchemaError("The schema holds no arguments; dump it again with the engine's own Python.")
    names = dump.get("architectures")
    known = frozenset(str(name) for name in names) if isinstance(names, list) and names else None
    return ArgumentSchema(version, arguments, source="engine", architectures=known)


def load_schema(path: Path) -> ArgumentSchema:
    """Read a schema file; SchemaError says why it can't be used."""
    try:
        dump = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SchemaError(f"Can't read the schema {path}: {error}") from error
    if not isinstance(dump, dict):
        raise SchemaError(f"{path} is no argument schema: it holds no JSON object.")
    return schema_from_dump(dump)


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((DATA / "schemas.json").read_text(encoding="utf-8"))
    return table


def shipped_versions() -> tuple[str, ...]:
    """The versions whose schema ships with Slipway, oldest first."""
    return tuple(_table()["versions"])


@lru_cache(maxsize=16)
def shipped_schema(version: str) -> ArgumentSchema:
    """Return a shipped version's schema; KeyError for one that doesn't ship."""
    records = unpack(_table(), version)
    return ArgumentSchema(version, tuple(argument_from_record(record) for record in records if record.get("flags")))


@lru_cache(maxsize=16)
def schema_for(version: str) -> ArgumentSchema:
    """Return the schema of any version: shipped as it is, otherwise interpolated from its neighbours.

    Between two shipped versions an argument that only one of them has is kept with `certain=False`; beyond the newest or
    before the oldest the nearest one stands in, and `between` names it twice. SchemaError for text that is no version.
    """
    try:
        key = version_key(version)
    except ValueError as error:
        raise SchemaError(str(error)) from error
    known = {version_key(name): name for name in shipped_versions()}
    if key in known:
        return shipped_schema(known[key])
    below = [name for known_key, name in known.items() if known_key < key]
    above = [name for known_key, name in known.items() if known_key > key]
    older, newer = (below or above[:1])[-1], (above or below[-1:])[0]
    return _between(version, shipped_schema(older), shipped_schema(newer))


def _between(version: str, older: ArgumentSchema, newer: ArgumentSchema) -> ArgumentSchema:
    merged: list[Argument] = []
    for argument in newer.arguments:
        twin = older.by_dest.get(argument.dest)
        if twin is None:
            merged.append(replace(argument, certain=False, seen_in=newer.version))
            continue
        choices = None
        if argument.choices and twin.choices:
            choices = tuple(dict.fromkeys([*twin.choices, *argument.choices]))
        flags = tuple(dict.fromkeys([*argument.flags, *twin.flags]))
        merged.append(replace(argument, flags=flags, choices=choices, keys=None))
    merged += [
        replace(argument, certain=False, seen_in=older.version)
        for argument in older.arguments
        if argument.dest not in newer.by_dest
    ]
    return ArgumentSchema(version, tuple(merged), between=(older.version, newer.version))


def is_negative_number(token: str) -> bool:
    """Say whether argparse takes the token for a value although it begins with a dash."""
    return re.fullmatch(r"-\d+|-\d*\.\d+", token) is not None

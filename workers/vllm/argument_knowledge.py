"""What the deploy form knows about arguments beyond the engine's schema: groups, essentials, presets, what needs an admin.

`data/arguments/form.json` holds it by form name. An entry for an argument that a version hasn't is skipped there, so the
same data serve every version.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from workers.vllm.argument_schema import DATA, Argument, ArgumentSchema, shipped_schema, shipped_versions
from workers.vllm.argument_values import Value


@dataclass(frozen=True)
class Essential:
    """An argument that most deployments set: what it costs and when to change it, one sentence each."""

    argument: Argument
    label: str
    unit: str
    cost: str
    change: str


@dataclass(frozen=True)
class Preset:
    """A start for a purpose: form values this version takes, and variables for the engine's environment."""

    name: str
    title: str
    summary: str
    values: Mapping[str, Value]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Group:
    """Arguments that belong together, in the engine's own order."""

    title: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Guarded:
    """A value that only an admin may set, because it weakens safety or truth."""

    dest: str
    flag: str
    weakens: Literal["safety", "truth"]
    why: str


@lru_cache(maxsize=1)
def _form() -> dict[str, Any]:
    form: dict[str, Any] = json.loads((DATA / "form.json").read_text(encoding="utf-8"))
    return form


def reserved() -> Mapping[str, Mapping[str, Any]]:
    """Return, by form name, what Slipway sets itself: `why`, `fix` and the finding's `severity`."""
    entries: Mapping[str, Mapping[str, Any]] = _form()["reserved"]
    return entries


def essentials(schema: ArgumentSchema) -> list[Essential]:
    """Return the essential arguments that this version has, most asked for first."""
    return [
        Essential(schema.by_dest[entry["dest"]], entry["label"], entry.get("unit", ""), entry["cost"], entry["change"])
        for entry in _form()["essentials"]
        if entry["dest"] in schema.by_dest
    ]


def presets(schema: ArgumentSchema) -> list[Preset]:
    """Return all presets, each with the values that this version takes."""
    return [
        Preset(
            entry["name"],
            entry["title"],
            entry["summary"],
            {dest: value for dest, value in entry["values"].items() if _takes(schema, dest, value)},
            entry.get("environment", {}),
        )
        for entry in _form()["presets"]
    ]


def _takes(schema: ArgumentSchema, dest: str, value: Value) -> bool:
    argument = schema.by_dest.get(dest)
    if argument is None or not argument.certain:
        return False
    return argument.choices is None or value in argument.choices


def groups(schema: ArgumentSchema) -> list[Group]:
    """Return every argument that a form may set, by group; the essentials are among them.

    Old versions list most arguments as plain options; those go where the newest version has them.
    """
    newest = shipped_schema(shipped_versions()[-1]).by_dest
    titles = {name: group["title"] for group in _form()["groups"] for name in group["engine_groups"]}
    members: dict[str, list[Argument]] = {group["title"]: [] for group in _form()["groups"]}
    for argument in schema.arguments:
        if argument.dest == "model" or argument.dest in reserved():
            continue
        group = argument.group
        if group == "options" and argument.dest in newest:
            group = newest[argument.dest].group
        members[titles.get(group, "Other")].append(argument)
    return [Group(title, tuple(arguments)) for title, arguments in members.items() if arguments]


def search(schema: ArgumentSchema, text: str) -> list[Argument]:
    """Find arguments whose flag or help holds every word of the text, those with it in the flag first."""
    words = text.lower().replace("_", "-").split()
    in_flag = [argument for argument in schema.arguments if _holds(argument.flags, words)]
    in_help = [argument for argument in schema.arguments if _holds([*argument.flags, argument.help], words)]
    return list({argument.dest: argument for argument in [*in_flag, *in_help]}.values()) if words else []


def _holds(texts: Iterable[str], words: list[str]) -> bool:
    whole = " ".join(texts).lower()
    return all(word in whole for word in words)


def changed(schema: ArgumentSchema, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values that differ from the engine's defaults."""
    return {dest: value for dest, value in values.items() if value != schema.by_dest[dest].default}


def guarded(schema: ArgumentSchema, values: Mapping[str, Value]) -> list[Guarded]:
    """Return the values that need an admin. Values equal to the engine's default never do."""
    found: list[Guarded] = []
    for dest, entry in _form()["guarded"].items():
        argument = schema.by_dest.get(dest)
        if argument is None or dest not in values or values[dest] in (argument.default, None, False):
            continue
        if _needs_admin(entry, values[dest]):
            found.append(Guarded(dest, argument.flag, entry["weakens"], entry["why"]))
    return found


def _needs_admin(entry: Mapping[str, Any], value: Value) -> bool:
    if "keys" in entry:
        return isinstance(value, dict) and not value.keys().isdisjoint(entry["keys"])
    if "pattern" in entry:
        return re.search(entry["pattern"], str(value)) is not None
    return value in entry.get("only", [value]) and value not in entry.get("except", [])


def guarded_names() -> Mapping[str, Mapping[str, Any]]:
    """Return, by form name, everything that may need an admin: `weakens`, `why`, and for which values.

    Which ones: `only` these, all `except` these, text that matches a `pattern`, or JSON with one of `keys`; else any.
    """
    entries: Mapping[str, Mapping[str, Any]] = _form()["guarded"]
    return entries

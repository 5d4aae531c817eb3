"""What became of arguments over vLLM's versions: since when one is gone, what to use instead, which never existed.

When an argument came and went follows from the shipped schemas; `data/arguments/history.json` adds, by flag:
`why` and `fix` (sentences), `code` (of the finding, "args.removed" unless given), `never` (no version had it), `words`
(how many it took, for arguments older than the schemas), `deprecated_beside` (accepted but outdated where this other
flag exists), `deprecated_since` (a version), `before` (what served before the argument came), and how to correct it:
`to` (another flag or JSON key takes the value), `set` (words to put instead) or `convert` (a rule of its own).

Source: the schemas, vLLM's release notes and deprecation messages.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from workers.vllm.argument_schema import DATA, ArgumentSchema, shipped_schema, shipped_versions
from workers.vllm.argument_table import version_key
from workers.vllm.argument_words import MANY


@dataclass(frozen=True)
class Story:
    """Why a version has no such argument, or takes it only for old times' sake: the parts of a finding."""

    code: str
    message: str
    fix: str


@lru_cache(maxsize=1)
def _notes() -> dict[str, dict[str, Any]]:
    notes: dict[str, dict[str, Any]] = json.loads((DATA / "history.json").read_text(encoding="utf-8"))
    return notes


def note(flag: str) -> Mapping[str, Any]:
    """Return what is written down about a flag; empty for most."""
    return _notes().get(flag) or (_notes().get("--" + flag.removeprefix("--no-"), {}) if flag[:5] == "--no-" else {})


@lru_cache(maxsize=256)
def lifetime(flag: str) -> tuple[str, ...]:
    """Return the shipped versions that accept the flag, oldest first."""
    return tuple(version for version in shipped_versions() if flag in shipped_schema(version).by_flag)


def arity(flag: str) -> int | None:
    """How many words a flag of another version takes: 0, 1 or MANY; None when no version is known to have had it."""
    entry = note(flag)
    if "words" in entry:
        return int(entry["words"])
    versions = lifetime(flag)
    if not versions:
        return 1 if "why" in entry else None
    argument = shipped_schema(versions[-1]).by_flag[flag]
    if argument.boolean:
        return 0
    return MANY if argument.nargs in ("+", "*") else 1


def story_of_missing(flag: str, schema: ArgumentSchema) -> Story | None:
    """Explain a flag that the schema hasn't; None for one nobody has heard of."""
    entry, versions = note(flag), lifetime(flag)
    key = version_key(schema.version)
    if versions and version_key(versions[0]) > key:
        return _still_to_come(flag, schema.version, versions[0], entry)
    if entry.get("never"):
        return Story(
            entry.get("code", "args.unrecognized"),
            f"vLLM {schema.version} has no {flag}. {entry['why']}.",
            entry["fix"],
        )
    if not versions and "why" not in entry:
        return None
    why = f" {entry['why']}." if "why" in entry else ""
    fix = entry.get("fix", "Leave it out.")
    return Story(entry.get("code", "args.removed"), f"{flag} {_gone(versions, key)}.{why}", fix)


def _gone(versions: tuple[str, ...], key: tuple[int, int, int]) -> str:
    shipped = shipped_versions()
    if not versions:
        return f"was removed before {shipped[0]}"
    last = shipped.index(versions[-1])
    if last + 1 == len(shipped):
        return f"is in vLLM {versions[-1]} but not in this engine"
    if version_key(shipped[last + 1]) > key:
        return f"was last seen in vLLM {versions[-1]}, and this engine hasn't it"
    return f"was removed after {versions[-1]}: it is gone since vLLM {shipped[last + 1]} at the latest"


def _still_to_come(flag: str, version: str, first: str, entry: Mapping[str, Any]) -> Story:
    shipped = shipped_versions()
    position = shipped.index(first)
    since = f" (not yet in {shipped[position - 1]})" if position else ""
    before = f" {entry['before']}" if "before" in entry else ""
    message = f"vLLM {version} hasn't {flag}; it came with {first}{since}.{before}"
    return Story("args.unrecognized", message, f"Leave it out, or use an engine of version {first} or later.")


def story_of_deprecated(flag: str, schema: ArgumentSchema) -> Story | None:
    """Explain a flag that the schema still has but that users should leave; None for all others."""
    entry = note(flag)
    beside, since = entry.get("deprecated_beside"), entry.get("deprecated_since")
    outdated = (beside is not None and schema.has(beside)) or (
        since is not None and version_key(schema.version) >= version_key(since)
    )
    if outdated:
        return Story("args.deprecated", f"{flag} still works but is going away. {entry['why']}.", entry["fix"])
    argument = schema.by_flag[flag]
    if argument.deprecated:
        return Story(
            "args.deprecated", f"{flag} still works but this version calls it deprecated.", "See its help text."
        )
    return None


def story_of_uncertain(flag: str, schema: ArgumentSchema) -> Story | None:
    """Explain a flag that only one of the two neighbours of an interpolated version has; None when it is certain."""
    argument = schema.by_flag[flag]
    if argument.certain or schema.between is None:
        return None
    older, newer = schema.between
    fix = "Check with the schema of that engine itself; Slipway dumps it when the engine is installed."
    if argument.seen_in == newer:
        message = f"{flag} came between {older} and {newer}; whether {schema.version} has it isn't known."
        return Story("args.unrecognized", message, fix)
    why = f" {note(flag)['why']}." if "why" in note(flag) else ""
    message = f"{flag} went between {older} and {newer}; whether {schema.version} still has it isn't known.{why}"
    return Story("args.removed", message, fix)

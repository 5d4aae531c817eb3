"""From words of a command line to the form's fields: what holds is taken over, what doesn't is explained, with its fix.

A line is taken apart argument by argument, so that one that this engine hasn't doesn't keep the others from their fields.
What doesn't hold stays as text (`Kept`), each with what would do instead: one click takes it.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from django.utils.translation import gettext as _

from console.deployments.argument_fields import NOT_IN_FORM
from workers.vllm.arguments import (
    ArgumentSchema,
    CheckedArguments,
    Finding,
    Value,
    check_arguments,
    parse_command_line,
    read_command_line,
    reserved,
)
from workers.vllm.own_options import forbidden_variable, own_option

_SECRET = re.compile(r"TOKEN$|_KEY$|PASSWORD|SECRET")
_OF_THE_WHOLE_LINE = ("args.conflict", "args.duplicate")


@dataclass(frozen=True)
class Kept:
    """One argument as it was typed that this engine wouldn't take. `values` is what would do; None: leave it out."""

    words: tuple[str, ...]
    findings: tuple[Finding, ...]
    values: Mapping[str, Value] | None
    name: str = ""
    """The deployment's name, where that is what was meant."""

    @property
    def text(self) -> str:
        """The words as one would type them."""
        return shlex.join(self.words)


@dataclass
class Taken:
    """What a line says, as far as the form has a place for it.

    Attributes:
        values: by argument, for the fields.
        environment: variables that the line sets.
        model, names: what the line serves, and under which names.
        kept: arguments that don't hold for this engine.
        notes: what was changed or left out on the way, and why.
    """

    values: dict[str, Value] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    model: str = ""
    names: list[str] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)


def take(text: str, schema: ArgumentSchema) -> Taken:
    """Take a pasted text apart: a whole command from a blog, a container, a unit or a shell, or arguments alone."""
    whole = parse_command_line(text, schema)
    line = read_command_line(text)
    taken = take_words(line.words, schema)
    _take_environment(line.environment, taken)
    taken.model = whole.model or taken.model
    about_program = [finding for finding in whole.findings if not finding.flag.startswith("-")]
    conflict = [finding for finding in whole.findings if finding.code in _OF_THE_WHOLE_LINE]
    known = {(finding.flag, finding.message) for one in taken.kept for finding in one.findings}
    taken.notes = [
        *(one for one in [*about_program, *conflict] if (one.flag, one.message) not in known),
        *taken.notes,
    ]
    _name_from_model_argument(whole, taken)
    return taken


def _take_environment(environment: Mapping[str, str], taken: Taken) -> None:
    for name, value in environment.items():
        why = forbidden_variable(name)
        if _SECRET.search(name):
            why = _("a token in a deployment could be read by everybody who sees it; store it with the model's source")
        if not why:
            taken.environment[name] = value
            continue
        message = _("%(name)s is not taken over: %(why)s.") % {"name": name, "why": why}
        taken.notes.append(Finding("environment.not_allowed", "info", name, message, ""))


def _name_from_model_argument(whole: CheckedArguments, taken: Taken) -> None:
    """`serve PATH --model NAME`: NAME is what clients shall use."""
    meant = whole.values.get("served_model_name")
    if meant and not taken.names and not any(one.name for one in taken.kept):
        taken.names = [str(name) for name in meant]


def take_words(words: Sequence[str], schema: ArgumentSchema) -> Taken:
    """Take words that follow `vllm serve` apart."""
    taken = Taken()
    for chunk in chunks(words):
        _take_chunk(chunk, schema, taken)
    return taken


def chunks(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Words with each flag's values beside it; words before the first flag come first, together."""
    found: list[list[str]] = []
    for word in words:
        if not found or (word.startswith("-") and not re.fullmatch(r"-\d*\.?\d+|-", word)):
            found.append([word])
        else:
            found[-1].append(word)
    return [tuple(chunk) for chunk in found]


def _take_chunk(chunk: tuple[str, ...], schema: ArgumentSchema, taken: Taken) -> None:
    if not chunk[0].startswith("-"):
        taken.model = chunk[0]
        return
    checked = check_arguments(schema, chunk)
    found = [one for one in checked.findings if one.code.startswith("args.") and one.code not in _OF_THE_WHOLE_LINE]
    values = {dest: value for dest, value in checked.values.items() if dest not in NOT_IN_FORM}
    if own_option(chunk[0]) or any(one.code == "args.reserved" for one in found):
        _take_own(chunk, checked, taken)
    elif any(one.severity == "error" for one in found) or (not values and not checked.model):
        name = next(iter(checked.values.get("served_model_name") or _names_meant(found, chunk)), "")
        taken.kept.append(Kept(chunk, tuple(found), values or None, str(name)))
    else:
        merge(taken.values, values)
        taken.model = checked.model or taken.model
        taken.notes += found


def _take_own(chunk: tuple[str, ...], checked: CheckedArguments, taken: Taken) -> None:
    option = own_option(chunk[0])
    if option == "--served-model-name":
        taken.names = [str(name) for name in checked.values.get("served_model_name", [])]
        more = taken.names[1:]
        if more:
            message = _("A deployment has one name; %(names)s are left out.") % {"names": ", ".join(more)}
            fix = _("Deploy it a second time for another name.")
            taken.notes.append(Finding("args.reserved", "warning", option, message, fix))
    elif option == "--model":
        taken.model = taken.model or checked.model or ""
    elif option == "--config":
        message = _("A file on the host could change anything, unseen.")
        taken.notes.append(Finding("args.reserved", "error", option, message, _("Paste the arguments it holds.")))
    else:
        taken.notes += [one for one in checked.findings if one.code == "args.reserved"] or [_reserved(chunk[0])]


def _names_meant(found: Sequence[Finding], chunk: tuple[str, ...]) -> tuple[str, ...]:
    """Values of an argument that never existed and whose fix is the served name."""
    return chunk[1:] if any("--served-model-name" in one.fix for one in found) else ()


def _reserved(word: str) -> Finding:
    flag = word.split("=", 1)[0].replace("_", "-")
    entry = reserved().get(flag.strip("-").replace("-", "_"), {})
    why = str(entry.get("why") or _("Slipway sets this itself."))
    return Finding(
        "args.reserved", "warning", flag, why, str(entry.get("fix") or _("Leave %(flag)s out.") % {"flag": flag})
    )


def merge(values: dict[str, Value], more: Mapping[str, Value]) -> None:
    """Lay values over others; objects are laid over key by key, as `--speculative-model` and its kin need."""
    for dest, value in more.items():
        known = values.get(dest)
        values[dest] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value

"""The deploy form as a page shows it: essentials with what they cost, groups, presets, what Slipway sets itself."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.forms import BoundField

from console.deployments import form_texts, pasting
from console.deployments.argument_fields import PREFIX, type_words
from console.deployments.forms import DeployForm
from workers.vllm.arguments import (
    Argument,
    Preset,
    argv_from_values,
    essentials,
    groups,
    guarded_names,
    presets,
    reserved,
)


@dataclass(frozen=True)
class ArgumentRow:
    """One argument of the form: its field, and the words around it."""

    bound: BoundField
    argument: Argument
    label: str
    takes: str
    cost: str = ""
    change: str = ""
    unit: str = ""
    guard: str = ""
    why_guarded: str = ""

    @property
    def changed(self) -> bool:
        """True when it is set to something."""
        return bool(self.bound.value())

    @property
    def search(self) -> str:
        """What the search looks at, in lower case."""
        return f"{self.argument.flag} {self.argument.dest} {self.label} {self.argument.help}".lower()


@dataclass(frozen=True)
class OwnRow:
    """An argument that Slipway sets itself."""

    flag: str
    why: str


@dataclass(frozen=True)
class GroupRows:
    """A folded group. `open`: something in it is set or wrong."""

    title: str
    rows: tuple[ArgumentRow, ...]

    @property
    def changed(self) -> int:
        """How many of its arguments are set."""
        return sum(row.changed for row in self.rows)

    @property
    def open(self) -> bool:
        """True when something in it needs to be seen."""
        return any(row.bound.errors for row in self.rows)


@dataclass(frozen=True)
class Fold:
    """A folded card of fields that aren't arguments."""

    title: str
    fields: tuple[BoundField, ...]

    @property
    def changed(self) -> int:
        """How many of them are filled in."""
        return sum(bool(bound.value()) for bound in self.fields)

    @property
    def open(self) -> bool:
        """True when something in it is wrong."""
        return any(bound.errors for bound in self.fields)


class FormPage:
    """Everything that the template asks of a form."""

    def __init__(self, form: DeployForm) -> None:
        self.form = form
        self._guarded = guarded_names()
        schema = form.schema
        self._essential = {one.argument.dest: one for one in essentials(schema)} if schema else {}

    def essentials(self) -> list[ArgumentRow]:
        """Arguments that most deployments set, with what they cost and when to change them."""
        return [self._row(one.argument) for one in self._essential.values() if self._has(one.argument)]

    def groups(self) -> Iterator[GroupRows]:
        """All other arguments by group, in the engine's own order."""
        if self.form.schema is None:
            return
        for group in groups(self.form.schema):
            rows = tuple(
                self._row(one) for one in group.arguments if self._has(one) and one.dest not in self._essential
            )
            if rows:
                yield GroupRows(group.title, rows)

    def _has(self, argument: Argument) -> bool:
        return PREFIX + argument.dest in self.form.fields

    def _row(self, argument: Argument) -> ArgumentRow:
        essential = self._essential.get(argument.dest)
        guard = self._guarded.get(argument.dest)
        return ArgumentRow(
            bound=self.form[PREFIX + argument.dest],
            argument=argument,
            label=essential.label if essential else argument.flag,
            takes=type_words(argument),
            cost=essential.cost if essential else "",
            change=essential.change if essential else "",
            unit=essential.unit if essential else "",
            guard=str(guard["weakens"]) if guard else "",
            why_guarded=str(guard["why"]) if guard else "",
        )

    def presets(self) -> list[Preset]:
        """Starts for a purpose, as far as this engine takes their values."""
        return presets(self.form.schema) if self.form.schema else []

    def own(self) -> list[OwnRow]:
        """Arguments of this engine that Slipway sets itself, and why."""
        schema = self.form.schema
        if schema is None:
            return []
        return [
            OwnRow(schema.by_dest[dest].flag, str(entry["why"]))
            for dest, entry in reserved().items()
            if dest in schema.by_dest
        ]

    def kept(self) -> list[tuple[int, pasting.Kept]]:
        """Other arguments that don't hold, each with its fix."""
        return form_texts.kept_words(str(self.form["arguments"].value() or ""), self.form.schema)

    def count(self) -> int:
        """How many arguments the form has fields for."""
        return sum(name.startswith(PREFIX) for name in self.form.fields)


def fix_text(schema: Any, kept: pasting.Kept) -> str:
    """What taking a fix puts into the form, as one would type it; empty: the argument is left out."""
    if kept.name:
        return kept.name
    return shlex.join(argv_from_values(schema, kept.values or {}))

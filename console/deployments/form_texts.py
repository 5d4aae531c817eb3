"""A deploy form's texts: from what was sent, from a spec, from a pasted line, from another engine's arguments.

Whatever a person does with the form besides typing (paste a line, take a fix, choose a preset, change the engine) makes a
new form from the old one's texts. Nothing typed is lost on the way: what has no place goes to "other arguments".
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from console.access import policies
from console.access.models import User
from console.catalog.models import Copy
from console.deployments import engine_schema, gate_fields, pasting
from console.deployments.argument_fields import NOT_IN_FORM, PREFIX, UNSET, text_of, value_of
from console.deployments.form_fields import environment_text, split_arguments
from console.deployments.health_fields import DEFAULT_START_MINUTES, health_texts
from console.deployments.models import Spec
from console.fleet import labels
from console.fleet.models import Engine
from workers.contracts import Probe, RestartPolicy
from workers.vllm.arguments import (
    ArgumentSchema,
    Finding,
    Preset,
    RefusedValueError,
    Value,
    format_value,
    presets,
    reserved,
)

LISTS = ("devices",)
"""Fields that are sent once for each of their values."""
IGNORED = ("csrfmiddlewaretoken", "command", "act")


@dataclass
class Texts:
    """Fields of the form by name, and what was changed on the way to them."""

    fields: dict[str, Any] = field(default_factory=dict)
    notes: list[Finding] = field(default_factory=list)

    def put(self, schema: ArgumentSchema, values: Mapping[str, Value]) -> None:
        """Set arguments' fields; objects are laid over what is there key by key."""
        for dest, value in values.items():
            argument = schema.by_dest[dest]
            present = {dest: known} if (known := self._value(argument)) is not UNSET else {}
            pasting.merge(present, {dest: value})
            self.fields[PREFIX + dest] = text_of(argument, present[dest])

    def _value(self, argument: Any) -> Value:
        try:
            return value_of(argument, str(self.fields.get(PREFIX + argument.dest) or ""))
        except RefusedValueError:
            return UNSET

    def add_words(self, rows: Iterable[str]) -> None:
        """Add lines to the other arguments."""
        self.fields["arguments"] = "\n".join([*filter(None, [self.fields.get("arguments", "").rstrip()]), *rows])

    def add_environment(self, environment: Mapping[str, str]) -> None:
        """Add variables that aren't set yet."""
        text = self.fields.get("environment", "").rstrip()
        known = {line.partition("=")[0].strip() for line in text.splitlines()}
        fresh = {name: value for name, value in environment.items() if name not in known}
        self.fields["environment"] = "\n".join(filter(None, [text, environment_text(fresh)]))

    def drop_environment(self, environment: Mapping[str, str]) -> None:
        """Remove variables that are set to just that."""
        dropped = environment_text(environment).splitlines()
        lines = self.fields.get("environment", "").splitlines()
        self.fields["environment"] = "\n".join(line for line in lines if line.strip() not in dropped)


def of_post(data: Any) -> Texts:
    """The texts that were sent; fields left empty are left out."""
    fields: dict[str, Any] = {}
    for name in data:
        if name in IGNORED:
            continue
        value = data.getlist(name) if name in LISTS else data.get(name)
        if value not in ("", []):
            fields[name] = value
    return Texts(fields)


def of_spec(spec: Spec, *, schema: ArgumentSchema | None) -> Texts:
    """A spec as the form shows it; words that its engine's schema doesn't know stay words."""
    usual = spec.start_deadline_seconds == 60 * DEFAULT_START_MINUTES
    texts = Texts(
        {
            "copy": str(spec.copy_id),
            "engine": str(spec.engine_id),
            "devices": list(spec.devices),
            "placement": spec.placement.get("strategy", ""),
            "labels": labels.text_of(spec.placement.get("labels", {})),
            "name": spec.deployment.name,
            "replicas": str(spec.replicas),
            "environment": environment_text(spec.environment),
            "port": str(spec.port or ""),
            **health_texts(Probe.model_validate(spec.probe), RestartPolicy.model_validate(spec.restart)),
            "gate": gate_fields.text_of(spec),
            "start_minutes": "" if usual else f"{spec.start_deadline_seconds / 60:g}",
            "notes": spec.deployment.notes,
        }
    )
    if schema is None:
        texts.add_words([shlex.join(chunk) for chunk in pasting.chunks(spec.arguments)])
        return texts
    taken = pasting.take_words(spec.arguments, schema)
    texts.put(schema, taken.values)
    texts.add_words(one.text for one in taken.kept)
    return texts


def read_line(texts: Texts, text: str, schema: ArgumentSchema, *, user: User) -> None:
    """Put a pasted command line into the form: each thing at its place, with a note where it isn't as it was typed."""
    taken = pasting.take(text, schema)
    _put_taken(texts, taken, schema)
    if taken.names:
        texts.fields["name"] = taken.names[0]
    if taken.model:
        _choose_model(texts, taken.model, user)


def _put_taken(texts: Texts, taken: pasting.Taken, schema: ArgumentSchema) -> None:
    texts.put(schema, taken.values)
    texts.add_words(one.text for one in taken.kept)
    texts.add_environment(taken.environment)
    texts.notes += taken.notes


def _choose_model(texts: Texts, model: str, user: User) -> None:
    copies = policies.visible(user, Copy.objects.all(), team_path="revision__model__team")
    copies = copies.exclude(state__in=("removed", "deleting")).select_related("revision__model", "host")
    bare = model.rstrip("/")
    found = [one for one in copies if bare in (one.path, one.revision.model.repository, one.revision.model.name)]
    chosen = next((one for one in found if str(one.pk) == texts.fields.get("copy")), found[0] if found else None)
    if chosen is not None:
        texts.fields["copy"] = str(chosen.pk)
        return
    message = _("The line serves %(model)s, which no host here has.") % {"model": model}
    texts.notes.append(Finding("model.unknown", "warning", "", message, _("Choose a model, or add this one first.")))


def change_engine(texts: Texts, before: Engine | None, after: Engine | None) -> None:
    """Carry values over to another engine's arguments, and say which of them no longer hold."""
    old, new = engine_schema.schema_of(before), engine_schema.schema_of(after)
    names = [name for name in texts.fields if name.startswith(PREFIX)]
    words: list[str] = []
    for name in names:
        text = texts.fields.pop(name)
        argument = old.by_dest.get(name.removeprefix(PREFIX)) if old else None
        if argument is None:
            continue
        try:
            value = value_of(argument, text)
            words += format_value(argument, value) if value is not UNSET else []
        except RefusedValueError:
            words += [argument.flag, text]  # it didn't hold before either: it is explained where it goes
    if new is None:
        texts.add_words(shlex.join(chunk) for chunk in pasting.chunks(words))
        return
    taken = pasting.take_words(words, new)
    _put_taken(texts, taken, new)
    for kept in taken.kept:
        message = _("%(words)s doesn't hold for %(engine)s; it stands under “other arguments” now.") % {
            "words": kept.text, "engine": after,
        }  # fmt: skip
        texts.notes.append(Finding("engine.changed", "warning", "", message, ""))


def kept_words(texts_arguments: str, schema: ArgumentSchema | None) -> list[tuple[int, pasting.Kept]]:
    """Other arguments that this engine wouldn't take, with their place among all of them."""
    try:
        words = split_arguments(texts_arguments)
    except ValueError:
        return []
    if schema is None:
        return []
    found = []
    for index, chunk in enumerate(pasting.chunks(words)):
        found += [(index, kept) for kept in pasting.take_words(chunk, schema).kept if kept.findings]
    return found


def take_fixes(texts: Texts, schema: ArgumentSchema, which: str) -> None:
    """Put the fix of one of the other arguments (its number), or of all of them ("all"), into the form's fields."""
    try:
        chunks = pasting.chunks(split_arguments(texts.fields.get("arguments", "")))
    except ValueError:
        return
    left = []
    for index, chunk in enumerate(chunks):
        taken = pasting.take_words(chunk, schema)
        if which != "all" and which != str(index):
            left.append(shlex.join(chunk))
            continue
        texts.put(schema, taken.values)
        if taken.names:
            texts.fields["name"] = taken.names[0]
        for kept in taken.kept:
            texts.put(schema, kept.values or {})
            if kept.name:
                texts.fields["name"] = kept.name
    texts.fields["arguments"] = "\n".join(left)


def apply_preset(texts: Texts, schema: ArgumentSchema, name: str) -> None:
    """Set what a preset sets, in place of another one that stands there whole; everything else stays as it is."""
    every = presets(schema)
    preset = next((one for one in every if one.name == name), None)
    if preset is None:
        return
    for other in every:
        fields = _fields_of(other, schema)
        if other is not preset and fields.items() <= texts.fields.items():
            for field_name in fields:
                del texts.fields[field_name]
            texts.drop_environment(other.environment)
    texts.fields |= _fields_of(preset, schema)
    texts.add_environment(preset.environment)


def _fields_of(preset: Preset, schema: ArgumentSchema) -> dict[str, str]:
    return {
        PREFIX + dest: text_of(schema.by_dest[dest], value)
        for dest, value in preset.values.items()
        if dest not in NOT_IN_FORM and dest not in reserved()
    }


def switch_on(texts: Texts, schema: ArgumentSchema, dest: str) -> None:
    """Turn an argument on that takes no value; one that this engine lacks stays away."""
    argument = schema.by_dest.get(dest)
    if argument is not None and argument.boolean and dest not in reserved():
        texts.put(schema, {dest: True})

"""Two specs side by side, fact by fact and argument by argument."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django import forms
from django.utils.translation import gettext as _

from console.deployments import engine_schema, gates, pasting
from console.deployments.argument_fields import text_of
from console.deployments.health_fields import EXAMPLES, HealthFields, health_texts
from console.deployments.models import Spec
from console.fleet import labels
from workers.contracts import Probe, RestartPolicy


@dataclass(frozen=True)
class Pair:
    """One fact of two specs; empty where a spec doesn't have it."""

    name: str
    old: str
    new: str
    code: bool = False

    @property
    def changed(self) -> bool:
        """True where they differ."""
        return self.old != self.new

    @property
    def sign(self) -> str:
        """`+` added, `-` gone, `~` another value, empty: the same."""
        if not self.changed:
            return ""
        return "+" if not self.old else "-" if not self.new else "~"


@dataclass(frozen=True)
class Section:
    """Facts that belong together."""

    title: str
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Comparison:
    """All facts of two specs."""

    old: Spec
    new: Spec
    sections: tuple[Section, ...]

    @property
    def changed(self) -> int:
        """How many facts differ."""
        return sum(pair.changed for section in self.sections for pair in section.pairs)


def compare(old: Spec, new: Spec) -> Comparison:
    """Lay two specs side by side. Arguments are compared by what they mean: order and spelling don't count."""
    sections = (
        Section(_("What and where"), _pairs(_facts(old), _facts(new), code=False)),
        Section(_("Arguments"), _pairs(_arguments(old), _arguments(new), code=True)),
        Section(_("Environment"), _pairs(dict(old.environment), dict(new.environment), code=True)),
        Section(_("Health and validation"), _pairs(_checks(old), _checks(new), code=False)),
    )
    return Comparison(old, new, tuple(section for section in sections if section.pairs))


def _pairs(old: dict[str, str], new: dict[str, str], *, code: bool) -> tuple[Pair, ...]:
    return tuple(Pair(name, old.get(name, ""), new.get(name, ""), code) for name in dict.fromkeys([*old, *new]))


def _facts(spec: Spec) -> dict[str, str]:
    return {
        _("Model"): str(spec.copy.revision.model),
        _("Revision"): spec.copy.revision.commit[:12],
        _("Path"): spec.copy.path,
        _("Engine"): str(spec.engine),
        _("Host"): str(spec.host),
        _("Devices"): ", ".join(spec.devices) or _("automatic"),
        _("Placement"): str(spec.placement.get("strategy") or _("automatic")),
        _("Labels of hosts"): labels.text_of(spec.placement.get("labels", {})),
        _("Replicas"): str(spec.replicas),
        _("Port"): str(spec.port or _("automatic")),
    }


def _checks(spec: Spec) -> dict[str, str]:
    """Everything that the form has a field for, by the field's own name: what can be changed there is shown here."""
    probe, restart = Probe.model_validate(spec.probe), RestartPolicy.model_validate(spec.restart)
    texts = health_texts(probe, restart)
    return {
        **{
            str(field.label): _health_text(name, field, texts[name]) for name, field in HealthFields.base_fields.items()
        },
        _("Accepted answers"): "\n".join(f"{one.question} → {one.answer}" for one in probe.golden),
        _("Start deadline"): f"{spec.start_deadline_seconds / 60:g} min",
        _("Benchmark gate"): gates.words_of(spec.gate),
    }


def _health_text(name: str, field: forms.Field, text: str) -> str:
    if isinstance(field, forms.BooleanField):
        return _("yes") if text else _("no")
    if isinstance(field, forms.ChoiceField):
        titles: Any = field.choices
        return str(dict(titles).get(text, text))
    return text or ("" if name in EXAMPLES else str(field.widget.attrs.get("placeholder", "")))


def _arguments(spec: Spec) -> dict[str, str]:
    return dict(sorted(_argument_texts(spec)))


def _argument_texts(spec: Spec) -> Iterator[tuple[str, str]]:
    schema = engine_schema.schema_of(spec.engine)
    if schema is None:
        for chunk in pasting.chunks(spec.arguments):
            yield chunk[0], shlex.join(chunk[1:]) or _("on")
        return
    taken = pasting.take_words(spec.arguments, schema)
    for dest, value in taken.values.items():
        yield schema.by_dest[dest].flag, text_of(schema.by_dest[dest], value)
    for kept in taken.kept:
        yield kept.words[0], shlex.join(kept.words[1:]) or _("on")

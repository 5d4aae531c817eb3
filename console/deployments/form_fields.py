"""Fields of the deploy form that are more than text: a model's files, an engine, devices, variables."""

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from django import forms
from django.forms.models import ModelChoiceIterator, ModelChoiceIteratorValue
from django.utils.translation import gettext_lazy as _

from console.catalog.models import Revision
from console.common.given import whole_number
from console.common.spans import readable_bytes
from console.common.states import LOOKS
from console.jobs.copy_fetching import Absent
from workers.vllm.own_options import ALLOWED_PREFIXES, forbidden_variable

ENVIRONMENT_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


class OptionWithHost(forms.Select):
    """A select whose options tell their host, so that the page can show only the engines of the model's host."""

    def create_option(self, name: str, value: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Add `data-host`."""
        option: dict[str, Any] = super().create_option(name, value, *args, **kwargs)
        row = getattr(value, "instance", None)
        if row is not None:
            option["attrs"]["data-host"] = str(row.host_id)
        return option


class _PresentThenAbsent(ModelChoiceIterator):  # type: ignore[type-arg]
    """Copies that are there, and then those that the job would fetch first."""

    field: "CopyField"

    def __init__(self, field: "CopyField") -> None:
        super().__init__(field)
        if self.queryset is not None:
            # Not offered, but taken: who names an adapter all the same is told what to do with it.
            self.queryset = self.queryset.exclude(revision__in=Revision.of_adapters())

    def __iter__(self) -> Any:
        yield from super().__iter__()
        if absent := self.field.absent():
            yield (_("Fetched first"), [(ModelChoiceIteratorValue(one.value, one.copy), _label(one)) for one in absent])


class CopyField(forms.ModelChoiceField):  # type: ignore[type-arg]
    """A model's files on a host, or a revision that the host has yet to fetch: a copy that is not stored."""

    widget = OptionWithHost
    iterator = _PresentThenAbsent
    absent: Callable[[], list[Absent]] = staticmethod(list)
    """What can be fetched first; asked only where the choices are drawn."""
    find_absent: Callable[[str], Absent | None] = staticmethod(lambda _value: None)

    def prepare_value(self, value: Any) -> Any:
        """What the select shows as chosen: a link or draft may be older than the files' arrival on the host."""
        present = self._arrived(value)
        return present.pk if present is not None else super().prepare_value(value)

    def to_python(self, value: Any) -> Any:
        """A copy. ValidationError for one that is not offered."""
        if not _is_pair(value):
            return super().to_python(value)
        found = self.find_absent(value)
        copy = found.copy if found is not None else self._arrived(value)
        if copy is None:
            raise forms.ValidationError(self.error_messages["invalid_choice"], code="invalid_choice")
        return copy

    def _arrived(self, value: Any) -> Any:
        """The copy that is offered for a revision and host which were named as a pair; None if there is none."""
        if not _is_pair(value) or self.queryset is None:
            return None
        revision, host = (whole_number(part) for part in value.split("@", 1))
        if revision is None or host is None:
            return None
        return self.queryset.filter(revision=revision, host=host).first()

    def label_from_instance(self, copy: Any) -> str:
        """Model, host, verification, size."""
        size = f" · {readable_bytes(copy.size_bytes)}" if copy.size_bytes else ""
        return f"{copy.revision.model} · {copy.host} · {LOOKS[copy.state].word}{size}"


def _is_pair(value: Any) -> bool:
    return isinstance(value, str) and "@" in value


def _label(absent: Absent) -> str:
    """Model, commit, host, from where, size."""
    copy = absent.copy
    where = _("copied from %(host)s") % {"host": absent.giver.host} if absent.giver else _("downloaded")
    size = f" · {readable_bytes(copy.size_bytes)}" if copy.size_bytes else ""
    commit = f" · {copy.revision.commit[:8]}" if copy.revision.is_pinned else ""
    return f"{copy.revision.model} · {copy.host} · {where}{size}{commit}"


class EngineField(forms.ModelChoiceField):  # type: ignore[type-arg]
    """An installed vLLM."""

    widget = OptionWithHost

    def label_from_instance(self, engine: Any) -> str:
        """Distribution, version, host."""
        return f"{engine} · {engine.host}"


class DevicesField(forms.ModelMultipleChoiceField):  # type: ignore[type-arg]
    """Devices of the engine's host, by uuid."""

    def label_from_instance(self, device: Any) -> str:
        """Name, place, memory."""
        return f"{device} · {readable_bytes(device.memory_total)}"


class EnvironmentField(forms.CharField):
    """One NAME=value a line; cleans to variables by name. Only settings of the engine may be set."""

    def clean(self, value: Any) -> Any:
        """Variables by name. ValidationError names the line, or the variable and why it can't be set."""
        found: dict[str, str] = {}
        for number, line in enumerate(super().clean(value).splitlines(), start=1):
            text = line.strip().removeprefix("export ").strip()
            if not text or text.startswith("#"):
                continue
            name, equals, setting = text.partition("=")
            name = name.strip()
            if not equals or not ENVIRONMENT_NAME.match(name):
                raise forms.ValidationError(_("Line %(number)d is not NAME=value."), params={"number": number})
            if name in found:
                raise forms.ValidationError(_("%(name)s is set twice."), params={"name": name})
            if why := forbidden_variable(name):
                raise forms.ValidationError(
                    _("%(name)s can't be set for an engine: %(why)s. Allowed are %(allowed)s."),
                    params={"name": name, "why": why, "allowed": ", ".join(f"{one}*" for one in ALLOWED_PREFIXES)},
                )
            found[name] = setting.strip()
        return found


def environment_text(environment: Mapping[str, str]) -> str:
    """Variables as the field shows them."""
    return "\n".join(f"{name}={value}" for name, value in environment.items())


def split_arguments(text: str) -> list[str]:
    """Split a text as a shell would, without ever running one: quotes group, a backslash joins lines.

    A pasted `vllm serve MODEL …` loses those three words. Raises ValueError for an open quote.
    """
    words = shlex.split(text.replace("\r\n", "\n").replace("\\\n", " "), comments=False)
    if words[:2] == ["vllm", "serve"]:
        words = words[2:]
        if words and not words[0].startswith("-"):
            words = words[1:]
    return words

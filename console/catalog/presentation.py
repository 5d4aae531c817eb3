"""Models as pages show them: a sentence of truth, readable facts, copies with what their verification found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from console.catalog.models import Copy, Model, Revision
from console.common.spans import readable_bytes

FACT_NAMES = {
    "architecture": gettext_lazy("Architecture"),
    "model_type": gettext_lazy("Type"),
    "parameters": gettext_lazy("Parameters"),
    "dtype": gettext_lazy("Number format"),
    "torch_dtype": gettext_lazy("Number format"),
    "quantization": gettext_lazy("Quantisation"),
    "max_position_embeddings": gettext_lazy("Context length"),
    "context_length": gettext_lazy("Context length"),
    "layers": gettext_lazy("Layers"),
    "num_hidden_layers": gettext_lazy("Layers"),
    "hidden_size": gettext_lazy("Hidden size"),
    "num_attention_heads": gettext_lazy("Attention heads"),
    "num_key_value_heads": gettext_lazy("KV heads"),
    "vocab_size": gettext_lazy("Vocabulary"),
    "tensors": gettext_lazy("Tensors"),
    "format": gettext_lazy("Format"),
}
_IN_TOKENS = {"max_position_embeddings", "context_length", "vocab_size"}
_BILLION, _MILLION = 1_000_000_000, 1_000_000


@dataclass(frozen=True)
class ShownModel:
    """A row of the models' list."""

    model: Model
    architecture: str
    size_bytes: int
    parameters: str
    copies: list[Copy]


@dataclass(frozen=True)
class ShownCopy:
    """A copy with what its last verification said."""

    copy: Copy
    files: int | None
    seconds: float | None
    findings: list[str]
    failure: Mapping[str, Any] | None


def row(model: Model) -> ShownModel:
    """A model with the facts of its newest revision and all its copies."""
    revisions = list(model.revisions.all())
    newest = revisions[0] if revisions else None
    facts = newest.facts if newest and isinstance(newest.facts, Mapping) else {}
    return ShownModel(
        model,
        newest.architecture if newest else "",
        newest.size_bytes if newest else 0,
        parameters(facts.get("parameters")),
        [copy for revision in revisions for copy in revision.copies.all()],
    )


def truth(model: Model) -> str:
    """The truth about a model in one sentence."""
    copies = [copy for revision in model.revisions.all() for copy in revision.copies.all()]
    if not copies:
        return _("No host has a copy, so it can't be deployed.")
    sound = sum(copy.state == "verified" for copy in copies)
    damaged = [copy for copy in copies if copy.state == "damaged"]
    if sound:
        text = ngettext(
            "%(sound)d of %(all)d copy is verified.", "%(sound)d of %(all)d copies are verified.", len(copies)
        )
    else:
        text = ngettext("Its copy is not verified.", "None of its %(all)d copies is verified.", len(copies))
    text %= {"sound": sound, "all": len(copies)}
    if damaged:
        reason = damaged[0].state_reason or _("its files are incomplete or wrong.")
        text += " " + _("The copy on %(host)s is damaged: %(reason)s") % {"host": damaged[0].host, "reason": reason}
    return text


def best_copy(model: Model) -> Copy | None:
    """The copy to deploy first: a verified one, else one that was not looked at yet; never a damaged one."""
    copies = [copy for revision in model.revisions.all() for copy in revision.copies.all() if copy.state != "damaged"]
    copies.sort(key=lambda copy: copy.state != "verified")
    return copies[0] if copies else None


def facts(revision: Revision) -> list[tuple[str, str]]:
    """Facts of a revision under readable names; tables inside them are left to the files' own page."""
    found: dict[str, str] = {}
    if revision.architecture:
        found[str(FACT_NAMES["architecture"])] = revision.architecture
    for name, value in revision.facts.items() if isinstance(revision.facts, Mapping) else ():
        if value in (None, "", [], {}) or isinstance(value, Mapping):
            continue
        label = str(FACT_NAMES.get(name, name.replace("_", " ").capitalize()))
        found.setdefault(label, _readable(name, value))
    if revision.size_bytes:
        found[_("Size of its files")] = readable_bytes(revision.size_bytes)
    return list(found.items())


def parameters(count: Any) -> str:
    """A number of parameters as people say it: `135 M`, `30.5 B`."""
    if not isinstance(count, int | float) or count <= 0:
        return ""
    if count >= _BILLION:
        return f"{number_format(round(count / _BILLION, 1))} B"
    return f"{number_format(round(count / _MILLION))} M"


def shown_copy(copy: Copy) -> ShownCopy:
    """A copy with its verification in words."""
    found = copy.verification if isinstance(copy.verification, Mapping) else {}
    findings = [
        str(entry.get("message") or entry.get("title") or entry.get("code") or entry)
        for entry in found.get("findings") or []
        if isinstance(entry, Mapping)
    ]
    return ShownCopy(copy, found.get("files"), found.get("seconds"), findings, found.get("failure"))


def _readable(name: str, value: Any) -> str:
    if name == "parameters":
        return parameters(value)
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    if name in _IN_TOKENS and isinstance(value, int):
        return _("%s tokens") % number_format(value)
    if isinstance(value, int) and name.endswith("bytes"):
        return readable_bytes(value)
    return str(number_format(value)) if isinstance(value, int | float) else str(value)

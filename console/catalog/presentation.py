"""Models as pages show them: a sentence of truth and readable facts."""

import re
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
    "quantization": gettext_lazy("Quantisation"),
    "max_position_embeddings": gettext_lazy("Context length"),
    "num_hidden_layers": gettext_lazy("Layers"),
    "hidden_size": gettext_lazy("Hidden size"),
    "num_attention_heads": gettext_lazy("Attention heads"),
    "num_key_value_heads": gettext_lazy("KV heads"),
    "vocab_size": gettext_lazy("Vocabulary"),
    "tensors": gettext_lazy("Tensors"),
    "weight_files": gettext_lazy("Weight files"),
    "weight_bytes": gettext_lazy("Size of its weights"),
    "checked_by": gettext_lazy("Checked by"),
}
"""Facts worth a line, in this order; what a verification counts for itself (seconds, findings) stands with the copy."""

_IN_TOKENS = {"max_position_embeddings", "vocab_size"}
_BILLION, _MILLION = 1_000_000_000, 1_000_000
_SUM = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,116}\b")


@dataclass(frozen=True)
class ShownModel:
    """A row of the models' list."""

    model: Model
    architecture: str
    size_bytes: int
    parameters: str
    copies: list[Copy]


def row(model: Model) -> ShownModel:
    """A model with the facts of its newest revision and all its copies."""
    revisions = list(model.revisions.all())
    newest = revisions[0] if revisions else None
    facts = newest.facts if newest and isinstance(newest.facts, Mapping) else {}
    return ShownModel(
        model,
        _architecture(newest) if newest else "",
        newest.size_bytes if newest else 0,
        readable_count(parameters(facts)),
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
        reason = short_sums(damaged[0].state_reason) or _("its files are incomplete or wrong.")
        text += " " + _("The copy on %(host)s is damaged: %(reason)s") % {"host": damaged[0].host, "reason": reason}
    return text


def short_sums(text: str) -> str:
    """A sentence with its checksums cut to twelve digits: enough to tell them apart, and it can be read."""
    return _SUM.sub(r"\1", text)


def best_copy(model: Model) -> Copy | None:
    """The copy to deploy first: a verified one, else one that was not looked at yet; never a damaged one."""
    revisions = [revision for revision in model.revisions.all() if not revision.is_adapter]
    every = [copy for revision in revisions for copy in revision.copies.all()]
    copies = [copy for copy in every if copy.state in ("verified", "unverified")]
    copies.sort(key=lambda copy: copy.state != "verified")
    return copies[0] if copies else None


def facts(revision: Revision) -> list[tuple[str, str]]:
    """Facts of a revision under readable names, with units."""
    given = revision.facts if isinstance(revision.facts, Mapping) else {}
    found = [(str(FACT_NAMES["architecture"]), _architecture(revision))]
    found.append((_("Parameters"), readable_count(parameters(given))))
    found.append((_("Number format"), _formats(given)))
    found += [
        (str(label), _readable(name, given.get(name))) for name, label in FACT_NAMES.items() if name != "architecture"
    ]
    found.append((_("Size of its files"), readable_bytes(revision.size_bytes) if revision.size_bytes else ""))
    return [(label, value) for label, value in found if value]


def parameters(given: Mapping[str, Any]) -> int:
    """Number of parameters: as stated, else the elements of all tensors; 0 if unknown."""
    stated = given.get("parameters")
    if isinstance(stated, int):
        return stated
    elements = given.get("elements_by_dtype")
    return sum(elements.values()) if isinstance(elements, Mapping) else 0


def readable_count(count: int) -> str:
    """A number of parameters as people say it: `135 M`, `30.5 B`; empty if unknown."""
    if count >= _BILLION:
        return f"{number_format(round(count / _BILLION, 1))} B"
    if count >= _MILLION:
        return f"{number_format(round(count / _MILLION))} M"
    return str(number_format(count)) if count else ""


def _architecture(revision: Revision) -> str:
    listed = revision.facts.get("architectures") if isinstance(revision.facts, Mapping) else None
    return revision.architecture or (", ".join(map(str, listed)) if isinstance(listed, list) else "")


def _formats(given: Mapping[str, Any]) -> str:
    elements = given.get("elements_by_dtype")
    if not isinstance(elements, Mapping) or not elements:
        return str(given.get("torch_dtype") or given.get("dtype") or "")
    total = sum(elements.values()) or 1
    shares = sorted(elements.items(), key=lambda pair: -pair[1])
    if len(shares) == 1:
        return str(shares[0][0])
    return ", ".join(f"{name} {100 * count / total:.0f} %" for name, count in shares[:4])


def _readable(name: str, value: Any) -> str:
    if value in (None, "", [], {}):
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items() if not isinstance(inner, Mapping | list))
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    if name in _IN_TOKENS and isinstance(value, int):
        return _("%s tokens") % number_format(value)
    if isinstance(value, int) and name.endswith("bytes"):
        return readable_bytes(value)
    return str(number_format(value)) if isinstance(value, int | float) else str(value)

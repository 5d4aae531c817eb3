"""The rows of a validation as pages show them, for a job's step and for an attempt of an instance."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from console.common.states import LOOKS, Look

_NAMES: Mapping[str, str | Promise] = {
    "tokenizer": _("Tokenizer"),
    "template": _("Chat template"),
    "question": _("Test question"),
    "vectors": _("Vectors"),
    "weights": _("Weights"),
    "golden": _("Golden answer"),
    "lengths": _("Prompt lengths"),
    "repeats": _("Repeated at temperature 0"),
    "completions": _("Completions"),
    "streaming": _("Streaming"),
    "tools": _("Tool calls"),
    "json": _("JSON by schema"),
    "files": _("Control: the files"),
}
_NEEDS: Mapping[str, str | Promise] = {
    "tokenizer": _("A text comes back unchanged from tokens."),
    "template": _("The prompt that it makes holds the question."),
    "question": _("Sane text in the right language, with what is expected, ended by itself."),
    "vectors": _("Finite numbers, not all zeros: the same for the same text, others for another one."),
    "weights": _("No tensor of the architecture is missing in the files."),
    "golden": _("The answer kept for this revision, after each change of engine."),
    "lengths": _("No error up to the context; time grows with length."),
    "repeats": _("The same each time, or a reason for the difference."),
    "completions": _("The plain interface answers."),
    "streaming": _("Pieces arrive and add up to the same text."),
    "tools": _("A forced call comes as a call with JSON arguments."),
    "json": _("The answer is JSON of the schema."),
    "files": _("What the architecture needs is there."),
}
_SUSPECTS: Mapping[str, str | Promise] = {
    "weights": _("weights"),
    "template": _("chat template"),
    "tokenizer": _("tokenizer"),
    "quantisation": _("quantisation"),
    "engine": _("engine"),
}
_LOOKS: Mapping[str, Look] = {
    "ok": Look(_("passed"), "check", "green"),
    "warning": Look(_("look at it"), "alert-triangle", "amber"),
    "failed": LOOKS["failed"],
    "skipped": LOOKS["skipped"],
}


@dataclass(frozen=True)
class CheckRow:
    """One check. `fact` and `next` are the host's words; the rest is translated."""

    name: str | Promise
    look: Look
    fact: str
    need: str | Promise
    seconds: float
    suspects: list[str | Promise]
    next: str


def check_rows(checks: Any) -> list[CheckRow]:
    """Rows of a validation report, as the host sent it; what isn't one is left out."""
    rows = [row for row in checks if isinstance(row, Mapping)] if isinstance(checks, list) else []
    return [
        CheckRow(
            name=_NAMES.get(str(row.get("name")), str(row.get("name", ""))),
            look=_LOOKS.get(str(row.get("outcome")), LOOKS["unknown"]),
            fact=str(row.get("fact", "")),
            need=_NEEDS.get(str(row.get("name")), str(row.get("need", ""))),
            seconds=float(row.get("seconds") or 0),
            suspects=[_SUSPECTS.get(str(one), str(one)) for one in row.get("points_at") or []],
            next=str(row.get("next", "")),
        )
        for row in rows
    ]

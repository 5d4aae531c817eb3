"""The deploy form's choice of a benchmark gate: none, the usual one, or the one that a spec has."""

from typing import Any

from django import forms
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from console.access import policies
from console.access.models import User
from console.deployments import gates
from console.deployments.models import Spec

USUAL = "usual"
_OF_SPEC = "spec:"


class GateFields(forms.Form):
    """Base of the deploy form. What a gate asks in detail has a page of its own; a deployment brings its own along."""

    gate = forms.ChoiceField(
        label=_("Benchmark gate"),
        required=False,
        help_text=_(
            "Each new engine is measured after its warm-up and gets traffic only if it keeps up with the baseline. The first "
            "that is measured becomes the baseline."
        ),
    )

    def offer_gates(self, user: User) -> None:
        """Give the choices: the gate of a spec is one where the form came from that spec."""
        choices = [("", gettext("None: it serves once it has warmed up"))]
        keeper = gates.keeper()
        if keeper is not None:
            choices.append((USUAL, gettext("The usual one: %s") % keeper.words(keeper.usual())))
        if (spec := self._spec_of_gate(user)) is not None:
            title = gettext("As spec %(number)d of %(name)s: %(words)s") % {
                "number": spec.number, "name": spec.deployment, "words": gates.words_of(spec.gate),
            }  # fmt: skip
            choices.append((text_of(spec), title))
        self._spec = spec
        self.fields["gate"].choices = choices  # type: ignore[attr-defined]

    def chosen_gate(self) -> dict[str, Any] | None:
        """As `Spec.gate` holds it. None where the question was not asked, so that what is in force stays."""
        if self.add_prefix("gate") not in self.data:
            return None
        chosen, keeper = self.cleaned_data["gate"], gates.keeper()
        if chosen == USUAL and keeper is not None:
            return keeper.usual()
        return dict(self._spec.gate) if chosen and self._spec is not None else {}

    def _spec_of_gate(self, user: User) -> Spec | None:
        kind, _colon, pk = str(self["gate"].value() or "").partition(":")
        if f"{kind}:" != _OF_SPEC or not pk.isdecimal():
            return None
        rows = policies.visible(user, Spec.objects.select_related("deployment"), team_path="deployment__team")
        found: Spec | None = rows.filter(pk=pk).exclude(gate={}).first()
        return found


def text_of(spec: Spec) -> str:
    """A spec's gate as the field's text."""
    return f"{_OF_SPEC}{spec.pk}" if spec.gate else ""

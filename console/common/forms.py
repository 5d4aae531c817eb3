"""What forms of all apps share."""

from django import forms
from django.utils.translation import gettext_lazy as _

from console.common.errors import Refused


class ReasonForm(forms.Form):
    """Why something disruptive is done. It stands in the audit log."""

    reason = forms.CharField(
        label=_("Reason"),
        max_length=500,
        help_text=_("It stands in the audit log, for whoever asks later."),
        widget=forms.TextInput(attrs={"autofocus": True, "autocomplete": "off"}),
    )


def add_refusal(form: forms.BaseForm, refusal: Refused) -> None:
    """Show why a service refused: at the field that it names, or above the form."""
    form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)

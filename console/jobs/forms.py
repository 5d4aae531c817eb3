"""Forms about jobs."""

from django import forms
from django.utils.translation import gettext_lazy as _


class ReasonForm(forms.Form):
    """Why something disruptive is done; it goes into the audit log."""

    reason = forms.CharField(
        label=_("Reason"),
        max_length=500,
        help_text=_("Stands in the audit log, for whoever asks tomorrow."),
        widget=forms.TextInput(attrs={"autofocus": True, "autocomplete": "off"}),
    )

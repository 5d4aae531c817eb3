"""Forms of sources and of consents."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from console.catalog.models import Source


class SourceForm(forms.Form):
    """Name, protocol and address of a source."""

    name = forms.CharField(
        label=_("Name"), max_length=60, widget=forms.TextInput(attrs={"autofocus": True, "autocomplete": "off"})
    )
    kind = forms.ChoiceField(label=_("Protocol"), choices=Source.Kind.choices)
    endpoint = forms.CharField(
        label=_("Address"),
        max_length=200,
        required=False,
        help_text=_("Empty: the public address. A mirror needs its own, without a path unless it lies below one."),
        widget=forms.URLInput(attrs={"autocomplete": "off", "spellcheck": "false", "placeholder": "https://…"}),
    )


class TokenForm(forms.Form):
    """An access token: written once, never shown again."""

    token = forms.CharField(
        label=_("Access token"),
        max_length=400,
        help_text=_("A token that may read is enough. It is stored encrypted and never shown again."),
        widget=forms.PasswordInput(attrs={"autofocus": True, "autocomplete": "new-password", "spellcheck": "false"}),
    )


def source_initial(source: Source) -> dict[str, Any]:
    """A source as the form shows it."""
    return {"name": source.name, "kind": source.kind, "endpoint": source.endpoint}

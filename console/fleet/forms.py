"""Forms about hosts."""

from django import forms
from django.core.validators import RegexValidator
from django.utils.translation import gettext_lazy as _

from workers.contracts import HOST_NAME_PATTERN


class AddHostForm(forms.Form):
    """A host's name; everything else it tells by itself when it joins."""

    name = forms.CharField(
        label=_("Name"),
        max_length=32,
        validators=[
            RegexValidator(HOST_NAME_PATTERN, _("Use lower-case letters, digits and inner hyphens, 32 at most."))
        ],
        help_text=_(
            "As people call the machine: lower-case letters, digits and inner hyphens. It can't be changed later."
        ),
        widget=forms.TextInput(
            attrs={"autofocus": True, "autocomplete": "off", "spellcheck": "false", "placeholder": "gpu-01"}
        ),
    )


class PortsForm(forms.Form):
    """Which ports the instances of a host may use."""

    first = forms.IntegerField(label=_("First port"), min_value=1024, max_value=65535)
    last = forms.IntegerField(
        label=_("Last port"),
        min_value=1024,
        max_value=65535,
        help_text=_("Each instance takes one. Ports below 1024 need rights that an agent should not have."),
    )

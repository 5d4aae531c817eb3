"""Forms about hosts."""

from django import forms
from django.core.validators import RegexValidator
from django.utils.translation import gettext_lazy as _

from console.common.forms import ReasonForm
from console.fleet.labels import LabelsField
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


class HostLabelsForm(forms.Form):
    """What people say of a host."""

    labels = LabelsField(
        label=_("Labels"),
        help_text=_("name or name=value, separated by spaces. A deployment can ask for hosts that have one."),
        widget=forms.TextInput(attrs={"placeholder": "zone=a spot", "autocomplete": "off", "spellcheck": "false"}),
    )


class RotateForm(ReasonForm):
    """New credentials for a host, and why."""

    new_key = forms.BooleanField(
        label=_("Make a new key pair, too"),
        required=False,
        help_text=_(
            "Secrets that come from now on can't be read with the old key. Needed if the host's file was copied."
        ),
    )


class RemoveForm(ReasonForm):
    """Why a host is removed, and whether although something runs there."""

    force = forms.BooleanField(
        label=_("Remove it although instances run there"),
        required=False,
        help_text=_("They are given up: the console forgets them, and they may go on running unseen."),
    )

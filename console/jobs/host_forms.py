"""Forms that start jobs on hosts: add a model directory; and what all of them share."""

import uuid
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _

from console.fleet.models import Host


def new_key() -> str:
    """Key of a form that is about to be shown: sending it twice starts one job."""
    return uuid.uuid4().hex


class HostChoice(forms.ModelChoiceField):  # type: ignore[type-arg]
    """A host, with its presence: an offline one begins when it is back."""

    def label_from_instance(self, obj: Any) -> str:
        """Name and presence."""
        return f"{obj.name} · {obj.look.word}"


class AddDirectoryForm(forms.Form):
    """A model whose files lie on a host already."""

    name = forms.CharField(
        label=_("Name"),
        max_length=120,
        help_text=_("As people will call the model here, such as Qwen3-30B-A3B-FP8."),
        widget=forms.TextInput(attrs={"autofocus": True, "autocomplete": "off", "spellcheck": "false"}),
    )
    host = HostChoice(label=_("Host"), queryset=Host.objects.none())
    path = forms.CharField(
        label=_("Directory"),
        max_length=500,
        help_text=_("Absolute path on that host of the directory that holds config.json itself, not its parent."),
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "spellcheck": "false", "placeholder": "/srv/models/Qwen3-30B-A3B-FP8"}
        ),
    )
    license = forms.CharField(
        label=_("Licence"), max_length=60, required=False, help_text=_("Such as Apache-2.0, for whoever asks later.")
    )
    notes = forms.CharField(label=_("Notes"), required=False, widget=forms.Textarea(attrs={"rows": 3}))

    def __init__(self, *args: Any, hosts: QuerySet[Host], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["host"].queryset = hosts  # type: ignore[attr-defined]
        if len(hosts) == 1:
            self.fields["host"].initial = hosts[0]

"""Forms of quantisation: bring llm-compressor to a host, make a quantised model."""

from typing import Any

from django import forms
from django.core.validators import RegexValidator
from django.utils.translation import gettext_lazy as _

from console.access import policies
from console.access.models import User
from console.benchmarks import uploads
from console.benchmarks.models import Dataset
from console.catalog.models import Copy
from console.fleet.models import Device, Host
from console.jobs.engine_forms import VERSION_PATTERN
from console.jobs.host_forms import HostChoice
from console.quantization.models import SCHEMES, Quantizer
from console.quantization.services import Order
from workers.quantization_payloads import SCHEMES as FACTS

_QUIET: dict[str, Any] = {"autocomplete": "off", "spellcheck": "false"}
MOST_IGNORED = 100


class InstallForm(forms.Form):
    """llm-compressor for one host: installed, or adopted where it lies."""

    host = HostChoice(label=_("Host"), queryset=Host.objects.none(), empty_label=_("Choose a host"))
    how = forms.ChoiceField(
        label=_("How"), widget=forms.RadioSelect, initial="install",
        choices=[("install", _("install it into an environment of its own")), ("adopt", _("adopt one that lies there"))],
    )  # fmt: skip
    version = forms.CharField(
        label=_("Version"), required=False, max_length=64,
        validators=[RegexValidator(VERSION_PATTERN, _("Give one version, such as 0.14.0."))],
        help_text=_("Empty: the newest. It comes from the host's own package index, and takes up to 10 GB with torch."),
        widget=forms.TextInput(attrs={**_QUIET, "placeholder": "0.14.0"}),
    )  # fmt: skip
    path = forms.CharField(
        label=_("Environment"), required=False, max_length=400,
        help_text=_("Absolute path on that host of a virtual environment or of its bin/python, below its trusted_roots."),
        widget=forms.TextInput(attrs={**_QUIET, "placeholder": "/opt/llmcompressor"}),
    )  # fmt: skip

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        hosts = policies.visible(user, Host.objects.exclude(public_key=""))
        self.fields["host"].queryset = hosts  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        """What is adopted has a path."""
        data: dict[str, Any] = super().clean() or {}
        if data.get("how") == "adopt" and not data.get("path") and "path" not in self.errors:
            self.add_error("path", _("Say where it lies."))
        return data

    @property
    def wish(self) -> dict[str, str]:
        """Version or path."""
        data = self.cleaned_data
        return {"path": data["path"].strip()} if data["how"] == "adopt" else {"version": data["version"].strip()}


class QuantizeForm(forms.Form):
    """A quantised model of a copy."""

    scheme = forms.ChoiceField(label=_("Scheme"), widget=forms.RadioSelect, initial="FP8_DYNAMIC", choices=SCHEMES)
    name = forms.CharField(
        label=_("Name"), max_length=120, help_text=_("Of the new model. Its files get a directory of this name."),
        widget=forms.TextInput(attrs=_QUIET),
    )  # fmt: skip
    quantizer = forms.ModelChoiceField(label=_("Made by"), queryset=Quantizer.objects.none(), empty_label=None)
    device = forms.ModelChoiceField(
        label=_("Computed on"), queryset=Device.objects.none(), required=False, to_field_name="uuid",
        empty_label=_("the processors: slow, and takes no engine's memory"),
    )  # fmt: skip
    dataset = forms.ModelChoiceField(
        label=_("Texts to calibrate with"), queryset=Dataset.objects.none(), required=False,
        empty_label=_("none, or those below"),
        help_text=_("Brought for a benchmark before. Take what people really ask."),
    )  # fmt: skip
    prompts = forms.CharField(
        label=_("Own texts"), required=False, widget=forms.Textarea(attrs={"rows": 4}),
        help_text=_("One on each line, or blocks with an empty line between them. Some hundreds are usual, and take hours on "
                    "processors. None: weights are rounded to the nearest, which is quick and costs more answers."),
    )  # fmt: skip
    max_tokens = forms.IntegerField(
        label=_("Of each text at most, in tokens"), min_value=16, max_value=65_536, initial=2048
    )
    ignore = forms.CharField(
        label=_("Layers that stay as they are"), required=False, initial="lm_head", widget=forms.TextInput(attrs=_QUIET),
        help_text=_("Names, or patterns after “re:”, separated by commas. Routers of experts belong here."),
    )  # fmt: skip
    reason = forms.CharField(label=_("Reason"), max_length=300)

    def __init__(self, *args: Any, user: User, copy: Copy, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.copy = copy
        choices: dict[str, Any] = {
            "quantizer": Quantizer.objects.filter(host=copy.host, present=True),
            "device": Device.objects.usable().filter(host=copy.host, kind="gpu"),
            "dataset": policies.visible(user, Dataset.objects.all()),
        }
        for name, rows in choices.items():
            self.fields[name].queryset = rows  # type: ignore[attr-defined]

    def clean_ignore(self) -> list[str]:
        """Names, each once."""
        found = [part.strip() for part in self.cleaned_data["ignore"].split(",")]
        return list(dict.fromkeys(filter(None, found)))[:MOST_IGNORED]

    def order(self) -> Order:
        """What was asked for. Only after `is_valid`."""
        data = self.cleaned_data
        dataset = data["dataset"]
        rows = dataset.rows if dataset is not None else uploads.own_prompts(data["prompts"])
        texts = [row.get("prompt") or f"{row.get('question', '')}\n{row.get('answer', '')}" for row in rows]
        return Order(
            control=self.copy, quantizer=data["quantizer"], scheme=data["scheme"], name=data["name"].strip(),
            ignore=data["ignore"], device=data["device"].uuid if data["device"] else "", dataset=dataset,
            prompts=texts if FACTS[data["scheme"]].calibrated else [], max_tokens=data["max_tokens"],
        )  # fmt: skip

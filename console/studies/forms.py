"""The form that asks for a study: a base, the changes to try, what to ask each engine."""

import shlex
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _
from pydantic import ValidationError as PayloadError

from console.access import policies
from console.access.models import User
from console.benchmarks.forms import LoadFields
from console.benchmarks.models import Dataset
from console.catalog.models import Copy
from console.common.errors import Refused
from console.common.forms import add_refusal
from console.deployments.models import Deployment
from console.fleet.models import Device, Engine
from console.studies import variants
from console.studies.models import NEIGHBOURS
from console.studies.ready import READY
from console.studies.services import Base, Order
from console.studies.variants import Variant

_QUIET: dict[str, Any] = {"autocomplete": "off", "spellcheck": "false"}


class StudyForm(LoadFields):
    """A study of a deployment's arguments, or of a model, an engine and devices."""

    source = forms.ChoiceField(
        label=_("Base"), widget=forms.RadioSelect, initial="deployment",
        choices=[("deployment", _("a deployment as it is")), ("own", _("a model with an engine"))],
    )  # fmt: skip
    deployment = forms.ModelChoiceField(label=_("Deployment"), queryset=Deployment.objects.none(), required=False)
    copy = forms.ModelChoiceField(label=_("Model"), queryset=Copy.objects.none(), required=False)
    engine = forms.ModelChoiceField(label=_("Engine"), queryset=Engine.objects.none(), required=False)
    arguments = forms.CharField(
        label=_("Arguments of the base"), required=False, widget=forms.TextInput(attrs=_QUIET),
        help_text=_("As after “vllm serve MODEL”."),
    )  # fmt: skip
    devices = forms.ModelMultipleChoiceField(
        label=_("Devices"), queryset=Device.objects.none(), required=False, widget=forms.CheckboxSelectMultiple,
        help_text=_("None chosen: those of the deployment, or those with the most room."),
    )  # fmt: skip
    ready_made = forms.ChoiceField(
        required=False, widget=forms.HiddenInput, choices=[("", ""), *((k, k) for k in READY)]
    )
    changes = forms.CharField(
        label=_("Changes to try"), required=False, widget=forms.Textarea(attrs={"rows": 4, "class": "mono", **_QUIET}),
        help_text=_("An argument on each line, its values apart by bars: --max-num-seqs 64 | 128. “!--flag” leaves it out."),
    )  # fmt: skip
    others = forms.ModelMultipleChoiceField(
        label=_("Models to try"), queryset=Copy.objects.none(), required=False, widget=forms.CheckboxSelectMultiple,
        help_text=_("With the base's arguments, on its host: a quantised model beside its original."),
    )  # fmt: skip
    together = forms.ChoiceField(
        label=_("Try"), widget=forms.RadioSelect, initial="one",
        choices=[("one", _("one change at a time")), ("grid", _("every combination of the lines"))],
    )  # fmt: skip
    quality = forms.BooleanField(
        label=_("Ask the question set, too"), required=False, initial=True,
        help_text=_("24 short questions with exact answers: shows what a faster variant costs."),
    )  # fmt: skip
    neighbours = forms.ChoiceField(
        label=_("If something serves on the device"), widget=forms.RadioSelect, initial="leave", choices=NEIGHBOURS
    )
    dataset = forms.ModelChoiceField(label=_("Prompts brought before"), queryset=Dataset.objects.none(), required=False)
    title = forms.CharField(label=_("Name"), required=False, max_length=120)
    reason = forms.CharField(label=_("Reason"), max_length=300)

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._variants: list[Variant] = []
        # Load is compared with load; searches would end at different ones.
        self.fields["search"].choices = [("fixed", "fixed")]  # type: ignore[attr-defined]
        self.fields["search"].widget = forms.HiddenInput()
        known = Deployment.objects.lasting().exclude(current_spec=None).select_related(
            "current_spec__copy__host", "current_spec__copy__revision__model__origin", "current_spec__engine__host"
        )  # fmt: skip
        self._choices("deployment", policies.visible(user, known))
        copies = Copy.objects.filter(state="verified").select_related("revision__model__origin", "host")
        for name in ("copy", "others"):
            self._choices(name, policies.visible(user, copies, team_path="host__team"))
        engines = Engine.objects.filter(present=True).select_related("host")
        self._choices("engine", policies.visible(user, engines, team_path="host__team"))
        devices = Device.objects.usable().filter(kind="gpu").select_related("host").order_by("host__name", "index")
        self._choices("devices", policies.visible(user, devices, team_path="host__team"))
        self._choices("dataset", policies.visible(user, Dataset.objects.all()))
        for name in ("engine", "copy", "others"):
            self.fields[name].label_from_instance = lambda one: f"{one} · {one.host}"  # type: ignore[attr-defined]
        self.fields["devices"].label_from_instance = (  # type: ignore[attr-defined]
            lambda one: f"{one.host} · {one}"
        )

    def _choices(self, name: str, rows: Any) -> None:
        self.fields[name].queryset = rows  # type: ignore[attr-defined]

    def clean_arguments(self) -> list[str]:
        """Words, as a shell would part them."""
        try:
            return shlex.split(self.cleaned_data["arguments"])
        except ValueError as error:
            raise ValidationError(_("This can't be read: %(why)s."), params={"why": error}) from None

    def clean(self) -> dict[str, Any]:
        """The base is named, and the changes can be read."""
        data = super().clean()
        needed = ("deployment",) if data.get("source") == "deployment" else ("copy", "engine")
        for name in needed:
            if not data.get(name) and name not in self.errors:
                self.add_error(name, _("Say what is studied."))
        if not data.get("changes") and not data.get("others") and "changes" not in self.errors:
            self.add_error("changes", _("Say what is tried: at least one change, or another model."))
        elif data.get("changes"):
            try:
                self._variants = variants.read(data["changes"], grid=data.get("together") == "grid")
            except Refused as refusal:
                add_refusal(self, refusal)
        if not self.errors:
            try:
                self.question(data.get("dataset"))
            except PayloadError as error:
                self.add_error(None, str(error.errors()[0]["msg"]))
        return data

    def base(self) -> Base:
        """What all engines start from. Raises `Refused` for a deployment without a spec."""
        data = self.cleaned_data
        chosen = [one.uuid for one in data["devices"]]
        if data["source"] == "deployment":
            base = Base.of_deployment(data["deployment"])
            return Base(**{**base.__dict__, "devices": chosen or base.devices})
        return Base(copy=data["copy"], engine=data["engine"], arguments=data["arguments"], devices=chosen)

    def order(self) -> Order:
        """What is tried. Only after `is_valid`."""
        data = self.cleaned_data
        ready = READY.get(data["ready_made"])
        subject = data["deployment"] if data["source"] == "deployment" else data["copy"].revision.model
        tried = ready.title if ready else _("arguments") if self._variants else _("other models")
        title = data["title"] or f"{subject}: {tried}"
        return Order(
            title=title, variants=self._variants, question=self.question(data["dataset"]), with_quality=data["quality"],
            neighbours=data["neighbours"], ready_made=data["ready_made"],
            others=list(data["others"]),
        )  # fmt: skip

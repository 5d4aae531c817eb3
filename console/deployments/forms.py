"""The deploy form and the small forms of a deployment's page."""

import uuid
from collections.abc import Mapping
from copy import deepcopy
from functools import cached_property, partial
from typing import Any

from django import forms
from django.core.validators import RegexValidator
from django.db.models import Case, IntegerField, QuerySet, When
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.catalog.models import Copy
from console.deployments import argument_fields, arguments_check, engine_schema, fitting, wide_fit
from console.deployments.argument_fields import PREFIX, UNSET
from console.deployments.claims import WIDE, as_placement
from console.deployments.form_fields import CopyField, DevicesField, EngineField, EnvironmentField, split_arguments
from console.deployments.gate_fields import GateFields
from console.deployments.health_fields import (
    DEFAULT_PROBE,
    DEFAULT_RESTART,
    DEFAULT_START_MINUTES,
    HealthFields,
    number_input,
)
from console.deployments.models import MOST_REPLICAS, NAME_PATTERN, Deployment
from console.deployments.place_presentation import Places, places
from console.deployments.placement import Rule, Strategy
from console.fleet.labels import LabelsField
from console.fleet.models import Device, Engine, Host
from console.jobs import copy_fetching
from workers.contracts import Probe, RestartPolicy
from workers.vllm.arguments import ArgumentSchema, Finding, Value, argv_from_values, guarded


def _with_engine() -> QuerySet[Host]:
    return Host.objects.filter(pk__in=Engine.objects.filter(present=True).values("host"))


def _mono(placeholder: str) -> forms.Textarea:
    return forms.Textarea(attrs={"rows": 3, "class": "mono", "spellcheck": "false", "placeholder": placeholder})


class DeployForm(GateFields, HealthFields):
    """What should be served, where and how. A field for every argument of the chosen engine is added to these."""

    copy = CopyField(
        label=_("Model"),
        queryset=Copy.objects.none(),
        empty_label=_("Choose a model"),
        help_text=_(
            "Its files on one host, verified ones first. What a host hasn't yet is fetched and verified by the job."
        ),
    )
    engine = EngineField(
        label=_("Engine"),
        queryset=Engine.objects.none(),
        empty_label=_("Choose an engine"),
        help_text=_("An installed vLLM on the same host. The arguments below are this engine's own."),
    )
    devices = DevicesField(
        label=_("Devices"),
        queryset=Device.objects.none(),
        required=False,
        to_field_name="uuid",
        widget=forms.CheckboxSelectMultiple,
        help_text=_("None chosen: those with the most free memory, as many as the parallel sizes need."),
    )
    name = forms.CharField(
        label=_("Name"),
        max_length=62,
        validators=[
            RegexValidator(
                NAME_PATTERN, _("Use lower-case letters, digits, dots, hyphens and underscores, 62 at most.")
            )
        ],
        help_text=_("Of the deployment, and of the model where its engines are asked directly."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}),
    )
    public_name = forms.CharField(
        label=_("Public name"),
        required=False,
        max_length=128,
        help_text=_("Makes a route: clients ask the gateway for the model under it. Empty: no route, for now."),
        widget=forms.TextInput(
            attrs={
                "autocomplete": "off",
                "spellcheck": "false",
                "autocapitalize": "none",
                "placeholder": "org/model-8b",
            }
        ),
    )
    replicas = forms.IntegerField(
        label=_("Replicas"),
        required=False,
        min_value=1,
        max_value=MOST_REPLICAS,
        help_text=_("How many engines serve this model side by side. Each needs its devices' memory for itself."),
        widget=number_input("1"),
    )
    placement = forms.ChoiceField(
        label=_("Placement"),
        required=False,
        choices=[
            ("", _("On this host, where there is most room")),
            ("pack", _("Pack: fullest place that fits, on any host")),
            ("spread", _("Spread: over hosts, fewest engines first")),
            ("manual", _("By hand: only the devices chosen here")),
        ],
        help_text=_("Other hosts count if they have these files and this version of the engine."),
    )
    labels = LabelsField(
        asks=True,
        label=_("Labels of hosts"),
        help_text=_("Only hosts that have all of them, such as zone=a; !spot leaves out those that have it."),
        widget=forms.TextInput(attrs={"placeholder": "zone=a !spot", "autocomplete": "off", "spellcheck": "false"}),
    )
    arguments = forms.CharField(
        label=_("Other arguments"),
        required=False,
        max_length=20_000,
        help_text=_(
            "What the fields above have no place for, split into words as a shell would, never run through one."
        ),
        widget=_mono("--enforce-eager --max-num-seqs 64"),
    )
    environment = EnvironmentField(
        label=_("Environment"),
        required=False,
        max_length=20_000,
        help_text=_("One NAME=value a line. For settings, not for secrets: it is shown on the deployment's page."),
        widget=_mono("VLLM_CPU_KVCACHE_SPACE=1"),
    )
    port = forms.IntegerField(
        label=_("Port"),
        required=False,
        min_value=1024,
        max_value=65535,
        help_text=_("Empty: the host takes a free one of its range."),
        widget=number_input(_("automatic")),
    )
    start_minutes = forms.IntegerField(
        label=_("Start deadline (minutes)"),
        required=False,
        min_value=1,
        max_value=24 * 60,
        help_text=_("How long loading may take before the job fails. Large models on slow disks need more."),
        widget=number_input(str(DEFAULT_START_MINUTES)),
    )
    notes = forms.CharField(
        label=_("Notes"),
        required=False,
        max_length=4000,
        help_text=_("What the next person should know. They stand on the deployment's page."),
        widget=forms.Textarea(attrs={"rows": 2}),
    )
    reason = forms.CharField(
        label=_("Reason"),
        required=False,
        max_length=500,
        help_text=_("Why it is deployed, or changed. It stands in the history and in the audit log."),
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    despite_findings = forms.BooleanField(
        label=_("Deploy all the same"),
        required=False,
        help_text=_("The check may be wrong about an engine it doesn't know; the engine itself has the last word."),
    )
    idempotency_key = forms.UUIDField(widget=forms.HiddenInput, initial=uuid.uuid4)
    wanted = forms.IntegerField(required=False, min_value=1, max_value=4096, widget=forms.HiddenInput)
    """Full requests at once that the fit card shall find a context for; no part of what is deployed."""
    drawn_for = forms.CharField(required=False, widget=forms.HiddenInput)
    """The engine whose arguments the page shows: after a change of engine they are read as that one's."""

    def __init__(self, *args: Any, user: User, changing: Deployment | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user
        self.changing = changing
        self.findings: list[Finding] = []
        self._typed: dict[str, Value] = {}
        self.words: list[str] = []
        """Words of "other arguments" as far as they could be split, kept even when they are refused."""
        self.notes_made: list[Finding] = []
        """What was changed while a command line was read, or when the engine was changed."""
        self._offer_rows(user)
        self.offer_gates(user)
        engine = self.chosen_engine
        self.schema: ArgumentSchema | None = engine_schema.schema_of(engine)
        if self.schema is not None:
            self.fields.update(deepcopy(dict(argument_fields.fields_of(self.schema))))
        self.initial["drawn_for"] = str(engine.pk) if engine else ""
        self.fields["engine"].widget.attrs |= {
            "hx-post": reverse("deployment_redraw"), "hx-trigger": "change", "hx-vals": '{"act": "engine"}',
        }  # fmt: skip
        if changing is not None:
            self.fields["name"].disabled = True
            del self.fields["public_name"]  # routes have pages of their own, and one may lead to several deployments
            self.fields["reason"].required = True

    def _offer_rows(self, user: User) -> None:
        verified_first = Case(
            When(state="verified", then=0), When(state="unverified", then=1), default=2, output_field=IntegerField()
        )
        gone = ("downloading", "incomplete", "deleting", "removed")
        copies = Copy.objects.exclude(state__in=gone).select_related("revision__model", "host")
        self.fields["copy"].queryset = (  # type: ignore[attr-defined]
            policies.visible(user, copies, team_path="revision__model__team").order_by(
                verified_first, "revision__model__name", "host__name"
            )
        )
        self.fields["copy"].absent = lambda: copy_fetching.offered(user, _with_engine())  # type: ignore[attr-defined]
        self.fields["copy"].find_absent = partial(copy_fetching.find, user)  # type: ignore[attr-defined]
        engines = Engine.objects.filter(present=True).select_related("host")
        self.fields["engine"].queryset = policies.visible(  # type: ignore[attr-defined]
            user, engines, team_path="host__team"
        ).order_by("host__name", "distribution", "-version")
        engine = self.chosen_engine
        if engine is not None:
            kind = "cpu" if engine.platform == "cpu" else "gpu"
            devices = Device.objects.filter(host=engine.host, kind=kind).order_by("index")
            self.fields["devices"].queryset = devices  # type: ignore[attr-defined]

    @cached_property
    def chosen_engine(self) -> Engine | None:
        """The engine that is chosen right now, whether or not the form is valid."""
        found: Engine | None = self._chosen("engine")
        return found

    @cached_property
    def chosen_copy(self) -> Copy | None:
        """The model's files that are chosen right now."""
        found: Copy | None = self._chosen("copy")
        return found

    def _chosen(self, name: str) -> Any:
        value = self[name].value()
        if not value:
            return None
        try:
            return self.fields[name].clean(getattr(value, "pk", value))
        except forms.ValidationError:
            return None

    def clean_arguments(self) -> list[str]:
        """Words of argv."""
        try:
            self.words = split_arguments(self.cleaned_data["arguments"])
        except ValueError:
            raise forms.ValidationError(_("A quote is opened but never closed.")) from None
        return self.words

    def clean(self) -> dict[str, Any]:
        """An engine of the model's own host; each argument given once, and such that the engine starts with it."""
        data = super().clean() or {}
        self._typed = self._typed_values(data)
        copy, engine = data.get("copy"), data.get("engine")
        if copy and engine and copy.host_id != engine.host_id:
            self.add_error(
                "engine",
                gettext("The engine is on %(engine)s, the files are on %(copy)s. Choose an engine of the same host.")
                % {"engine": engine.host, "copy": copy.host},
            )
        self._refuse_twice()
        if engine is not None and "arguments" in data:
            self._check_arguments(data)
        self._check_placement(data)
        self._check_fit(data)
        return data

    def _refuse_twice(self) -> None:
        if self.schema is None:
            return
        set_here = {self.schema.by_dest[dest].flag for dest in self.values()}
        for word in self.words:
            argument = self.schema.by_flag.get(word.partition("=")[0].replace("_", "-"))
            if argument is not None and argument.flag in set_here:
                self.add_error(
                    "arguments",
                    gettext("%(flag)s is given twice: here and in its field. Keep one.") % {"flag": argument.flag},
                )

    def _check_arguments(self, data: dict[str, Any]) -> None:
        self.findings = arguments_check.findings(
            self.argv(),
            schema=self.schema,
            environment=data.get("environment"),
            copy=data.get("copy"),
            engine=self.chosen_engine,
        )
        self._refuse_guarded()
        if arguments_check.forbids(self.findings):
            self.add_error("arguments", gettext("Slipway sets some of these itself. Leave them out."))
        elif arguments_check.doubts(self.findings) and not data.get("despite_findings"):
            for finding in self.findings:
                if finding.severity == "error":
                    self.add_error(self._field_of(finding), f"{finding.message} {finding.fix}".strip())
            self.add_error(
                None, gettext("%(engine)s would not start with these arguments.") % {"engine": self.chosen_engine}
            )

    def _field_of(self, finding: Finding) -> str:
        argument = self.schema.by_flag.get(finding.flag) if self.schema else None
        name = PREFIX + argument.dest if argument else ""
        return name if argument and argument.dest in self.values() and name in self.fields else "arguments"

    def says_at_field(self, finding: Finding) -> bool:
        """True if what a check found stands as an error at the field of its argument."""
        field = self._field_of(finding)
        return finding.severity == "error" and field != "arguments" and field in self.errors

    def errors_so_far(self) -> list[tuple[str, str]]:
        """(field, text) of what is wrong with what was typed; an empty field may still be filled in."""
        return [
            (name, str(text))
            for name, texts in self.errors.items()
            if name in self.fields
            and name not in ("arguments", "copy")
            and self[name].value()
            and not self[name].is_hidden
            for text in texts
        ]

    def _refuse_guarded(self) -> None:
        if self.schema is None or policies.can(self.user, Action.ADMINISTER):
            return
        for item in guarded(self.schema, self.values() | arguments_check.values_of(self.schema, self.words)):
            name = PREFIX + item.dest
            field = name if item.dest in self.values() else "arguments"
            self.add_error(
                field, gettext("Only an admin may set %(flag)s. %(why)s") % {"flag": item.flag, "why": item.why}
            )

    def _check_fit(self, data: dict[str, Any]) -> None:
        if self.fit is None or data.get("despite_findings"):
            return
        for field, text in self.fit.refusals.items():
            if field not in self.errors:  # the arguments' own check may have said so already
                self.add_error(field if field in self.fields else None, text)

    @cached_property
    def fit(self) -> "fitting.Fit | None":
        """Whether it fits, as far as the form is filled in; None while model or engine isn't chosen."""
        copy, engine = self.chosen_copy, self.chosen_engine
        if copy is None or engine is None or copy.host_id != engine.host_id:
            return None
        data = getattr(self, "cleaned_data", {})
        return wide_fit.fit(
            copy,
            engine,
            places=self.places,
            strategy=self._strategy(),
            values=self._all_values(),
            environment=data.get("environment") or {},
            devices=list(data.get("devices") or []),
            changing=self.changing,
            wanted=data.get("wanted"),
            replicas=data.get("replicas") or 1,
        )

    def _strategy(self) -> Strategy:
        data = getattr(self, "cleaned_data", {})
        return data.get("placement") or ("manual" if data.get("devices") else "here")

    def _check_placement(self, data: dict[str, Any]) -> None:
        chosen, strategy = data.get("devices"), data.get("placement")
        if strategy == "manual" and not chosen:
            on_cpu = self.chosen_engine is not None and self.chosen_engine.platform == "cpu"
            text = (
                gettext("A host has one CPU: nothing is to be chosen.")
                if on_cpu
                else gettext("Choose devices below it.")
            )
            self.add_error("placement", text)
        elif strategy in WIDE and chosen:
            self.add_error("devices", gettext("Choose no devices, or the placement “By hand”."))

    @cached_property
    def places(self) -> Places | None:
        """Where the replicas would go, as far as the form is filled in."""
        copy, engine = self.chosen_copy, self.chosen_engine
        if copy is None or engine is None or copy.host_id != engine.host_id:
            return None
        data = getattr(self, "cleaned_data", {})
        chosen = tuple(device.uuid for device in data.get("devices") or ())
        return places(
            copy,
            engine,
            values=self._all_values(),
            environment=data.get("environment") or {},
            rule=Rule(
                self._strategy(),
                data.get("replicas") or 1,
                data.get("labels") or {},
                chosen,
            ),
            changing=self.changing,
        )

    @property
    def has_doubts(self) -> bool:
        """True if a check found errors that a person may overrule."""
        if arguments_check.forbids(self.findings):
            return False
        return arguments_check.doubts(self.findings) or bool(self.is_bound and self.fit and self.fit.refusals)

    def values(self) -> dict[str, Value]:
        """Typed values of the arguments' own fields, as far as they could be read."""
        return self._typed

    @staticmethod
    def _typed_values(data: Mapping[str, Any]) -> dict[str, Value]:
        # Taken before the checks: Django forgets the value of a field at which an error is put.
        return {
            name.removeprefix(PREFIX): value
            for name, value in data.items()
            if name.startswith(PREFIX) and value is not UNSET
        }

    def _all_values(self) -> dict[str, Value]:
        """Those of the fields, and those of the other arguments."""
        return self.values() | (arguments_check.values_of(self.schema, self.words) if self.schema else {})

    def argv(self) -> list[str]:
        """What follows `vllm serve MODEL`, as far as it could be read."""
        return (argv_from_values(self.schema, self.values()) if self.schema else []) + self.words

    def order(self) -> dict[str, Any]:
        """Arguments for `services.create` and `changes.change`."""
        data: Mapping[str, Any] = self.cleaned_data
        spec = self.changing.current_spec if self.changing else None
        return {
            "copy": data["copy"],
            "engine": data["engine"],
            "devices": [device.uuid for device in data["devices"]],
            "placement": as_placement(data["placement"], data["labels"]),
            "replicas": data["replicas"] or 1,
            "arguments": self.argv(),
            "environment": data["environment"],
            "port": data["port"],
            # A spec may hold more of both than the form has fields for: a change leaves that alone.
            "probe": self.probe_over(Probe.model_validate(spec.probe) if spec else DEFAULT_PROBE),
            "restart": self.restart_over(RestartPolicy.model_validate(spec.restart) if spec else DEFAULT_RESTART),
            "start_deadline_seconds": 60.0 * (data["start_minutes"] or DEFAULT_START_MINUTES),
            "gate": self.chosen_gate(),
            "reason": data["reason"],
            "idempotency_key": str(data["idempotency_key"]),
        }


class NotesForm(forms.ModelForm):  # type: ignore[type-arg]
    """Notes of a deployment."""

    class Meta:
        model = Deployment
        fields = ["notes"]
        widgets = {"notes": forms.Textarea(attrs={"rows": 5})}
        labels = {"notes": _("Notes")}
        help_texts = {"notes": _("What the next person should know: who uses it, what must not be changed.")}

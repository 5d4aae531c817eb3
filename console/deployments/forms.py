"""The deploy form and the small forms of a deployment's page."""

import re
import shlex
import uuid
from typing import Any

from django import forms
from django.core.validators import RegexValidator
from django.db.models import Case, IntegerField, When
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from console.access import policies
from console.access.models import User
from console.catalog.models import Copy
from console.common.spans import readable_bytes
from console.common.states import LOOKS
from console.deployments import arguments_check
from console.deployments.models import NAME_PATTERN, Deployment
from console.fleet.models import Engine
from workers.contracts import Probe, RestartPolicy
from workers.vllm.arguments import Finding

ENVIRONMENT_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
DEFAULT_PROBE = Probe()
DEFAULT_RESTART = RestartPolicy()
DEFAULT_START_MINUTES = 30


class OptionWithHost(forms.Select):
    """A select whose options tell their host, so that the page can show only the engines of the model's host."""

    def create_option(self, name: str, value: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Add `data-host`."""
        option: dict[str, Any] = super().create_option(name, value, *args, **kwargs)
        row = getattr(value, "instance", None)
        if row is not None:
            option["attrs"]["data-host"] = str(row.host_id)
        return option


class CopyField(forms.ModelChoiceField):  # type: ignore[type-arg]
    """A model's files on a host."""

    widget = OptionWithHost

    def label_from_instance(self, copy: Any) -> str:
        """Model, host, verification, size."""
        size = f" · {readable_bytes(copy.size_bytes)}" if copy.size_bytes else ""
        return f"{copy.revision.model} · {copy.host} · {LOOKS[copy.state].word}{size}"


class EngineField(forms.ModelChoiceField):  # type: ignore[type-arg]
    """An installed vLLM."""

    widget = OptionWithHost

    def label_from_instance(self, engine: Any) -> str:
        """Distribution, version, host."""
        return f"{engine} · {engine.host}"


def split_arguments(text: str) -> list[str]:
    """Split a text as a shell would, without ever running one: quotes group, a backslash joins lines.

    A pasted `vllm serve MODEL …` loses those three words. Raises ValueError for an open quote.
    """
    words = shlex.split(text.replace("\r\n", "\n").replace("\\\n", " "), comments=False)
    if words[:2] == ["vllm", "serve"]:
        words = words[2:]
        if words and not words[0].startswith("-"):
            words = words[1:]
    return words


class DeployForm(forms.Form):
    """What should be served, where and how."""

    copy = CopyField(
        label=_("Model"),
        queryset=Copy.objects.none(),
        empty_label=_("Choose a model"),
        help_text=_("Its files on one host. Verified ones come first; the job verifies again before it starts."),
    )
    engine = EngineField(
        label=_("Engine"),
        queryset=Engine.objects.none(),
        empty_label=_("Choose an engine"),
        help_text=_("An installed vLLM on the same host."),
    )
    name = forms.CharField(
        label=_("Name"),
        max_length=62,
        validators=[
            RegexValidator(
                NAME_PATTERN, _("Use lower-case letters, digits, dots, hyphens and underscores, 62 at most.")
            )
        ],
        help_text=_("Clients ask for the model under this name."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}),
    )
    max_model_len = forms.IntegerField(
        label=_("Context length (tokens)"),
        required=False,
        min_value=1,
        max_value=100_000_000,
        help_text=_("Longest prompt plus answer. Longer needs more KV cache; empty: what the model was made for."),
        widget=forms.NumberInput(attrs={"placeholder": _("the model's own"), "inputmode": "numeric"}),
    )
    arguments = forms.CharField(
        label=_("More arguments"),
        required=False,
        max_length=20_000,
        help_text=_("What follows “vllm serve MODEL”, split into words as a shell would, but never run through one."),
        widget=forms.Textarea(
            attrs={
                "rows": 3,
                "class": "mono",
                "spellcheck": "false",
                "placeholder": "--enforce-eager --max-num-seqs 64",
            }
        ),
    )
    environment = forms.CharField(
        label=_("Environment"),
        required=False,
        max_length=20_000,
        help_text=_("One NAME=value a line. For settings, not for secrets: it is shown on the deployment's page."),
        widget=forms.Textarea(
            attrs={"rows": 3, "class": "mono", "spellcheck": "false", "placeholder": "VLLM_CPU_KVCACHE_SPACE=1"}
        ),
    )
    port = forms.IntegerField(
        label=_("Port"),
        required=False,
        min_value=1024,
        max_value=65535,
        help_text=_("Empty: the host takes a free one of its range."),
        widget=forms.NumberInput(attrs={"placeholder": _("automatic"), "inputmode": "numeric"}),
    )
    probe_prompt = forms.CharField(
        label=_("Probe question"),
        required=False,
        max_length=4000,
        help_text=_("Asked at temperature 0 before the model counts as ready: /health alone says little."),
        widget=forms.TextInput(attrs={"placeholder": DEFAULT_PROBE.prompt}),
    )
    probe_expected = forms.CharField(
        label=_("Expected in the answer"),
        required=False,
        max_length=1000,
        help_text=_("Empty: any sane answer will do."),
        widget=forms.TextInput(attrs={"placeholder": _("such as Paris")}),
    )
    restart_budget = forms.IntegerField(
        label=_("Restarts"),
        required=False,
        min_value=0,
        max_value=100,
        help_text=_("How often it is restarted by itself within 10 minutes; after that it waits for a person."),
        widget=forms.NumberInput(attrs={"placeholder": str(DEFAULT_RESTART.budget), "inputmode": "numeric"}),
    )
    start_minutes = forms.IntegerField(
        label=_("Start deadline (minutes)"),
        required=False,
        min_value=1,
        max_value=24 * 60,
        help_text=_("How long loading may take before the job fails. Large models on slow disks need more."),
        widget=forms.NumberInput(attrs={"placeholder": str(DEFAULT_START_MINUTES), "inputmode": "numeric"}),
    )
    notes = forms.CharField(label=_("Notes"), required=False, max_length=4000, widget=forms.Textarea(attrs={"rows": 2}))
    despite_findings = forms.BooleanField(
        label=_("Deploy all the same"),
        required=False,
        help_text=_("The check may be wrong about an engine it doesn't know; the engine itself has the last word."),
    )
    idempotency_key = forms.UUIDField(widget=forms.HiddenInput, initial=uuid.uuid4)

    ESSENTIAL = ("copy", "engine", "name", "max_model_len")
    FOLDED = (
        (_("Arguments and environment"), ("arguments", "environment", "port")),
        (_("Check before it serves"), ("probe_prompt", "probe_expected", "start_minutes")),
        (_("Restarts and notes"), ("restart_budget", "notes")),
    )

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.findings: list[Finding] = []
        self.words: list[str] = []
        """Words of "more arguments" as far as they could be split, kept even when they are refused."""
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
        engines = Engine.objects.filter(present=True).select_related("host")
        self.fields["engine"].queryset = policies.visible(  # type: ignore[attr-defined]
            user, engines, team_path="host__team"
        ).order_by("host__name", "distribution", "-version")

    def essentials(self) -> list[forms.BoundField]:
        """Fields that everybody fills in."""
        return [self[name] for name in self.ESSENTIAL]

    def folded(self) -> list[dict[str, Any]]:
        """The other fields by group; a group with an error or a changed value is open."""
        return [
            {
                "title": title,
                "fields": [self[name] for name in names],
                "open": any(self[name].errors or self[name].value() for name in names),
                "changed": sum(bool(self[name].value()) for name in names),
            }
            for title, names in self.FOLDED
        ]

    def clean_arguments(self) -> list[str]:
        """Words of argv."""
        try:
            self.words = split_arguments(self.cleaned_data["arguments"])
        except ValueError:
            raise forms.ValidationError(_("A quote is opened but never closed.")) from None
        return self.words

    def clean_environment(self) -> dict[str, str]:
        """Variables by name."""
        found: dict[str, str] = {}
        for number, line in enumerate(self.cleaned_data["environment"].splitlines(), start=1):
            text = line.strip().removeprefix("export ").strip()
            if not text or text.startswith("#"):
                continue
            name, equals, value = text.partition("=")
            if not equals or not ENVIRONMENT_NAME.match(name.strip()):
                raise forms.ValidationError(_("Line %(number)d is not NAME=value."), params={"number": number})
            if name.strip() in found:
                raise forms.ValidationError(_("%(name)s is set twice."), params={"name": name.strip()})
            found[name.strip()] = value.strip()
        return found

    def clean(self) -> dict[str, Any]:
        """An engine of the model's own host; the context length given once."""
        data = super().clean() or {}
        copy, engine = data.get("copy"), data.get("engine")
        if copy and engine and copy.host_id != engine.host_id:
            self.add_error(
                "engine",
                _now("The engine is on %(engine)s, the files are on %(copy)s. Choose an engine of the same host.")
                % {"engine": engine.host, "copy": copy.host},
            )
        flags = {
            word.partition("=")[0].replace("_", "-") for word in data.get("arguments") or [] if word.startswith("--")
        }
        if data.get("max_model_len") and "--max-model-len" in flags:
            self.add_error("arguments", _now("--max-model-len is given twice: here and as context length. Keep one."))
        self._check_arguments(data)
        return data

    def _check_arguments(self, data: dict[str, Any]) -> None:
        engine = data.get("engine")
        if engine is None or "arguments" not in data:
            return
        self.findings = arguments_check.findings(
            self.argv(), version=engine.version, environment=data.get("environment")
        )
        if arguments_check.forbids(self.findings):
            self.add_error("arguments", _now("Slipway sets some of these itself. Leave them out."))
        elif arguments_check.doubts(self.findings) and not data.get("despite_findings"):
            self.add_error("arguments", _now("%(engine)s would not start with these arguments.") % {"engine": engine})

    @property
    def has_doubts(self) -> bool:
        """True if the check of the arguments found errors that a person may overrule."""
        return arguments_check.doubts(self.findings) and not arguments_check.forbids(self.findings)

    def argv(self) -> list[str]:
        """What follows `vllm serve MODEL`, as far as it could be read."""
        length = self.cleaned_data.get("max_model_len")
        words = ["--max-model-len", str(length)] if length else []
        return words + self.words

    def order(self) -> dict[str, Any]:
        """Arguments for `services.create`."""
        data = self.cleaned_data
        budget = data["restart_budget"]
        return {
            "name": data["name"],
            "copy": data["copy"],
            "engine": data["engine"],
            "arguments": self.argv(),
            "environment": data["environment"],
            "port": data["port"],
            "probe": Probe(prompt=data["probe_prompt"] or DEFAULT_PROBE.prompt, expected=data["probe_expected"]),
            "restart": RestartPolicy(budget=DEFAULT_RESTART.budget if budget is None else budget),
            "start_deadline_seconds": 60.0 * (data["start_minutes"] or DEFAULT_START_MINUTES),
            "notes": data["notes"],
            "reason": "",
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

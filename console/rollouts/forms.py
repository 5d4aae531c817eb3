"""Starting a rollout: the new spec, the steps, and by how much it may be worse."""

import shlex
from collections.abc import Iterable
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console.catalog.models import Copy
from console.common.forms import ReasonForm
from console.deployments import engine_schema
from console.deployments.changes import Wish
from console.deployments.models import Deployment, Spec
from console.fleet.models import Engine
from console.gateway.models import VERSION_NAME
from console.rollouts import presets
from console.rollouts.plans import (
    USUAL_HOLD_SECONDS,
    USUAL_SHADOW_SECONDS,
    USUAL_WEIGHTS,
    Margins,
    Plan,
    Stage,
)

MOST_STEPS = 12
MOST_HOLD_MINUTES = 1440
FEATURES = [
    ("patch", gettext_lazy("for a patch upgrade")),
    ("always", gettext_lazy("for any upgrade")),
    ("never", gettext_lazy("never")),
]


class RolloutForm(ReasonForm):
    """What is new, and how it goes."""

    engine = forms.ModelChoiceField(Engine.objects.none(), label=gettext_lazy("Engine"))
    copy = forms.ModelChoiceField(
        Copy.objects.none(),
        label=gettext_lazy("Files"),
        help_text=gettext_lazy("Model and revision, as they lie on the host."),
    )
    arguments = forms.CharField(
        label=gettext_lazy("Arguments"), required=False, widget=forms.Textarea(attrs={"rows": 4, "spellcheck": "false"}),
        help_text=gettext_lazy("What follows “vllm serve MODEL”, as in a shell."),
    )  # fmt: skip
    features_off = forms.ChoiceField(
        label=gettext_lazy("Newly default features off"), choices=FEATURES, initial="patch",
        help_text=gettext_lazy("What the new version switches on by itself starts switched off: one change at a time."),
    )  # fmt: skip
    weights = forms.CharField(
        label=gettext_lazy("Steps (share of requests, %)"), initial=", ".join(map(str, USUAL_WEIGHTS)),
        help_text=gettext_lazy("Rising, up to 100."),
    )  # fmt: skip
    hold_minutes = forms.CharField(
        label=gettext_lazy("Hold at least (min)"), initial=USUAL_HOLD_SECONDS // 60,
        help_text=gettext_lazy("One for all, or one for each step: 5, 5, 10, 30, 60. And until it is shown to be as good."),
    )  # fmt: skip
    shadow_percent = forms.IntegerField(
        label=gettext_lazy("Copy requests first (%)"), required=False, min_value=1, max_value=100,
        help_text=gettext_lazy("So many are also sent to the new engines before any is shifted; those answers are thrown away."
                               " Each route has to allow it. Empty: none."),
    )  # fmt: skip
    shadow_minutes = forms.FloatField(
        label=gettext_lazy("Copy for at least (min)"), required=False, initial=USUAL_SHADOW_SECONDS // 60, min_value=0,
        max_value=MOST_HOLD_MINUTES, help_text=gettext_lazy("And until the new engines are shown to be as good."),
    )  # fmt: skip
    patience_minutes = forms.FloatField(
        label=gettext_lazy("Ask me after (min)"), initial=60, min_value=1, max_value=10080,
        help_text=gettext_lazy("A step without a verdict for so long is held."),
    )  # fmt: skip
    version = forms.CharField(
        label=gettext_lazy("X-Model-Version"), required=False, initial="next", max_length=40, validators=[VERSION_NAME],
        help_text=gettext_lazy("Clients that send it reach the new engines before anybody. Empty: nobody does."),
    )  # fmt: skip
    ttft = forms.FloatField(label=gettext_lazy("First token, p95 (+ %)"), initial=20, min_value=1, max_value=500)
    pace = forms.FloatField(label=gettext_lazy("Between tokens, p95 (+ %)"), initial=20, min_value=1, max_value=500)
    failures = forms.FloatField(
        label=gettext_lazy("Failed requests (+ points)"), initial=1, min_value=0.1, max_value=50
    )
    finish = forms.FloatField(
        label=gettext_lazy("Answers that don't end by themselves (+ points)"), initial=10, min_value=0.5, max_value=90
    )
    top_up = forms.BooleanField(
        label=gettext_lazy("Ask both sides itself where traffic is low"), required=False, initial=True,
        help_text=gettext_lazy("Short questions, at the same moment, until there is a verdict. Half of the time is left free."),
    )  # fmt: skip

    field_order = ("engine", "copy", "arguments", "features_off", "weights", "hold_minutes", "shadow_percent",
                   "shadow_minutes", "patience_minutes", "version",
                   "ttft", "pace", "failures", "finish", "top_up", "reason")  # fmt: skip

    def __init__(self, *args: Any, deployment: Deployment, spec: Spec, **kwargs: Any) -> None:
        kwargs["initial"] = {
            "engine": spec.engine_id, "copy": spec.copy_id, "arguments": shlex.join(spec.arguments),
            **(kwargs.get("initial") or {}),
        }  # fmt: skip
        super().__init__(*args, **kwargs)
        self._deployment, self._spec = deployment, spec
        self.features: list[str] = []
        """Words that were added to keep new features off."""
        self.fields["engine"].queryset = Engine.objects.filter(host=spec.host, present=True)  # type: ignore[attr-defined]
        self.fields["copy"].queryset = (  # type: ignore[attr-defined]
            Copy.objects.filter(host=spec.host, state__in=("verified", "unverified")).select_related("revision__model")
        )

    def clean_arguments(self) -> list[str]:
        """As argv."""
        try:
            return shlex.split(self.cleaned_data["arguments"].replace("\r\n", "\n").replace("\\\n", " "))
        except ValueError as problem:
            raise forms.ValidationError(_("It can't be taken apart: %s.") % problem) from None

    def clean_weights(self) -> tuple[int, ...]:
        """Rising per cents that end with 100."""
        words = self.cleaned_data["weights"].replace("%", " ").replace(",", " ").split()
        if not all(word.isascii() and word.isdigit() and len(word) < 4 for word in words):
            raise forms.ValidationError(_("Whole per cents, such as 1, 5, 25, 50, 100."))
        found = tuple(int(word) for word in words)
        if (
            not found
            or len(found) > MOST_STEPS
            or found[-1] != 100
            or found[0] < 1
            or sorted(set(found)) != list(found)
        ):
            raise forms.ValidationError(
                _("Rising from 1 on and ending with 100, %(most)d steps at most.") % {"most": MOST_STEPS}
            )
        return found

    def clean(self) -> dict[str, Any]:
        """Hold times belong to steps, one by one."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        weights, minutes = cleaned.get("weights"), cleaned.get("hold_minutes")
        if weights and minutes:
            if len(minutes) not in (1, len(weights)):
                self.add_error(
                    "hold_minutes",
                    _("%(times)d times for %(steps)d steps. Give one for all, or one for each.")
                    % {"times": len(minutes), "steps": len(weights)},
                )
            cleaned["hold_minutes"] = minutes * len(weights) if len(minutes) == 1 else minutes
        return cleaned

    def clean_hold_minutes(self) -> tuple[float, ...]:
        """One time, or several."""
        words = self.cleaned_data["hold_minutes"].replace(",", " ").replace(";", " ").split()
        try:
            found = tuple(float(word) for word in words)
        except ValueError:
            found = ()
        if not found or not all(0 <= one <= MOST_HOLD_MINUTES for one in found):
            raise forms.ValidationError(_("Minutes from 0 to %(most)d, such as 5.") % {"most": MOST_HOLD_MINUTES})
        return found

    def plan(self) -> Plan:
        """How it goes."""
        data = self.cleaned_data
        shifts = zip(data["weights"], data["hold_minutes"], strict=True)
        return Plan(
            stages=(*self._shadow(), *(Stage(weight, minutes * 60) for weight, minutes in shifts)),
            margins=Margins(data["ttft"] / 100, data["pace"] / 100, data["failures"] / 100, data["finish"] / 100),
            patience_seconds=data["patience_minutes"] * 60,
            version=data["version"],
            top_up=data["top_up"],
        )

    def _shadow(self) -> Iterable[Stage]:
        percent, minutes = self.cleaned_data["shadow_percent"], self.cleaned_data["shadow_minutes"]
        if percent:
            seconds = USUAL_SHADOW_SECONDS if minutes is None else minutes * 60
            yield Stage(0, seconds, shadow_percent=percent)

    def wish(self) -> Wish:
        """The new spec. A fixed port is given up: both sides listen at the same time."""
        old, data = Wish.of_spec(self._spec), self.cleaned_data
        self.features = self._features(data["engine"], data["arguments"])
        content = {name: getattr(old, name) for name in Wish.__dataclass_fields__}
        changed = {"engine": data["engine"], "copy": data["copy"], "arguments": [*data["arguments"], *self.features]}
        return Wish(**content | changed | {"port": None})

    def _features(self, engine: Engine, arguments: list[str]) -> list[str]:
        when, before = self.cleaned_data["features_off"], self._spec.engine
        if (
            engine == before
            or when == "never"
            or (when == "patch" and not presets.is_patch(before.version, engine.version))
        ):
            return []
        old, new = engine_schema.schema_of(before), engine_schema.schema_of(engine)
        return presets.newly_on(old, new, arguments) if old and new else []

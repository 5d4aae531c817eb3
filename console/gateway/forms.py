"""Forms of routes, keys and limits."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _

from console.access import policies
from console.access.models import User
from console.common.forms import ReasonForm
from console.deployments.models import Deployment
from console.deployments.public import MODEL_NAME
from console.gateway.models import VERSION_NAME, Key, Route, Target, TeamLimits
from console.gateway.routes import Share

_AUTO: dict[str, Any] = {"autocomplete": "off", "spellcheck": "false"}
LIMIT_LABELS = {
    "requests_per_minute": _("Requests a minute"),
    "tokens_per_minute": _("Tokens a minute"),
    "concurrency": _("Requests at a time"),
}
LIMIT_HELP = {
    "tokens_per_minute": _("100 seconds’ worth may come at once: 60,000 lets 100,000 through, then 1,000 a second."),
}


class RouteForm(forms.ModelForm):  # type: ignore[type-arg]
    """A route's name, its deployments with weights, and how it treats requests."""

    aliases = forms.CharField(
        label=_("Also known as"),
        required=False,
        widget=forms.TextInput(attrs=_AUTO | {"placeholder": "gpt-4o-mini, org/model-8b"}),
        help_text=_(
            "Further names for the same models, separated by commas. One that is new to the engines waits for their restart."
        ),
    )

    class Meta:
        model = Route
        fields = [
            "name", "balance", "fallback", "context_tokens", "output_cap", "output_assumed", "long_tokens",
            "requests_per_minute", "tokens_per_minute", "concurrency", "daily_tokens", "in_flight_each", "queue_limit",
            "queue_seconds", "silence_seconds", "deadline_seconds", "exact_context", "control_characters", "enabled", "notes",
        ]  # fmt: skip
        labels = {
            **LIMIT_LABELS,
            "name": _("Name"),
            "balance": _("Requests go"),
            "fallback": _("Falls back to"),
            "context_tokens": _("Context, in tokens"),
            "output_cap": _("Highest max_tokens"),
            "output_assumed": _("Answer assumed, in tokens"),
            "long_tokens": _("Long from, in tokens"),
            "daily_tokens": _("Tokens a day"),
            "in_flight_each": _("At work in one instance"),
            "queue_limit": _("Waiting at most"),
            "queue_seconds": _("Waiting at most, in seconds"),
            "silence_seconds": _("Silence at most, in seconds"),
            "deadline_seconds": _("Whole answer at most, in seconds"),
            "exact_context": _("Count prompts by the engine's tokenizer"),
            "control_characters": _("Control characters"),
            "enabled": _("Answer under this name"),
            "notes": _("Notes"),
        }
        help_texts = {
            **LIMIT_HELP,
            "name": _("What clients write as “model”."),
            "fallback": _("Takes over when nothing here is ready or too many wait. The answer says so in a header."),
            "context_tokens": _(
                "Requests whose estimate (bytes / 3 + max_tokens) is over it are refused. Empty: the engine decides."
            ),
            "output_cap": _("Requests for more are refused. Empty: no cap."),
            "output_assumed": _(
                "What an answer is charged with if the request names no max_tokens, until the real number is known."
            ),
            "long_tokens": _("Prompts estimated longer go to the deployments of the long lane."),
            "daily_tokens": _("Prompt and answer together; the day is UTC’s. Empty: no budget."),
            "in_flight_each": _("More than that wait in the gateway, for whichever instance is free first."),
            "queue_limit": _("One more is refused with 429, and told how many wait."),
            "silence_seconds": _("An engine that sends nothing for so long is given up."),
            "deadline_seconds": _("An answer that is not complete by then is ended. Empty: no deadline."),
            "exact_context": _(
                "One more question to the engine before each request; without it the estimate from bytes decides."
            ),
            "control_characters": _("What becomes of them in requests; tabs and line ends always stay."),
        }
        widgets = {
            "name": forms.TextInput(attrs=_AUTO | {"autofocus": True}),
            "notes": forms.Textarea(attrs={"rows": 2}),
        }

    def __init__(self, *arguments: Any, user: User, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._deployments = policies.visible(user, Deployment.objects.lasting())
        others = policies.visible(user, Route.objects.all()).exclude(pk=self.instance.pk)
        field: Any = self.fields["fallback"]
        field.queryset, field.empty_label = others, _("nothing")
        self.fields["control_characters"].required = False
        if self.instance.pk:
            self.initial["aliases"] = ", ".join(self.instance.names[1:])

    def clean_control_characters(self) -> str:
        """As they are, where nothing is said."""
        return self.cleaned_data["control_characters"] or "pass"

    def clean_aliases(self) -> list[str]:
        """Names, each as the route's own must be."""
        names = [name.strip() for name in self.cleaned_data["aliases"].replace("\n", ",").split(",")]
        for name in filter(None, names):
            MODEL_NAME(name)
        return [name for name in names if name]

    def rows(self) -> Iterable[dict[str, Any]]:
        """One row for each deployment, with what was entered or is stored."""
        stored: dict[int, Target] = {}
        if self.instance.pk:
            stored = {target.deployment_id: target for target in self.instance.targets.all()}
        for deployment in self._deployments:
            target = stored.get(deployment.pk)
            prefix = f"target-{deployment.pk}"
            yield {
                "deployment": deployment,
                "prefix": prefix,
                "weight": self.data.get(f"{prefix}-weight", "") if self.is_bound else (target.weight if target else ""),
                "version": self.data.get(f"{prefix}-version", "")
                if self.is_bound
                else (target.version if target else ""),
                "long": bool(self.data.get(f"{prefix}-long"))
                if self.is_bound
                else bool(target and target.is_long_lane),
            }

    def clean(self) -> dict[str, Any]:
        """Read the deployments' rows into `shares`."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        shares = []
        for row in self.rows():
            weight, version = str(row["weight"]).strip(), str(row["version"]).strip()
            if not weight and not version and not row["long"]:
                continue
            if not weight.isdigit() or int(weight) > 100:
                self.add_error(
                    None, _("Weight of %(name)s: a whole number from 0 to 100.") % {"name": row["deployment"]}
                )
                continue
            try:
                VERSION_NAME(version) if version else None
            except forms.ValidationError as error:
                self.add_error(None, f"{row['deployment']}: {' '.join(error.messages)}")
                continue
            shares.append(Share(row["deployment"], int(weight), version, is_long_lane=row["long"]))
        cleaned["shares"] = shares
        return cleaned

    def order(self) -> dict[str, Any]:
        """What `routes.save` takes."""
        # A model's form writes into its instance already while it is checked; the service does so itself, in its transaction.
        return dict(self.cleaned_data)


class AddMachineForm(forms.Form):
    """The name of a gateway elsewhere; everything else is said on its machine."""

    name = forms.CharField(
        label=_("Name"),
        max_length=32,
        help_text=_("Lower-case letters, digits and inner hyphens. It can't be changed later."),
        widget=forms.TextInput(attrs=_AUTO | {"autofocus": True, "placeholder": "edge-01"}),
    )


class WeightsForm(ReasonForm):
    """The weights of a route's targets."""

    def __init__(self, *arguments: Any, route: Route, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._targets = list(route.targets.select_related("deployment"))
        for target in self._targets:
            self.fields[f"weight_{target.pk}"] = forms.IntegerField(
                label=target.deployment.name, min_value=0, max_value=100, initial=target.weight
            )
        self.order_fields([f"weight_{target.pk}" for target in self._targets])

    def weights(self) -> dict[int, int]:
        """By primary key of the target."""
        return {target.pk: self.cleaned_data[f"weight_{target.pk}"] for target in self._targets}


class KeyForm(forms.ModelForm):  # type: ignore[type-arg]
    """A key's name, owner, expiry, routes and limits."""

    class Meta:
        model = Key
        fields = [
            "name", "owner", "expires_at", "all_routes", "routes", "requests_per_minute", "tokens_per_minute",
            "concurrency", "daily_tokens",
        ]  # fmt: skip
        labels = {
            **LIMIT_LABELS,
            "name": _("Name"),
            "owner": _("Owner"),
            "expires_at": _("Valid until"),
            "all_routes": _("May use every route of the team"),
            "routes": _("Or only these"),
            "daily_tokens": _("Tokens a day"),
        }
        help_texts = {
            **LIMIT_HELP,
            "name": _("What uses it: an application, a person, a test."),
            "owner": _("Whom to ask about it. When they are disabled, so is the key."),
            "expires_at": _("Empty: until it is revoked. In UTC."),
            "daily_tokens": _("Prompt and answer together; the day is UTC’s. Empty: no budget."),
        }
        widgets = {
            "name": forms.TextInput(attrs=_AUTO | {"autofocus": True}),
            "expires_at": forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
            "routes": forms.CheckboxSelectMultiple(),
        }

    def __init__(self, *arguments: Any, user: User, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._narrow("owner", policies.visible(user, User.objects.filter(is_active=True)))
        self._narrow("routes", policies.visible(user, Route.objects.all()))
        owner: Any = self.fields["owner"]
        owner.empty_label = _("nobody")
        if not self.instance.pk:
            self.initial.setdefault("owner", user.pk)
            # 1,000 tokens a second for long, 100,000 at once.
            self.initial.setdefault("tokens_per_minute", 60_000)

    def _narrow(self, name: str, rows: QuerySet[Any]) -> None:
        field: Any = self.fields[name]
        field.queryset = rows

    def clean(self) -> dict[str, Any]:
        """A key that may use nothing is a mistake."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if not cleaned.get("all_routes") and not cleaned.get("routes"):
            self.add_error("routes", _("Choose a route, or allow all of them."))
        return cleaned

    def order(self) -> dict[str, Any]:
        """What `keys.create` and `keys.change` take."""
        given = dict(self.cleaned_data)
        routes = given.pop("routes")
        return given | {"routes": None if given.pop("all_routes") else list(routes)}


class RotateForm(ReasonForm):
    """How long the old key goes on working beside the new one."""

    OVERLAPS = [("0", _("not at all")), ("1", _("one hour")), ("24", _("one day")), ("168", _("one week"))]
    overlap = forms.ChoiceField(
        label=_("The old key works on for"),
        choices=OVERLAPS,
        initial="24",
        help_text=_("Time for applications to change over."),
    )
    field_order = ["overlap", "reason"]

    def span(self) -> timedelta:
        """The overlap."""
        return timedelta(hours=int(self.cleaned_data["overlap"]))


class TeamLimitsForm(forms.ModelForm):  # type: ignore[type-arg]
    """What all keys of a team may take together."""

    class Meta:
        model = TeamLimits
        fields = ["requests_per_minute", "tokens_per_minute", "concurrency", "daily_tokens"]
        labels = {**LIMIT_LABELS, "daily_tokens": _("Tokens a day")}
        help_texts = {**LIMIT_HELP, "daily_tokens": _("All keys of the team together.")}

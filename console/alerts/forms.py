"""Forms of rules, channels and silences."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from console.access import policies
from console.alerts.conditions import CONDITIONS
from console.alerts.models import CHANNEL_KINDS, SEVERITIES, Alert, Channel, Rule
from console.deployments.models import Deployment

SECRET_IS_ADDRESS = ("slack", "wecom")
"""The address of these contains the token: all of it is secret."""
NEEDS_ADDRESS = ("webhook", "feishu", "dingtalk", "pagerduty", "alertmanager")
PAGERDUTY_EVENTS = "https://events.pagerduty.com/v2/enqueue"
COMMON = ("name", "kind", "severity", "for_escalations", "enabled")
MAIL = ("recipients", "sender", "server", "port", "security", "user")
SECRETS = {
    "email": _("Password"),
    "slack": _("Secret address"),
    "wecom": _("Secret address"),
    "pagerduty": _("Routing key"),
    "alertmanager": _("Bearer token"),
}
"""What a kind's secret is; a signing key for all others."""


class RuleForm(forms.ModelForm):  # type: ignore[type-arg]
    """Everything that can be changed of a rule."""

    condition = forms.ChoiceField(label=_("What"), choices=())
    labels = forms.CharField(
        label=_("Labels"), required=False, help_text=_("name=value, separated by commas. They go with every message.")
    )

    class Meta:
        model = Rule
        fields = [
            "name",
            "condition",
            "deployment",
            "threshold",
            "for_seconds",
            "clear_threshold",
            "clear_seconds",
            "severity",
            "escalate_seconds",
            "labels",
            "enabled",
        ]
        labels = {
            "name": _("Name"),
            "deployment": _("Only for"),
            "threshold": _("Threshold"),
            "for_seconds": _("For, in seconds"),
            "clear_threshold": _("Over at"),
            "clear_seconds": _("Over for, in seconds"),
            "severity": _("Severity"),
            "escalate_seconds": _("Escalate after, in seconds"),
            "enabled": _("Switched on"),
        }
        help_texts = {
            "deployment": _("Then it replaces the rule for all with the same condition and severity."),
            "clear_threshold": _("Empty: 10 % back from the threshold, so that it doesn't flutter."),
            "escalate_seconds": _("If nobody acknowledges it. 0: never."),
        }

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["condition"].choices = [(one.key, f"{one.title} ({one.unit})") for one in CONDITIONS.values()]  # type: ignore[attr-defined]
        deployments = self.fields["deployment"]
        deployments.queryset = policies.visible(user, Deployment.objects.lasting().order_by("name"))  # type: ignore[attr-defined]
        deployments.required = False
        deployments.empty_label = _("all deployments")  # type: ignore[attr-defined]
        self.fields["clear_threshold"].required = False
        if not self.is_bound:
            self.initial["labels"] = ", ".join(f"{name}={value}" for name, value in self.instance.labels.items())

    def clean_labels(self) -> dict[str, str]:
        """Labels as a mapping."""
        found = {}
        for part in filter(None, (part.strip() for part in self.cleaned_data["labels"].split(","))):
            name, equals, value = part.partition("=")
            if not equals or not name.strip().isidentifier():
                raise ValidationError(_("“%(part)s” is not name=value."), params={"part": part})
            found[name.strip()] = value.strip()
        return found


class ChannelForm(forms.ModelForm):  # type: ignore[type-arg]
    """A way to reach people. Secrets are written, never shown again."""

    kind = forms.ChoiceField(label=_("Kind"), choices=CHANNEL_KINDS)
    address = forms.CharField(
        label=_("Address"), required=False, max_length=500,
        help_text=_("Where messages are posted to."),
    )  # fmt: skip
    secret = forms.CharField(
        label=_("Secret"), required=False, max_length=1000, widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
        help_text=_("Never shown again. Empty keeps the one that is stored."),
    )  # fmt: skip
    recipients = forms.CharField(label=_("Recipients"), required=False, help_text=_("Separated by commas."))
    sender = forms.EmailField(label=_("Sender"), required=False)
    server = forms.CharField(label=_("Mail server"), required=False, max_length=200)
    port = forms.IntegerField(label=_("Port"), required=False, min_value=1, max_value=65535, initial=587)
    security = forms.ChoiceField(
        label=_("Encryption"), required=False, choices=[("starttls", "STARTTLS"), ("tls", "TLS"), ("none", _("none"))]
    )
    user = forms.CharField(label=_("User"), required=False, max_length=200)

    class Meta:
        model = Channel
        fields = ["name", "kind", "severity", "for_escalations", "enabled"]
        labels = {
            "name": _("Name"),
            "severity": _("From this severity on"),
            "for_escalations": _("Only what nobody acknowledged in time"),
            "enabled": _("Switched on"),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["severity"].choices = SEVERITIES  # type: ignore[attr-defined]
        settings = self.instance.settings or {}
        stored = {name: settings[name] for name in MAIL if name in settings}
        stored["recipients"] = ", ".join(settings.get("recipients", []))
        self.initial = {**stored, "address": settings.get("url", ""), **self.initial}
        self.chosen_kind = str(self["kind"].value() or CHANNEL_KINDS[0][0])
        self.fields["secret"].label = SECRETS.get(self.chosen_kind, _("Signing key"))
        for name, sentence in self._needed():
            self.fields[name].required = True
            self.fields[name].error_messages["required"] = str(sentence)

    def _needed(self) -> Iterator[tuple[str, str | Promise]]:
        """Fields that the chosen kind can't do without, and what is said where one is empty."""
        has_secret = bool(self.instance.secret)
        if self.chosen_kind == "email":
            yield from ((name, _("E-mail needs this.")) for name in ("server", "port", "sender", "recipients"))
        elif self.chosen_kind in SECRET_IS_ADDRESS and not (has_secret or self.data.get("address")):
            yield "secret", _("Give the address that the service shows for incoming messages.")
        elif self.chosen_kind == "pagerduty" and not has_secret:
            yield "secret", _("PagerDuty wants the routing key of a service.")

    @property
    def shown(self) -> list[forms.BoundField]:
        """What the chosen kind needs; the rest of the fields stays empty."""
        address = () if self.chosen_kind in SECRET_IS_ADDRESS else ("address",)
        names = (*COMMON, *(MAIL if self.chosen_kind == "email" else address), "secret")
        return [self[name] for name in names]

    def clean(self) -> dict[str, Any]:
        """What a kind needs is there, and reads like it should."""
        data = super().clean() or {}
        kind = data.get("kind", "")
        if kind == "email":
            self._clean_mail(data)
        elif kind in SECRET_IS_ADDRESS:
            self._clean_secret_address(data)
        elif kind in NEEDS_ADDRESS:
            if kind == "pagerduty" and not data.get("address"):
                data["address"] = PAGERDUTY_EVENTS
            if not _is_address(data.get("address", "")):
                self.add_error("address", _("Give a whole address, such as https://example.com/hook."))
        return data

    def _clean_secret_address(self, data: dict[str, Any]) -> None:
        given = data.get("secret") or data.get("address")
        if given and not _is_address(given):
            self.add_error("secret", _("Give a whole address, such as https://example.com/hook."))
        data["secret"], data["address"] = given or "", ""

    def _clean_mail(self, data: dict[str, Any]) -> None:
        for address in _split(data.get("recipients", "")):
            try:
                validate_email(address)
            except ValidationError:
                self.add_error("recipients", _("“%s” is no e-mail address.") % address)

    def settings(self) -> dict[str, Any]:
        """What of the form is stored as the channel's settings."""
        data = self.cleaned_data
        if data["kind"] == "email":
            mail = {name: data[name] for name in ("sender", "server", "port", "security", "user")}
            return mail | {"recipients": _split(data["recipients"])}
        return {"url": data["address"]} if data.get("address") else {}


class SilenceForm(forms.Form):
    """For how long, how much, and why."""

    HOURS = (("1", _("one hour")), ("4", _("4 hours")), ("24", _("24 hours")), ("168", _("seven days")))
    hours = forms.ChoiceField(label=_("For"), choices=HOURS, initial="4")
    whole = forms.BooleanField(
        label=_("Everything about it"), required=False,
        help_text=_("Maintenance: all rules are quiet about this deployment or host, not only this one."),
    )  # fmt: skip
    reason = forms.CharField(label=_("Reason"), max_length=300)

    def __init__(self, *arguments: Any, alert: Alert, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        if not alert.is_about_something:
            del self.fields["whole"]


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.replace(";", ",").split(",") if part.strip()]

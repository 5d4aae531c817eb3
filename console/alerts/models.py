"""Rules, the alerts that they raised, silences, channels, and what was sent through them."""

from typing import Any

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from console.access.models import Owned, User
from console.common.states import Stateful, StateTable
from console.deployments.models import Deployment
from console.fleet.models import Host

ALERT_STATES = StateTable({"open": "acknowledged closed", "acknowledged": "closed", "closed": ""})
SEVERITIES = [("info", _("info")), ("warning", _("warning")), ("critical", _("critical"))]
CHANNEL_KINDS = [
    ("email", _("E-mail")),
    ("webhook", _("Webhook, signed")),
    ("slack", "Slack"),
    ("feishu", _("Feishu / Lark")),
    ("dingtalk", "DingTalk"),
    ("wecom", "WeCom"),
    ("pagerduty", "PagerDuty"),
    ("alertmanager", "Alertmanager"),
]


class Rule(Owned):
    """When to raise an alert. The rules that Slipway brings have a `key`; a person's own have none."""

    key = models.CharField(max_length=60, blank=True)
    name = models.CharField(max_length=120)
    condition = models.CharField(max_length=40)
    """A name of `console.alerts.conditions.CONDITIONS`."""
    threshold = models.FloatField()
    clear_threshold = models.FloatField(null=True)
    """The value at which it counts as over; null: 10 % back from the threshold."""
    for_seconds = models.PositiveIntegerField(default=60)
    clear_seconds = models.PositiveIntegerField(default=60)
    severity = models.CharField(max_length=10, choices=SEVERITIES, default="warning")
    deployment = models.ForeignKey(Deployment, null=True, on_delete=models.CASCADE, related_name="alert_rules")
    """Only for this one; it then replaces rules for all that have the same condition and severity."""
    labels: Any = models.JSONField(default=dict)
    escalate_seconds = models.PositiveIntegerField(default=900)
    """Not acknowledged for so long: channels for escalations are told. 0: never."""
    enabled = models.BooleanField(default=True)
    changed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name", "pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["team", "key"], condition=~models.Q(key=""), name="one_rule_per_key_and_team"
            )
        ]

    def __str__(self) -> str:
        return self.title

    @property
    def title(self) -> str:
        """Its name for readers: the rules that Slipway brings have theirs in each language, until they are renamed."""
        return gettext(self.name) if self.key else self.name


class Breach(models.Model):
    """A subject that is over a rule's threshold: since when, and whether it is on its way back."""

    rule = models.ForeignKey(Rule, on_delete=models.CASCADE, related_name="breaches")
    subject = models.CharField(max_length=120)
    since = models.DateTimeField(default=timezone.now)
    back_since = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["rule", "subject"], name="one_breach_per_subject")]

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}"


class Alert(Owned, Stateful):
    """Something that deserves a person's attention: what, since when, why, and where to look."""

    STATES = ALERT_STATES
    state = models.CharField(max_length=12, choices=ALERT_STATES.choices(), default="open")
    rule = models.ForeignKey(Rule, on_delete=models.CASCADE, related_name="alerts")
    subject = models.CharField(max_length=120)
    """What it is about, such as `instance:7`: a rule has one open alert for each subject at the most."""
    name = models.CharField(max_length=200)
    """The subject in words."""
    summary = models.TextField()
    cause = models.TextField(blank=True)
    severity = models.CharField(max_length=10, choices=SEVERITIES)
    value = models.FloatField()
    worst = models.FloatField()
    labels: Any = models.JSONField(default=dict)
    url = models.CharField(max_length=200, blank=True)
    deployment = models.ForeignKey(Deployment, null=True, on_delete=models.CASCADE, related_name="alerts")
    host = models.ForeignKey(Host, null=True, on_delete=models.CASCADE, related_name="alerts")
    opened_at = models.DateTimeField(default=timezone.now)
    closed_at = models.DateTimeField(null=True)
    acknowledged_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    escalated = models.BooleanField(default=False)
    silenced = models.BooleanField(default=False)
    """True while a silence keeps it quiet."""

    class Meta:
        ordering = ["-opened_at", "-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "subject"], condition=~models.Q(state="closed"), name="one_living_alert_per_subject"
            )
        ]
        indexes = [models.Index(fields=["team", "state"])]

    def __str__(self) -> str:
        return f"{self.rule.name}: {self.name}"

    @property
    def is_about_something(self) -> bool:
        """True if it is about a deployment or a host, not about a certificate, a key, a budget or a channel."""
        return self.deployment_id is not None or self.host_id is not None


class Silence(Owned):
    """A span of time in which alerts about something are shown but not sent: maintenance, or a known trouble."""

    rule = models.ForeignKey(Rule, null=True, on_delete=models.CASCADE, related_name="silences")
    deployment = models.ForeignKey(Deployment, null=True, on_delete=models.CASCADE, related_name="silences")
    host = models.ForeignKey(Host, null=True, on_delete=models.CASCADE, related_name="silences")
    begins_at = models.DateTimeField(default=timezone.now)
    ends_at = models.DateTimeField()
    reason = models.TextField()
    author = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        ordering = ["-begins_at"]

    def __str__(self) -> str:
        return self.reason

    def covers(self, alert: Alert) -> bool:
        """True if the alert is what this silence is about; what it doesn't name is no limit."""
        return (
            self.rule_id in (None, alert.rule_id)
            and self.deployment_id in (None, alert.deployment_id)
            and (self.host_id in (None, alert.host_id) or self._holds_all_of(alert))
        )

    def _holds_all_of(self, alert: Alert) -> bool:
        """True if the alert is about a deployment that runs on the silent host alone."""
        if alert.deployment is None or alert.host_id is not None:
            return False
        hosts = set(alert.deployment.instances.filter(ordered=True).values_list("host_id", flat=True))
        return hosts == {self.host_id}


class Channel(Owned):
    """A way to reach people."""

    name = models.CharField(max_length=80)
    kind = models.CharField(max_length=20, choices=CHANNEL_KINDS)
    settings: Any = models.JSONField(default=dict)
    """What is no secret: addresses, SMTP server."""
    secret = models.TextField(blank=True)
    """Signing key, token or address with a token in it, encrypted (`common.secrets`)."""
    severity = models.CharField(max_length=10, choices=SEVERITIES, default="warning")
    """The least severe alerts that go here."""
    for_escalations = models.BooleanField(default=False)
    """Only alerts that nobody acknowledged in time."""
    enabled = models.BooleanField(default=True)
    failing_since = models.DateTimeField(null=True)
    last_error = models.TextField(blank=True)
    last_sent_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["team", "name"], name="one_channel_per_name")]

    def __str__(self) -> str:
        return self.name


class Delivery(models.Model):
    """One message for one channel: written in the transaction that makes it due, so it is due exactly once."""

    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=12)
    """`opened`, `closed`, `escalated` or `test`."""
    alerts = models.ManyToManyField(Alert, related_name="deliveries")
    state = models.CharField(max_length=8, default="waiting")
    """`waiting`, `sending`, `sent`, `failed`, or `unsure`: its process died while sending."""
    attempts = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField(default=timezone.now)
    claimed_at = models.DateTimeField(null=True)
    sent_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-pk"]
        indexes = [models.Index(fields=["state", "due_at"])]

    def __str__(self) -> str:
        return f"{self.event} to {self.channel}"

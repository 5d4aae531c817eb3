"""Routes, keys, and what went through the gateway."""

from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from console.access.models import Owned, Team, User
from console.common.states import LOOKS, Look
from console.deployments.models import Deployment, Spec
from console.deployments.public import MODEL_NAME
from console.fleet.models import Member
from workers.gateway.messages import key_prefix

VERSION_NAME = RegexValidator(r"^[A-Za-z0-9._-]{1,40}$", _("Use letters, digits, dots, hyphens and underscores."))


class Limited(models.Model):
    """Base of what has limits. Empty: no limit."""

    requests_per_minute = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    tokens_per_minute = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    concurrency = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])

    class Meta:
        abstract = True


class Route(Owned, Limited):
    """A public model name, and the deployments behind it."""

    BALANCES = [
        ("leastconn", _("to the instance with the fewest requests")),
        ("session", _("by session: the same X-Session-Id meets the same instance")),
        ("prefix", _("by system prompt: the same one meets the same instance, whose cache knows it")),
    ]

    name = models.CharField(max_length=128, unique=True, validators=[MODEL_NAME])
    name_answers = models.BooleanField(default=True)
    """False: its engines do not know it yet, and nobody is told of it (see `publishing`)."""
    enabled = models.BooleanField(default=True)
    notes = models.TextField(blank=True)
    balance = models.CharField(max_length=10, choices=BALANCES, default="leastconn")
    fallback = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="fallback_for")
    fallback_answers = models.BooleanField(default=True)
    """False: the fallback's engines do not know this route's names yet, and get none of its requests."""
    context_tokens = models.PositiveIntegerField(null=True, blank=True)
    output_cap = models.PositiveIntegerField(null=True, blank=True)
    output_assumed = models.PositiveIntegerField(default=512)
    """Tokens of an answer, for its cost, where the request names no max_tokens."""
    long_tokens = models.PositiveIntegerField(null=True, blank=True)
    """Requests whose prompt is estimated longer go to the targets of the long lane."""
    CONTROLS = [
        ("pass", _("go on as they are")),
        ("blank", _("become blanks")),
        ("refuse", _("are refused")),
    ]
    exact_context = models.BooleanField(default=False)
    """True: prompts are counted by the engine's own tokenizer before they are admitted, not estimated from bytes."""
    control_characters = models.CharField(max_length=10, choices=CONTROLS, default="pass")
    """What becomes of control characters in requests, tabs and line ends aside."""
    deadline_seconds = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(86_400)]
    )
    """An answer that is not complete by then is ended."""
    queue_limit = models.PositiveIntegerField(default=256, validators=[MinValueValidator(1)])
    queue_seconds = models.PositiveIntegerField(default=30, validators=[MinValueValidator(1), MaxValueValidator(3600)])
    silence_seconds = models.PositiveIntegerField(
        default=600, validators=[MinValueValidator(5), MaxValueValidator(86_400)]
    )
    in_flight_each = models.PositiveIntegerField(default=256, validators=[MinValueValidator(1)])
    daily_tokens = models.PositiveBigIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    """Prompt and answer together, by all keys; each adapter of the route has as many of its own."""
    shadow_allowed_at = models.DateTimeField(null=True, blank=True)
    """Since when its requests may also be sent to engines that are being tried out; None: they may not."""
    shadow_allowed_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def names(self) -> list[str]:
        """The public name, then its aliases."""
        return [self.name, *(alias.name for alias in self.aliases.all())]

    @property
    def answering(self) -> list[str]:
        """Those of its names that clients may ask for now."""
        own = [self.name] if self.name_answers else []
        return own + [alias.name for alias in self.aliases.all() if alias.answers]

    @property
    def waiting(self) -> list[str]:
        """Those of its names that wait until its engines know them."""
        return [name for name in self.names if name not in self.answering]


class Alias(models.Model):
    """Another public name of a route."""

    route = models.ForeignKey(Route, on_delete=models.CASCADE, related_name="aliases")
    name = models.CharField(max_length=128, unique=True, validators=[MODEL_NAME])
    answers = models.BooleanField(default=True)
    """False: the route's engines do not know it yet."""

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Target(models.Model):
    """A deployment behind a route."""

    route = models.ForeignKey(Route, on_delete=models.CASCADE, related_name="targets")
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="route_targets")
    weight = models.PositiveSmallIntegerField(default=100, validators=[MaxValueValidator(100)])
    """Share of the route's requests, relative to the weights of its other targets; 0: none."""
    version = models.CharField(max_length=40, blank=True, validators=[VERSION_NAME])
    """Requests with this X-Model-Version come here, whatever the weight."""
    is_long_lane = models.BooleanField(default=False)

    class Meta:
        ordering = ["route", "pk"]
        constraints = [
            models.UniqueConstraint(fields=["route", "deployment"], name="one_target_per_deployment"),
            models.UniqueConstraint(
                "route", Lower("version"), condition=~models.Q(version=""), name="one_target_per_version"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.route} → {self.deployment}"


class Canary(models.Model):
    """A target's part that goes to instances of another spec of the same deployment, while that is rolled out.

    Instances of that spec get nothing by the target itself. Whoever rolls out makes it, moves its share and removes it.
    """

    target = models.OneToOneField(Target, on_delete=models.CASCADE, related_name="canary")
    spec = models.ForeignKey(Spec, on_delete=models.CASCADE, related_name="canaries")
    share = models.PositiveSmallIntegerField(default=0, validators=[MaxValueValidator(100)])
    """Per cent of the target's requests."""
    version = models.CharField(max_length=40, blank=True, validators=[VERSION_NAME])
    """Requests with this X-Model-Version come here, whatever the share."""
    shadow = models.PositiveSmallIntegerField(default=0, validators=[MaxValueValidator(100)])
    """Per cent of the target's requests of which a copy comes here, too, if the route allows it."""

    def __str__(self) -> str:
        return f"{self.target}: {self.share} % to {self.spec}"


class TeamLimits(Limited):
    """Limits that all keys of a team share."""

    team = models.OneToOneField(Team, on_delete=models.CASCADE, related_name="gateway_limits")
    daily_tokens = models.PositiveBigIntegerField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.team}"


class Key(Owned, Limited):
    """A gateway API key. The key itself is shown once and only its digest is stored."""

    name = models.CharField(max_length=80)
    shown = models.CharField(max_length=24)
    """How people recognise it: its beginning and its last four characters."""
    sha256 = models.CharField(max_length=64, unique=True)
    owner = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="gateway_keys")
    all_routes = models.BooleanField(default=True)
    """True: every route of its team, those made later too."""
    routes = models.ManyToManyField(Route, blank=True, related_name="keys")
    daily_tokens = models.PositiveBigIntegerField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
    replaces = models.OneToOneField(
        "self", null=True, on_delete=models.SET_NULL, related_name="replaced_by", editable=False
    )
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name", "-pk"]
        indexes = [models.Index(fields=["revoked_at"])]

    def __str__(self) -> str:
        return self.name

    @property
    def is_usable(self) -> bool:
        """True if the gateway accepts it now."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > timezone.now())

    @property
    def look(self) -> Look:
        """How it is shown."""
        if self.revoked_at:
            return Look(_("revoked"), "circle-off", "grey")
        if self.expires_at and self.expires_at <= timezone.now():
            return Look(_("expired"), "clock", "grey")
        if self.expires_at and getattr(self, "replaced_by", None):
            return Look(_("being replaced"), "refresh", "amber")
        return Look(_("valid"), "check", "green") if self.last_used_at else Look(_("not used yet"), "clock", "blue")


class UsageDay(models.Model):
    """What one key took of one deployment by one route on one day (UTC). Names are kept: routes and deployments may go."""

    day = models.DateField()
    team = models.ForeignKey(Team, on_delete=models.PROTECT)
    key = models.ForeignKey(Key, on_delete=models.PROTECT, related_name="usage")
    route = models.CharField(max_length=128)
    deployment = models.CharField(max_length=62, blank=True)
    requests = models.PositiveBigIntegerField(default=0)
    refused = models.PositiveBigIntegerField(default=0)
    errors = models.PositiveBigIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["day", "key", "route", "deployment"], name="one_usage_row_per_day")
        ]
        indexes = [models.Index(fields=["team", "day"])]

    def __str__(self) -> str:
        return f"{self.day} {self.key} {self.route}"


class GatewayRequestRows(models.QuerySet["GatewayRequest"]):
    """Requests, and copies of them."""

    def of_clients(self) -> "GatewayRequestRows":
        """What clients asked: all but the copies that went to engines that are being tried out."""
        return self.exclude(shadow=GatewayRequest.COPY)


class GatewayRequest(models.Model):
    """One line of the access log, kept for a while so that it can be found by its id."""

    ORIGINAL, COPY = "original", "copy"
    request_id = models.CharField(max_length=64)
    at = models.DateTimeField()
    team = models.ForeignKey(Team, null=True, on_delete=models.CASCADE)
    key = models.ForeignKey(Key, null=True, on_delete=models.SET_NULL)
    path = models.CharField(max_length=200)
    route = models.CharField(max_length=128, blank=True)
    model = models.CharField(max_length=200, blank=True)
    """The name that the request gave."""
    deployment = models.CharField(max_length=62, blank=True)
    instance = models.PositiveBigIntegerField(null=True)
    status = models.SmallIntegerField()
    refusal = models.CharField(max_length=60, blank=True)
    fallback = models.CharField(max_length=62, blank=True)
    cost = models.PositiveIntegerField(null=True)
    prompt_tokens = models.PositiveIntegerField(null=True)
    output_tokens = models.PositiveIntegerField(null=True)
    is_estimate = models.BooleanField(default=False)
    """True: the engine never told them, since the client left first."""
    ttft_ms = models.PositiveIntegerField(null=True)
    latency_ms = models.PositiveIntegerField(null=True)
    queue_ms = models.PositiveIntegerField(null=True)
    finish_reason = models.CharField(max_length=40, blank=True)
    end = models.CharField(max_length=4, blank=True)
    """HAProxy's two letters for how it ended: `--` well, `CD` the client went away, `SD` the engine did."""
    gateway = models.CharField(max_length=32, blank=True)
    """Name of the machine that it went through; empty: the console's own."""
    shadow = models.CharField(max_length=8, blank=True)
    """`copy`: sent to an engine that is being tried out, and the answer thrown away; its id is the original's.
    `original`: a copy of it was sent. `busy`, `large`: none was, since too many were under way or it is too large."""

    objects = GatewayRequestRows.as_manager()

    class Meta:
        ordering = ["-pk"]
        indexes = [models.Index(fields=["request_id"]), models.Index(fields=["team", "-id"])]

    def __str__(self) -> str:
        return self.request_id

    @property
    def look(self) -> Look:
        """How its outcome is shown."""
        if self.status < 400:
            return LOOKS["succeeded"] if not self.end.startswith(("C", "c")) else Look(_("client left"), "x", "amber")
        return Look(str(self.status), "x", "red" if self.status >= 500 else "amber")


class GatewayMachine(Owned, Member):
    """Another machine on which HAProxy serves the same routes and keys as on the console's own."""

    created_at = models.DateTimeField(default=timezone.now)
    joined_at = models.DateTimeField(null=True)
    last_seen_at = models.DateTimeField(null=True)
    leaving_since = models.DateTimeField(null=True)
    """Set once it was removed, until it has ended."""

    class Meta:
        ordering = ["name"]

    @property
    def broker_user(self) -> str:
        """Name of its Redis user."""
        return f"gateway_{self.name}"

    @property
    def broker_prefix(self) -> str:
        """Prefix of its Redis keys and channels."""
        return key_prefix(self.name)


class LogCursor(models.Model):
    """Up to which byte of the gateway's access log the lines are stored."""

    file = models.CharField(max_length=80, unique=True)
    offset = models.BigIntegerField(default=0)
    details: Any = models.JSONField(default=dict)

    def __str__(self) -> str:
        return f"{self.file}: {self.offset}"

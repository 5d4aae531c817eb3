"""The job ledger: what people asked for, its steps, and what happened in them."""

from typing import Any

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from console.access.models import Owned, User
from console.common.states import Stateful, StateTable
from console.fleet.models import Host
from workers.contracts import Level, StepKind

JOB_STATES = StateTable(
    {
        "queued": "running cancelling cancelled failed",
        "running": "succeeded failed cancelling",
        "cancelling": "cancelled succeeded failed",
        "failed": "running",  # a retry resumes at the failed step
        "succeeded": "",
        "cancelled": "",
    }
)
STEP_STATES = StateTable(
    {
        "queued": "running succeeded failed cancelling cancelled",
        "running": "succeeded failed cancelling interrupted",
        "interrupted": "queued running succeeded failed cancelling cancelled",
        "cancelling": "cancelled succeeded failed",
        "failed": "queued",  # a retry resumes here
        "succeeded": "queued",  # a retry has to begin before the step that failed: what this one did is gone
        "cancelled": "",
    }
)
LIVE_STATES = ("queued", "running", "cancelling", "interrupted")

STEP_TITLES = {
    StepKind.PREFLIGHT: _("Preflight"),
    StepKind.DOWNLOAD: _("Download"),
    StepKind.VERIFY: _("Verify files"),
    StepKind.LAUNCH: _("Launch"),
    StepKind.LISTENING: _("Wait until listening"),
    StepKind.VALIDATE: _("Validate answers"),
    StepKind.WARMUP: _("Warm up"),
    StepKind.QUALITY: _("Ask the question set"),
    StepKind.BENCHMARK: _("Benchmark"),
    StepKind.STOP: _("Stop"),
    StepKind.INSTALL_ENGINE: _("Install engine"),
    StepKind.ADOPT_ENGINE: _("Adopt engine"),
    StepKind.CHECK_ENGINE: _("Test engine"),
    StepKind.REMOVE_ENGINE: _("Remove engine"),
    StepKind.CLEAR_CACHE: _("Clear cache"),
    StepKind.MAKE_DEMO_MODEL: _("Make demo model"),
    StepKind.CONTROL_RUN: _("Control run"),
    StepKind.DELETE_COPY: _("Delete files"),
    StepKind.SERVE_COPY: _("Open the copy"),
    StepKind.UPGRADE_AGENT: _("Upgrade agent"),
    StepKind.INSTALL_QUANTIZER: _("Install llm-compressor"),
    StepKind.REMOVE_QUANTIZER: _("Remove llm-compressor"),
    StepKind.QUANTIZE: _("Quantise"),
}


class Job(Owned, Stateful):
    """What a person (or the console itself) asked for. Its steps run one after the other."""

    STATES = JOB_STATES
    state = models.CharField(max_length=12, choices=JOB_STATES.choices(), default="queued")
    kind = models.CharField(max_length=30)
    """`deploy`, `restart`, `stop`, `verify`, `install_engine`, `make_demo_model`, …"""
    title = models.CharField(max_length=200)
    subject_kind = models.CharField(max_length=30, blank=True)
    """Kind of the object that the job is about (`deployment`, `instance`, `engine`, `copy`), for its page."""
    subject_id = models.BigIntegerField(null=True)
    requested_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    reason = models.TextField(blank=True)
    idempotency_key = models.CharField(max_length=64, null=True, unique=True)  # noqa: DJ001 - NULLs don't collide
    payload: Any = models.JSONField(default=dict)
    failure: Any = models.JSONField(null=True)
    """`workers.contracts.Failure` of the step that failed."""
    last_event = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-pk"]
        indexes = [
            models.Index(fields=["state", "-id"]),
            models.Index(fields=["kind", "-id"]),
            models.Index(fields=["subject_kind", "subject_id", "-id"]),
        ]

    def __str__(self) -> str:
        return self.title

    @property
    def about(self) -> int:
        """Primary key of the job's subject, for kinds of jobs that always have one."""
        if self.subject_id is None:
            raise ValueError(f"job {self.pk} ({self.kind}) has no subject")
        return self.subject_id

    @property
    def is_live(self) -> bool:
        """True while it may still change by itself."""
        return self.state in LIVE_STATES


class Step(Stateful):
    """One Celery task on one host."""

    STATES = STEP_STATES
    state = models.CharField(max_length=12, choices=STEP_STATES.choices(), default="queued")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="steps")
    position = models.PositiveSmallIntegerField()
    kind = models.CharField(max_length=20)
    """A `workers.contracts.StepKind`; without choices here, so that a new kind of step needs no migration."""
    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="steps")
    payload: Any = models.JSONField(default=dict)
    deadline_seconds = models.FloatField()
    fence = models.PositiveIntegerField(default=0)
    """Rises with each dispatch; a report with an older number is recorded but never applied."""
    sent_at = models.DateTimeField(null=True)
    heard_at = models.DateTimeField(null=True)
    """When the step's last report came in, on the console's clock: its lease counts from here."""
    progress: Any = models.JSONField(default=dict)
    """Last `workers.contracts.StepProgress`: done, total, unit, rate, waiting_for."""
    result: Any = models.JSONField(default=dict)
    failure: Any = models.JSONField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["job", "position"]
        constraints = [models.UniqueConstraint(fields=["job", "position"], name="one_step_per_position")]
        indexes = [models.Index(fields=["state", "host"])]

    def __str__(self) -> str:
        return f"{self.job_id}/{self.position} {self.kind}"

    @property
    def title(self) -> str:
        """The step's name for people."""
        return str(STEP_TITLES[StepKind(self.kind)])


class Event(models.Model):
    """One line of what happened in a job. `seq` counts from 1 in each job; a client asks for everything after N."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    step = models.ForeignKey(Step, null=True, on_delete=models.CASCADE, related_name="events")
    seq = models.PositiveBigIntegerField()
    at = models.DateTimeField(default=timezone.now)
    level = models.CharField(max_length=8, choices=[(level.value, level.value) for level in Level], default=Level.INFO)
    text = models.TextField()

    class Meta:
        ordering = ["job", "seq"]
        constraints = [models.UniqueConstraint(fields=["job", "seq"], name="one_event_per_seq")]

    def __str__(self) -> str:
        return self.text

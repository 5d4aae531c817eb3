"""Studies and their trials: which arguments were tried from which base, and what each came to."""

from typing import Any

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from console.access.models import Owned, User
from console.benchmarks.models import Benchmark, Dataset
from console.benchmarks.services import Question
from console.catalog.models import Copy
from console.common.states import Stateful, StateTable
from console.deployments.models import Deployment, Instance, Spec
from console.fleet.models import Engine, Host
from console.jobs.models import Job
from workers.benchmark_payloads import LoadPlan, Targets, Workload

STUDY_STATES = StateTable(
    {
        "queued": "clearing running finishing",
        "clearing": "running finishing",
        "running": "finishing",
        "finishing": "succeeded failed cancelled",
        "failed": "queued",  # a person lets it go on: what was measured stays
        "cancelled": "queued",
        "succeeded": "queued",  # trials that failed or were skipped are tried once more
    }
)
LIVE_STATES = ("queued", "clearing", "running", "finishing")
TRIAL_STATES = StateTable(
    {
        "queued": "running skipped cancelled",
        "running": "succeeded failed cancelled",
        "failed": "queued",
        "skipped": "queued",
        "cancelled": "queued",
        "succeeded": "",
    }
)
NEIGHBOURS = [
    ("leave", _("don't begin while anything runs there")),
    ("beside", _("measure beside it: its requests slow down, and disturb the numbers")),
    ("stop", _("stop it for the study, and start it again afterwards")),
]


class Study(Owned, Stateful):
    """A base and the changes to it that are tried, one after the other, each by a fresh start on the same device."""

    STATES = STUDY_STATES
    state = models.CharField(max_length=12, choices=STUDY_STATES.choices(), default="queued")
    title = models.CharField(max_length=120)
    ready_made = models.CharField(max_length=30, blank=True)
    """Key of `console.studies.ready.READY`, if it is one of those."""
    deployment = models.ForeignKey(Deployment, null=True, on_delete=models.SET_NULL, related_name="studies")
    """Whose arguments are the base; null: they were given."""
    own = models.OneToOneField(Deployment, null=True, on_delete=models.SET_NULL, related_name="study")
    """Holds the engines that are measured, one spec for each trial."""
    host = models.ForeignKey(Host, null=True, on_delete=models.SET_NULL, related_name="+")
    engine = models.ForeignKey(Engine, null=True, on_delete=models.SET_NULL, related_name="+")
    copy = models.ForeignKey(Copy, null=True, on_delete=models.SET_NULL, related_name="+")
    devices: Any = models.JSONField(default=list)
    """Uuids; empty: those with the most room, which stay the same, since nothing else is started there meanwhile."""
    arguments: Any = models.JSONField(default=list)
    """Of the base, as argv."""
    environment: Any = models.JSONField(default=dict)
    probe: Any = models.JSONField(default=dict)
    start_deadline_seconds = models.FloatField(default=1800)
    profile = models.CharField(max_length=20)
    workload: Any = models.JSONField(default=dict)
    loads: Any = models.JSONField(default=dict)
    targets: Any = models.JSONField(default=dict)
    dataset = models.ForeignKey(Dataset, null=True, on_delete=models.SET_NULL, related_name="+")
    with_quality = models.BooleanField(default=True)
    neighbours = models.CharField(max_length=6, choices=NEIGHBOURS, default="leave")
    """What a person said about the engines that serve on the devices."""
    stopped: Any = models.JSONField(default=list)
    """Deployments that were stopped for it and are started again: primary keys."""
    waits_for = models.TextField(blank=True)
    """Why it doesn't go on just now, for people."""
    ending = models.CharField(max_length=12, blank=True)
    """The state that follows once its device is free again."""
    finding = models.TextField(blank=True)
    """Why it failed."""
    requested_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    reason = models.TextField(blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-pk"]
        indexes = [models.Index(fields=["state", "-id"])]

    def __str__(self) -> str:
        return self.title

    @property
    def is_live(self) -> bool:
        """True until it has ended."""
        return self.state in LIVE_STATES

    @property
    def question(self) -> Question:
        """What each engine is asked."""
        return Question(
            self.profile, Workload.model_validate(self.workload), LoadPlan.model_validate(self.loads),
            Targets.model_validate(self.targets), self.dataset,
        )  # fmt: skip


class Trial(Stateful):
    """One engine of a study. The first one is the base."""

    STATES = TRIAL_STATES
    state = models.CharField(max_length=12, choices=TRIAL_STATES.choices(), default="queued")
    study = models.ForeignKey(Study, on_delete=models.CASCADE, related_name="trials")
    position = models.PositiveSmallIntegerField()
    label = models.CharField(max_length=300)
    changes: Any = models.JSONField(default=list)
    """Words that change the base (`console.studies.variants`)."""
    arguments: Any = models.JSONField(default=list)
    """Everything that its engine is given, as argv."""
    copy = models.ForeignKey(Copy, null=True, on_delete=models.SET_NULL, related_name="+")
    """Another model than the study's, such as a quantised one; null: the study's."""
    spec = models.ForeignKey(Spec, null=True, on_delete=models.SET_NULL, related_name="+")
    instance = models.ForeignKey(Instance, null=True, on_delete=models.SET_NULL, related_name="+")
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="+")
    benchmark = models.OneToOneField(Benchmark, null=True, on_delete=models.SET_NULL, related_name="trial")
    quality: Any = models.JSONField(default=dict)
    """`workers.benchmark_payloads.QualityResult`."""
    start_seconds = models.FloatField(null=True)
    """From the spawn of the process until it listens."""
    truth: Any = models.JSONField(default=dict)
    """What its engine said of its memory (`workers.contracts.LaunchFacts`)."""
    refused_at = models.DateTimeField(null=True)
    """When there was first no room for it: memory that another engine gave back may be seen a moment later."""
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["study", "position"]
        constraints = [models.UniqueConstraint(fields=["study", "position"], name="one_trial_per_position")]

    def __str__(self) -> str:
        return f"{self.study}: {self.label}"

    @property
    def files(self) -> Copy | None:
        """The model that its engine serves; None if that is gone."""
        return self.copy or (self.study.copy if self.is_base or self.changes else None)

    @property
    def is_base(self) -> bool:
        """True for what the others are compared with."""
        return self.position == 0

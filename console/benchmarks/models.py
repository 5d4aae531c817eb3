"""Benchmarks and their runs, uploads to ask with, and the baselines that gates compare with."""

import base64
import gzip
import json
from typing import Any

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from console.access.models import Owned, User
from console.catalog.models import Copy, Revision
from console.common.states import Stateful, StateTable
from console.deployments.models import Deployment, Instance
from console.fleet.models import Engine, Host
from console.gateway.models import Key, Route
from console.jobs.models import Job
from workers.benchmark_payloads import (
    BenchmarkResult,
    LoadPlan,
    QualityResult,
    RequestTimes,
    RunNumbers,
    Targets,
    Workload,
)

BENCHMARK_STATES = StateTable(
    {
        "queued": "running succeeded failed cancelled",
        "running": "succeeded failed cancelled",
        "failed": "running",  # a retry of its job goes on behind the runs that were made
        "succeeded": "",
        "cancelled": "",
    }
)
ORIGINS = [
    ("person", _("asked for")),
    ("gate", _("gate")),
    ("study", _("study")),
    ("import", _("imported")),
]


class Dataset(Owned):
    """Prompts or conversations that a person brought."""

    name = models.CharField(max_length=120)
    form = models.CharField(
        max_length=14, choices=[("prompts", _("prompts")), ("conversations", _("conversations (ShareGPT)"))]
    )
    rows: Any = models.JSONField(default=list)
    """`workers.benchmark_payloads.Prompt`s or `Turn`s, as many as are sent along at most."""
    found = models.PositiveIntegerField(default=0)
    """Rows of the file; more than are kept if it was sampled."""
    sha256 = models.CharField(max_length=64)
    uploaded_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    uploaded_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["team", "name"], name="one_dataset_per_name")]

    def __str__(self) -> str:
        return self.name


class Benchmark(Owned, Stateful):
    """One measurement: what was asked, of what, and how it ended. Only a succeeded one is whole."""

    STATES = BENCHMARK_STATES
    state = models.CharField(max_length=12, choices=BENCHMARK_STATES.choices(), default="queued")
    title = models.CharField(max_length=160)
    origin = models.CharField(max_length=8, choices=ORIGINS, default="person")
    deployment = models.ForeignKey(Deployment, null=True, on_delete=models.SET_NULL, related_name="benchmarks")
    instance = models.ForeignKey(Instance, null=True, on_delete=models.SET_NULL, related_name="+")
    host = models.ForeignKey(Host, null=True, on_delete=models.SET_NULL, related_name="+")
    revision = models.ForeignKey(Revision, null=True, on_delete=models.SET_NULL, related_name="+")
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="+")
    step = models.PositiveBigIntegerField(null=True)
    """The job's step that measures; a deploy job has others beside it."""
    profile = models.CharField(max_length=20)
    """A name of `console.benchmarks.profiles.PROFILES`."""
    workload: Any = models.JSONField(default=dict)
    """`workers.benchmark_payloads.Workload` without an upload's rows."""
    dataset = models.ForeignKey(Dataset, null=True, on_delete=models.SET_NULL, related_name="+")
    loads: Any = models.JSONField(default=dict)
    targets: Any = models.JSONField(default=dict)
    remote_url = models.CharField(max_length=400, blank=True)
    remote_model = models.CharField(max_length=300, blank=True)
    remote_key = models.TextField(blank=True)
    """Encrypted (`common.secrets`); emptied when the benchmark has ended."""
    endpoint = models.ForeignKey("Endpoint", null=True, on_delete=models.SET_NULL, related_name="+")
    """The allowed server that was measured; None of an instance, and where the server was typed."""
    route = models.ForeignKey(Route, null=True, on_delete=models.SET_NULL, related_name="+")
    """The route that was measured through the gateway."""
    gateway_key = models.ForeignKey(Key, null=True, on_delete=models.SET_NULL, related_name="+")
    """Made for it alone (`console.benchmarks.route_targets`)."""
    client_engine = models.ForeignKey(Engine, null=True, on_delete=models.SET_NULL, related_name="+")
    """Whose client asked another server."""
    tokenizer = models.ForeignKey(Copy, null=True, on_delete=models.SET_NULL, related_name="+")
    """Whose tokens were counted at another server."""
    subject: Any = models.JSONField(default=dict)
    """What was measured, as it was then: `console.benchmarks.subjects`."""
    result: Any = models.JSONField(default=dict)
    """`workers.benchmark_payloads.BenchmarkResult`; empty until it is whole."""
    quality: Any = models.JSONField(default=dict)
    """`workers.benchmark_payloads.QualityResult`; empty where the question set wasn't asked."""
    failure: Any = models.JSONField(null=True)
    notes = models.TextField(blank=True)
    tags: Any = models.JSONField(default=list)
    requested_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-pk"]
        indexes = [
            models.Index(fields=["state", "-id"]),
            models.Index(fields=["deployment", "-id"]),
            models.Index(fields=["revision", "-id"]),
        ]

    def __str__(self) -> str:
        return self.title

    @property
    def is_whole(self) -> bool:
        """True once everything that was asked for was measured."""
        return self.state == "succeeded"

    @property
    def is_live(self) -> bool:
        """True while it may still change by itself."""
        return self.state in ("queued", "running")

    @property
    def load_plan(self) -> LoadPlan:
        """Which loads were asked for."""
        return LoadPlan.model_validate(self.loads)

    @property
    def asked(self) -> Workload:
        """What was asked at each load."""
        return Workload.model_validate(self.workload)

    @property
    def goals(self) -> Targets:
        """What makes a request a good one."""
        return Targets.model_validate(self.targets)

    @property
    def answered(self) -> QualityResult | None:
        """How it answered the question set; None where that wasn't asked."""
        return QualityResult.model_validate(self.quality) if self.quality else None

    @property
    def outcome(self) -> BenchmarkResult | None:
        """How it ended; None until it is whole."""
        return BenchmarkResult.model_validate(self.result) if self.result else None


class Run(models.Model):
    """One run at one load. Its raw result is kept as the engine wrote it, without the generated texts."""

    benchmark = models.ForeignKey(Benchmark, on_delete=models.CASCADE, related_name="runs")
    key = models.CharField(max_length=60)
    by = models.CharField(max_length=12)
    load = models.FloatField()
    repeat = models.PositiveSmallIntegerField()
    numbers: Any = models.JSONField(null=True)
    """`workers.benchmark_payloads.RunNumbers`; null: it came to nothing, `problem` says why."""
    problem = models.TextField(blank=True)
    requests: Any = models.JSONField(default=list)
    """`RequestTimes` as lists: at, ttft_ms, e2e_ms, output_tokens, ok."""
    requests_left_out = models.PositiveIntegerField(default=0)
    argv: Any = models.JSONField(default=list)
    host_load: Any = models.JSONField(null=True)
    raw = models.TextField(blank=True)
    """gzipped JSON, base64; empty where it was too large to send: then it lies on the host."""
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["benchmark", "by", "load", "repeat"]
        constraints = [models.UniqueConstraint(fields=["benchmark", "key"], name="one_run_per_key")]

    def __str__(self) -> str:
        return f"{self.benchmark} {self.key}"

    @property
    def told(self) -> RunNumbers | None:
        """The numbers; None where it came to nothing."""
        return RunNumbers.model_validate(self.numbers) if self.numbers else None

    @property
    def times(self) -> list[RequestTimes]:
        """Its requests, in the order in which they began."""
        names = ("at", "ttft_ms", "e2e_ms", "output_tokens", "ok")
        return [RequestTimes(**dict(zip(names, row, strict=True))) for row in self.requests]

    def raw_json(self) -> Any:
        """What the engine wrote; None where it isn't here."""
        return json.loads(gzip.decompress(base64.b64decode(self.raw))) if self.raw else None


class Endpoint(Owned):
    """An OpenAI-compatible server that an admin allows to be measured: the gateway, another engine, a rented one."""

    name = models.CharField(max_length=80)
    url = models.CharField(max_length=400)
    """Without `/v1`."""
    model = models.CharField(max_length=300)
    """The name that is asked for."""
    key = models.TextField(blank=True)
    """Encrypted (`common.secrets`); shown to nobody, sealed to the host that asks."""
    allowed_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    allowed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["team", "name"], name="one_endpoint_per_name")]

    def __str__(self) -> str:
        return f"{self.name}: {self.model}"


class Baseline(Owned):
    """A benchmark that later ones of the same kind are judged by: one per model, device, engine, arguments and profile."""

    revision = models.ForeignKey(Revision, on_delete=models.CASCADE, related_name="baselines")
    device = models.CharField(max_length=120)
    profile_digest = models.CharField(max_length=64)
    """Of workload, loads and targets: only what was asked alike can be compared."""
    spec_class = models.CharField(max_length=64, blank=True)
    """Digest of what of a spec changes its speed on purpose: `console.benchmarks.subjects.spec_class`."""
    engine_version = models.CharField(max_length=40)
    benchmark = models.ForeignKey(Benchmark, on_delete=models.PROTECT, related_name="baseline_of")
    chosen_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    chosen_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-chosen_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["team", "revision", "device", "profile_digest", "spec_class", "engine_version"],
                name="one_baseline_per_kind",
            )
        ]

    def __str__(self) -> str:
        return f"{self.revision} on {self.device}"

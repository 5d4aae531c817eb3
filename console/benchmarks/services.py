"""Benchmarks' verbs: ask for one, note and tag it, delete it; and what its job does to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.benchmarks import subjects
from console.benchmarks.models import Baseline, Benchmark, Dataset, Endpoint, Run
from console.benchmarks.profiles import fitted
from console.catalog.models import Copy
from console.common import live
from console.common.errors import Refused
from console.common.secrets import encrypt
from console.common.states import move
from console.deployments.models import Instance
from console.fleet.models import Engine, Host
from console.gateway.models import Route
from console.jobs import services as jobs
from console.jobs.models import Job, Step
from console.jobs.services import PlannedStep
from workers.benchmark_payloads import BenchmarkPayload, LoadPlan, QualityPayload, RemoteTarget, Targets, Workload
from workers.benchmark_payloads import Run as ReportedRun
from workers.contracts import StepKind, StepPart

LONGEST_SECONDS = 6 * 3600
QUALITY_SECONDS = 3600
"""For the question set, the wait for other measurements on its device included."""
_RUN_EXTRA_SECONDS = 120
"""Start of the engine's client and its warm-up, which can take so long on a busy machine."""
_BENCH_SINCE = (0, 10)


class TrafficRefused(Refused):
    """The instance serves people right now: the benchmark needs a person's yes."""


@dataclass(frozen=True)
class Question:
    """What shall be asked, and how much of it."""

    profile: str
    workload: Workload
    loads: LoadPlan
    targets: Targets = field(default_factory=Targets)
    dataset: Dataset | None = None

    def digest(self) -> str:
        """A name for it: only benchmarks that asked the same are compared by a gate."""
        return subjects.question_digest(**self.stored())

    def stored(self) -> dict[str, Any]:
        """Columns of it."""
        without = {"prompts", "conversations"} if self.dataset is not None else set()
        return {
            "workload": self.workload.model_dump(mode="json", exclude=without),
            "loads": self.loads.model_dump(mode="json"),
            "targets": self.targets.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class Remote:
    """Another OpenAI-compatible server: asked from `host`, by an engine there, counted by a model's tokenizer there."""

    url: str
    model: str
    key: str
    engine: Engine
    tokenizer: Copy
    endpoint: Endpoint | None = None
    """As an admin allowed it; None: it was typed."""
    route: Route | None = None
    """Behind our own gateway; its key is made when the host is told to ask."""
    devices: tuple[str, ...] = ()
    """Of the asking host, which serve what is measured: they are measured alone."""

    @property
    def title(self) -> str:
        """What it is called where nobody gave a name."""
        if self.route is not None:
            return _("%(route)s, through the gateway") % {"route": self.route}
        return f"{self.model} · {self.endpoint.name if self.endpoint else self.url}"[:160]


def measure_instance(
    instance: Instance,
    question: Question,
    *,
    title: str = "",
    notes: str = "",
    tags: Sequence[str] = (),
    origin: str = "person",
    despite_traffic: bool = False,
    with_quality: bool = False,
    actor: User | None,
    reason: str = "",
) -> Benchmark:
    """Measure a ready instance; `with_quality`: after it has answered the question set.

    Refused with `TrafficRefused` if people use it, unless `despite_traffic`.
    """
    if instance.state != "ready" or instance.is_unknown:
        raise Refused(
            _("%(name)s is %(state)s; only an instance that is ready can be measured.")
            % {"name": instance, "state": instance.shown_look.word},
            field="instance",
        )
    _refuse_old(instance.engine)
    if not despite_traffic and (requests := subjects.traffic_of(instance)) >= 1:
        raise TrafficRefused(
            _("%(name)s is in use: about %(count)d requests in the last minute. They would be slowed down, and would "
              "disturb the numbers. Measure another instance, or say that you mean it.")
            % {"name": instance, "count": round(requests)}, field="despite_traffic")  # fmt: skip
    workload = fitted(question.workload, subjects.context_tokens(instance))
    asked = Question(question.profile, workload, question.loads, question.targets, question.dataset)
    payload = payload_for(instance, asked)
    with transaction.atomic():
        benchmark = Benchmark(
            title=title or str(instance), origin=origin, deployment=instance.deployment, instance=instance,
            host=instance.host, revision=instance.copy.revision, subject=subjects.of_instance(instance),
        )  # fmt: skip
        before = [quality_step(instance)] if with_quality else []
        return _start(
            benchmark,
            asked,
            payload,
            notes=notes,
            tags=tags,
            host=instance.host,
            actor=actor,
            reason=reason,
            before=before,
        )


def measure_remote(
    remote: Remote,
    question: Question,
    *,
    title: str = "",
    notes: str = "",
    tags: Sequence[str] = (),
    actor: User | None,
    reason: str = "",
) -> Benchmark:
    """Measure any OpenAI-compatible server from one of our hosts."""
    host = remote.engine.host
    if remote.tokenizer.host_id != host.pk:
        raise Refused(
            _("The tokenizer lies on %(there)s, the engine on %(here)s. Choose both on one host.")
            % {"there": remote.tokenizer.host, "here": host},
            field="tokenizer",
        )
    _refuse_old(remote.engine)
    payload = BenchmarkPayload(
        remote=RemoteTarget(url=remote.url, model=remote.model), engine=remote.engine.key,
        tokenizer_path=remote.tokenizer.path, devices=list(remote.devices) or [f"remote:{remote.url}"],
        workload=question.workload, loads=question.loads, targets=question.targets,
    )  # fmt: skip
    with transaction.atomic():
        benchmark = Benchmark(
            title=title or remote.title, route=remote.route,
            endpoint=remote.endpoint, client_engine=remote.engine, tokenizer=remote.tokenizer, remote_url=remote.url,
            remote_model=remote.model,
            remote_key=encrypt(remote.key) if remote.key else "", host=host,
            subject={"remote": remote.url, "model": remote.model, "client_engine": remote.engine.key}
            | subjects.of_host(host),
        )  # fmt: skip
        return _start(benchmark, question, payload, notes=notes, tags=tags, host=host, actor=actor, reason=reason)


def payload_for(instance: Instance, question: Question) -> BenchmarkPayload:
    """What the instance's host is told to measure."""
    return BenchmarkPayload(
        instance=instance.uuid, start=instance.start, engine=instance.engine.key, tokenizer_path=instance.copy.path,
        devices=[device.uuid for device in subjects.devices_of(instance)], workload=question.workload,
        loads=question.loads, targets=question.targets,
    )  # fmt: skip


def quality_step(instance: Instance) -> PlannedStep:
    """The step that asks an instance the question set."""
    devices = [device.uuid for device in subjects.devices_of(instance)]
    payload = QualityPayload(instance=instance.uuid, start=instance.start, devices=devices)
    return PlannedStep(StepKind.QUALITY, payload.model_dump(mode="json"), QUALITY_SECONDS)


def deadline_seconds(loads: LoadPlan) -> float:
    """How long the step may take, the wait for other benchmarks on its device included."""
    each = loads.run_limit_seconds + _RUN_EXTRA_SECONDS
    if loads.sweep is not None:
        return min(LONGEST_SECONDS, loads.sweep.budget_seconds + each * loads.repeats + 1800)
    return min(LONGEST_SECONDS, each * len(loads.values) * loads.repeats + 1800)


def _start(
    benchmark: Benchmark,
    question: Question,
    payload: BenchmarkPayload,
    *,
    notes: str,
    tags: Sequence[str],
    host: Host,
    actor: User | None,
    reason: str,
    before: Sequence[PlannedStep] = (),
) -> Benchmark:
    for name, value in question.stored().items():
        setattr(benchmark, name, value)
    benchmark.profile, benchmark.dataset = question.profile, question.dataset
    benchmark.notes, benchmark.tags, benchmark.requested_by, benchmark.team_id = notes, list(tags), actor, host.team_id
    benchmark.save()
    access.record(
        actor=actor, action="benchmark.start", target=benchmark.title, target_url=f"/benchmarks/{benchmark.pk}/",
        reason=reason, profile=question.profile,
    )  # fmt: skip
    job = jobs.create(
        kind="benchmark",
        title=_("Benchmark %(name)s") % {"name": benchmark.title},
        host=host,
        steps=[*before, PlannedStep(StepKind.BENCHMARK, stored_payload(payload), deadline_seconds(question.loads))],
        actor=actor,
        subject=("benchmark", benchmark.pk),
        reason=reason,
    )
    benchmark.job, benchmark.step = job, job.steps.get(kind=StepKind.BENCHMARK).pk
    benchmark.save(update_fields=["job", "step"])
    live.changed("benchmark", benchmark.pk)
    return benchmark


def stored_payload(payload: BenchmarkPayload) -> dict[str, Any]:
    """The payload as a step keeps it: without an upload's rows, which are added when it is sent."""
    return payload.model_dump(mode="json", exclude={"workload": {"prompts", "conversations"}})


def with_upload(payload: Mapping[str, Any], benchmark: Benchmark) -> dict[str, Any]:
    """The payload as it is sent."""
    if benchmark.dataset is None:
        own = benchmark.workload.get("prompts") or []
        return {**payload, "workload": {**payload["workload"], "prompts": own}}
    return {**payload, "workload": {**payload["workload"], benchmark.dataset.form: benchmark.dataset.rows}}


def _refuse_old(engine: Engine) -> None:
    parts = [int(part) if part.isdigit() else 0 for part in engine.version.split(".")[:2]]
    if tuple(parts) < _BENCH_SINCE:
        raise Refused(
            _("%(engine)s is too old: “vllm bench serve” exists since 0.10. Upgrade the engine.") % {"engine": engine},
            field="instance",
        )


def begun(benchmark: Benchmark) -> None:
    """Its step is sent."""
    if benchmark.state != "running":
        benchmark.started_at = benchmark.started_at or timezone.now()
        benchmark.failure = None
        benchmark.save(update_fields=["started_at", "failure"])
        move(benchmark, to="running")
    live.changed("benchmark", benchmark.pk)


def took_run(benchmark: Benchmark, part: StepPart) -> None:
    """Keep a run that was made; the same one again replaces itself."""
    told = ReportedRun.model_validate(part.content)
    Run.objects.update_or_create(
        benchmark=benchmark,
        key=told.key[:60],
        defaults={
            "by": told.by,
            "load": told.load,
            "repeat": told.repeat,
            "numbers": told.numbers.model_dump(mode="json") if told.numbers else None,
            "problem": told.problem,
            "requests": [[one.at, one.ttft_ms, one.e2e_ms, one.output_tokens, one.ok] for one in told.requests],
            "requests_left_out": told.requests_left_out,
            "argv": told.argv,
            "host_load": told.host.model_dump(mode="json") if told.host else None,
            "raw": part.raw,
        },
    )
    live.changed("benchmark", benchmark.pk)


def took_quality(benchmark: Benchmark, result: Mapping[str, Any]) -> None:
    """Keep how the question set was answered."""
    benchmark.quality = dict(result)
    benchmark.save(update_fields=["quality"])
    live.changed("benchmark", benchmark.pk)


def ended(benchmark: Benchmark, *, to: str, result: Mapping[str, Any] | None = None, failure: Any = None) -> None:
    """Its step has ended. Only a succeeded one has a result; of the others the runs that were made stay."""
    if benchmark.state == to:
        return
    benchmark.result, benchmark.failure = dict(result or {}), failure
    benchmark.finished_at = timezone.now()
    if to != "failed":
        benchmark.remote_key = ""  # a failed one may be retried, and needs it then
    benchmark.save(update_fields=["result", "failure", "finished_at", "remote_key"])
    move(benchmark, to=to, reason=(failure or {}).get("message", ""))
    live.changed("benchmark", benchmark.pk)


def describe(benchmark: Benchmark, *, notes: str, tags: Sequence[str], actor: User) -> None:
    """Change notes and tags."""
    benchmark.notes, benchmark.tags = notes, list(dict.fromkeys(tags))
    benchmark.save(update_fields=["notes", "tags"])
    access.record(
        actor=actor, action="benchmark.describe", target=benchmark.title, target_url=f"/benchmarks/{benchmark.pk}/"
    )
    live.changed("benchmark", benchmark.pk)


def delete(benchmark: Benchmark, *, actor: User) -> None:
    """Delete a benchmark that has ended, with its runs. Refused while a gate compares with it."""
    if benchmark.is_live:
        raise Refused(_("It still runs. Cancel its job first."))
    if Baseline.objects.filter(benchmark=benchmark).exists():
        raise Refused(_("It is a baseline. Choose another one first."))
    access.record(actor=actor, action="benchmark.delete", target=benchmark.title)
    benchmark.delete()
    live.changed("benchmark")


def of_step(step: Step) -> Benchmark | None:
    """The benchmark that a step makes; None if it was deleted."""
    return Benchmark.objects.select_related("dataset", "job").filter(step=step.pk).first()


def of_job(job: Job) -> Benchmark | None:
    """The benchmark of a benchmark job; None if it was deleted."""
    return Benchmark.objects.filter(pk=job.subject_id or 0).first()

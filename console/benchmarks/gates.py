"""Gates: a new engine is measured after its warm-up and admitted only if it keeps up with the baseline.

The baseline is a whole benchmark that asked the same. One is looked for of the same model, device, engine and arguments;
then the newest of the deployment, so that a change of the engine or of arguments is compared with what served before; then
the newest of the same model on the same kind of device. Where there is none, the first measurement becomes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from pydantic import Field

from console.access.models import User
from console.benchmarks import charts, comparison, presentation, services, subjects
from console.benchmarks.curves import MEASURES, Point, points
from console.benchmarks.models import Baseline, Benchmark
from console.benchmarks.profiles import PROFILES, fitted
from console.benchmarks.services import Question
from console.common.errors import Refused
from console.deployments.models import Deployment, Instance
from console.jobs import services as jobs
from console.jobs.models import Step
from console.jobs.services import PlannedStep
from workers.benchmark_payloads import LoadPlan, Targets, Workload
from workers.contracts import Failure, Level, Message, StepKind, StepPart


class Limits(Message):
    """How much worse than the baseline a new engine may be. Shares of the baseline's value; errors of all requests."""

    ttft_p95: float = Field(default=0.25, ge=0, le=10)
    throughput: float = Field(default=0.15, ge=0, le=1)
    goodput: float = Field(default=0.1, ge=0, le=1)
    errors: float = Field(default=0.02, ge=0, le=1)


class Gate(Message):
    """The gate of a spec, as `Spec.gate` holds it."""

    profile: str
    workload: Workload
    loads: LoadPlan
    targets: Targets = Targets()
    limits: Limits = Limits()

    def question(self, context_tokens: int | None) -> Question:
        """What is asked of an engine with this context."""
        return Question(self.profile, fitted(self.workload, context_tokens), self.loads, self.targets)


@dataclass(frozen=True)
class Judged:
    """One measure at one load against the baseline. `allowed`: how much worse it may be, as a share of the baseline."""

    load: str
    title: str
    baseline: str
    found: str
    worse: float
    allowed: float
    passed: bool

    @property
    def line(self) -> str:
        """In words."""
        text = _("%(load)s: %(title)s %(found)s, baseline %(baseline)s: %(worse)+.0f %% (at most %(allowed)+.0f %%)")
        values = {"load": self.load, "title": self.title, "found": self.found, "baseline": self.baseline}
        return text % {**values, "worse": 100 * self.worse, "allowed": 100 * self.allowed}


USUAL_LOADS = LoadPlan(values=[1, 4], requests=24, repeats=2, warmups=2)
"""Of a gate that nobody described further: a minute or two for each new engine."""
_JUDGED = (("ttft_p95", "ttft_p95"), ("throughput", "output_tokens_per_second"), ("goodput", "goodput_per_second"))
"""Name of a limit, and the measure that it is about."""


def judge(gate: Gate, found: Sequence[Point], baseline: Sequence[Point]) -> list[Judged]:
    """Every measure that has a limit, at every load that both have. A difference inside the noise passes."""
    others = {(point.by, point.load): point for point in baseline}
    rows = []
    for point in found:
        name = charts.load_name(point.by, point.load)
        errors = max((one.error_share for one in point.told), default=1.0)
        if errors > gate.limits.errors:
            rows.append(_errors_row(name, errors, gate.limits.errors))
        before = others.get((point.by, point.load))
        if before is not None:
            rows += _rows(gate, name, point, before)
    return rows


def _rows(gate: Gate, name: str, point: Point, before: Point) -> list[Judged]:
    rows = []
    for limit, key in _JUDGED:
        old, new = before.values.get(key), point.values.get(key)
        if old is None or new is None or not old.median:
            continue
        measure, allowed = MEASURES[key], getattr(gate.limits, limit)
        worse = (new.median - old.median) / old.median * (-1 if measure.higher else 1)
        noise = comparison.verdict(measure, old, new) in ("noise", "same")
        before_text, found_text = (presentation.number(one.median, measure.unit) for one in (old, new))
        passed = noise or worse <= allowed
        rows.append(Judged(name, str(measure.title), before_text, found_text, worse, allowed, passed))
    return rows


def _errors_row(name: str, errors: float, allowed: float) -> Judged:
    return Judged(name, _("failed requests"), "–", f"{100 * errors:.0f} %", errors, allowed, passed=False)


def baseline_for(benchmark: Benchmark) -> Baseline | None:
    """What a benchmark is judged by; None if nothing comparable was measured before."""
    rows = Baseline.objects.filter(
        team=benchmark.team_id, device=device_of(benchmark), profile_digest=digest_of(benchmark)
    ).exclude(benchmark=benchmark)
    rows = rows.select_related("benchmark").order_by("-chosen_at", "-pk")
    same = rows.filter(
        revision=benchmark.revision_id, engine_version=benchmark.subject.get("engine_version", ""),
        spec_class=benchmark.subject.get("spec_class", ""),
    )  # fmt: skip
    own = rows.filter(benchmark__deployment=benchmark.deployment_id) if benchmark.deployment_id else rows.none()
    return same.first() or own.first() or rows.filter(revision=benchmark.revision_id).first()


def device_of(benchmark: Benchmark) -> str:
    """Name of the (first) device that was measured."""
    return str(next(iter(benchmark.subject.get("devices") or []), ""))[:120]


def digest_of(benchmark: Benchmark) -> str:
    """What was asked, as a name."""
    return subjects.question_digest(workload=benchmark.workload, loads=benchmark.loads, targets=benchmark.targets)


def make_baseline(benchmark: Benchmark, *, actor: User | None, replace: bool = True) -> Baseline:
    """Let later benchmarks of the same kind be judged by this one. Refused unless it is whole and of one of our models.

    `replace` false: one that stands already stays.
    """
    if not benchmark.is_whole or benchmark.revision_id is None:
        raise Refused(_("Only a whole benchmark of an instance can be a baseline."))
    kind = {
        "team_id": benchmark.team_id, "revision_id": benchmark.revision_id, "device": device_of(benchmark),
        "profile_digest": digest_of(benchmark), "spec_class": benchmark.subject.get("spec_class", ""),
        "engine_version": benchmark.subject.get("engine_version", ""),
    }  # fmt: skip
    chosen = {"benchmark": benchmark, "chosen_by": actor, "chosen_at": timezone.now()}
    if replace:
        return Baseline.objects.update_or_create(defaults=chosen, **kind)[0]
    return Baseline.objects.get_or_create(defaults=chosen, **kind)[0]


class Keeper:
    """Measures and judges for the deployments below."""

    def step(self, instance: Instance) -> PlannedStep | None:
        """The step that measures; its payload is put together when it is sent."""
        gate = Gate.model_validate(instance.spec.gate)
        return PlannedStep(StepKind.BENCHMARK, {"gate": True}, services.deadline_seconds(gate.loads))

    def payload(self, instance: Instance) -> dict[str, Any]:
        """Asked of the engine as it runs now."""
        gate = Gate.model_validate(instance.spec.gate)
        question = gate.question(subjects.context_tokens(instance))
        return services.payload_for(instance, question).model_dump(mode="json")

    def begun(self, step: Step, instance: Instance) -> None:
        """A benchmark for each measurement; a retry measures another process, so it begins anew."""
        Benchmark.objects.filter(step=step.pk).exclude(state__in=("succeeded", "cancelled")).delete()
        gate = Gate.model_validate(instance.spec.gate)
        question = gate.question(subjects.context_tokens(instance))
        benchmark = Benchmark.objects.create(
            team_id=instance.deployment.team_id, title=_("Gate of %(name)s, spec %(number)d") % {
                "name": instance.deployment, "number": instance.spec.number}, origin="gate",
            deployment=instance.deployment, instance=instance, host=instance.host, revision=instance.copy.revision,
            job=step.job, step=step.pk, profile=question.profile, subject=subjects.of_instance(instance), **question.stored(),
        )  # fmt: skip
        services.begun(benchmark)

    def took_part(self, step: Step, part: StepPart) -> None:
        """A run was made."""
        if benchmark := _of(step):
            services.took_run(benchmark, part)

    def judge(self, step: Step, instance: Instance) -> Failure | None:
        """Why it isn't admitted; None if it is, or if there is nothing to compare with."""
        benchmark = _of(step)
        if benchmark is None:
            return None
        gate = Gate.model_validate(instance.spec.gate)
        baseline = baseline_for(benchmark)
        before = points(baseline.benchmark.runs.defer("raw", "requests")) if baseline else []
        rows = judge(gate, points(benchmark.runs.defer("raw", "requests")), before)
        bad = [row for row in rows if not row.passed]
        for row in rows:
            jobs.note(step.job, row.line, step=step, level=Level.INFO if row.passed else Level.WARNING)
        if baseline is None and not bad:
            jobs.note(step.job, _("There is no baseline yet: this measurement becomes it."), step=step)
        return _refusal(bad, benchmark, baseline) if bad else None

    def admitted(self, step: Step, instance: Instance) -> None:  # noqa: ARG002
        """It is whole; if nothing of its kind is a baseline yet, it is one from now on."""
        if benchmark := _of(step):
            services.ended(benchmark, to="succeeded", result=step.result)
            make_baseline(benchmark, actor=None, replace=False)

    def refused(self, step: Step) -> None:
        """Measured and not admitted: it is whole, and no baseline. Or it could not be measured."""
        if benchmark := _of(step):
            if step.result.get("runs") and not step.result.get("incomplete"):
                services.ended(benchmark, to="succeeded", result=step.result, failure=step.failure)
            else:
                services.ended(benchmark, to="failed", failure=step.failure)

    def abandoned(self, step: Step) -> None:
        """Its job was cancelled."""
        if (benchmark := _of(step)) and benchmark.is_live:
            services.ended(benchmark, to="cancelled")

    def usual(self) -> dict[str, Any]:
        """A chat, one alone and a few at once, within the usual limits."""
        return Gate(profile="chat", workload=PROFILES["chat"].workload, loads=USUAL_LOADS).model_dump(mode="json")

    def words(self, gate: Mapping[str, Any]) -> str:
        """What is asked at which loads, and how much worse it may be."""
        held = Gate.model_validate(gate)
        profile = PROFILES.get(held.profile)
        loads = ", ".join(charts.load_name(held.loads.by, load) for load in held.loads.values)
        limits = {name: f"{100 * share:.0f} %" for name, share in held.limits.model_dump().items()}
        return _(
            "%(profile)s, %(loads)s; TTFT p95 +%(ttft_p95)s, tokens/s -%(throughput)s, goodput -%(goodput)s, "
            "failed %(errors)s at most"
        ) % {"profile": profile.title if profile else held.profile, "loads": loads, **limits}


def _of(step: Step) -> Benchmark | None:
    return Benchmark.objects.filter(step=step.pk).order_by("-pk").first()


def _refusal(bad: Sequence[Judged], benchmark: Benchmark, baseline: Baseline | None) -> Failure:
    worst = max(bad, key=lambda row: row.worse)
    count = len(bad)
    message = ngettext(
        "the gate does not admit it: %(line)s",
        "the gate does not admit it, for %(count)d reasons; the worst: %(line)s",
        count,
    ) % {"count": count, "line": worst.line}
    link = f"/benchmarks/{benchmark.pk}/"
    if baseline is not None:
        link = f"/benchmarks/compare/?id={baseline.benchmark_id}&id={benchmark.pk}"
    return Failure(
        code="gate.not_passed",
        message=message,
        next=_(
            "Compare: %s. Change the spec; or, if this is what you want, choose this benchmark as the baseline and retry."
        )
        % link,
        evidence=[{"line": None, "text": row.line} for row in bad],
    )


def history(deployment: Deployment) -> list[Benchmark]:
    """Whole benchmarks of a deployment, oldest first: gates, and what people asked for."""
    rows = Benchmark.objects.filter(deployment=deployment, state="succeeded").order_by("-pk")[:100]
    return list(reversed(rows))


def gate_of(deployment: Deployment) -> Gate | None:
    """The gate that is in force."""
    spec = deployment.current_spec
    return Gate.model_validate(spec.gate) if spec is not None and spec.gate else None

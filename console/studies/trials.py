"""One trial: the job that brings an engine up, measures it and ends it again, and what came of it."""

from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _

from console.benchmarks import services as benchmarks
from console.benchmarks import subjects
from console.benchmarks.models import Benchmark
from console.benchmarks.profiles import fitted
from console.benchmarks.services import Question
from console.common.states import move
from console.deployments import claims
from console.deployments import services as deployments
from console.deployments.models import Instance, Launch
from console.jobs import services as jobs
from console.jobs.models import Step
from console.jobs.services import PlannedStep
from console.studies import services
from console.studies.models import Study, Trial
from workers.contracts import StepKind


def start(study: Study, trial: Trial) -> None:
    """Create a trial's spec, instance and job. Refused where its engine finds no room. Belongs into a transaction."""
    own = services.own_deployment(study)
    spec = services.spec_for(study, trial)
    newest = own.specs.order_by("-number").first()
    spec.number = newest.number + 1 if newest else 1
    spec.save()
    instance = deployments.new_instances(own, spec, claims.place(spec))[0]
    if own.state != "deploying":
        move(own, to="deploying", reason=trial.label)
    type(own).objects.filter(pk=own.pk).update(current_spec=spec)
    trial.spec, trial.instance, trial.started_at, trial.refused_at = spec, instance, timezone.now(), None
    trial.save(update_fields=["spec", "instance", "started_at", "refused_at"])
    move(trial, to="running")
    trial.job = jobs.create(
        kind="trial",
        title=_("%(study)s: %(label)s") % {"study": study.title, "label": _label(trial)},
        host=instance.host,
        steps=_steps(study, instance),
        actor=study.requested_by,
        subject=("study", study.pk),
        payload={"instance": instance.pk, "trial": trial.pk},
    )
    trial.save(update_fields=["job"])
    services.tell(study)


def _label(trial: Trial) -> str:
    return _("the base") if trial.is_base else trial.label[:100]


def _steps(study: Study, instance: Instance) -> list[PlannedStep]:
    steps = deployments.StepsOfInstances(verified={instance.copy.pk})
    steps.prepare(instance, actor=None)
    measure = PlannedStep(StepKind.BENCHMARK, {}, benchmarks.deadline_seconds(study.question.loads))
    return [
        *steps.planned,
        *deployments.bring_up(instance, study.start_deadline_seconds),
        *([benchmarks.quality_step(instance)] if study.with_quality else []),
        measure,
        deployments.stop_step(instance),
    ]


def of_job_payload(payload: dict[str, Any]) -> Trial:
    """The trial that a job measures."""
    rows = Trial.objects.select_related("study__dataset", "study__requested_by", "benchmark", "instance")
    return rows.get(pk=payload["trial"])


def question_for(trial: Trial, instance: Instance) -> Question:
    """What its engine is asked: as the study says, cut to what its context allows."""
    asked = trial.study.question
    workload = fitted(asked.workload, subjects.context_tokens(instance))
    return Question(asked.profile, workload, asked.loads, asked.targets, asked.dataset)


def measuring(trial: Trial, step: Step, instance: Instance) -> Benchmark:
    """Its benchmark begins."""
    question, study = question_for(trial, instance), trial.study
    benchmark = Benchmark.objects.create(
        team_id=study.team_id, title=f"{study.title}: {_label(trial)}"[:160], origin="study", instance=instance,
        host=instance.host, revision=instance.copy.revision, job=step.job, step=step.pk, profile=question.profile,
        dataset=question.dataset, subject=subjects.of_instance(instance), quality=trial.quality,
        requested_by=study.requested_by, **question.stored(),
    )  # fmt: skip
    Trial.objects.filter(pk=trial.pk).update(benchmark=benchmark)
    benchmarks.begun(benchmark)
    return benchmark


def learned(trial: Trial, instance: Instance) -> None:
    """Keep what its engine said at its start, which is gone with its logs one day."""
    launch = Launch.objects.filter(attempt__instance=instance).order_by("-pk").first()
    truth = dict(launch.truth) if launch is not None else {}
    Trial.objects.filter(pk=trial.pk).update(truth=truth)


def ended(trial: Trial, to: str, *, reason: str = "") -> None:
    """It was measured, or something was in the way."""
    Trial.objects.filter(pk=trial.pk).update(finished_at=timezone.now())
    move(trial, to=to, reason=reason)
    services.tell(trial.study)

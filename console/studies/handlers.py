"""What a trial's job does beside running its steps."""

from typing import Any

from django.utils.translation import gettext as _

from console.benchmarks import services as benchmarks
from console.common.errors import Refused
from console.deployments import handlers as deployments
from console.deployments import services
from console.jobs.kinds import register
from console.jobs.models import Job, Step
from console.studies import trials
from console.studies.models import Trial
from workers.contracts import StepKind, StepPart


class TrialHandler(deployments.BringUpHandler):
    """An engine comes up, is measured, and ends. It is never said to be ready, so nothing can send it a request."""

    def payload(self, step: Step) -> dict[str, Any]:
        """What is measured, as the instance runs now."""
        instance = deployments.instance_at(step)
        if step.kind == StepKind.QUALITY:
            return {**step.payload, "start": instance.start}
        if step.kind == StepKind.BENCHMARK:
            trial = _trial(step.job)
            told = benchmarks.payload_for(instance, trials.question_for(trial, instance)).model_dump(mode="json")
            return benchmarks.with_upload(told, trial.benchmark) if trial.benchmark else told
        return super().payload(step)

    def before_step(self, step: Step) -> None:
        """The launch is ordered, the measurement written down, the end ordered."""
        if step.kind == StepKind.BENCHMARK:
            trials.measuring(_trial(step.job), step, deployments.instance_at(step))
        elif step.kind == StepKind.STOP:
            services.halt(deployments.instance_at(step))
        else:
            super().before_step(step)

    def step_part(self, step: Step, part: StepPart) -> None:
        """A run was made."""
        if benchmark := benchmarks.of_step(step):
            benchmarks.took_run(benchmark, part)

    def step_succeeded(self, step: Step) -> None:
        """Keep the port, the time to start, what the engine said, the answers, the numbers; free the device."""
        instance, trial = deployments.instance_at(step), _trial(step.job)
        if step.kind == StepKind.PREFLIGHT:
            super().step_succeeded(step)
        elif step.kind == StepKind.LISTENING:
            Trial.objects.filter(pk=trial.pk).update(start_seconds=step.result.get("seconds"))
        elif step.kind == StepKind.WARMUP:
            trials.learned(trial, instance)
        elif step.kind == StepKind.QUALITY:
            Trial.objects.filter(pk=trial.pk).update(quality=step.result)
        elif step.kind == StepKind.BENCHMARK and (benchmark := benchmarks.of_step(step)):
            benchmarks.ended(benchmark, to="succeeded", result=step.result)
        elif step.kind == StepKind.STOP:
            deployments.forget(instance, reason=_("measured"))

    def job_succeeded(self, job: Job) -> None:
        """It is measured, and its device is free."""
        trials.ended(_trial(job), "succeeded")

    def job_failed(self, job: Job, step: Step) -> None:
        """Free the device. That a variant doesn't come up is a result too."""
        failure = step.failure or {}
        self._give_up(job, to="failed", failure=failure)
        trials.ended(_trial(job), "failed", reason=failure.get("message", ""))

    def job_cancelled(self, job: Job) -> None:
        """Free the device."""
        why = {"message": job.state_reason} if job.state_reason else None
        self._give_up(job, to="cancelled", failure=why)
        trials.ended(_trial(job), "cancelled", reason=job.state_reason)

    def _give_up(self, job: Job, *, to: str, failure: dict[str, Any] | None) -> None:
        benchmark = _trial(job).benchmark
        if benchmark is not None and benchmark.is_live:
            benchmarks.ended(benchmark, to=to, failure=failure)
        for instance in deployments.instances_of(job):
            instance.failure = failure if to == "failed" else None
            instance.save(update_fields=["failure"])
            deployments.give_up(instance, reason=(failure or {}).get("message", ""))

    def before_retry(self, job: Job, step: Step) -> None:
        """A study goes on as a whole."""
        del job, step
        raise Refused(_("This belongs to a study. Let that go on, on its page: it tries again what was not measured."))


def _trial(job: Job) -> Trial:
    return trials.of_job_payload(job.payload)


def register_handlers() -> None:
    """Called once, when the app is ready."""
    register("trial", TrialHandler())

"""What benchmark jobs do beside running their step."""

from typing import Any

from console.benchmarks import route_targets, services
from console.benchmarks.models import Benchmark
from console.common.secrets import decrypt
from console.jobs.kinds import JobHandler, register
from console.jobs.models import Job, Step
from workers.contracts import StepKind, StepPart


class BenchmarkHandler(JobHandler):
    """Keeps what was measured, run by run."""

    def payload(self, step: Step) -> dict[str, Any]:
        """With the rows of an upload, and the instance's start as it is now: a retry measures what runs then."""
        payload = dict(step.payload)
        benchmark = services.of_step(step) or services.of_job(step.job)
        if benchmark is None:
            return payload
        if benchmark.instance is not None:
            payload["start"] = benchmark.instance.start
        return payload if step.kind == StepKind.QUALITY else services.with_upload(payload, benchmark)

    def secrets(self, step: Step) -> dict[str, str]:
        """The key of a server that isn't ours, or of a route."""
        benchmark = services.of_step(step)
        if benchmark is not None and benchmark.route is not None:
            return {"target_key": route_targets.secret_for(benchmark, step)}
        return {"target_key": decrypt(benchmark.remote_key)} if benchmark and benchmark.remote_key else {}

    def before_step(self, step: Step) -> None:
        """It begins."""
        if benchmark := services.of_step(step) or services.of_job(step.job):
            services.begun(benchmark)

    def step_part(self, step: Step, part: StepPart) -> None:
        """A run was made."""
        if benchmark := services.of_step(step):
            services.took_run(benchmark, part)

    def step_succeeded(self, step: Step) -> None:
        """The question set is answered; or all that was asked for is measured."""
        if step.kind == StepKind.QUALITY:
            if benchmark := services.of_job(step.job):
                services.took_quality(benchmark, step.result)
        elif benchmark := services.of_step(step):
            _end(benchmark, to="succeeded", result=step.result)

    def job_failed(self, job: Job, step: Step) -> None:
        """The runs that were made stay, and are shown as what they are: not all."""
        if benchmark := services.of_job(job):
            _end(benchmark, to="failed", failure=step.failure)

    def job_cancelled(self, job: Job) -> None:
        """Likewise."""
        if benchmark := services.of_job(job):
            _end(benchmark, to="cancelled", failure={"message": job.state_reason} if job.state_reason else None)


def _end(benchmark: Benchmark, **how: Any) -> None:
    services.ended(benchmark, **how)
    route_targets.forget_key(benchmark)


def register_handlers() -> None:
    """Called once, when the app is ready."""
    register("benchmark", BenchmarkHandler())

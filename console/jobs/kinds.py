"""What each kind of job does beside running its steps: the apps above register a handler per kind."""

from typing import Any

from console.jobs.models import Job, Step
from workers.contracts import Failure, StepPart


class JobHandler:
    """Hooks of one kind of job. All of them run inside the transaction of the change that they answer to."""

    def payload(self, step: Step) -> dict[str, Any]:
        """Payload of a step as it is sent now; by default what was stored when the job was made."""
        return dict(step.payload)

    def secrets(self, step: Step) -> dict[str, str]:  # noqa: ARG002
        """Secrets that the step needs, by name; they are sealed to its host and stored nowhere on the way."""
        return {}

    def before_step(self, step: Step) -> None:
        """The step is about to be sent for the first time."""

    def step_succeeded(self, step: Step) -> None:
        """The step's result is stored. Raise `RunAgain` to have it sent once more, `NotGoodEnough` to have it fail."""

    def step_part(self, step: Step, part: StepPart) -> None:
        """A part of the step's result came in, which counts however the step ends. The same one may come again."""

    def job_succeeded(self, job: Job) -> None:
        """All steps succeeded."""

    def job_failed(self, job: Job, step: Step) -> None:
        """`step` failed, and the job with it."""

    def job_cancelled(self, job: Job) -> None:
        """The job was cancelled; nothing of it runs any more."""

    def resume_from(self, step: Step) -> int:
        """Position at which a retry of this failed step starts."""
        return step.position

    def before_retry(self, job: Job, step: Step) -> None:
        """A person asked to go on after `step` failed."""


class RunAgain(Exception):
    """A step's result can't be used after all (someone else was faster); it is sent again, with a fresh payload."""


class NotGoodEnough(Exception):
    """The step did what it should, and what came of it can't be accepted: it fails with this failure, its result kept."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


_handlers: dict[str, JobHandler] = {}


def register(kind: str, handler: JobHandler) -> None:
    """Name the handler of a kind of job. Called once, from an app's `ready`."""
    _handlers[kind] = handler


def handler_of(job: Job) -> JobHandler:
    """Handler of a job; one that does nothing more if its kind has none."""
    return handler_of_kind(job.kind)


def handler_of_kind(kind: str) -> JobHandler:
    """Handler of a kind of job: for jobs that hold another kind's steps."""
    return _handlers.get(kind) or JobHandler()

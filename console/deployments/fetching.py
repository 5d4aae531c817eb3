"""Deploying a model whose files are not on the host yet: the job fetches them before it verifies and launches."""

from typing import Any

from console.catalog.models import Copy
from console.jobs import copy_fetching, copy_sharing
from console.jobs.copy_checks import verify_payload
from console.jobs.kinds import JobHandler
from console.jobs.models import Job, Step
from workers.contracts import StepKind


def fetcher_of(step: Step) -> JobHandler | None:
    """What answers for a step that fetches the model's files on the way."""
    return copy_fetching.handler_for(step.job) if step.kind in copy_fetching.FETCHING else None


def stop(job: Job, step: Step | None = None) -> None:
    """Parts of what was being fetched stay for the next try, and a giving host closes its copy."""
    fetcher = copy_fetching.handler_for(job)
    if fetcher is None:
        return
    if step is None:
        fetcher.job_cancelled(job)
    elif step.kind != StepKind.VERIFY:
        fetcher.job_failed(job, step)


def go_on(job: Job, step: Step) -> None:
    """A retry of what failed before the files were there goes on with fetching them."""
    fetcher = copy_fetching.handler_for(job)
    last = job.steps.filter(kind=StepKind.DOWNLOAD).order_by("position").last()
    if fetcher is not None and last is not None and step.position <= last.position:
        fetcher.before_retry(job, step)


def verification(step: Step, copy: Copy) -> dict[str, Any]:
    """Payload of the verify step before a launch: files that came from another host must be what they are there."""
    payload = verify_payload(copy, launch=True)
    if "giver" in step.job.payload and step.job.payload.get("fetch") == copy.pk:
        payload["checksums"] += copy_sharing.sums_of(copy_sharing.giver_of(step.job))
    return payload

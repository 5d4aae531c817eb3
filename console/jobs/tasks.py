"""Celery tasks of the ledger: doorbells."""

from celery import shared_task

from console.jobs import reconcile, services


@shared_task(name="console.jobs.advance")
def advance(job_id: int) -> None:
    """Move a job on."""
    services.advance(job_id)


@shared_task(name="console.jobs.reconcile", expires=5)
def reconcile_round() -> None:
    """Make sure of everything, once."""
    reconcile.reconcile()

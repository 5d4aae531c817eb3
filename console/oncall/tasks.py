"""Celery tasks of the on-call page: doorbells."""

from celery import shared_task

from console.oncall import incidents


@shared_task(name="console.oncall.watch", expires=5)
def watch() -> None:
    """Open and close incidents, once."""
    incidents.run()

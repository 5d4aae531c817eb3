"""Celery tasks of studies: doorbells."""

from celery import shared_task

from console.studies import driver


@shared_task(name="console.studies.drive", expires=3)
def drive() -> None:
    """Move studies on, once."""
    driver.drive_all()

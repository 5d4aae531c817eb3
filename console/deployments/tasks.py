"""Celery tasks of deployments: doorbells."""

from celery import shared_task

from console.deployments import brake


@shared_task(name="console.deployments.watch_fleet", expires=5)
def watch_fleet() -> None:
    """Engage or release the brake, once."""
    brake.watch()

"""Celery tasks of deployments: doorbells."""

from celery import shared_task

from console.deployments import brake, log_keeping


@shared_task(name="console.deployments.watch_fleet", expires=5)
def watch_fleet() -> None:
    """Engage or release the brake, once."""
    brake.watch()


@shared_task(name="console.deployments.prune_logs", expires=600)
def prune_logs() -> None:
    """Remove logs that are too old, or too many, once."""
    log_keeping.prune()

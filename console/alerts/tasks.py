"""Celery tasks of alerts: doorbells."""

from celery import shared_task

from console.alerts import rounds


@shared_task(name="console.alerts.round", expires=10)
def alert_round() -> None:
    """Evaluate all rules, then send what is due."""
    rounds.run()

"""Sending steps to hosts. At most once each time; the reconcile beat sends again what nobody answered."""

from functools import lru_cache

import structlog
from celery import Celery
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from console.jobs.kinds import handler_of
from console.jobs.models import Step
from workers.app import host_app
from workers.contracts import RUN_STEP, StepKind, StepOrder, host_queue
from workers.sealing import seal

log = structlog.get_logger(__name__)


@lru_cache(maxsize=512)
def app_for(host_name: str) -> Celery:
    """The Celery application that sends to one host."""
    return host_app(host_name, settings.REDIS_URL)


def send(step_id: int) -> bool:
    """Send a step under a new fence. False: it no longer waits to be sent, or the broker is away."""
    with transaction.atomic():
        step = Step.objects.select_for_update().select_related("host", "job").get(pk=step_id)
        if step.state not in ("queued", "interrupted", "running"):
            return False
        Step.objects.filter(pk=step.pk).update(fence=F("fence") + 1, sent_at=timezone.now())
        step.refresh_from_db(fields=["fence"])
        handler = handler_of(step.job)
        order = StepOrder(
            step=step.pk,
            job=step.job_id,
            fence=step.fence,
            kind=StepKind(step.kind),
            deadline_seconds=step.deadline_seconds,
            payload=handler.payload(step),
            sealed={name: seal(step.host.public_key, text) for name, text in handler.secrets(step).items()},
        )
    try:
        app_for(step.host.name).send_task(
            RUN_STEP, args=[order.model_dump(mode="json")], queue=host_queue(step.host.name), retry=False
        )
    except (OperationalError, RedisError, OSError) as error:
        log.warning("step not sent", step=step.pk, host=step.host.name, error=str(error))
        return False
    return True

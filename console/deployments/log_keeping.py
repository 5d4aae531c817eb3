"""How long the console keeps logs: by age and by size, so that they outlast their hosts and don't fill the disk."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db.models import Sum
from django.utils import timezone

from console.common import live
from console.deployments.models import Attempt

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Pruned:
    """What one round removed."""

    logs: int = 0
    nbytes: int = 0


def prune(*, now: datetime | None = None) -> Pruned:
    """Remove logs that ended too long ago, then the oldest ones until the others fit. A running attempt's log stays."""
    now = now or timezone.now()
    ended = Attempt.objects.filter(ended_at__isnull=False, log_removed_at=None, log_bytes__gt=0).select_related(
        "instance"
    )
    too_old = ended.filter(ended_at__lt=now - timedelta(days=settings.LOGS_KEEP_DAYS))
    removed = [_remove(attempt, now) for attempt in too_old]
    kept = Attempt.objects.filter(log_removed_at=None).aggregate(total=Sum("log_bytes"))["total"] or 0
    for attempt in ended.order_by("ended_at", "pk").iterator():
        if kept <= settings.LOGS_KEEP_BYTES:
            break
        kept -= attempt.log_bytes
        removed.append(_remove(attempt, now))
    if removed:
        log.info("logs removed", logs=len(removed), bytes=sum(removed))
    return Pruned(len(removed), sum(removed))


def _remove(attempt: Attempt, now: datetime) -> int:
    """The row first: a log that is shown as there while its file is gone would look empty instead of removed."""
    Attempt.objects.filter(pk=attempt.pk).update(log_removed_at=now, log_complete=True)
    attempt.log_path.unlink(missing_ok=True)
    live.changed("attempt", attempt.pk)
    return attempt.log_bytes

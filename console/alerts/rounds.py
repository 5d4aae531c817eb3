"""What comes round: rules are evaluated and messages sent, one process at a time."""

import time

import structlog
from redis.exceptions import RedisError

from console.alerts import evaluation, sending
from console.common.broker import connection
from console.jobs.reconcile import INGEST_LAG_SECONDS, INGEST_PULSE

log = structlog.get_logger(__name__)

LOCK = "console:alerts:round"
LOCK_SECONDS = 60
PRUNE_EVERY = 3600
PRUNED = "console:alerts:pruned"


def run() -> None:
    """One round, unless another process is at it. Without fresh reports nothing is concluded: what is late is not gone."""
    redis = connection()
    if not redis.set(LOCK, "1", nx=True, ex=LOCK_SECONDS):
        return
    try:
        if _ingest_is_current():
            evaluation.evaluate_all()
        sending.send_due()
        if redis.set(PRUNED, "1", nx=True, ex=PRUNE_EVERY):
            sending.prune()
    finally:
        redis.delete(LOCK)


def _ingest_is_current() -> bool:
    try:
        at = connection().hget(INGEST_PULSE, "at")
    except RedisError as error:
        log.warning("alerts wait for the broker", error=str(error))
        return False
    return at is not None and time.time() - float(str(at)) < INGEST_LAG_SECONDS

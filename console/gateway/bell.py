"""The doorbell of the gateway's controller: it looks once a second anyway, and at once when this rings."""

import structlog
from redis.exceptions import RedisError

from console.common import broker
from console.common.commits import after_commit

log = structlog.get_logger(__name__)

CHANNEL = "console:gateway"


def ring() -> None:
    """Let the controller look once the running transaction has committed."""
    after_commit(_publish)


def _publish() -> None:
    try:
        broker.connection().publish(CHANNEL, "look")
    except RedisError as error:
        log.info("the gateway's doorbell is out of order; its timer looks within a second", error=str(error))

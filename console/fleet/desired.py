"""A host's desired state: put together from what the apps above contribute, and published under the host's prefix.

Level-triggered: the whole state is one key, the highest generation wins, and a doorbell message only says "look". The
reconcile beat publishes again what Redis lost, so either path alone suffices.
"""

from collections.abc import Callable
from typing import Any

import structlog
from django.db.models import F
from redis.exceptions import RedisError

from console.common import broker
from console.common.commits import after_commit
from console.fleet.models import Host
from workers.contracts import DesiredState, Generation, desired_key, doorbell_channel

log = structlog.get_logger(__name__)

Contribution = dict[str, Any]
_contributors: list[Callable[[Host], Contribution]] = []


def contribute(provider: Callable[[Host], Contribution]) -> None:
    """Register a function that returns fields of `DesiredState` for a host. Called once, from an app's `ready`."""
    if provider not in _contributors:
        _contributors.append(provider)


def compose(host: Host) -> DesiredState:
    """Build the host's desired state from the database."""
    fields: Contribution = {}
    for provider in _contributors:
        fields.update(provider(host))
    generation = Generation(epoch=host.epoch, number=host.generation)
    return DesiredState(generation=generation, **fields)


def change(host: Host) -> None:
    """Say that the host's desired state changed: a new generation now, published when the transaction commits."""
    Host.objects.filter(pk=host.pk).update(generation=F("generation") + 1)
    after_commit(publish, host.pk)


def publish(host_id: int) -> bool:
    """Write the current desired state and ring the doorbell. False: the broker is away (the beat tries again), or the
    host has no access to it (it was removed, or has not joined).
    """
    host = Host.objects.filter(pk=host_id).exclude(redis_password_sha256="").first()
    if host is None:
        return False
    state = compose(host)
    try:
        pipe = broker.connection().pipeline()
        pipe.set(desired_key(host.name), state.model_dump_json())
        pipe.publish(doorbell_channel(host.name), "desired")
        pipe.execute()
    except RedisError as error:
        log.warning("desired state not published", host=host.name, error=str(error))
        return False
    return True


def published_generation(host: Host) -> Generation | None:
    """Generation that stands in Redis, or None if there is none (or the broker is away)."""
    stored = broker.connection().get(desired_key(host.name))
    if not stored:
        return None
    return DesiredState.model_validate_json(stored).generation

"""The console's connection to Redis."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import redis
from django.conf import settings


@cache
def connection() -> "redis.Redis":
    """One pooled connection per process; calls fail within seconds instead of hanging when the broker is away."""
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=3, health_check_interval=10, decode_responses=True
    )


@contextmanager
def alone(name: str, *, seconds: int) -> Iterator[bool]:
    """Do something in one process at a time: yields False while another is at it. The turn of one that died ends in time.

    `seconds`: the longest turn.
    """
    link = connection()
    if not link.set(name, "1", nx=True, ex=seconds):
        yield False
        return
    try:
        yield True
    finally:
        link.delete(name)


def command(*words: str) -> Any:
    """Send a command that redis-py has no typed method for (ACL)."""
    return connection().execute_command(*words)  # type: ignore[no-untyped-call]

"""The console's connection to Redis."""

from functools import cache

import redis
from django.conf import settings


@cache
def connection() -> "redis.Redis":
    """One pooled connection per process; calls fail within seconds instead of hanging when the broker is away."""
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=3, health_check_interval=10, decode_responses=True
    )

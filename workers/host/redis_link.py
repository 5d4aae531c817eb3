"""How the agent's lanes reach Redis: every call has a timeout, and every lane reconnects for ever, by itself.

Each lane has a connection of its own, so that megabytes of log never delay a report.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from workers.app import tls_options

logger = logging.getLogger(__name__)

Client = redis.asyncio.Redis

_TIMEOUT_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 5.0
_CANCEL_AGAIN_SECONDS = 0.2


@dataclass(frozen=True)
class Address:
    """Where the broker is, with credentials, and the certificate authority (PEM) that is believed for it, if one is."""

    url: str
    authority: str = ""


def connect(address: Address) -> Client:
    """Return a client that fails quickly instead of retrying by itself: the lane decides what to do."""
    return redis.asyncio.from_url(
        address.url,
        **tls_options(address.url, address.authority),
        socket_timeout=_TIMEOUT_SECONDS,
        socket_connect_timeout=_TIMEOUT_SECONDS,
        health_check_interval=10,
        retry=Retry(NoBackoff(), 0),
        single_connection_client=False,
        max_connections=4,
    )


async def keep_connected(name: str, address: Address, session: Callable[[Client], Awaitable[None]]) -> None:
    """Run `session` with a fresh client, again and again; it ends by raising when the broker is gone."""
    pause = 0.1
    silent = False
    loop = asyncio.get_running_loop()
    while True:
        client = connect(address)
        began = loop.time()
        try:
            await session(client)
        except (RedisError, OSError, TimeoutError) as error:
            if loop.time() - began > _LONGEST_PAUSE_SECONDS:
                pause, silent = 0.1, False
            if not silent:
                logger.warning("%s: the broker can't be reached, trying on: %s", name, error)
                silent = True
        finally:
            await _close(client)
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


async def end(tasks: Collection["asyncio.Task[None]"]) -> None:
    """Cancel tasks until they have ended.

    Once is not enough: redis-py 8.1 sometimes swallows a cancellation that arrives while it connects, and goes on.
    """
    waiting = {task for task in tasks if not task.done()}
    while waiting:
        for task in waiting:
            task.cancel()
        _done, waiting = await asyncio.wait(waiting, timeout=_CANCEL_AGAIN_SECONDS)


async def _close(client: Client) -> None:
    try:
        await asyncio.wait_for(client.aclose(), timeout=1)
    except (RedisError, OSError, TimeoutError):
        return

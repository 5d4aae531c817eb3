"""Asking one engine again and again whether it is alive."""

import asyncio
import time
from dataclasses import dataclass

from workers.host.launching import LISTEN_ADDRESS

FAILURES_UNTIL_UNHEALTHY = 3
_EVERY_SECONDS = 1.0
_EVERY_SECONDS_WHILE_STARTING = 0.2
_TIMEOUT_SECONDS = 2.0
_OK = 200
_REQUEST = f"GET /health HTTP/1.1\r\nHost: {LISTEN_ADDRESS}\r\nConnection: close\r\n\r\n".encode()


@dataclass
class Health:
    """What the answers to /health say about one attempt. `failures` counts those in a row since the last good one."""

    attempt: int
    listening: bool = False
    """It has answered 200 at least once."""
    failures: int = 0
    failing_since: float | None = None
    """When, on the monotonic clock, the first of the failures in a row was asked for; None while it answers."""

    @property
    def unhealthy(self) -> bool:
        """True after too many failures in a row; a single slow answer under load is none."""
        return self.failures >= FAILURES_UNTIL_UNHEALTHY


async def watch_health(port: int, health: Health) -> None:
    """Keep `health` current until cancelled."""
    while True:
        asked_at = time.monotonic()
        status = await ask_health(port)
        good = status == _OK
        health.failing_since = None if good else health.failing_since or asked_at
        health.failures = 0 if good else health.failures + 1
        if health.listening and status not in (_OK, None):
            # No answer may be a busy moment; "no" is an answer: its engine core is dead.
            health.failures = max(health.failures, FAILURES_UNTIL_UNHEALTHY)
        health.listening = health.listening or good
        await asyncio.sleep(_EVERY_SECONDS if health.listening else _EVERY_SECONDS_WHILE_STARTING)


async def is_healthy(port: int) -> bool:
    """True if /health answers 200."""
    return await ask_health(port) == _OK


async def ask_health(port: int) -> int | None:
    """The HTTP status of /health, or None without an answer.

    Plain bytes: an HTTP client would cost more than all the rest of the supervision.
    """
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(LISTEN_ADDRESS, port)
            try:
                writer.write(_REQUEST)
                return int((await reader.readline()).split()[1])
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError, IndexError):
        return None

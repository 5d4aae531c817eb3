"""Asking one engine again and again whether it is alive."""

import asyncio
from dataclasses import dataclass

import httpx2

from workers.host.launching import LISTEN_ADDRESS

FAILURES_UNTIL_UNHEALTHY = 3
_EVERY_SECONDS = 1.0
_EVERY_SECONDS_WHILE_STARTING = 0.2
_TIMEOUT_SECONDS = 2.0


@dataclass
class Health:
    """What the answers to /health say about one attempt. `failures` counts those in a row since the last good one."""

    attempt: int
    listening: bool = False
    """It has answered 200 at least once."""
    failures: int = 0

    @property
    def unhealthy(self) -> bool:
        """True after too many failures in a row; a single slow answer under load is none."""
        return self.failures >= FAILURES_UNTIL_UNHEALTHY


async def watch_health(client: httpx2.AsyncClient, port: int, health: Health) -> None:
    """Keep `health` current until cancelled."""
    url = f"http://{LISTEN_ADDRESS}:{port}/health"
    while True:
        try:
            answer = await client.get(url, timeout=_TIMEOUT_SECONDS)
            good = answer.status_code == httpx2.codes.OK
        except httpx2.HTTPError:
            good = False
        health.failures = 0 if good else health.failures + 1
        health.listening = health.listening or good
        await asyncio.sleep(_EVERY_SECONDS if health.listening else _EVERY_SECONDS_WHILE_STARTING)

"""The reports lane: sends the outbox through the host's stream, in order, until the console has acknowledged it."""

import asyncio

from workers.contracts import acknowledged_key, reports_stream
from workers.host.outbox import Outbox
from workers.host.redis_link import Client

STREAM_LENGTH = 10_000
"""About how many entries the stream may hold; the outbox is the truth, so nothing is lost by the cap."""

_IN_FLIGHT = 2_000
_BATCH = 200
_POLL_SECONDS = 0.025
_ACKNOWLEDGED_EVERY_SECONDS = 1.0
_RESEND_AFTER_SECONDS = 5.0
_RESEND_AT_MOST_EVERY_SECONDS = 60.0


class ReportSender:
    """Sends what is behind the last acknowledged number. `doorbell` is set when the console may have acknowledged."""

    def __init__(self, host: str, outbox: Outbox) -> None:
        self.doorbell = asyncio.Event()
        self._outbox = outbox
        self._stream = reports_stream(host)
        self._acknowledged_key = acknowledged_key(host)
        self._acknowledged = 0
        self._sent = 0
        self._patience = _RESEND_AFTER_SECONDS
        self._moved_at = 0.0

    async def session(self, client: Client) -> None:
        """Send until the connection fails. Begins behind what the console has stored, whatever was sent before."""
        loop = asyncio.get_running_loop()
        self._sent = 0
        self._patience = _RESEND_AFTER_SECONDS
        next_look = 0.0
        while True:
            now = loop.time()
            if self.doorbell.is_set() or now >= next_look:
                self.doorbell.clear()
                next_look = now + _ACKNOWLEDGED_EVERY_SECONDS
                await self._read_acknowledged(client, now)
            if await self._send_next(client):
                self._moved_at = loop.time()
                continue
            if self._sent > self._acknowledged and now - self._moved_at > self._patience:
                self._send_again(now)
            await asyncio.sleep(_POLL_SECONDS)

    async def _read_acknowledged(self, client: Client, now: float) -> None:
        raw = await client.hget(self._acknowledged_key, str(self._outbox.id))
        number = int(raw) if raw else 0
        if number > self._acknowledged:
            self._outbox.delete_through(number)
            self._moved_at = now
            self._patience = _RESEND_AFTER_SECONDS
        self._acknowledged = number
        self._sent = max(self._sent, number)

    async def _send_next(self, client: Client) -> bool:
        room = min(_BATCH, _IN_FLIGHT - (self._sent - self._acknowledged))
        reports = self._outbox.after(self._sent, room) if room > 0 else []
        if not reports:
            return False
        async with client.pipeline(transaction=False) as pipeline:
            for _number, text in reports:
                pipeline.xadd(self._stream, {"json": text}, maxlen=STREAM_LENGTH, approximate=True)
            await pipeline.execute()
        self._sent = reports[-1][0]
        return True

    def _send_again(self, now: float) -> None:
        # A console that is away for a night must not find thousands of copies: each time it waits longer.
        self._sent = self._acknowledged
        self._moved_at = now
        self._patience = min(self._patience * 2, _RESEND_AT_MOST_EVERY_SECONDS)

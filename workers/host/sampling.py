"""Asking every engine of this host for its metrics, once a second.

There is one sampler for all who want to know: `latest` is what supervision looks at, and what the console gets is the
same samples in batches. A batch that can't be sent is dropped: a gap is a gap, and the next sample's counts hold it.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

from workers.contracts import MetricsBatch, samples_stream
from workers.host.launching import LISTEN_ADDRESS
from workers.host.own_requests import OwnRequests, Probes, no_probes
from workers.host.redis_link import Client
from workers.vllm.metrics import MetricsSample, parse_metrics
from workers.vllm.sample_messages import to_message

logger = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
STREAM_LENGTH = 1_000
"""About how many entries of the samples lane the broker keeps while nobody reads them."""
_TIMEOUT_SECONDS = 0.9
_LARGEST_ANSWER_BYTES = 8 << 20
_WAITING_BATCHES = 5
_REQUEST = (
    f"GET /metrics HTTP/1.1\r\nHost: {LISTEN_ADDRESS}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n".encode()
)


@dataclass(frozen=True, slots=True)
class Target:
    """An engine that listens: attempt `attempt` of `instance`, on `port` of this machine; `ready` for everybody's requests."""

    instance: UUID
    attempt: int
    port: int
    ready: bool = True
    probes: Callable[[], Probes] = no_probes


@dataclass(frozen=True, slots=True)
class Sampled:
    """The last answer of one instance. `sample.taken_at` is on `time.monotonic`."""

    attempt: int
    sample: MetricsSample


class Sampler:
    """Samples what `targets` names. `latest` has an entry for each instance that answered its last request."""

    def __init__(self, host: str, targets: Callable[[], Iterable[Target]]) -> None:
        self.latest: dict[UUID, Sampled] = {}
        self._targets = targets
        self._stream = samples_stream(host)
        self._waiting: deque[str] = deque(maxlen=_WAITING_BATCHES)
        self._news = asyncio.Event()
        self._own = OwnRequests()

    async def run(self) -> None:
        """Sample on every full second until cancelled, whatever the broker does."""
        while True:
            await asyncio.sleep(EVERY_SECONDS - time.time() % EVERY_SECONDS)
            await self.sample_all()

    async def sample_all(self) -> None:
        """Ask all engines at once, remember what they say, and put it up for sending."""
        targets = list(self._targets())
        asked = [target.probes() for target in targets]
        found = await asyncio.gather(*(scrape(target.port) for target in targets))
        self.latest = {
            target.instance: Sampled(target.attempt, sample)
            for target, sample in zip(targets, found, strict=True)
            if sample is not None
        }
        self._own.keep({target.instance for target in targets})
        if targets:
            batch = MetricsBatch.model_construct(
                samples=[
                    to_message(
                        one.sample,
                        instance=target.instance,
                        attempt=one.attempt,
                        own_since=self._own.since(
                            target.instance,
                            one.attempt,
                            one.sample,
                            ready=target.ready,
                            asked=probes,
                            probes=target.probes,
                        ),
                    )
                    for target, probes in zip(targets, asked, strict=True)
                    if (one := self.latest.get(target.instance)) is not None
                ],
                without=[target.instance for target in targets if target.instance not in self.latest],
            )
            self._waiting.append(batch.model_dump_json())
            self._news.set()

    async def session(self, client: Client) -> None:
        """Send batches until the connection fails. What was sampled while there was none is not sent late."""
        self._waiting.clear()
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                text = self._waiting.popleft()
                await client.xadd(self._stream, {"json": text}, maxlen=STREAM_LENGTH, approximate=True)


async def scrape(port: int) -> MetricsSample | None:
    """Ask one engine; None if it doesn't answer as it should within a second."""
    taken_at = time.monotonic()
    with contextlib.suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            text = body_of(await _answer(port))
        return parse_metrics(text, taken_at=taken_at)
    return None


async def _answer(port: int) -> bytes:
    reader, writer = await asyncio.open_connection(LISTEN_ADDRESS, port, limit=1 << 20)
    try:
        writer.write(_REQUEST)
        pieces: list[bytes] = []
        size = 0
        while piece := await reader.read(1 << 18):
            pieces.append(piece)
            size += len(piece)
            if size > _LARGEST_ANSWER_BYTES:
                raise ValueError("the answer is too large")
        return b"".join(pieces)
    finally:
        writer.close()


def body_of(answer: bytes) -> str:
    """The text of an HTTP answer; raises ValueError unless it is a whole 200."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end or head.split(b" ", 2)[1:2] != [b"200"]:
        raise ValueError("not a 200")
    headers = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    if b"chunked" in headers.get(b"transfer-encoding", b""):
        body = _joined_chunks(body)
    elif len(body) < int(headers.get(b"content-length", b"0")):
        raise ValueError("the answer was cut off")
    return body.decode("utf-8", "replace")


def _joined_chunks(body: bytes) -> bytes:
    pieces: list[bytes] = []
    at = 0
    while True:
        line_end = body.index(b"\r\n", at)
        size = int(body[at:line_end].split(b";")[0], 16)
        if size == 0:
            return b"".join(pieces)
        start = line_end + 2
        if len(body) < start + size:
            raise ValueError("the answer was cut off")
        pieces.append(body[start : start + size])
        at = start + size + 2

"""Live frames in the web process: one reader of the announcements for all open sockets.

Each frame is decoded once for each process, and what many people look at is computed once for each second, however many
they are.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

import redis.asyncio
import structlog
from django.conf import settings
from redis.exceptions import RedisError

from console.common.broker import connection
from console.telemetry.columns import Columns, of_frames
from console.telemetry.frames import Frame
from console.telemetry.measures import PERCENTILE_WINDOW_SECONDS
from console.telemetry.rings import LIVE, Rings

log = structlog.get_logger(__name__)

KEPT_SECONDS = PERCENTILE_WINDOW_SECONDS + 15
_BLOCK_MILLISECONDS = 2000
_PAUSE_SECONDS = 1.0
_MOST_BOARDS = 500


class LiveFrames:
    """The last seconds of the instances that someone watches."""

    def __init__(self) -> None:
        self._watched: dict[UUID, list[tuple[int, Frame]]] = {}
        self._watchers: dict[asyncio.Event, frozenset[UUID]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._computed: dict[object, tuple[int, str]] = {}
        self.version = 0
        """Rises with every announcement that was read."""

    async def watch(self, news: asyncio.Event, instances: Iterable[UUID]) -> None:
        """Set `news` whenever one of the instances has a new frame."""
        wanted = frozenset(instances)
        self._watchers[news] = wanted
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        missing = [instance for instance in wanted if instance not in self._watched]
        for instance in missing:
            self._watched[instance] = []
        if missing:
            before = await asyncio.to_thread(_last_seconds, missing)
            for instance, frames in before.items():
                known = {second for second, _frame in self._watched.get(instance, [])}
                older = [one for one in frames if one[0] not in known]
                self._watched[instance] = sorted([*older, *self._watched.get(instance, [])], key=lambda one: one[0])

    def leave(self, news: asyncio.Event) -> None:
        """Watch no longer. What nobody watches is forgotten, and without watchers nothing is read."""
        self._watchers.pop(news, None)
        wanted = frozenset().union(*self._watchers.values())
        for instance in self._watched.keys() - wanted:
            del self._watched[instance]
        if not self._watchers and self._reader is not None:
            self._reader.cancel()
            self._reader = None
            self._computed.clear()

    def columns(self, instances: Sequence[UUID]) -> list[Columns]:
        """The last seconds of each of the instances that has some."""
        found = [of_frames(self._watched[instance]) for instance in instances if self._watched.get(instance)]
        return [columns for columns in found if columns.starts]

    def computed(self, key: object, make: Callable[[], Any]) -> str:
        """What `make` gives, as JSON; computed once for each announcement, whoever asks."""
        version, text = self._computed.get(key, (-1, ""))
        if version != self.version:
            text = json.dumps(make(), ensure_ascii=False)
            if len(self._computed) > _MOST_BOARDS:
                self._computed.clear()  # most are boards that nobody has open any more
            self._computed[key] = (self.version, text)
        return text

    async def _read(self) -> None:
        """Follow the announcements; a broker that is away is asked again."""
        while True:
            client = redis.asyncio.from_url(settings.REDIS_URL, decode_responses=True, socket_timeout=10)
            try:
                rings, last = Rings(connection()), "$"
                while True:
                    answer: Any = await client.xread({LIVE: last}, count=500, block=_BLOCK_MILLISECONDS)
                    for _stream, entries in answer or []:
                        last = entries[-1][0]
                        self._take(
                            frame for _entry, fields in entries for frame in rings.announced(fields, self._watched)
                        )
            except (RedisError, OSError) as error:
                log.warning("live metrics wait for the broker", error=str(error))
            finally:
                with contextlib.suppress(RedisError, OSError):
                    await client.aclose()
            await asyncio.sleep(_PAUSE_SECONDS)

    def _take(self, frames: Iterable[tuple[UUID, int, Frame]]) -> None:
        touched = set()
        oldest = int(time.time()) - KEPT_SECONDS
        for instance, milliseconds, frame in frames:
            kept = self._watched.get(instance)
            if kept is None:
                continue
            second = milliseconds // 1000
            if kept and kept[-1][0] >= second:
                second = kept[-1][0] + 1
            kept.append((second, frame))
            while kept[0][0] < oldest and len(kept) > 1:
                kept.pop(0)
            touched.add(instance)
        if touched:
            self.version += 1
            for news, wanted in self._watchers.items():
                if wanted & touched:
                    news.set()


_by_loop: "WeakKeyDictionary[asyncio.AbstractEventLoop, LiveFrames]" = WeakKeyDictionary()


def live_frames() -> LiveFrames:
    """The one of this process (of its event loop, to be exact: tests have several)."""
    loop = asyncio.get_running_loop()
    if loop not in _by_loop:
        _by_loop[loop] = LiveFrames()
    return _by_loop[loop]


def _last_seconds(instances: Sequence[UUID]) -> dict[UUID, list[tuple[int, Frame]]]:
    now = time.time()
    try:
        return Rings(connection()).frames(instances, now - KEPT_SECONDS, now + 1)
    except RedisError as error:
        log.warning("live metrics without their last seconds", error=str(error))
        return {}

"""The last quarter of an hour of every engine, second by second, in Redis streams.

`ring` holds one engine's frames under the time at which the broker received the sample; the host's clock decides
nothing. `LIVE` announces every new frame to the web processes. What is kept for longer stands in the database.
"""

import json
import time
from collections.abc import Container, Iterable, Sequence
from typing import Any, cast
from uuid import UUID

from redis import Redis

from console.telemetry.columns import Columns, of_frames
from console.telemetry.frames import Bounds, Frame, dump, dump_bounds, load, load_bounds

SECONDS = 900
"""How far a ring reaches back."""
LIVE = "console:metrics:live"
BOUNDS = "console:metrics:bounds"
STORED = "console:metrics:stored"
"""Sorted set: instance's UUID -> up to which second (since the epoch) its frames are rolled up into the database."""
_LIVE_LENGTH = 2_000
_KEPT_AFTER_SECONDS = 3_600
_SPARE = 60
_LOOK_AGAIN_SECONDS = 1.0

New = tuple[UUID, str, Frame]
"""Instance, id of the stream entry in which its sample came (it begins with milliseconds since the epoch), frame."""


def ring(instance: UUID) -> str:
    """Key of one instance's ring."""
    return f"console:metrics:ring:{instance}"


def milliseconds(entry_id: str) -> int:
    """When the broker received a stream entry, in milliseconds since the epoch."""
    return int(entry_id.partition("-")[0])


class Rings:
    """Writes and reads rings; remembers the bounds that were seen."""

    def __init__(self, redis: "Redis") -> None:
        self._redis = redis
        self._bounds: Bounds = {}
        self._looked_at = float("-inf")

    def write(self, frames: Sequence[New]) -> None:
        """Append frames to their rings and announce them. A frame that is not newer than the ring's last is dropped."""
        known = set(self._bounds)
        texts = [(instance, entry, dump(frame, self._bounds)) for instance, entry, frame in frames]
        pipe = self._redis.pipeline(transaction=False)
        if fresh := {key: values for key, values in self._bounds.items() if key not in known}:
            pipe.hset(BOUNDS, mapping=cast(Any, dump_bounds(fresh)))
        for instance, entry, text in texts:
            pipe.xadd(ring(instance), {"f": text}, id=entry, maxlen=SECONDS + _SPARE, approximate=True)
            pipe.zadd(STORED, {str(instance): milliseconds(entry) // 60_000 * 60}, nx=True)
        announced = json.dumps([[str(instance), milliseconds(entry), text] for instance, entry, text in texts])
        pipe.xadd(LIVE, {"frames": announced}, maxlen=_LIVE_LENGTH, approximate=True)
        # After a crash a sample may be read once more; the broker refuses its id then, which is what we want.
        pipe.execute(raise_on_error=False)

    def keep(self, instances: Iterable[UUID]) -> None:
        """Rings that nobody writes any more go away by themselves after a while."""
        pipe = self._redis.pipeline(transaction=False)
        for instance in instances:
            pipe.expire(ring(instance), _KEPT_AFTER_SECONDS)
        pipe.execute()

    def read(self, instances: Sequence[UUID], first: float, end: float) -> dict[UUID, Columns]:
        """The slots, one a sample, from `first` up to (not including) `end`, both in seconds since the epoch."""
        return {instance: of_frames(frames) for instance, frames in self.frames(instances, first, end).items()}

    def frames(self, instances: Sequence[UUID], first: float, end: float) -> dict[UUID, list[tuple[int, Frame]]]:
        """The same as frames, each with the second in which it ended."""
        pipe = self._redis.pipeline(transaction=False)
        for instance in instances:
            pipe.xrange(ring(instance), str(int(first * 1000)), str(int(end * 1000) - 1))
        answers: Any = pipe.execute()
        return {instance: self._frames(entries) for instance, entries in zip(instances, answers, strict=True)}

    def announced(self, fields: dict[str, str], wanted: Container[UUID]) -> list[tuple[UUID, int, Frame]]:
        """The frames of one entry of `LIVE` that are of `wanted` instances: instance, milliseconds since the epoch, frame."""
        entries = ((UUID(instance), at, text) for instance, at, text in json.loads(fields["frames"]))
        return [(instance, at, load(text, self._bounds_of)) for instance, at, text in entries if instance in wanted]

    def _frames(self, entries: Sequence[tuple[str, dict[str, str]]]) -> list[tuple[int, Frame]]:
        found: dict[int, Frame] = {}
        for entry, fields in entries:
            # Two samples within one second: the later one's slot is the next second's, if that is free.
            second = milliseconds(entry) // 1000
            found.setdefault(second if second not in found else second + 1, load(fields["f"], self._bounds_of))
        return sorted(found.items())

    def _bounds_of(self, key: str) -> tuple[float, ...] | None:
        """Bounds by their id. Ones that are not known here are looked for in Redis, but not again and again."""
        if key not in self._bounds and time.monotonic() - self._looked_at > _LOOK_AGAIN_SECONDS:
            self._looked_at = time.monotonic()
            self._bounds |= load_bounds(cast(Any, self._redis.hgetall(BOUNDS)))
        return self._bounds.get(key)

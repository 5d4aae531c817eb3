"""Samples that hosts send become frames: in the rings, in the announcements, and in the numbers of right now."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from uuid import UUID

import structlog
from redis import Redis

from console.deployments import current
from console.deployments.models import Instance
from console.fleet import services as fleet
from console.fleet.models import Host
from console.telemetry import fleet_board
from console.telemetry.frames import FINISHED, Frame, frame_between, without_requests
from console.telemetry.rings import New, Rings, milliseconds
from workers.contracts import InstanceSample, MetricsBatch
from workers.vllm.histograms import Histogram, added
from workers.vllm.metrics import MetricsSample
from workers.vllm.sample_messages import from_message

log = structlog.get_logger(__name__)

CURRENT_SECONDS = 60
"""The numbers of right now are of so many seconds."""
CURRENT_EVERY_SECONDS = 2.0
SHOWN = ("time_to_first_token", "queue_wait")
_ASK_AGAIN_SECONDS = 10.0
_FORGET_SECONDS = 300.0


@dataclass
class Recent:
    """Sums over the last minute of one engine; what leaves the minute is taken off again."""

    frames: deque[tuple[float, Frame]] = field(default_factory=deque)
    seconds: float = 0.0
    grown: dict[str, float] = field(default_factory=dict)
    buckets: dict[tuple[str, tuple[float, ...]], list[float]] = field(default_factory=dict)
    """Observations in each bucket of the histograms in `SHOWN`, by name and bounds."""

    def add(self, at: float, frame: Frame) -> None:
        """Take in the frame that ended at `at` (seconds since the epoch)."""
        self.frames.append((at, frame))
        self._count(frame, 1)
        while self.frames and self.frames[0][0] <= at - CURRENT_SECONDS:
            self._count(self.frames.popleft()[1], -1)

    def _count(self, frame: Frame, sign: int) -> None:
        self.seconds += sign * frame.seconds
        for name, value in frame.grown.items():
            self.grown[name] = self.grown.get(name, 0.0) + sign * value
        for name in SHOWN:
            window = frame.histograms.get(name)
            if window is None:
                continue
            buckets = self.buckets.setdefault((name, window.bounds), [0.0] * len(window.bounds))
            for index, count in window.buckets.items():
                buckets[index] += sign * count

    def current(self) -> current.Current:
        """The minute as rates."""
        at, last = self.frames[-1]
        finished = [value for name, value in self.grown.items() if name.startswith(FINISHED)]
        return current.Current(
            at=at,
            generation_tokens=self._rate("generation_tokens"),
            prompt_tokens=self._rate("prompt_tokens"),
            requests=max(0.0, sum(finished)) / self.seconds if finished and self.seconds > 0 else None,
            errors=self._rate(f"{FINISHED}error"),
            running=last.now.get("requests_running"),
            waiting=last.now.get("requests_waiting"),
            kv_usage=last.now.get("kv_cache_usage"),
            kv_offload=last.now.get("kv_offload_usage"),
            preemptions=self._rate("preemptions"),
            acceptance=self._share("spec_accepted_tokens", "spec_draft_tokens"),
            queue_p95=queue.quantile(0.95) if (queue := self._histogram("queue_wait")) else None,
            ttft=self._histogram("time_to_first_token"),
        )

    def _histogram(self, wanted: str) -> Histogram | None:
        return added(
            Histogram(bounds, tuple(accumulate(buckets)), 0.0)
            for (name, bounds), buckets in self.buckets.items()
            if name == wanted
        )

    def _share(self, part: str, whole: str) -> float | None:
        below = self.grown.get(whole, 0.0)
        return max(0.0, min(1.0, self.grown.get(part, 0.0) / below)) if below > 0 else None

    def _rate(self, name: str) -> float | None:
        return max(0.0, self.grown[name]) / self.seconds if name in self.grown and self.seconds > 0 else None


@dataclass
class Intake:
    """Keeps each engine's last sample, to which the next is compared. After a restart the lanes still hold it."""

    rings: Rings
    _last: dict[UUID, tuple[str, MetricsSample]] = field(default_factory=dict)
    _owners: dict[UUID, tuple[int | None, int, float]] = field(default_factory=dict)
    """Host and deployment of each instance (no host: no such instance), and when that was asked."""
    _recent: dict[UUID, Recent] = field(default_factory=dict)
    _refused: set[tuple[int, UUID]] = field(default_factory=set)
    _current_at: float = 0.0
    _recorded_at: float = 0.0

    def take(self, host: Host, batches: Iterable[tuple[str, MetricsBatch]]) -> None:
        """Batches with the ids of their stream entries, oldest first."""
        frames: list[New] = []
        for entry, batch in batches:
            own = (message for message in batch.samples if self._is_own(host, message))
            found = ((message.instance, entry, self._frame(entry, message)) for message in own)
            frames += [(instance, at, frame) for instance, at, frame in found if frame is not None]
        if not frames:
            return
        self.rings.write(frames)
        for instance, entry, frame in frames:
            self._recent.setdefault(instance, Recent()).add(milliseconds(entry) / 1000, frame)

    def _frame(self, entry: str, message: InstanceSample) -> Frame | None:
        sample = from_message(message)
        before = self._last.get(message.instance)
        if before is not None and milliseconds(before[0]) > milliseconds(entry):
            return None
        self._last[message.instance] = (entry, sample)
        if before is None:
            return None  # a first sample says what was counted since the start of the engine, but not when
        frame = frame_between(before[1], sample)
        own = message.own_since is not None and before[1].taken_at >= message.own_since
        return without_requests(frame) if frame is not None and own else frame

    def _is_own(self, host: Host, message: InstanceSample) -> bool:
        owner = self._owner(message.instance)
        if owner is not None and owner != host.pk and (host.pk, message.instance) not in self._refused:
            self._refused.add((host.pk, message.instance))
            fleet.refuse_forged(host, what=f"metrics of instance {message.instance}", details={})
        return owner == host.pk

    def _owner(self, instance: UUID) -> int | None:
        """The host on which an instance runs; None if there is no such instance (any more)."""
        now = time.monotonic()
        found = self._owners.get(instance)
        if found is None or (found[0] is None and now - found[2] > _ASK_AGAIN_SECONDS):
            owner = Instance.objects.filter(uuid=instance).values_list("host_id", "deployment_id").first()
            found = self._owners[instance] = (*(owner or (None, 0)), now)
        return found[0]

    def tell_current(self, redis: "Redis") -> None:
        """Write the numbers of right now, if two seconds have passed; engines that are gone are forgotten."""
        now = time.time()
        if now - self._current_at < CURRENT_EVERY_SECONDS:
            return
        self._current_at = now
        gone = [one for one, recent in self._recent.items() if now - recent.frames[-1][0] > _FORGET_SECONDS]
        for instance in gone:
            for table in (self._recent, self._last, self._owners):
                table.pop(instance, None)
        numbers = {
            instance: recent.current()
            for instance, recent in self._recent.items()
            if now - recent.frames[-1][0] < current.SHOWN_FOR_SECONDS
        }
        pipe = redis.pipeline(transaction=False)
        if gone:
            pipe.hdel(current.KEY, *map(str, gone))
        for instance, told in numbers.items():
            pipe.hset(current.KEY, str(instance), current.dump(told))
        pipe.execute()
        if now - self._recorded_at >= fleet_board.EVERY_SECONDS:
            self._recorded_at = now
            deployments: dict[int, list[current.Current]] = {}
            for instance, told in numbers.items():
                deployments.setdefault(self._owners[instance][1], []).append(told)
            fleet_board.record(redis, deployments)

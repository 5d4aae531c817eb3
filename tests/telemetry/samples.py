"""Engines' metrics for tests: a load that is known to the last request, as samples, frames and stream entries."""

import math
import random
from dataclasses import dataclass, field
from uuid import UUID

from console.telemetry.columns import Columns, of_frames
from console.telemetry.frames import Frame, frame_between
from workers.contracts import MetricsBatch
from workers.vllm.histograms import Histogram
from workers.vllm.metrics import MetricsSample
from workers.vllm.sample_messages import to_message

TTFT_BOUNDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    math.inf,
)
TOKEN_BOUNDS = (
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1000.0,
    2000.0,
    5000.0,
    10000.0,
    20000.0,
    math.inf,
)
LONG_BOUNDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, math.inf)


@dataclass
class Meter:
    """A histogram that observes."""

    bounds: tuple[float, ...]
    counts: list[float] = field(default_factory=list)
    total: float = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts = self.counts or [0.0] * len(self.bounds)
        self.total += value * times
        for index, bound in enumerate(self.bounds):
            if value <= bound:
                self.counts[index] += times

    def read(self) -> Histogram:
        return Histogram(self.bounds, tuple(self.counts or [0.0] * len(self.bounds)), self.total)


@dataclass
class FakeLoad:
    """An engine that answers requests as a test says; everything counts from its start."""

    started_at: float = 1.0
    prompt: float = 0.0
    generated: float = 0.0
    finished: dict[str, float] = field(default_factory=lambda: {"stop": 0.0, "length": 0.0, "abort": 0.0, "error": 0.0})
    queries: float = 0.0
    hits: float = 0.0
    preempted: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    kv: float = 0.0
    ttft: Meter = field(default_factory=lambda: Meter(TTFT_BOUNDS))
    itl: Meter = field(default_factory=lambda: Meter(TTFT_BOUNDS))
    e2e: Meter = field(default_factory=lambda: Meter(LONG_BOUNDS))
    queue: Meter = field(default_factory=lambda: Meter(LONG_BOUNDS))
    prompts: Meter = field(default_factory=lambda: Meter(TOKEN_BOUNDS))
    answers: Meter = field(default_factory=lambda: Meter(TOKEN_BOUNDS))

    def answer(
        self, count: int = 1, *, ttft: float = 0.05, tokens: int = 20, prompt: int = 100, reason: str = "stop"
    ) -> None:
        self.prompt += prompt * count
        self.generated += tokens * count
        self.finished[reason] += count
        self.queries += 100 * count
        self.hits += 25 * count
        self.ttft.observe(ttft, count)
        self.itl.observe(0.01, (tokens - 1) * count)
        self.e2e.observe(ttft + 0.01 * tokens, count)
        self.queue.observe(ttft / 10, count)
        self.prompts.observe(prompt, count)
        self.answers.observe(tokens, count)

    def sample(self, at: float) -> MetricsSample:
        return MetricsSample(
            taken_at=at,
            started_at=self.started_at,
            requests_running=self.running,
            requests_waiting=self.waiting,
            kv_cache_usage=self.kv,
            prompt_tokens=self.prompt,
            generation_tokens=self.generated,
            preemptions=self.preempted,
            prefix_cache_queries=self.queries,
            prefix_cache_hits=self.hits,
            finished=dict(self.finished),
            time_to_first_token=self.ttft.read(),
            inter_token_latency=self.itl.read(),
            e2e_latency=self.e2e.read(),
            queue_wait=self.queue.read(),
            request_prompt_tokens=self.prompts.read(),
            request_generation_tokens=self.answers.read(),
        )

    def batch(self, instance: UUID, at: float, *, own_since: float | None = None) -> MetricsBatch:
        message = to_message(self.sample(at), instance=instance, attempt=1, own_since=own_since)
        return MetricsBatch(samples=[message])


def busy_frames(seconds: int, *, seed: int = 1) -> list[Frame]:
    """One frame a second of an engine under a lively load."""
    dice = random.Random(seed)
    load = FakeLoad()
    frames, before = [], load.sample(0)
    for second in range(1, seconds + 1):
        load.running, load.waiting, load.kv = dice.randint(0, 60), dice.randint(0, 9), dice.random()
        for _ in range(dice.randint(0, 8)):
            load.answer(ttft=dice.expovariate(5), tokens=dice.randint(5, 400))
        after = load.sample(second)
        frame = frame_between(before, after)
        assert frame is not None
        frames.append(frame)
        before = after
    return frames


def busy_columns(first: int, seconds: int, *, seed: int = 1) -> Columns:
    return of_frames(list(enumerate(busy_frames(seconds, seed=seed), first)))

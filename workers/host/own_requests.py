"""Which of the requests that an engine counts are Slipway's own, so that no dashboard shows them as somebody's.

Until an attempt is ready nobody else asks it: what it counts is validation, warm-up and a gate's load. Later the agent asks
an idle engine now and then for one token. A sample is marked if all that was counted since the one before can only be
that; as soon as anything else was counted with it, everything counts: rather one probe too many than a request too few.
The mark says since when, so that a sample that got lost on its way takes nobody's requests with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from workers.vllm.metrics import MetricsSample
from workers.vllm.rates import growth_between

_PROBE_PROMPT_TOKENS = 4
"""A probe's prompt is one digit, with what a tokenizer puts around it; its answer is one token."""


@dataclass(frozen=True, slots=True)
class Probes:
    """Requests for one token: how many were begun since the attempt is watched, and how many have no answer yet."""

    begun: int = 0
    running: int = 0


def no_probes() -> Probes:
    """Of an engine that is asked for none."""
    return Probes()


@dataclass(frozen=True, slots=True)
class _Seen:
    attempt: int
    ready: bool
    probes: Probes
    sample: MetricsSample


@dataclass
class OwnRequests:
    """Remembers the last sample of each instance."""

    _seen: dict[UUID, _Seen] = field(default_factory=dict)

    def keep(self, instances: set[UUID]) -> None:
        """Forget all others."""
        for gone in self._seen.keys() - instances:
            del self._seen[gone]

    def since(
        self,
        instance: UUID,
        attempt: int,
        sample: MetricsSample,
        *,
        ready: bool,
        asked: Probes,
        probes: Callable[[], Probes],
    ) -> float | None:
        """The `taken_at` since which all that was counted is our own, 0 for the start of the process; None: it may be others'.

        `asked`: the probes at the moment in which the sample was asked for.
        """
        before, answered = self._seen.get(instance), probes()
        self._seen[instance] = _Seen(attempt, ready, asked, sample)
        if not ready:
            return 0.0
        if before is None or before.attempt != attempt:
            return None
        if not before.ready:
            return 0.0  # the warm-up's last request, counted after the last sample before readiness
        ours = answered.begun - before.probes.begun + before.probes.running
        running = asked.running + answered.begun - asked.begun
        return before.sample.taken_at if ours > 0 and _fits(before.sample, sample, ours, running) else None


def _fits(earlier: MetricsSample, later: MetricsSample, ours: int, running: int) -> bool:
    growth = growth_between(earlier, later)
    if growth is None or growth.restarted:
        return False
    return (
        sum(growth.finished.values()) + sum(growth.admission_rejections.values()) <= ours
        and growth.counters.get("generation_tokens", 0) <= ours
        and growth.counters.get("prompt_tokens", 0) <= ours * _PROBE_PROMPT_TOKENS
        and (later.requests_running or 0) + (later.requests_waiting or 0) <= running
    )

"""What was seen of both sides: requests of users (and copies of them) from the gateway's rows, and the console's own questions.

Rows are read once, as they come; after a restart of the console all of them are read again.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Q

from console.deployments.models import Instance
from console.gateway.models import GatewayRequest
from console.rollouts.inference import Counts, Times
from console.rollouts.models import Probe, Rollout, RolloutStep

USERS, PROBES, QUESTIONS = "users", "probes", "questions"
FULL_LOAD = 50
"""Beyond this share the new side carries more than the old one, and is held against what the old one was with that load."""
_ENDED_WELL = ("stop", "tool_calls", "function_call", "")


@dataclass(frozen=True)
class Sample:
    """One request. Times in milliseconds."""

    at: datetime
    stratum: str
    failed: bool
    ttft_ms: float | None
    pace_ms: float | None
    finish_reason: str
    latency_ms: float | None = None


@dataclass
class Side:
    """One side in one step, in the order in which requests were stored."""

    samples: list[Sample] = field(default_factory=list)

    def ttft(self) -> Times:
        """Times to the first token by stratum."""
        return _by_stratum((one.stratum, one.ttft_ms) for one in self.samples if not one.failed)

    def pace(self) -> Times:
        """Times between tokens by stratum."""
        return _by_stratum((one.stratum, one.pace_ms) for one in self.samples if not one.failed)

    def errors(self) -> Counts:
        """Failed ones and all, by stratum."""
        return _counts((one.stratum, one.failed) for one in self.samples)

    def cut(self) -> Counts:
        """Answers that did not end by themselves, and all that were answered, by stratum."""
        answered = (one for one in self.samples if not one.failed and one.finish_reason)
        return _counts((one.stratum, one.finish_reason not in _ENDED_WELL) for one in answered)

    @property
    def generates(self) -> bool:
        """False if all that was answered were vectors: nothing has a pace, or an end of its own."""
        answered = [one for one in self.samples if not one.failed]
        return not answered or any(one.finish_reason or one.pace_ms is not None for one in answered)

    @property
    def users(self) -> int:
        """Requests of users, and copies of them."""
        return sum(one.stratum == USERS for one in self.samples)


def together(sides: Iterable[Side]) -> Side:
    """Several steps as one."""
    return Side([one for side in sides for one in side.samples])


def _by_stratum(pairs: Iterable[tuple[str, float | None]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for stratum, value in pairs:
        if value is not None:
            found[stratum].append(value)
    return dict(found)


def _counts(pairs: Iterable[tuple[str, bool]]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for stratum, is_bad in pairs:
        bad, total = found.get(stratum, (0, 0))
        found[stratum] = (bad + is_bad, total + 1)
    return found


class Samples:
    """All that was seen of one rollout, by step and side."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._steps: dict[int, RolloutStep] = {}
        self._sides: dict[tuple[int, str], Side] = defaultdict(Side)
        self._side_of: dict[int, str] = {}
        self._request = self._probe = 0
        self._copied: dict[int, Counter[str]] = defaultdict(Counter)

    def read(self) -> None:
        """Take in what is new."""
        self._steps = {step.position: step for step in self._rollout.steps.all()}
        if not self._steps:
            return
        rows = Instance.objects.filter(deployment=self._rollout.deployment_id).values_list("pk", "spec")
        self._side_of = {pk: "new" if spec == self._rollout.new_spec_id else "old" for pk, spec in rows}
        self._request = max(self._request, self._steps[1].first_request)
        # A copy that found no engine names none.
        copies = Q(shadow=GatewayRequest.COPY, deployment=self._rollout.deployment.name)
        ours = Q(instance__in=list(self._side_of)) | copies
        for row in GatewayRequest.objects.filter(ours, pk__gt=self._request, refusal="").order_by("pk").iterator():
            self._request = row.pk
            self._take(row)
        for probe in Probe.objects.filter(rollout=self._rollout, pk__gt=self._probe).order_by("pk").iterator():
            self._probe = probe.pk
            self._put(probe.side, of_probe(probe))

    def _take(self, row: GatewayRequest) -> None:
        is_copy = row.shadow == GatewayRequest.COPY
        at = self._step_at(row.at)
        if at is not None and row.shadow:
            self._copied[at][row.shadow] += 1
            self._copied[at]["failed"] += is_copy and of_request(row).failed
        # What could not be copied has no like on the other side.
        if row.shadow in ("busy", "large"):
            return
        # A client that went away says nothing about the engine. A copy that was cut off did begin in its time.
        if row.end.startswith(("C", "c")) and not (is_copy and row.ttft_ms is not None):
            return
        self._put("new" if is_copy else self._side_of[row.instance or 0], of_request(row))

    def _step_at(self, at: datetime) -> int | None:
        return max((one.position for one in self._steps.values() if one.began_at <= at), default=None)

    def _put(self, side: str, sample: Sample) -> None:
        at = self._step_at(sample.at)
        if at is not None:
            self._sides[at, side].samples.append(sample)

    def copied(self, step: RolloutStep) -> Counter[str]:
        """How many requests of a step were copied (`original`), or not (`busy`, `large`); copies that ended, and failed."""
        return self._copied[step.position]

    def new(self, step: RolloutStep) -> Side:
        """The new side in a step."""
        return self._sides[step.position, "new"]

    def old(self, step: RolloutStep) -> Side:
        """The old side with a like load: in this step, or in those in which it carried as much as the new one does now."""
        if step.weight <= FULL_LOAD:
            return self._sides[step.position, "old"]
        before = [one.position for one in self._steps.values() if one.weight <= FULL_LOAD]
        return together(self._sides[at, "old"] for at in before or [step.position])

    def whole(self, side: str) -> Side:
        """One side over all steps."""
        return together(self._sides[at, side] for at in sorted(self._steps))

    def here(self, step: RolloutStep, side: str) -> Side:
        """One side in a step, as it was, for the chart."""
        return self._sides[step.position, side]


def of_request(row: GatewayRequest) -> Sample:
    """A request of a user. One that the engine refused or broke off counts as failed, whoever is at fault: both sides
    get the same requests."""  # fmt: skip
    pace = None
    counted = row.output_tokens if row.output_tokens and not row.is_estimate else 0
    if counted > 4 and row.latency_ms is not None and row.ttft_ms is not None:
        spent = row.latency_ms - row.ttft_ms
        pace = spent / (counted - 1) if spent > 0 else None
    failed = row.status >= 400 or row.end.startswith(("S", "s"))
    return Sample(row.at, USERS, failed, row.ttft_ms, pace, row.finish_reason, row.latency_ms)


def of_probe(probe: Probe) -> Sample:
    """A question of the console."""
    stratum = QUESTIONS if probe.is_validation else PROBES
    return Sample(probe.at, stratum, bool(probe.trouble), probe.ttft_ms, probe.pace_ms, probe.finish_reason)

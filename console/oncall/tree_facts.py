"""What decision trees look at, gathered for one instance in one go, so that the trees themselves are pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from console.common.models import StateChange
from console.deployments import claims, current, log_index, what_changed
from console.deployments.current import Current
from console.deployments.log_index import Match
from console.deployments.models import Attempt, GoldenAnswer, Instance, Launch
from console.gateway.models import GatewayRequest
from console.jobs.models import Step
from workers.contracts import StepKind
from workers.host_facts import Live, facts_of, live_of

RECENT = timedelta(hours=24)
REQUESTS_LOOKED_AT = 500
MOST_LINES = 40

PATTERNS: Mapping[str, tuple[str, ...]] = {
    "out_of_memory": ("CUDA out of memory", "OutOfMemoryError", "HIP out of memory", "Cannot allocate memory"),
    "killed": ("SIGKILL", "Killed process"),
    "no_room": ("No available memory for the cache blocks", "estimated maximum model length"),
    "preempted": ("is preempted by", "preempted"),
    "captured": ("Graph capturing finished", "Capturing CUDA graphs", "Capturing cudagraphs"),
    "compiled": ("torch.compile takes", "Compiling a graph", "Dynamo bytecode transform time"),
    "dumped": ("py-spy dump", "Thread 0x", "MainThread"),
    "shm": ("No space left on device: '/dev/shm", "shm_broadcast", "no available shared memory broadcast block"),
    "nccl": ("NCCL", "ProcessGroupNCCL"),
}
"""Texts whose presence in a log is a fact for a tree."""


@dataclass(frozen=True)
class End:
    """How the last process that ended by itself ended."""

    at: datetime
    code: str
    title: str
    message: str
    ran_seconds: float | None
    ready_seconds: float | None
    """How long it had been ready; None if it never was."""
    exit_code: int | None


@dataclass(frozen=True)
class Requests:
    """The newest requests that the gateway sent there."""

    count: int = 0
    failed: int = 0
    failed_prompt: float | None = None
    """Median length of the prompts that failed, in tokens."""
    sound_prompt: float | None = None
    first_ttft_ms: float | None = None
    """Time to the first token of the first request after the last start, in ms."""
    usual_ttft_ms: float | None = None


@dataclass(frozen=True)
class Facts:
    """All that is known of an instance now. None and empty: not known."""

    name: str
    state: str
    is_unknown: bool
    end: End | None = None
    ends_today: int = 0
    arguments: Sequence[str] = ()
    now: Current | None = None
    live: Live | None = None
    devices: Sequence[str] = ()
    instance_id: str = ""
    known_instances: frozenset[str] = frozenset()
    claims: Mapping[str, int] = field(default_factory=dict)
    xids: int = 0
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    control: Mapping[str, Any] | None = None
    copy_state: str = ""
    goldens: int = 0
    changed: Sequence[str] = ()
    has_good_start: bool = False
    requests: Requests = Requests()
    plan: Mapping[str, Any] = field(default_factory=dict)
    """`Plan.as_json` of the last start that came up: what was predicted."""
    truth: Mapping[str, Any] = field(default_factory=dict)
    warmup: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    """How many lines of the last log hold one of `PATTERNS`, up to `MOST_LINES`."""
    hung: bool = False
    engine: str = ""
    quantised: bool = False

    def option(self, name: str) -> str | None:
        """The value of an engine argument; an empty text for one without a value, None where it isn't given."""
        for at, word in enumerate(self.arguments):
            key, equals, value = word.partition("=")
            if key == name:
                follows = self.arguments[at + 1] if at + 1 < len(self.arguments) else ""
                return value if equals else ("" if follows.startswith("--") else follows)
        return None

    def check(self, name: str) -> str:
        """Outcome of a check of the last validation; empty if it wasn't made."""
        return str(self.checks.get(name, {}).get("outcome", ""))


def gather(instance: Instance) -> Facts:
    """Look at everything that the trees ask about."""
    attempts = list(instance.attempts.order_by("-number")[:20])
    ended = next((one for one in attempts if one.ended_at and not one.asked), None)
    shown = ended or (attempts[0] if attempts else None)
    since = what_changed.since_good(instance.deployment)
    launch = Launch.objects.filter(attempt__instance=instance).first()
    host_facts = facts_of(instance.host.facts)
    claimed = {one.device.uuid: one.nbytes for one in instance.claims.select_related("device")}
    checks = next((one.validation.get("checks") for one in attempts if one.validation.get("checks")), None) or []
    return Facts(
        name=str(instance),
        state=instance.state,
        is_unknown=instance.is_unknown,
        end=_end(ended, instance.failure or {}) if ended else None,
        ends_today=_ends_today(attempts),
        arguments=claims.arguments_of(instance),
        now=current.of_instances([instance.uuid]).get(instance.uuid),
        live=live_of(instance.host.vitals) if instance.host.is_online else None,
        devices=list(claimed),
        instance_id=str(instance.uuid),
        known_instances=_known(instance),
        claims=claimed,
        xids=len(host_facts.xid.events) if host_facts else 0,
        checks={str(one.get("name")): one for one in checks},
        control=_result(StepKind.CONTROL_RUN, subject=instance.pk),
        copy_state=instance.copy.state,
        goldens=GoldenAnswer.objects.filter(revision_id=instance.spec.copy.revision_id).count(),
        changed=[f"{one.name}: {one.before or '–'} → {one.after or '–'}" for one in since.differences],
        has_good_start=since.attempt is not None,
        requests=_requests(instance, attempts),
        plan=dict(launch.prediction) if launch else {},
        truth=dict(launch.truth) if launch else {},
        warmup=_result(StepKind.WARMUP, instance=str(instance.uuid)) or {},
        lines=_lines(shown),
        hung=_hung(instance, ended),
        engine=str(instance.engine),
        quantised=bool((instance.copy.revision.facts or {}).get("quantization"))
        or "--quantization" in instance.spec.arguments,
    )


def _known(instance: Instance) -> frozenset[str]:
    """Instances that should have a process on this host."""
    rows = Instance.objects.filter(host_id=instance.host_id, ordered=True).values_list("uuid", flat=True)
    return frozenset(str(one) for one in rows)


def _end(attempt: Attempt, failure: Mapping[str, Any]) -> End:
    """How it ended; what the agent says of the instance counts where the log names no cause."""
    named = attempt.diagnosis.get("code") not in (None, "healthy", "unknown")
    said = attempt.diagnosis if named else failure or attempt.diagnosis
    ended_at = attempt.ended_at or timezone.now()
    ran = (ended_at - attempt.started_at).total_seconds() if attempt.started_at else None
    ready = StateChange.objects.filter(
        kind="deployments.instance", object_id=attempt.instance_id, after="ready", at__lte=ended_at,
        at__gte=attempt.started_at or ended_at,
    ).order_by("-at").first()  # fmt: skip
    return End(
        at=ended_at,
        code=str(said.get("code", "")),
        title=str(said.get("title", "")),
        message=str(said.get("message", "")),
        ran_seconds=ran,
        ready_seconds=(ended_at - ready.at).total_seconds() if ready else None,
        exit_code=attempt.exit_code,
    )


def _ends_today(attempts: Sequence[Attempt]) -> int:
    since = timezone.now() - RECENT
    return sum(one.ended_at is not None and one.ended_at > since and not one.asked for one in attempts)


def _hung(instance: Instance, ended: Attempt | None) -> bool:
    """True while it hangs, and while its last end was one that the agent made because it hung."""
    failure = (instance.failure or {}).get("code") == "engine.hung"
    return failure or bool(ended and ended.diagnosis.get("code") == "engine.hung")


def _result(kind: StepKind, *, subject: int | None = None, instance: str = "") -> dict[str, Any] | None:
    rows = Step.objects.filter(kind=kind, state="succeeded").order_by("-pk")
    if subject is not None:
        rows = rows.filter(job__subject_kind="instance", job__subject_id=subject)
    if instance:
        rows = rows.filter(payload__instance=instance)
    found = rows.first()
    return dict(found.result) if found and found.result else None


def _lines(attempt: Attempt | None) -> dict[str, int]:
    if attempt is None or attempt.log_removed_at is not None or not attempt.log_path.exists():
        return {}
    index = log_index.index_of(attempt.log_path)
    index.count()
    while not index.sort(pieces=16):
        pass
    return {name: sum(_count(index, text) for text in texts) for name, texts in PATTERNS.items()}


def _count(index: log_index.LogIndex, text: str) -> int:
    found = 0
    for piece in index.matches(Match(text=text)):
        found += len(piece)
        if found >= MOST_LINES:
            break
    return found


def _requests(instance: Instance, attempts: Sequence[Attempt]) -> Requests:
    asked = GatewayRequest.objects.of_clients()
    rows = asked.filter(deployment=instance.deployment.name, team=instance.deployment.team)
    newest = list(rows.order_by("-pk").values_list("at", "status", "prompt_tokens", "ttft_ms")[:REQUESTS_LOOKED_AT])
    failed = [tokens for _at, status, tokens, _ttft in newest if status >= 500 and tokens is not None]
    sound = [tokens for _at, status, tokens, _ttft in newest if status < 400 and tokens is not None]
    began = attempts[0].started_at if attempts else None
    after = [ttft for at, status, _tokens, ttft in reversed(newest) if began and at >= began and ttft and status < 400]
    return Requests(
        count=len(newest),
        failed=sum(status >= 500 for _at, status, _tokens, _ttft in newest),
        failed_prompt=statistics.median(failed) if failed else None,
        sound_prompt=statistics.median(sound) if sound else None,
        first_ttft_ms=after[0] if after else None,
        usual_ttft_ms=statistics.median(after[1:]) if len(after) > 3 else None,
    )

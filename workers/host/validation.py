"""Validation: is what listens here sound? A fixed order of checks; a failure ends it, and traffic waits.

`/health` 200 is not soundness: checkpoints without a tokenizer, without a chat template or with a missing tensor answer
it too. Each row of the report says what was found, what is needed, how long it took; a failed one names the suspects and
the check to do next. `full` is for starts that a person asked for; `brief` for a process that replaces one of the same
start, whose files and engine passed the full validation (an outage shouldn't last longer to prove them again).
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

from workers.contracts import Check, GoldenAnswer, InstanceOrder, InstancePhase, Level
from workers.host.bring_up import Target
from workers.host.engine_client import ChatAnswer, EngineClient, EngineError, Mode
from workers.host.exits import explain_exit
from workers.host.failures import StepFailedError
from workers.host.step_context import POLL_SECONDS, Progress, in_thread
from workers.step_payloads import ValidateResult
from workers.vllm.load_warnings import explain_warnings
from workers.weights.findings import Severity
from workers.weights.verification import Verification, verify_directory

Depth = Literal["full", "brief"]
TEXT: tuple[Mode, ...] = ("chat", "completions")
EVERY: tuple[Mode, ...] = (*TEXT, "embeddings")
Result = TypeVar("Result")

_DYING_SECONDS = 10
_PATIENCE_SECONDS = 1.5
_LOG_BYTES = 4 * 2**20

ENGINE_LOG = "Read the engine's log at this moment; then verify the model's tokenizer and chat template."


class CheckFailedError(Exception):
    """A check found something that must keep traffic away. `code` is stable; the rest is the row of the report."""

    def __init__(
        self, code: str, fact: str, *, points_at: tuple[str, ...], next_step: str, evidence: tuple[str, ...] = ()
    ) -> None:
        super().__init__(fact)
        self.code, self.fact, self.points_at, self.next_step = code, fact, points_at, next_step
        self.evidence = evidence


@dataclass(frozen=True)
class Found:
    """What a check that passed has to say; `warning` if a person should look at it."""

    fact: str
    warning: bool = False
    skipped: bool = False
    next_step: str = ""


@dataclass
class Subject:
    """The engine under examination, and what the checks before have learned about it."""

    target: Target
    order: InstanceOrder
    client: EngineClient
    progress: Progress
    model: str
    context_tokens: int
    """Longest prompt plus answer."""
    mode: Mode = "chat"
    """As the engine can be asked, which may be otherwise than declared."""
    answer: ChatAnswer | None = None
    """The answer to the probe's question, which came in pieces."""
    whole: ChatAnswer | None = None
    """The same, asked for as a whole; None where the engine is too slow to ask again."""
    completion: ChatAnswer | None = None
    """How `PLAIN_PROMPT` goes on, if it was asked already."""
    tokens_come_back: bool = True
    """False if a text doesn't survive /tokenize and /detokenize unchanged, so that it can't be compared."""
    golden: list[GoldenAnswer] = field(default_factory=list)

    def call(self, work: Callable[[], Result], waiting_for: str) -> Result:
        """Run a request in the background; if it fails because the engine died, the death is the failure."""
        try:
            return self.progress.in_background(work, waiting_for=waiting_for)
        except EngineError:
            raise_if_dying(self.target, self.progress)
            raise

    @property
    def question(self) -> str:
        """What is asked: the probe's prompt, or for a base model a sentence to go on with."""
        probe = self.order.probe
        is_default = probe.prompt == type(probe)().prompt
        return "The capital of France is" if self.mode == "completions" and is_default else probe.prompt

    def ask(self, max_tokens: int, waiting_for: str, *, in_pieces: bool = False) -> ChatAnswer:
        """Ask the question once."""
        mode = self.mode
        tokens = min(max_tokens, max(1, self.context_tokens // 2))
        work = self.client.stream if in_pieces else self.client.ask
        return self.call(lambda: work(self.model, self.question, max_tokens=tokens, mode=mode), waiting_for)

    @property
    def is_slow(self) -> bool:
        """True if asking in full again would keep traffic waiting for seconds: then further checks ask for less, and say so."""
        times = self.order.probe.repeats - 1
        patience = self.order.probe.patience_seconds or _PATIENCE_SECONDS
        return self.answer is not None and times * self.answer.seconds > patience

    @cached_property
    def files(self) -> "Future[Verification]":
        """What headers and sizes of the model's files say. Asked for early: they are read while the engine computes."""
        return in_thread(lambda: verify_directory(self.order.model_path, hash_files=False))


@dataclass(frozen=True)
class CheckOfEngine:
    """One check: its name, what it needs, how it is done, and of which models. `brief`: also after a restart."""

    name: str
    need: str
    run: Callable[[Subject], Found]
    brief: bool = False
    modes: tuple[Mode, ...] = TEXT


def validate(target: Target, progress: Progress, checks: tuple[CheckOfEngine, ...], depth: Depth) -> ValidateResult:
    """Examine the engine. Raises `StepFailedError` with the cause, the next check to do, and the rows so far."""
    state = target.running()
    order = target.order()
    target.files.set_bring_up_phase(state.attempt, InstancePhase.VALIDATING)
    began = time.monotonic()
    rows: list[Check] = []
    try:
        with target.client() as client:
            subject = _subject(target, client, order, progress)
            _ = subject.files
            due = (check for check in checks if subject.mode in check.modes and (check.brief or depth == "full"))
            for check in due:
                row, failed = _examine(check, subject)
                rows.append(row)
                if failed is not None:
                    rows += _look_at_files(failed, subject)
                    _record(target, state.attempt, rows, subject, sound=False)
                    raise _refusal(failed, rows, state.attempt, subject)
            warnings = _record(target, state.attempt, rows, subject, sound=True)
    finally:
        target.files.set_bring_up_phase(state.attempt, None)
    for row in rows:
        if row.outcome == "warning":
            progress.event(f"{row.name}: {row.fact}", Level.WARNING)
    return _result(rows, state.attempt, subject, warnings, time.monotonic() - began)


def _subject(target: Target, client: EngineClient, order: InstanceOrder, progress: Progress) -> Subject:
    subject = Subject(target, order, client, progress, order.served_model_names[0], 2048)
    try:
        served = subject.call(client.models, "the list of served models")
        subject.mode = subject.call(lambda: client.asked_as(order.probe.mode), "what it can be asked for")
    except EngineError as error:
        raise StepFailedError(
            "validate.request_failed", f"the engine listens, but can't answer: {error}", next_step=ENGINE_LOG
        ) from error
    if subject.model not in served:
        raise StepFailedError(
            "validate.wrong_model",
            f"port {order.port} serves {', '.join(served) or 'no model'}, not {subject.model}",
            next_step="Another server may answer on this port: choose another port, or stop that server.",
        )
    subject.context_tokens = int(served[subject.model].get("max_model_len") or subject.context_tokens)
    return subject


def _examine(check: CheckOfEngine, subject: Subject) -> tuple[Check, CheckFailedError | None]:
    began = time.monotonic()
    found, failed = Found(""), None
    try:
        found = check.run(subject)
    except CheckFailedError as error:
        failed = error
    except EngineError as error:
        failed = CheckFailedError(
            "validate.request_failed",
            f"the engine listens, but can't answer: {error}",
            points_at=("engine",),
            next_step=ENGINE_LOG,
        )
    passed: Literal["ok", "warning", "skipped"] = "skipped" if found.skipped else "warning" if found.warning else "ok"
    row = Check(
        name=check.name,
        outcome="failed" if failed else passed,
        fact=failed.fact if failed else found.fact,
        need=check.need,
        seconds=round(time.monotonic() - began, 3),
        points_at=list(failed.points_at) if failed else [],
        next=failed.next_step if failed else found.next_step,
    )
    return row, failed


def raise_if_dying(target: Target, progress: Progress) -> None:
    """An engine whose core died answers errors for a few seconds before it ends: wait for that end."""
    end = time.monotonic() + _DYING_SECONDS
    attempt = target.running().attempt
    while time.monotonic() < end:
        state = target.running()
        if state.attempt != attempt:
            ended = target.files.attempt(attempt)
            if ended is not None:
                raise StepFailedError.of(explain_exit(target.files, ended))
        with EngineClient(target.order().port) as client:
            if client.is_healthy():
                return
        progress.sleep(POLL_SECONDS)


def _look_at_files(failed: CheckFailedError, subject: Subject) -> list[Check]:
    """Where files are among the suspects, the cheapest control is done at once: their headers and sizes."""
    if not {"weights", "tokenizer", "template"} & set(failed.points_at):
        return []
    began = time.monotonic()
    report = subject.files.result()
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    return [
        Check(
            name="files",
            outcome="failed" if errors else "ok",
            fact=errors[0].message if errors else "complete by their headers and sizes; their sums were not compared",
            need="The files on disk are what the architecture needs.",
            seconds=round(time.monotonic() - began, 3),
            points_at=["weights"] if errors else [],
            next=errors[0].fix if errors else "Compare their sums (Verify), then do the control run.",
        )
    ]


def _refusal(failed: CheckFailedError, rows: list[Check], attempt: int, subject: Subject) -> StepFailedError:
    suspects = ", ".join(failed.points_at)
    error = StepFailedError(
        failed.code,
        f"{failed.fact}. Most likely at fault: {suspects}" if suspects else failed.fact,
        next_step=failed.next_step,
        evidence=[{"line": None, "text": text} for text in failed.evidence],
    )
    error.result = _result(rows, attempt, subject, [], 0.0).model_dump(mode="json")
    return error


def _record(target: Target, attempt: int, rows: list[Check], subject: Subject, *, sound: bool) -> list[dict[str, Any]]:
    """Keep the report with the attempt, from where the supervisor reports it; return the log's warnings."""
    log = target.files.log(attempt)
    warnings: list[dict[str, Any]] = []
    if log.exists():
        with log.open("rb") as file:
            lines = file.read(_LOG_BYTES).decode(errors="replace").splitlines()
        warnings = [
            {"line": one.line, "text": one.text, "meaning": one.meaning, "count": one.count}
            for one in explain_warnings(lines)
        ]
    target.files.write_validation(
        attempt, sound=sound, checks=rows, golden=subject.golden if sound else [], warnings=warnings
    )
    return warnings


def _result(
    rows: list[Check], attempt: int, subject: Subject, warnings: list[dict[str, Any]], seconds: float
) -> ValidateResult:
    answer = subject.answer
    return ValidateResult(
        attempt=attempt,
        model=subject.model,
        answer=answer.text if answer else "",
        seconds=round(seconds, 3),
        completion_tokens=answer.completion_tokens if answer else None,
        finish_reason=answer.finish_reason if answer else None,
        max_model_len=subject.context_tokens,
        checks=rows,
        warnings=warnings,
    )

"""From a spawned process to one that may get traffic: listening, validation, warm-up.

The steps of a job use these functions, and so does the agent when it brings an instance up by itself (after a restart,
after a reboot). `/health` 200 is not readiness: broken checkpoints answer it too, so a real chat decides.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from workers.contracts import Failure, InstanceOrder, InstancePhase, Level
from workers.host.engine_client import ChatAnswer, EngineClient, EngineError
from workers.host.exits import explain_exit, tail_bytes
from workers.host.failures import StepFailedError
from workers.host.instance_files import InstanceFiles, ShimState
from workers.host.launching import API_KEY, open_secrets
from workers.host.step_context import POLL_SECONDS, Progress
from workers.step_payloads import ListeningResult, ValidateResult, WarmupResult
from workers.vllm.sanity import Judgement, judge_answer

_HEALTH_EVERY_SECONDS = 0.15
_ANSWER_TOKENS = 64
_LONG_ANSWER_TOKENS = 2048
_WARMUP_TOKENS = 128
_DYING_SECONDS = 10

Answer = TypeVar("Answer")

_STAGES = (
    ("Loading safetensors checkpoint shards", "loading the weights"),
    ("Starting to load model", "loading the weights"),
    ("Loading weights took", "preparing the model"),
    ("torch.compile", "compiling the model"),
    ("Compiling a graph", "compiling the model"),
    ("Available KV cache memory", "reserving memory for the KV cache"),
    ("KV cache size", "reserving memory for the KV cache"),
    ("Graph capturing", "capturing CUDA graphs"),
    ("Capturing CUDA graph", "capturing CUDA graphs"),
    ("Warming up model", "warming up the engine"),
    ("init engine", "starting the HTTP server"),
    ("Started server process", "starting the HTTP server"),
    ("Starting vLLM", "starting the HTTP server"),
    ("Initializing a V1 LLM engine", "starting the engine core"),
    ("non-default args", "reading the configuration"),
)
"""Words of vLLM's log, and what a person should be told is going on when they were the last ones seen."""


@dataclass(frozen=True)
class Target:
    """One instance at one start, as bring-up sees it."""

    files: InstanceFiles
    start: int
    private_key: str

    def order(self) -> InstanceOrder:
        """The order that runs. Raises `StepFailedError` if this start was never launched here."""
        order = self.files.order()
        if order is None or order.start != self.start:
            raise StepFailedError(
                "instance.not_launched",
                f"start {self.start} of this instance was never launched on this host",
                next_step="Retry the job: it begins with the launch.",
            )
        return order

    def running(self) -> ShimState:
        """The shim's state while the engine runs. Raises `StepFailedError` with the cause if it has ended."""
        state = self.files.state()
        if state is None or state.start != self.start:
            self.order()
            raise StepFailedError(
                "instance.not_launched",
                f"start {self.start} of this instance does not run on this host",
                next_step="Retry the job: it begins with the launch.",
            )
        if not state.unfinished:
            raise StepFailedError.of(self.why_ended(state))
        return state

    def why_ended(self, state: ShimState) -> Failure:
        """The cause of the last attempt's end."""
        attempt = self.files.attempt(state.attempt)
        if attempt is None:
            return Failure(code="engine.exited", message=f"the engine has ended: {state.reason}")
        if state.asked:
            return Failure(
                code="instance.stopped",
                message="the engine was stopped meanwhile",
                next="Start it again if it should run.",
            )
        return explain_exit(self.files, attempt)

    def client(self) -> EngineClient:
        """A client with the instance's own key."""
        order = self.order()
        return EngineClient(order.port, open_secrets(order, self.private_key).get(API_KEY, ""))


def wait_until_listening(target: Target, progress: Progress) -> ListeningResult:
    """Wait until /health answers 200. Fails within moments of the process' end, with its root cause."""
    order = target.order()
    with EngineClient(order.port) as client:
        while True:
            progress.check()
            state = target.running()
            attempt = target.files.attempt(state.attempt)
            waited = max(0.0, time.time() - attempt.started_at) if attempt else 0.0
            if client.is_healthy() and target.running().attempt == state.attempt:
                return ListeningResult(attempt=state.attempt, port=order.port, seconds=round(waited, 3))
            progress.progress(
                waited, order.start_deadline_seconds, unit="seconds", waiting_for=stage_of(target.files, state.attempt)
            )
            progress.sleep(_HEALTH_EVERY_SECONDS)


def stage_of(files: InstanceFiles, attempt: int) -> str:
    """What a starting engine is doing, from the end of its log."""
    log = files.log(attempt)
    if not log.exists() or log.stat().st_size == 0:
        return "the engine to say something"
    lines = tail_bytes(log, 8192).decode(errors="replace").splitlines()
    for line in reversed(lines):
        for words, stage in _STAGES:
            if words in line:
                return stage
    return "the engine to start"


def validate(target: Target, progress: Progress) -> ValidateResult:
    """Ask the probe's question and judge the answer. Raises `StepFailedError` naming what is wrong."""
    state = target.running()
    order = target.order()
    target.files.set_bring_up_phase(state.attempt, InstancePhase.VALIDATING)
    try:
        with target.client() as client:
            model, facts = _served(target, client, order, progress)
            answer = _ask(target, client, model, order, progress, _ANSWER_TOKENS)
            judgement = _judge(answer, order)
            if not _sound(judgement) and answer.finish_reason == "length":
                # A model that thinks first needs more room before it comes to the point.
                answer = _ask(target, client, model, order, progress, _LONG_ANSWER_TOKENS)
                judgement = _judge(answer, order)
    finally:
        target.files.set_bring_up_phase(state.attempt, None)
    _refuse_unsound(judgement, answer, order, progress)
    return ValidateResult(
        attempt=state.attempt,
        model=model,
        answer=answer.text,
        seconds=round(answer.seconds, 3),
        completion_tokens=answer.completion_tokens,
        finish_reason=answer.finish_reason,
        max_model_len=facts.get("max_model_len"),
    )


def warm_up(target: Target, progress: Progress) -> WarmupResult:
    """Send a one-token request, then 128 tokens; then mark the instance as ready."""
    state = target.running()
    order = target.order()
    model = order.served_model_names[0]
    prompt = order.probe.warmup_prompt
    target.files.set_bring_up_phase(state.attempt, InstancePhase.WARMING)
    try:
        with target.client() as client:
            first = _call(
                target, progress, lambda: client.chat(model, prompt, max_tokens=1), "the first token (warm-up)"
            )
            long = _call(
                target,
                progress,
                lambda: client.stream_chat(model, prompt, max_tokens=_WARMUP_TOKENS),
                f"{_WARMUP_TOKENS} tokens (warm-up)",
            )
    finally:
        target.files.set_bring_up_phase(state.attempt, None)
    if target.running().attempt != state.attempt:
        raise StepFailedError(
            "engine.restarted", "the engine was restarted during warm-up", next_step="Retry the warm-up."
        )
    target.files.mark_ready(start=target.start, attempt=state.attempt)
    tokens = long.completion_tokens or 0
    ttft = long.ttft_seconds if long.ttft_seconds is not None else long.seconds
    rate = (tokens - 1) / (long.seconds - ttft) if tokens > 1 and long.seconds > ttft else None
    return WarmupResult(
        attempt=state.attempt,
        first_seconds=round(first.seconds, 4),
        ttft_seconds=round(ttft, 4),
        tokens_per_second=round(rate, 2) if rate else None,
        completion_tokens=tokens,
    )


def _served(
    target: Target, client: EngineClient, order: InstanceOrder, progress: Progress
) -> tuple[str, dict[str, object]]:
    served = _call(target, progress, client.models, "the list of served models")
    wanted = order.served_model_names[0]
    if wanted not in served:
        raise StepFailedError(
            "validate.wrong_model",
            f"port {order.port} serves {', '.join(served) or 'no model'}, not {wanted}",
            next_step="Another server may answer on this port: choose another port, or stop that server.",
        )
    return wanted, served[wanted]


def _ask(
    target: Target, client: EngineClient, model: str, order: InstanceOrder, progress: Progress, tokens: int
) -> ChatAnswer:
    prompt = order.probe.prompt
    return _call(
        target, progress, lambda: client.chat(model, prompt, max_tokens=tokens), "the answer to a test question"
    )


def _call(target: Target, progress: Progress, work: Callable[[], Answer], waiting_for: str) -> Answer:
    """Run a request in the background; if it fails because the engine died, the death is the failure."""
    try:
        return progress.in_background(work, waiting_for=waiting_for)
    except EngineError as error:
        _raise_if_dying(target, progress)
        lowered = str(error).lower()
        code = "chat_template.missing" if "chat template" in lowered else "validate.request_failed"
        raise StepFailedError(
            code,
            f"the engine listens, but can't answer: {error}",
            next_step="Read the engine's log at this moment; then verify the model's tokenizer and chat template.",
        ) from error


def _raise_if_dying(target: Target, progress: Progress) -> None:
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


def _judge(answer: ChatAnswer, order: InstanceOrder) -> Judgement:
    return judge_answer(answer.text, finish_reason=answer.finish_reason, expected=order.probe.expected or None)


def _sound(judgement: Judgement) -> bool:
    # An answer that is merely long is no sign of a broken model.
    return all(code == "not_stopped" for code in judgement.codes)


def _refuse_unsound(judgement: Judgement, answer: ChatAnswer, order: InstanceOrder, progress: Progress) -> None:
    if _sound(judgement):
        if not judgement.ok:
            progress.event(f"{judgement.findings[0].message}, which is fine for a test question", Level.WARNING)
        return
    finding = next(found for found in judgement.findings if found.code != "not_stopped")
    suspects = ", ".join(finding.points_at)
    raise StepFailedError(
        f"answer.{finding.code}",
        f"the model answers, but not sanely: {finding.message}. Most likely at fault: {suspects}",
        next_step=finding.next_check,
        evidence=[
            {"line": None, "text": f"question: {order.probe.prompt}"},
            {"line": None, "text": f"answer: {answer.text[:1000]}"},
        ],
    )

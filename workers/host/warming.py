"""Warm-up: requests until the time to the first token is stable, so that the first person doesn't pay for compilation."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice

from workers.contracts import InstanceOrder, InstancePhase, Level
from workers.host.bring_up import Target
from workers.host.engine_client import ChatAnswer, EngineClient, EngineError, Mode
from workers.host.failures import StepFailedError
from workers.host.measuring import measure
from workers.host.step_context import Progress
from workers.host.validation import ENGINE_LOG, Result, raise_if_dying
from workers.step_payloads import WarmupResult

logger = logging.getLogger(__name__)

_LONG_TOKENS = 128
_LAST_ROUNDS = 3
"""So many times to the first token in a row must be alike."""
_SLOW_SECONDS = 0.5
"""Two are enough from here on: a busy moment is small beside them, and each further one keeps traffic waiting."""
_ALIKE_SHARE = 0.25
_ALIKE_SECONDS = 0.02
_TOO_SLOW_ROUNDS = 5
"""Stable, but over the target: after so many further rounds without getting faster, it won't."""


def warm_up(target: Target, progress: Progress) -> WarmupResult:
    """Warm up with the deployment's own prompts, bounded in time; then mark the instance as ready."""
    state = target.running()
    order = target.order()
    target.files.set_bring_up_phase(state.attempt, InstancePhase.WARMING)
    began = time.monotonic()
    try:
        with target.client() as client:
            asking = _Asking(target, client, order, progress, _mode(target, client, order, progress))
            first = asking.one_token()
            long = asking.stream(order.probe.warmup_prompt, _LONG_TOKENS)
            rounds = _rounds(asking, [first.seconds, _ttft(long)], began)
    finally:
        target.files.set_bring_up_phase(state.attempt, None)
    if target.running().attempt != state.attempt:
        raise StepFailedError(
            "engine.restarted", "the engine was restarted during warm-up", next_step="Retry the warm-up."
        )
    target.files.mark_ready(start=target.start, attempt=state.attempt)
    _keep_measurement(target, state.attempt)
    return _result(order, state.attempt, first, long, rounds, time.monotonic() - began, progress)


def _keep_measurement(target: Target, number: int) -> None:
    """Keep what this start needed; it serves already, so nothing of this may fail it."""
    attempt = target.files.attempt(number)
    if attempt is None:
        return
    try:
        with target.client() as client:
            seconds = max(0.0, time.time() - attempt.started_at)
            facts = measure(target.files, number, client, pid=attempt.pid, seconds=round(seconds, 1))
        target.files.write_measurement(number, facts)
    except (OSError, StepFailedError) as error:
        logger.warning("start %d was not measured: %s", number, error)


def _rounds(asking: "_Asking", times: list[float], began: float) -> list[float]:
    """Times to the first token, in their order, beginning with those that are known."""
    probe = asking.order.probe
    needed = len(times) + len(probe.warmup_prompts)
    for prompt in cycle(probe.warmup_prompts or [probe.warmup_prompt]):
        if _is_enough(times, probe.ttft_target_seconds, needed) or time.monotonic() - began > probe.warmup_seconds:
            break
        times.append(_ttft(asking.stream(prompt, 1)))
    return times


def _is_enough(times: list[float], target_seconds: float, needed: int) -> bool:
    if len(times) < needed or not is_stable(times):
        return False
    reached = not target_seconds or max(_last(times)) <= target_seconds
    return reached or len(times) >= needed + _LAST_ROUNDS + _TOO_SLOW_ROUNDS


def is_stable(times: list[float]) -> bool:
    """True if the last times to the first token (seconds) lie close together."""
    last = _last(times)
    return len(last) > 1 and max(last) - min(last) <= max(_ALIKE_SECONDS, _ALIKE_SHARE * min(last))


def _last(times: list[float]) -> list[float]:
    """Those that must be alike; fewer than two while there are not enough."""
    if len(times) > 1 and min(times[-2:]) >= _SLOW_SECONDS:
        return times[-2:]
    return times[-_LAST_ROUNDS:] if len(times) >= _LAST_ROUNDS else []


@dataclass(frozen=True)
class _Asking:
    """Warm-up's requests to one engine."""

    target: Target
    client: EngineClient
    order: InstanceOrder
    progress: Progress
    mode: Mode

    def one_token(self) -> ChatAnswer:
        """One token, as a whole answer: what isn't streamed is proven by it where validation had no time to."""
        model, prompt = self.order.served_model_names[0], self.order.probe.warmup_prompt
        if self.mode == "embeddings":
            return self.vector(prompt)
        return self._ask(
            lambda: self.client.ask(model, prompt, max_tokens=1, mode=self.mode), "the first token (warm-up)"
        )

    def stream(self, prompt: str, tokens: int) -> ChatAnswer:
        """At most `tokens` tokens, in pieces; or the prompt's vector."""
        if self.mode == "embeddings":
            return self.vector(prompt)
        model, mode = self.order.served_model_names[0], self.mode
        waiting_for = "the first token (warm-up)" if tokens == 1 else f"{tokens} tokens (warm-up)"
        return self._ask(lambda: self.client.stream(model, prompt, max_tokens=tokens, mode=mode), waiting_for)

    def vector(self, prompt: str) -> ChatAnswer:
        """An answer of no token, whose time is the one until its vector is there."""
        model = self.order.served_model_names[0]
        seconds = self._ask(lambda: self.client.embed(model, prompt).seconds, "a vector (warm-up)")
        return ChatAnswer("", None, 0, seconds)

    def _ask(self, work: Callable[[], Result], waiting_for: str) -> Result:
        return _asked(self.target, self.progress, work, waiting_for)


def _mode(target: Target, client: EngineClient, order: InstanceOrder, progress: Progress) -> Mode:
    return _asked(target, progress, lambda: client.asked_as(order.probe.mode), "what it can be asked for")


def _asked(target: Target, progress: Progress, work: Callable[[], Result], waiting_for: str) -> Result:
    try:
        return progress.in_background(work, waiting_for=waiting_for)
    except EngineError as error:
        raise_if_dying(target, progress)
        raise StepFailedError(
            "validate.request_failed", f"the engine stopped answering during warm-up: {error}", next_step=ENGINE_LOG
        ) from error


def _ttft(answer: ChatAnswer) -> float:
    return answer.seconds if answer.ttft_seconds is None else answer.ttft_seconds


def _result(
    order: InstanceOrder,
    attempt: int,
    first: ChatAnswer,
    long: ChatAnswer,
    rounds: list[float],
    seconds: float,
    progress: Progress,
) -> WarmupResult:
    tokens, ttft = long.completion_tokens or 0, rounds[-1]
    to_first = _ttft(long)
    rate = (tokens - 1) / (long.seconds - to_first) if tokens > 1 and long.seconds > to_first else None
    wanted = order.probe.ttft_target_seconds or None
    stable = is_stable(rounds)
    if not stable or (wanted and ttft > wanted):
        last = ", ".join(f"{1000 * one:.0f}" for one in rounds[-_LAST_ROUNDS:])
        goal = f", the target is {1000 * wanted:.0f} ms" if wanted else ""
        progress.event(
            f"Warm-up ended after {seconds:.0f} s at a time to the first token of {last} ms{goal}.", Level.WARNING
        )
    return WarmupResult(
        attempt=attempt,
        first_seconds=round(first.seconds, 4),
        ttft_seconds=round(ttft, 4),
        tokens_per_second=round(rate, 2) if rate else None,
        completion_tokens=tokens,
        rounds=[round(one, 4) for one in islice(rounds, 100)],
        stable=stable,
        target_seconds=wanted,
        seconds=round(seconds, 3),
    )

"""Prompts of several lengths up to the context: no error, and the time grows sensibly."""

import math
from itertools import cycle, islice, pairwise

from workers.host.engine_client import EngineError
from workers.host.validation import CheckFailedError, Found, Subject
from workers.host.validation_vectors import refuse_faulty

_FIRST_TOKENS = 16
_GROWTH = 4
_FAST_TOKENS_PER_SECOND = 1000.0
_FAST_SECONDS = 30.0
_SLOW_SECONDS = 1.0
"""Lengths that would take longer in all, going by the ones before, are left out and named. Where a prompt is read at the
pace of a GPU the whole context is worth its seconds; a CPU would take minutes, while people wait for a first answer."""
_STEEP = 2.3
"""Attention alone makes time grow with the square of the length; what grows faster has another reason."""
_NOISE_SECONDS = 0.3

_TEXT = (
    "A ferry crosses the river every quarter of an hour. In spring the water is high and brown, and the ferryman, who has "
    "done this for thirty years, watches for trees that drift down from the hills. Passengers bring bicycles, crates of "
    "plums, letters, a dog that knows the way. Nobody hurries: the far bank is near enough to be seen and far enough to "
    "finish a thought. When fog comes, a bell rings from the landing stage, and the ferry follows its sound home. "
)


def lengths(subject: Subject) -> Found:
    """Send prompts of rising length; one token of answer each, so that reading the prompt is what takes the time."""
    client, model = subject.client, subject.model
    ids = subject.call(lambda: client.tokenize(model, _TEXT, as_chat=False), "the tokenizer")
    if not ids:
        raise CheckFailedError(
            "tokenizer.lossy", "a plain text has no tokens", points_at=("tokenizer",), next_step="Verify the tokenizer."
        )
    patience = subject.order.probe.patience_seconds
    times: list[tuple[int, float]] = []
    left_out = 0
    for length in _lengths(subject.context_tokens):
        if times and _spent(times) + _predicted(times, length) > (patience or _patience(times)):
            left_out = length
            break
        times.append((length, _time(subject, ids, length)))
    fact = ", ".join(f"{length:,} tokens {seconds:.2f} s" for length, seconds in times)
    if left_out:
        about = _predicted(times, subject.context_tokens)
        fact += (
            f"; not beyond, as {subject.context_tokens:,} would take about {about:.0f} s here. "
            "The deployment's “Time for long prompts” gives it more"
        )
    steep = [(a, b) for a, b in pairwise(times) if _grows_too_fast(a, b)]
    if steep:
        (shorter, little), (longer, much) = steep[0]
        fact += f"; {longer / shorter:.0f} times the length took {much / little:.0f} times as long"
        return Found(
            fact,
            warning=True,
            next_step="Look at the host's load first; then at preemptions in the engine's log: the KV cache may be too "
            "small for long prompts, or memory is swapped.",
        )
    return Found(fact)


def _lengths(context: int) -> list[int]:
    longest = context - 2  # room for one token of answer and one that the engine may add
    found = []
    length = _FIRST_TOKENS
    while length < longest:
        found.append(length)
        length *= _GROWTH
    return [*found, max(1, longest)]


def _spent(times: list[tuple[int, float]]) -> float:
    return sum(seconds for _, seconds in times)


def _patience(times: list[tuple[int, float]]) -> float:
    length, seconds = times[-1]
    return _FAST_SECONDS if length >= _FAST_TOKENS_PER_SECOND * seconds else _SLOW_SECONDS


def _predicted(times: list[tuple[int, float]], length: int) -> float:
    known, seconds = times[-1]
    return float(seconds * (length / known) ** 1.3)


def _time(subject: Subject, ids: list[int], length: int) -> float:
    """Seconds until a prompt of so many tokens is answered with one, or with its vector."""
    # Each length begins elsewhere in the text: a shared beginning would come from the prefix cache.
    prompt = list(islice(cycle(ids), length, 2 * length))
    client, model, waiting_for = subject.client, subject.model, f"a prompt of {length:,} tokens to be read"
    try:
        if subject.mode == "embeddings":
            vector = subject.call(lambda: client.embed(model, prompt), waiting_for)
            refuse_faulty(vector)
            return vector.seconds
        answer = subject.call(lambda: client.complete(model, prompt, max_tokens=1), waiting_for)
    except EngineError as error:
        raise CheckFailedError(
            "validate.context_fails",
            f"a prompt of {length:,} tokens fails, although the context is {subject.context_tokens:,}: {error}",
            points_at=("engine",),
            next_step="Read the engine's log at this moment. Out of memory: lower --max-num-batched-tokens or "
            "--max-model-len, then deploy again.",
        ) from error
    return answer.seconds


def _grows_too_fast(shorter: tuple[int, float], longer: tuple[int, float]) -> bool:
    if longer[1] < _NOISE_SECONDS or longer[0] < 2 * shorter[0]:
        return False
    growth = math.log(longer[1] / max(shorter[1], _NOISE_SECONDS / 2)) / math.log(longer[0] / shorter[0])
    return growth > _STEEP

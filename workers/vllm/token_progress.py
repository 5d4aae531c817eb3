"""Telling a hung engine from a busy one by what its metrics count. Pure: samples in, seconds without progress out.

Alive with `/health` 200 says nothing about tokens. An engine that has requests must move at least one of its counters:
tokens generated, prompt tokens read, requests finished, cache look-ups, or the fill of the KV cache, which grows with each
part of a long prompt although no token comes yet. They come from the engine core, so they stand still when it does.
"""

from dataclasses import dataclass, field

from workers.vllm.metrics import MetricsSample


@dataclass
class TokenProgress:
    """Follows the samples of one engine process."""

    _seen: tuple[float | None, ...] = ()
    _moved_at: float | None = field(default=None)

    def take(self, sample: MetricsSample) -> float:
        """Take the next sample; return for how many seconds the engine has had work without any progress."""
        now = _counts(sample)
        if now != self._seen or self._moved_at is None or not has_work(sample):
            self._seen, self._moved_at = now, sample.taken_at
        return sample.taken_at - self._moved_at


def has_work(sample: MetricsSample) -> bool:
    """True while requests run or wait; an engine that was put to sleep has none."""
    return not sample.asleep and ((sample.requests_running or 0) > 0 or (sample.requests_waiting or 0) > 0)


def describe_load(sample: MetricsSample) -> str:
    """What it has to do, in words: "3 requests run, 5 wait, the KV cache is 45 % full"."""
    words = f"{sample.requests_running or 0:.0f} requests run, {sample.requests_waiting or 0:.0f} wait"
    return words + (f", the KV cache is {sample.kv_cache_usage:.0%} full" if sample.kv_cache_usage is not None else "")


def _counts(sample: MetricsSample) -> tuple[float | None, ...]:
    # Neither "running" nor "waiting" is among them: clients that give up and try again move those of a hung engine, too.
    return (
        sample.generation_tokens,
        sample.prompt_tokens,
        sample.cached_prompt_tokens,
        sample.prefix_cache_queries,
        sample.preemptions,
        sample.kv_cache_usage,
        sum(sample.finished.values()),
        sample.time_to_first_token.counts[-1] if sample.time_to_first_token else None,
    )

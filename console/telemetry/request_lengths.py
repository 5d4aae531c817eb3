"""How many tokens the requests to a model take here, out of what its engines counted: a context can be sized by it.

An engine counts prompts and answers in histograms of their own, so the length of a whole request isn't known. But of a
hundred requests at most 2.5 have a prompt longer than what 97.5 % stay under, and at most 2.5 an answer: what both make
together is a bound that 95 % of the requests stay under.
"""

import math
import time
from collections.abc import Iterable

from django.core.cache import cache

from console.catalog.models import Model
from console.deployments.requests_seen import RequestLengths
from console.telemetry.models import COARSE_SECONDS, HOUR, MetricsHour
from console.telemetry.rollups import unpacked
from workers.vllm.histograms import Histogram, added

DAYS = 7
LEAST_REQUESTS = 100
"""Fewer say little about what will come."""
MOST_HOURS = 400
"""Hours of engines that are read, the newest first: about a quarter of a second."""
REMEMBERED_SECONDS = 900
_PARTS = ("request_prompt_tokens", "request_generation_tokens")
_EACH = 0.975


def of_model(model: Model) -> RequestLengths | None:
    """Lengths of the last days' requests; None while fewer than a hundred were counted. Remembered for 15 minutes."""
    key = f"request-lengths.{model.pk}"
    known: tuple[RequestLengths | None] | None = cache.get(key)
    if known is None:
        known = (_counted(model),)
        cache.set(key, known, REMEMBERED_SECONDS)
    return known[0]


def _counted(model: Model) -> RequestLengths | None:
    found: dict[str, list[Histogram | None]] = {part: [] for part in _PARTS}
    for row in _rows(model):
        hour = unpacked(row).regrouped(HOUR)
        for part, histograms in found.items():
            histograms += hour.histograms(part)
    summed = [added(histograms) for histograms in found.values()]
    bounds = [_bound(one) for one in summed if one is not None and one.count >= LEAST_REQUESTS]
    prompt, answer = bounds if len(bounds) == len(_PARTS) else (None, None)
    if prompt is None or answer is None:
        return None
    return RequestLengths(_rounded_up(prompt + answer), int(min(one.count for one in summed if one is not None)))


def _rows(model: Model) -> Iterable[MetricsHour]:
    since = time.time() - DAYS * 24 * HOUR
    rows = MetricsHour.objects.filter(
        instance__spec__copy__revision__model=model, resolution_seconds=COARSE_SECONDS, begins_at__gt=since
    )
    return rows.order_by("-begins_at")[:MOST_HOURS]


def _bound(histogram: Histogram) -> float | None:
    """Tokens that `_EACH` of the observations stay under; None where only the endless bucket says so."""
    closed = histogram.counts[-2] if len(histogram.counts) > 1 else 0
    return histogram.quantile(_EACH) if closed >= _EACH * histogram.count else None


def _rounded_up(tokens: float) -> int:
    """To two digits, as people speak of it: 5,873 is 5,900."""
    grain = int(10 ** max(0, math.floor(math.log10(max(tokens, 1))) - 1))
    return math.ceil(tokens / grain) * grain

"""How long the requests to a model are here: what telemetry above has counted, without being imported here."""

from collections.abc import Callable
from dataclasses import dataclass

from console.catalog.models import Model


@dataclass(frozen=True)
class RequestLengths:
    """Tokens, prompt and answer together, that 95 % of so many finished requests stayed under."""

    p95_tokens: int
    requests: int


Counter = Callable[[Model], RequestLengths | None]
_counters: list[Counter] = []


def count_by(counter: Counter) -> None:
    """Register who knows the lengths of requests. Called once, from an app's `ready`."""
    if counter not in _counters:
        _counters.append(counter)


def of_model(model: Model) -> RequestLengths | None:
    """Lengths of the requests to a model, whatever deployment served it; None while too few were counted."""
    return next((found for counter in _counters if (found := counter(model))), None)

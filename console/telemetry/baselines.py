"""What is usual for a deployment: the 95th percentile of its own last day, so that slow models are not alarms by birth."""

import time
from dataclasses import dataclass, field

from console.deployments.models import Deployment
from console.telemetry import history
from console.telemetry.history import Span
from console.telemetry.measures import totals

DAY_SECONDS = 86_400
READ_AGAIN_SECONDS = 900
LEAST_REQUESTS = 50
"""With fewer requests in a day nothing can be called usual."""


@dataclass
class Baselines:
    """Remembers each deployment's for a quarter of an hour."""

    _found: dict[int, tuple[float, float | None]] = field(default_factory=dict)

    def ttft_p95(self, deployment: Deployment) -> float | None:
        """Seconds to the first token that 95 % of the last day's requests stayed under; None: too few requests."""
        read_at, value = self._found.get(deployment.pk, (float("-inf"), None))
        if time.monotonic() - read_at > READ_AGAIN_SECONDS:
            value = _read(deployment)
            self._found[deployment.pk] = (time.monotonic(), value)
        return value


def _read(deployment: Deployment) -> float | None:
    now = time.time()
    span = Span.between(now - DAY_SECONDS, now)
    whole = totals(list(history.read(list(deployment.instances.all()), span).values()))
    if (whole.requests or 0) < LEAST_REQUESTS:
        return None
    return whole.quantile("time_to_first_token", 0.95)

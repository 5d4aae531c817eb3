"""What a benchmark asks: an instance of this host, or another OpenAI-compatible server; and whether it is still itself."""

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from workers.benchmark_payloads import BenchmarkPayload
from workers.host.bring_up import Target
from workers.host.engine_client import EngineClient, EngineError
from workers.host.failures import StepFailedError
from workers.host.instance_files import InstanceFiles
from workers.host.launching import API_KEY, LISTEN_ADDRESS, open_secrets
from workers.host.step_context import StepContext
from workers.sealing import SealingError, unseal_any
from workers.vllm.metrics import MetricsSample, parse_metrics
from workers.vllm.rates import activity_between

_LOOK_EVERY_SECONDS = 2.0
_METRICS_SECONDS = 1.0
DYING_SECONDS = 10.0
"""An engine whose client broke off is watched for so long: its process may end a moment later."""


@dataclass
class BenchTarget:
    """Where requests go. `attempt` None: a server that isn't ours, of which nothing but its answers is known."""

    url: str
    model: str
    key: str
    attempt: int | None = None
    _ours: Target | None = None
    _port: int = 0
    _before: MetricsSample | None = None
    _looked_at: float = 0.0
    _numbers: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, context: StepContext, payload: BenchmarkPayload) -> "BenchTarget":
        """The payload's target. Raises `StepFailedError` if the instance doesn't run here, or a secret can't be read."""
        keys = context.config.private_keys
        if payload.remote is not None:
            try:
                key = unseal_any(keys, sealed) if (sealed := context.order.sealed.get("target_key")) else ""
            except SealingError as error:
                raise StepFailedError(
                    "secret.unreadable", f"the server's key can't be opened on this host: {error}",
                    next_step="Ask for the benchmark again, with the key.",
                ) from error  # fmt: skip
            return cls(payload.remote.url.rstrip("/"), payload.remote.model, key)
        assert payload.instance is not None  # noqa: S101 - the payload's own rule: an instance or a remote server
        ours = Target(InstanceFiles.of(context.config.state_dir, payload.instance), payload.start, keys)
        state, order = ours.running(), ours.order()
        return cls(
            f"http://{LISTEN_ADDRESS}:{order.port}", order.served_model_names[0],
            open_secrets(order, keys).get(API_KEY, ""), state.attempt, ours, order.port,
        )  # fmt: skip

    def check(self) -> None:
        """Raise `StepFailedError` with the cause if the engine has ended, or another process took its place."""
        if self._ours is None:
            return
        now = self._ours.running().attempt
        if now != self.attempt:
            raise StepFailedError(
                "engine.restarted",
                f"the engine's process ended and was started again meanwhile (attempt {self.attempt}, then {now})",
                next_step="Read on the instance's page why it ended; then retry, which measures anew.",
            )

    def check_dying(self, context: StepContext) -> None:
        """`check` for as long as an engine needs to end after its last answer."""
        if self._ours is None:
            return
        end = time.monotonic() + DYING_SECONDS
        with EngineClient(self._port, self.key) as client:
            while time.monotonic() < end:
                self.check()
                if client.is_healthy():
                    return
                context.sleep(0.2)

    def begin(self) -> None:
        """From here on `numbers` counts."""
        self._before, self._numbers = self._sample(), {}

    def numbers(self) -> Mapping[str, float]:
        """Throughput and time to the first token since `begin`, as the engine counts them; empty for other servers."""
        now = time.monotonic()
        if self._before is None or now - self._looked_at < _LOOK_EVERY_SECONDS:
            return self._numbers
        self._looked_at = now
        sample = self._sample()
        activity = activity_between(self._before, sample) if sample is not None else None
        if not self._numbers and activity is not None and not activity.generation_tokens_per_second:
            self._before = sample  # the client is still being loaded: that time says nothing about the engine
        elif activity is not None:
            ttft = activity.time_to_first_token
            found = {
                "tokens_per_second": activity.generation_tokens_per_second,
                "requests_per_second": activity.requests_per_second,
                "ttft_p50_ms": _ms(ttft.quantile(0.5) if ttft else None),
                "ttft_p95_ms": _ms(ttft.quantile(0.95) if ttft else None),
            }
            self._numbers = {name: round(value, 3) for name, value in found.items() if value is not None}
        return self._numbers

    def _sample(self) -> MetricsSample | None:
        if self._ours is None:
            return None
        with (
            suppress(EngineError, ValueError),
            EngineClient(self._port, self.key, timeout_seconds=_METRICS_SECONDS) as one,
        ):
            return parse_metrics(one.metrics(), taken_at=time.monotonic())
        return None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def version_of(text: str) -> tuple[int, ...]:
    """`0.32.0+cpu` as (0, 32)."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])

"""What was predicted for a launch, what the engine then said, and what the next plan learns from it."""

from collections.abc import Iterable, Mapping
from typing import Any

from console.deployments.models import Deployment, Launch
from workers.vllm.memory import ADAPTER_ROOM, Conditions, LearnedResidual, learn

MOST_LEARNED_FROM = 20
"""Launches further back, of those under the same conditions, say little about today's drivers."""
MOST_READ = 400
"""Launches of all conditions that are looked at."""


def learned(*, revision: int, device: str, engine_version: str) -> tuple[LearnedResidual, ...]:
    """The overheads that launches of this model on this device with this engine showed, one for each conditions."""
    found = Launch.objects.filter(revision_id=revision, device=device, engine_version=engine_version)
    return _by_conditions(found.exclude(residual_bytes=None).order_by("-pk")[:MOST_READ])


def learned_by_device(*, revision: int, engine_version: str) -> dict[str, tuple[LearnedResidual, ...]]:
    """The same for every device that this model was launched on, by the name that its host reports."""
    found = Launch.objects.filter(revision_id=revision, engine_version=engine_version).exclude(residual_bytes=None)
    devices: dict[str, list[Launch]] = {}
    for row in found.order_by("-pk")[:MOST_READ]:
        devices.setdefault(row.device, []).append(row)
    return {device: _by_conditions(rows) for device, rows in devices.items()}


def _by_conditions(newest_first: Iterable[Launch]) -> tuple[LearnedResidual, ...]:
    groups: dict[Conditions, list[int]] = {}
    for row in newest_first:
        under = Conditions(row.batched_tokens, row.tensor_parallel, row.pipeline_parallel, row.eager)
        residuals = groups.setdefault(under, [])
        if row.residual_bytes is not None and len(residuals) < MOST_LEARNED_FROM:
            residuals.append(row.residual_bytes)
    return tuple(learn(residuals, under) for under, residuals in groups.items())


def latest(deployment: Deployment) -> Launch | None:
    """The newest launch of a deployment whose numbers are known."""
    return Launch.objects.filter(attempt__instance__deployment=deployment).order_by("-pk").first()


def adapter_room(predicted: Mapping[str, Any]) -> int:
    """Bytes per device that were planned for adapters: an engine logs them among its weights, no residual holds them."""
    return int((predicted.get("overhead_parts") or {}).get(ADAPTER_ROOM) or 0)


def overhead_of(launch: Launch) -> int | None:
    """What a launch used besides weights and KV cache, adapters included, to be compared with what was planned."""
    return None if launch.residual_bytes is None else launch.residual_bytes + adapter_room(launch.prediction)


def error_of(predicted: Mapping[str, Any], truth: Mapping[str, Any], name: str) -> float | None:
    """How far a prediction was off, as a fraction of the truth; None where one of the two is missing."""
    expected, found = predicted.get(name), truth.get(name)
    if not isinstance(expected, int | float) or not isinstance(found, int | float) or not found:
        return None
    return (expected - found) / found

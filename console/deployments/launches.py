"""What was predicted for a launch, what the engine then said, and what the next plan learns from it."""

from collections.abc import Mapping
from typing import Any

from console.deployments.models import Deployment, Launch
from workers.vllm.memory import LearnedResidual, learn

MOST_LEARNED_FROM = 20
"""Launches further back say little about today's drivers."""


def learned(*, revision: int, device: str, batched_tokens: int, engine_version: str) -> LearnedResidual | None:
    """The overhead that launches of this model on this device, with these batched tokens and engine, showed."""
    found = Launch.objects.filter(
        revision_id=revision, device=device, batched_tokens=batched_tokens, engine_version=engine_version
    ).exclude(residual_bytes=None)
    residuals = list(found.order_by("-pk").values_list("residual_bytes", flat=True)[:MOST_LEARNED_FROM])
    return learn([value for value in residuals if value is not None]) if residuals else None


def latest(deployment: Deployment) -> Launch | None:
    """The newest launch of a deployment whose numbers are known."""
    return Launch.objects.filter(attempt__instance__deployment=deployment).order_by("-pk").first()


def error_of(predicted: Mapping[str, Any], truth: Mapping[str, Any], name: str) -> float | None:
    """How far a prediction was off, as a fraction of the truth; None where one of the two is missing."""
    expected, found = predicted.get(name), truth.get(name)
    if not isinstance(expected, int | float) or not isinstance(found, int | float) or not found:
        return None
    return (expected - found) / found

"""How fast a model was in other layouts: what benchmarks above have measured, without being imported here."""

from collections.abc import Callable

from console.catalog.models import Revision
from workers.vllm.memory import MeasuredLayouts

Measurer = Callable[[Revision, str, int], MeasuredLayouts | None]
"""Asked with a revision, a device's name and the devices of one engine."""
_measurers: list[Measurer] = []


def measured_by(measurer: Measurer) -> None:
    """Register who has measured. Called once, from an app's `ready`."""
    if measurer not in _measurers:
        _measurers.append(measurer)


def of(revision: Revision, device: str, tensor_parallel: int) -> MeasuredLayouts | None:
    """One engine on so many devices against two on half of them each; None where they can't be halved, or nobody knows."""
    if tensor_parallel < 2 or tensor_parallel % 2:
        return None
    return next((found for ask in _measurers if (found := ask(revision, device, tensor_parallel))), None)

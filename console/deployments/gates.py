"""The gate of a spec: a measurement that a new engine must pass before it gets traffic.

What is measured and how it is judged is known by the benchmarks above, which are not imported here: they register a keeper.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from django.utils.translation import gettext as _

from console.deployments.models import Instance
from console.jobs.models import Step
from console.jobs.services import PlannedStep
from workers.contracts import Failure, StepPart


class GateKeeper(Protocol):
    """Who measures and judges. All of it runs inside the transaction of the change that it answers to."""

    def step(self, instance: Instance) -> PlannedStep | None:
        """The step that measures, as its spec's gate asks; None if the spec has none."""

    def payload(self, instance: Instance) -> dict[str, Any]:
        """The step's payload, as the instance runs now."""

    def begun(self, step: Step, instance: Instance) -> None:
        """The step is about to be sent for the first time, or again after a retry."""

    def took_part(self, step: Step, part: StepPart) -> None:
        """A run was made."""

    def judge(self, step: Step, instance: Instance) -> Failure | None:
        """Why the instance must not be admitted, its result being stored in `step`; None if it may."""

    def admitted(self, step: Step, instance: Instance) -> None:
        """It passed."""

    def refused(self, step: Step) -> None:
        """The step failed: it was not admitted, or could not be measured."""

    def abandoned(self, step: Step) -> None:
        """Its job was cancelled."""

    def usual(self) -> dict[str, Any]:
        """The gate of who asks for one and says no more, as `Spec.gate` holds it."""

    def words(self, gate: Mapping[str, Any]) -> str:
        """What a gate asks and allows, in one sentence."""


_keepers: list[GateKeeper] = []


def keep_by(keeper: GateKeeper) -> None:
    """Register the keeper. Called once, from an app's `ready`."""
    _keepers[:] = [keeper]


def keeper() -> GateKeeper | None:
    """The keeper; None where nothing can measure."""
    return _keepers[0] if _keepers else None


def words_of(gate: Mapping[str, Any]) -> str:
    """A gate in one sentence, an empty one included."""
    if not gate:
        return _("none: it serves once it has warmed up")
    return _keepers[0].words(gate) if _keepers else _("measured")


def steps_of(instance: Instance) -> list[PlannedStep]:
    """The step of the instance's gate, in a list of its own; empty if its spec has none."""
    found = _keepers[0].step(instance) if _keepers and instance.spec.gate else None
    return [found] if found is not None else []

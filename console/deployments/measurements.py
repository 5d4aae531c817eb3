"""A launch's truth laid beside its prediction, and what both say to people."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from console.common import live
from console.common.spans import readable_bytes
from console.deployments import arguments_check, claims, engine_schema, fitting, launches
from console.deployments.models import Attempt, Deployment, Instance, Launch, Spec
from console.fleet.models import Device
from workers.contracts import AttemptMeasured, LaunchFacts
from workers.vllm.memory import Plan, residual


@dataclass(frozen=True)
class Line:
    """One number as it was predicted and as it came. `error` is a fraction of the truth, None where one is missing."""

    label: str
    predicted: str
    measured: str
    error: float | None

    @property
    def percent(self) -> str:
        """The error for people."""
        if self.error is None:
            return "–"
        return _("exact") if self.error == 0 else f"{100 * self.error:+.2f} %"


def record(instance: Instance, report: AttemptMeasured) -> None:
    """Store what a start needed, with what would have been planned for it, and learn from the difference."""
    attempt, _made = Attempt.objects.get_or_create(instance=instance, number=report.number)
    spec: Spec = instance.spec
    devices = _devices_of(instance)
    found = _plan_of(instance, devices)
    Launch.objects.update_or_create(
        attempt=attempt,
        defaults={
            "revision": spec.copy.revision,
            "deployment_name": instance.deployment.name,
            "spec_number": spec.number,
            "device": devices[0].name if devices else "",
            "platform": spec.engine.platform,
            "engine_version": spec.engine.version,
            "batched_tokens": found.max_num_batched_tokens if found else 0,
            "tensor_parallel": found.tensor_parallel if found else 1,
            "pipeline_parallel": found.pipeline_parallel if found else 1,
            "eager": bool(found and found.enforce_eager),
            "prediction": found.as_json() if found else {},
            "truth": report.facts.model_dump(),
            "residual_bytes": residual_of(spec, found, report.facts),
        },
    )
    live.changed("deployment", instance.deployment_id)


def _plan_of(instance: Instance, devices: Sequence[Device]) -> Plan | None:
    """What the planner says of an instance that has started; None where the model's shape or the devices aren't known."""
    schema = engine_schema.schema_of(instance.engine)
    words = claims.arguments_of(instance)
    return fitting.sum_of(
        instance.copy,
        instance.engine,
        values=arguments_check.values_of(schema, words) if schema else {},
        environment=instance.spec.environment,
        devices=devices,
        started=True,
    )


def _devices_of(instance: Instance) -> list[Device]:
    """What it has claimed; of one without claims, what its spec names, else the first of its kind on its host."""
    claimed = [claim.device for claim in instance.claims.select_related("device").order_by("device__index")]
    if claimed:
        return claimed
    rows = instance.host.devices.order_by("index")
    if instance.spec.devices:
        return list(rows.filter(uuid__in=instance.spec.devices))
    return list(rows.filter(kind="cpu" if instance.engine.platform == "cpu" else "gpu")[:1])


def residual_of(spec: Spec, found: Plan | None, truth: LaunchFacts) -> int | None:
    """Memory per device besides weights and KV cache.

    On a GPU it is what the budget left: utilisation times total, minus weights, minus KV cache. A CPU engine is given its
    KV cache beforehand and touches it as it fills, so there it is what its processes hold besides the weights. The room
    for adapters is among the weights, as engines log it.
    """
    if found is None:
        return None
    weights = truth.weights_bytes or found.weights_bytes_per_device + launches.adapter_room(found.as_json())
    if spec.engine.platform == "cpu":
        ranks = found.tensor_parallel * found.pipeline_parallel
        return max(0, truth.resident_bytes // ranks - weights) if truth.resident_bytes else None
    if truth.kv_cache_bytes is None or found.budget_bytes is None:
        return None
    return residual(budget_bytes=found.budget_bytes, weights_bytes=weights, kv_bytes=truth.kv_cache_bytes)


def lines(launch: Launch) -> list[Line]:
    """The numbers of one launch, planned and measured."""
    predicted, truth = launch.prediction, launch.truth
    rows = [
        (_("KV cache tokens"), "kv_cache_tokens", "kv_cache_tokens", _count),
        (_("Blocks"), "num_blocks", "num_blocks", _count),
        (_("Full requests at once"), "max_concurrency", "max_concurrency", _times),
        (_("Weights per device"), "weights_bytes_per_device", "weights_bytes", _bytes),
        (_("KV cache per device"), "kv_cache_bytes", "kv_cache_bytes", _bytes),
    ]
    if truth.get("weights_bytes"):
        truth = {**truth, "weights_bytes": truth["weights_bytes"] - launches.adapter_room(predicted)}
    found = []
    for label, planned, measured, show in rows:
        before, after = predicted.get(planned), truth.get(measured)
        if before is not None or after is not None:
            found.append(Line(label, show(before), show(after), _error(before, after)))
    expected = predicted.get("overhead_bytes")
    used = launches.overhead_of(launch)
    if used is not None:
        found.append(Line(_("Overhead"), _bytes(expected), _bytes(used), _error(expected, used)))
    return found


def _error(predicted: Any, truth: Any) -> float | None:
    return launches.error_of({"it": predicted}, {"it": truth}, "it")


def _count(value: Any) -> str:
    return "–" if value is None else f"{value:,}"


def _times(value: Any) -> str:
    return "–" if value is None else f"{value:,.2f}"


def _bytes(value: Any) -> str:
    return "–" if value is None else readable_bytes(value)


def card(deployment: Deployment) -> dict[str, Any] | None:
    """Fit against truth, for a deployment's page; None before its first measured launch."""
    launch = launches.latest(deployment)
    return {"launch": launch, "lines": lines(launch)} if launch is not None else None

"""A launch's truth laid beside its prediction, and what both say to people."""

from collections.abc import Mapping, Sequence
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

SENTENCES = ("reasons", "reason_codes", "suggestions", "suggested_changes")
"""Parts of a plan's JSON that are words for the moment: what is kept beside each instance is small without them."""


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


def predicted(instance: Instance) -> dict[str, Any]:
    """The numbers that are planned for a launch that is ordered now; empty where the model's shape or devices aren't known."""
    found = _plan_of(instance, _devices_of(instance))
    return {name: value for name, value in found.as_json().items() if name not in SENTENCES} if found else {}


def record(instance: Instance, report: AttemptMeasured) -> None:
    """Store what a start needed beside what had been planned when it was ordered, and learn from the difference.

    Nothing is planned here that a launch has its numbers of already: a plan of now has learned from those that came up
    meanwhile, and from this one where it is reported again.
    """
    attempt, _made = Attempt.objects.get_or_create(instance=instance, number=report.number)
    spec: Spec = instance.spec
    devices = _devices_of(instance)
    before = Launch.objects.filter(attempt=attempt).values_list("prediction", flat=True).first()
    planned = before or instance.prediction or predicted(instance)
    Launch.objects.update_or_create(
        attempt=attempt,
        defaults={
            "revision": spec.copy.revision,
            "deployment_name": instance.deployment.name,
            "spec_number": spec.number,
            "device": devices[0].name if devices else "",
            "platform": spec.engine.platform,
            "engine_version": spec.engine.version,
            "batched_tokens": planned.get("max_num_batched_tokens", 0),
            "tensor_parallel": planned.get("tensor_parallel_size", 1),
            "pipeline_parallel": planned.get("pipeline_parallel_size", 1),
            "eager": planned.get("enforce_eager", False),
            "prediction": planned,
            "truth": report.facts.model_dump(),
            "residual_bytes": residual_of(planned, report.facts),
        },
    )
    live.changed("deployment", instance.deployment_id)


def _plan_of(instance: Instance, devices: Sequence[Device]) -> Plan | None:
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


def residual_of(planned: Mapping[str, Any], truth: LaunchFacts) -> int | None:
    """Memory per device besides weights and KV cache; None where too little is known.

    On a GPU it is what the budget left: utilisation times total, minus weights, minus KV cache. A CPU engine is given its
    KV cache beforehand and touches it as it fills, so there it is what its processes hold besides the weights. The room
    for adapters is among the weights, as engines log it.
    """
    if not planned:
        return None
    weights = truth.weights_bytes or planned["weights_bytes_per_device"] + launches.adapter_room(planned)
    if planned["platform"] == "cpu":
        ranks = planned["tensor_parallel_size"] * planned["pipeline_parallel_size"]
        return max(0, truth.resident_bytes // ranks - weights) if truth.resident_bytes else None
    if truth.kv_cache_bytes is None or planned["budget_bytes"] is None:
        return None
    return residual(budget_bytes=planned["budget_bytes"], weights_bytes=weights, kv_bytes=truth.kv_cache_bytes)


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

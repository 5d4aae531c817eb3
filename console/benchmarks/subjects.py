"""What a benchmark measured, as it was then: configuration, engine, driver, devices, and how busy the host was."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from console.deployments import claims, current
from console.deployments.models import Instance, Launch, Spec
from console.fleet.models import Device, Host
from workers.host_facts import facts_of, live_of

_NOT_SPEED = ("--host", "--port", "--served-model-name", "--api-key")


def of_instance(instance: Instance) -> dict[str, Any]:
    """The picture of an instance, for its benchmark's page and for later comparisons."""
    spec: Spec = instance.spec
    last = instance.attempts.order_by("-number").first()
    return {
        "deployment": instance.deployment.name,
        "instance": instance.number,
        "spec": spec.number,
        "attempt": last.number if last else None,
        "model": str(instance.copy.revision.model),
        "commit": instance.copy.revision.commit,
        "engine": instance.engine.key,
        "engine_version": instance.engine.version,
        "arguments": claims.arguments_of(instance),
        "environment": spec.environment,
        "devices": [device.name for device in devices_of(instance)],
        "spec_class": spec_class(spec),
        **of_host(instance.host),
    }


def of_host(host: Host) -> dict[str, Any]:
    """The host's part: what it is, its driver, and how busy it is now."""
    facts, live = facts_of(host.facts), live_of(host.vitals)
    gpus = live.gpus.gpus if live else []
    return {
        "host": host.name,
        "cpu": facts.cpu.name if facts else "",
        "cores": facts.cpu.cores if facts else None,
        "kernel": facts.system.kernel if facts else "",
        "driver": facts.gpus.driver if facts else "",
        "cuda": facts.gpus.cuda if facts else "",
        "busy": {
            "cpu_used": host.vitals.get("cpu_used"),
            "load_1m": host.vitals.get("load_1m"),
            "memory_available": host.vitals.get("memory_available"),
            "gpus": [gpu.model_dump(include=_GPU_NOW, exclude_none=True) for gpu in gpus],
        },
    }


_GPU_NOW = {
    "index", "name", "utilization", "temperature_c", "power_watts", "clock_sm_mhz", "memory_used", "slowdowns",
}  # fmt: skip


def devices_of(instance: Instance) -> list[Device]:
    """The devices that an instance computes on: those it was promised, or all of the engine's kind."""
    promised = [claim.device for claim in instance.claims.select_related("device").order_by("device__index")]
    if promised:
        return promised
    spec = instance.spec
    kind = "cpu" if instance.engine.platform == "cpu" else "gpu"
    rows = (
        instance.host.devices.filter(uuid__in=spec.devices) if spec.devices else instance.host.devices.filter(kind=kind)
    )
    return list(rows.order_by("index"))


def context_tokens(instance: Instance) -> int | None:
    """Longest prompt and answer together, as the engine said at its last start; None: unknown."""
    launch = Launch.objects.filter(attempt__instance=instance).order_by("-pk").first()
    found = launch.truth.get("max_model_len") if launch is not None else None
    return int(found) if found else None


def traffic_of(instance: Instance) -> float:
    """Requests that it serves now, and those that came within the last minute; 0: nobody uses it."""
    numbers = current.of_instances([instance.uuid]).get(instance.uuid)
    if numbers is None:
        return 0.0
    return (numbers.running or 0) + (numbers.waiting or 0) + 60 * (numbers.requests or 0)


def spec_class(spec: Spec) -> str:
    """Digest of what of a spec is meant to change its speed: arguments and environment, in any order."""
    return digest({"arguments": _sorted_arguments(spec.arguments), "environment": spec.environment})


def digest(content: Any) -> str:
    """A name for JSON content, the same whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sorted_arguments(arguments: Sequence[str]) -> list[str]:
    """Options with their values, sorted, so that the order in which they were typed doesn't matter."""
    groups: list[list[str]] = []
    for word in arguments:
        if word.startswith("--") or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return sorted(" ".join(group) for group in groups if group[0].partition("=")[0] not in _NOT_SPEED)


def question_digest(*, workload: Mapping[str, Any], loads: Mapping[str, Any], targets: Mapping[str, Any]) -> str:
    """What was asked, as a name: only benchmarks that asked the same can be a baseline for each other."""
    # What a workload leaves open counts as it did before there was a choice: baselines stay baselines.
    said = {name: value for name, value in workload.items() if value is not None}
    return digest({"workload": said, "loads": dict(loads), "targets": dict(targets)})

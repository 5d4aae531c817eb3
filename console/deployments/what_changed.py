"""What is different now from the last start that went well: the first question about any failure.

Each start keeps what surrounded it (`Attempt.surroundings`), since specs move on, engines are replaced in place, and a
host tells only of its present.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.utils.translation import gettext as _

from console.deployments.models import Attempt, Deployment, Instance, Spec
from console.deployments.spec_difference import compare
from console.fleet.models import Host
from workers.host_facts import facts_of


@dataclass(frozen=True)
class Difference:
    """One thing that differs; empty where it was not, or is not."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class SinceGood:
    """What changed since the last good start. `attempt` None: nothing of this deployment ever started well."""

    attempt: Attempt | None
    spec: Spec | None
    """The spec of that start, if it still exists."""
    differences: tuple[Difference, ...] = ()
    surroundings_known: bool = True
    """False for a start of before Slipway kept them: only the spec can be compared then."""

    @property
    def at(self) -> datetime | None:
        """When the good start was."""
        return self.attempt.started_at if self.attempt else None


def surroundings(instance: Instance) -> dict[str, Any]:
    """What a start of this instance meets now: spec, engine, files, and what its host says of itself."""
    spec = instance.spec
    return {
        "spec": spec.number,
        "engine": f"{spec.engine} ({spec.engine.path})",
        "files": _files(spec),
        "host": instance.host.name,
        **_host(instance.host),
    }


def since_good(deployment: Deployment) -> SinceGood:
    """Compare what is in place now with the last start whose answers were found sound."""
    good = (
        Attempt.objects.filter(instance__deployment=deployment, validation__sound=True)
        .select_related("instance__host", "instance__spec__engine", "instance__spec__copy__revision__model")
        .order_by("-started_at", "-pk")
        .first()
    )
    if good is None:
        return SinceGood(None, None)
    then = good.surroundings
    number = then.get("spec", good.instance.spec.number)
    related = ("copy__revision__model", "engine", "host", "deployment")
    specs = {one.number: one for one in deployment.specs.select_related(*related)}
    old, now = specs.get(number), _current(deployment, specs)
    found = spec_differences(old, now)
    if then:
        after = surroundings(good.instance)
        if now is not None:
            after |= {"engine": f"{now.engine} ({now.engine.path})", "files": _files(now)}
        found += [
            Difference(label, str(then.get(name, "")), str(after.get(name, "")))
            for name, label in _labels().items()
            if then.get(name, "") != after.get(name, "")
        ]
    return SinceGood(good, old, tuple(found), surroundings_known=bool(then))


def _current(deployment: Deployment, specs: dict[int, Spec]) -> Spec | None:
    return next((one for one in specs.values() if one.pk == deployment.current_spec_id), None)


def spec_differences(old: Spec | None, new: Spec | None) -> list[Difference]:
    """Facts in which two specs differ; nothing where one is missing."""
    if old is None or new is None or old.pk == new.pk:
        return []
    pairs = [pair for section in compare(old, new).sections for pair in section.pairs if pair.changed]
    return [Difference(pair.name, pair.old, pair.new) for pair in pairs]


def _files(spec: Spec) -> str:
    """The revision and, once they were verified, when the files were last found to be others than before."""
    listed = spec.copy.manifest.get("files") or []
    times = [int(entry.get("mtime_ns") or 0) for entry in listed if isinstance(entry, dict)]
    newest = datetime.fromtimestamp(max(times) / 1e9, tz=UTC).isoformat(timespec="seconds") if times else "–"
    return _("%(revision)s, %(count)d files, the newest of %(time)s") % {
        "revision": spec.copy.revision.commit[:12],
        "count": len(listed),
        "time": newest,
    }


def _host(host: Host) -> dict[str, str]:
    facts = facts_of(host.facts)
    if facts is None:
        return {}
    return {
        "driver": facts.gpus.driver,
        "cuda": facts.gpus.cuda,
        "kernel": facts.system.kernel,
        "devices": ", ".join(sorted(f"{gpu.name} {gpu.uuid}" for gpu in facts.gpus.gpus)),
        "agent": host.agent_version,
    }


def _labels() -> dict[str, str]:
    return {
        "engine": _("Engine"),
        "files": _("Files"),
        "host": _("Host"),
        "driver": _("NVIDIA driver"),
        "cuda": _("CUDA of the driver"),
        "kernel": _("Kernel"),
        "devices": _("GPUs"),
        "agent": _("Agent"),
    }

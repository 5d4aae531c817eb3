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

_LOOKED_BACK = 200
"""Good starts among which one of an earlier spec is looked for."""
_OF_A_SPEC = ("copy__revision__model", "engine", "host", "deployment")


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
    specs = {one.number: one for one in deployment.specs.select_related(*_OF_A_SPEC)}
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


def spec_to_go_back_to(deployment: Deployment, since: SinceGood) -> Spec | None:
    """The spec of the last good start; where that one is in force itself, the one before it that started well.

    A change can start well and be found bad only once it serves. What was gone back to already stands where it stood
    first: its way back is what was before it then, not what was left by going back.
    """
    if since.spec is None or since.spec.pk != deployment.current_spec_id:
        return since.spec
    specs = {one.number: one for one in deployment.specs.select_related(*_OF_A_SPEC)}
    first = min(number for number, one in specs.items() if not spec_differences(one, since.spec))
    good = Attempt.objects.filter(instance__deployment=deployment, validation__sound=True).order_by(
        "-started_at", "-pk"
    )
    rows = good.values_list("surroundings__spec", "instance__spec__number")[:_LOOKED_BACK]
    numbers = (started or number for started, number in rows)
    return specs.get(next((number for number in numbers if number < first), 0))


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

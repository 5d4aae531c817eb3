"""Engines as pages show them: what each is, what is being done to it, who uses it, and hosts × versions as a table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.db.models import Count, Q, QuerySet, Sum
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.common.spans import readable_bytes
from console.common.states import LOOKS, Look
from console.fleet.models import Engine, Host
from console.fleet.usage import Usage, usage_of
from console.jobs.engine_jobs import payload_key
from console.jobs.models import Job, Step
from workers.contracts import StepKind

_DOING = {StepKind.REMOVE_ENGINE: "removing", StepKind.CHECK_ENGINE: "testing", StepKind.INSTALL_ENGINE: "installing"}


@dataclass
class ShownEngine:
    """One engine with what is being done to it now, and who uses it."""

    engine: Engine
    usage: Usage
    step: Step | None = None

    @property
    def look(self) -> Look:
        """How its state is shown: what is being done to it first."""
        if self.step is not None and (doing := _DOING.get(StepKind(self.step.kind))):
            return LOOKS[doing]
        return self.engine.look

    @property
    def cache_bytes(self) -> int:
        """Size of everything that it has compiled."""
        return sum(int(cache.get("size_bytes") or 0) for cache in self.engine.caches)


@dataclass
class Cell:
    """One version on one host: the engines that are there, an installation that runs, or one that failed lately."""

    engines: list[ShownEngine] = field(default_factory=list)
    installing: Step | None = None
    failed: Step | None = None

    @property
    def is_empty(self) -> bool:
        """True if nothing stands here."""
        return not (self.engines or self.installing or self.failed)


@dataclass(frozen=True)
class Version:
    """A column of the table."""

    distribution: str
    version: str

    @property
    def key(self) -> tuple[str, str]:
        """What engines are sorted into columns by."""
        return self.distribution, self.version


def shown(engines: Sequence[Engine], steps: Iterable[Step]) -> list[ShownEngine]:
    """Engines with their users and running steps, in a constant number of queries."""
    usage = usage_of(engines)
    by_key = {(step.host_id, payload_key(step)): step for step in steps if payload_key(step)}
    return [ShownEngine(engine, usage[engine.pk], by_key.get((engine.host_id, engine.key))) for engine in engines]


def totals(engines: QuerySet[Engine]) -> dict[str, int]:
    """What all engines together are: versions, bytes on disk that Slipway installed, and how many are broken."""
    troubled, sound = Q(details__has_key="problem"), Q(details__problem="")
    counted = engines.aggregate(
        size=Sum("size_bytes", default=0),
        adopted=Sum("size_bytes", filter=Q(details__adopted=True), default=0),
        troubled=Count("pk", filter=troubled),
        sound=Count("pk", filter=sound),
    )
    return {
        "versions": engines.order_by().values("distribution", "version").distinct().count(),
        "size_bytes": counted["size"] - counted["adopted"],
        "broken": counted["troubled"] - counted["sound"],
    }


def table(
    engines: Sequence[ShownEngine], hosts: Sequence[Host], running: Iterable[Step], failed: Iterable[Step]
) -> tuple[list[Version], list[tuple[Host, list[Cell]]]]:
    """Columns (newest version first), and one row of cells for each host."""
    cells: dict[tuple[int, tuple[str, str]], Cell] = {}

    def cell(host_id: int, key: tuple[str, str]) -> Cell:
        return cells.setdefault((host_id, key), Cell())

    for one in engines:
        cell(one.engine.host_id, (one.engine.distribution, one.engine.version)).engines.append(one)
    for step in running:
        if step.kind == StepKind.INSTALL_ENGINE:
            cell(step.host_id, _version_of(step)).installing = step
    for step in failed:
        place = cell(step.host_id, _version_of(step))
        if not place.engines and not place.installing:
            place.failed = step
    keys = sorted({key for _host, key in cells}, key=lambda key: (key[0], _version_key(key[1])), reverse=True)
    rows = [(host, [cells.get((host.pk, key), Cell()) for key in keys]) for host in hosts]
    return [Version(*key) for key in keys], rows


def _version_of(step: Step) -> tuple[str, str]:
    return str(step.payload.get("distribution")), str(step.payload.get("version"))


def _version_key(version: str) -> list[tuple[int, int | str]]:
    parts = version.replace("+", ".").replace("-", ".").split(".")
    return [(1, int(part)) if part.isdigit() else (0, part) for part in parts]


def truth(one: ShownEngine) -> str:
    """The truth about an engine in a sentence or two."""
    engine = one.engine
    if not engine.present:
        return _("No longer on %(host)s. Old specs of deployments still name it.") % {"host": engine.host}
    if engine.problem:
        return _("Broken: %(problem)s.") % {"problem": engine.problem.rstrip(".")}
    on = {"cpu": _("the CPU"), "cuda": _("NVIDIA GPUs"), "rocm": _("AMD GPUs")}.get(engine.platform, engine.platform)
    text = _("Works, and computes on %(what)s.") % {"what": on}
    if engine.loosened:
        text += " " + ngettext(
            "Installed relaxed: one pin of its wheel could not be met.",
            "Installed relaxed: %(count)d pins of its wheel could not be met.",
            len(engine.loosened),
        ) % {"count": len(engine.loosened)}
    if engine.adopted:
        text += " " + _("Adopted: its environment belongs to someone else and is never written to.")
    return text


def facts(engine: Engine) -> list[tuple[str, str]]:
    """What its self-test said, by readable names."""
    details: Mapping[str, Any] = engine.details
    torch = " · ".join(str(part) for part in (details.get("torch"), details.get("torch_build")) if part)
    found = [
        (_("vLLM"), f"{engine.distribution} {engine.version}"),
        (_("Platform"), engine.platform or _("sees no device")),
        (_("Device"), _text(details.get("device"))),
        (_("torch"), torch or "–"),
        (_("Attention"), _text(details.get("attention"))),
        (_("Python"), _text(details.get("python"))),
        (_("Size"), readable_bytes(engine.size_bytes) if engine.size_bytes else "–"),
    ]
    plan = details.get("plan") or {}
    if urls := plan.get("extra_index_urls"):
        found.append((_("Extra indexes"), ", ".join(urls)))
    if bounds := plan.get("constraints"):
        found.append((_("Constraints"), ", ".join(bounds)))
    if wheels := plan.get("wheel_directory"):
        found.append((_("Wheels from"), str(wheels)))
    return found


def _text(value: Any) -> str:
    return str(value) if value else "–"


def tested_at(engine: Engine) -> datetime | None:
    """When its self-test ran last, on the host's clock."""
    return moment(engine.details.get("tested_at"))


def moment(seconds: Any) -> datetime | None:
    """Seconds since the epoch, as hosts write times."""
    return datetime.fromtimestamp(seconds, tz=UTC) if isinstance(seconds, int | float) else None


def recent_failures(steps: Iterable[Step]) -> list[Step]:
    """Failed installations that nothing followed: the last step of each host and version, if it failed."""
    last: dict[tuple[int, str], Step] = {}
    for step in steps:
        last[step.host_id, payload_key(step)] = step
    return [step for step in last.values() if step.state == "failed"]


def last_jobs(engine: Engine, count: int = 10) -> list[Job]:
    """Jobs about this engine, newest first."""
    return list(Job.objects.filter(subject_kind="engine", subject_id=engine.pk).order_by("-pk")[:count])


def relaxed_form(job: Job, steps: Sequence[Step]) -> str:
    """Address of the form that tries a failed installation the relaxed way; empty where that is not the fix."""
    if not steps or (job.failure or {}).get("code") != "engine.pin_unmet" or steps[0].payload.get("relax"):
        return ""
    wanted = {name: str(steps[0].payload.get(name) or "") for name in ("distribution", "version")}
    return f"{reverse('engine_install')}?{urlencode({**wanted, 'host': str(steps[0].host_id)})}"

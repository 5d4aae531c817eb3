"""Jobs about engines: install, adopt, test again, repair, remove, and clear what one has compiled."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _
from pydantic import BaseModel, ValidationError

from console.access import services as access
from console.access.models import User
from console.common import live
from console.common.errors import Refused
from console.fleet.models import Engine, Host
from console.fleet.usage import usage_of
from console.jobs import services
from console.jobs.kinds import JobHandler, register
from console.jobs.models import LIVE_STATES, Job, Step
from console.jobs.services import PlannedStep
from workers.contracts import StepKind
from workers.step_payloads import (
    AdoptEnginePayload,
    CheckEnginePayload,
    ClearCachePayload,
    InstallEnginePayload,
    InstallPlan,
    RemoveEnginePayload,
)

INSTALL_SECONDS = 2 * 3600
EXAMINE_SECONDS = 1800
REMOVE_SECONDS = 3600
ENGINE_STEPS = (
    StepKind.INSTALL_ENGINE,
    StepKind.ADOPT_ENGINE,
    StepKind.CHECK_ENGINE,
    StepKind.REMOVE_ENGINE,
    StepKind.CLEAR_CACHE,
)


@dataclass(frozen=True)
class EngineWish:
    """A vLLM version as an admin asks for it."""

    distribution: str
    version: str
    extra_index_urls: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    wheel_directory: str = ""
    relax: bool = False

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


def install(host: Host, wish: EngineWish, *, actor: User | None, idempotency_key: str | None = None) -> Job:
    """Install a vLLM version into an environment of its own on a host.

    The same `idempotency_key` again returns the job of the first call.
    """
    if first := _first(idempotency_key):
        return first
    _check_indexes(wish.extra_index_urls)
    payload = _install_payload(wish)
    key = f"{wish.distribution}-{wish.version}"
    known = host.engines.filter(key=key, present=True).first()
    if known is not None:
        raise Refused(
            _("%(host)s has %(engine)s already. Repair it on its page if something is wrong with it.")
            % {"host": host, "engine": known},
            field="version",
        )
    with transaction.atomic():
        access.record(
            actor=actor, action="engine.install", target=str(wish), target_url=f"/hosts/{host.pk}/", host=host.name,
            constraints=list(wish.constraints), indexes=list(wish.extra_index_urls), wheels=wish.wheel_directory,
        )  # fmt: skip
        return services.create(
            kind="install_engine",
            title=_("Install %(engine)s on %(host)s") % {"engine": wish, "host": host},
            host=host,
            steps=[PlannedStep(StepKind.INSTALL_ENGINE, payload.model_dump(mode="json"), INSTALL_SECONDS)],
            actor=actor,
            subject=("host", host.pk),
            idempotency_key=idempotency_key,
        )


def _first(idempotency_key: str | None) -> Job | None:
    """The job that a first click on the same form started."""
    return Job.objects.filter(idempotency_key=idempotency_key).first() if idempotency_key else None


def _install_payload(wish: EngineWish, *, replace: bool = False) -> InstallEnginePayload:
    if wish.wheel_directory:
        check_path(wish.wheel_directory, field="wheel_directory")
    try:
        return InstallEnginePayload.model_validate(
            {
                "distribution": wish.distribution,
                "version": wish.version,
                "extra_index_urls": wish.extra_index_urls,
                "constraints": wish.constraints,
                "wheel_directory": wish.wheel_directory,
                "relax": wish.relax,
                "replace": replace,
                "torch_index_url": settings.ENV.slipway_torch_index_url,
            }
        )
    except ValidationError as error:
        place = error.errors()[0]["loc"]
        field = str(place[0]) if place else None
        raise Refused(
            _("This can't be asked of a host: %(what)s.") % {"what": error.errors()[0]["msg"]}, field=field
        ) from None


def _check_indexes(urls: Iterable[str]) -> None:
    allowed = settings.ENV.extra_indexes
    for url in urls:
        if url not in allowed:
            raise Refused(
                _("%(url)s is not among the indexes that this console allows (SLIPWAY_EXTRA_INDEXES).") % {"url": url},
                field="extra_index_urls",
            )


def check_path(path: str, *, field: str) -> None:
    """Raise Refused unless a path is absolute and leads nowhere up."""
    pure = PurePosixPath(path)
    if not pure.is_absolute() or ".." in pure.parts:
        raise Refused(_("Give an absolute path on the host, without “..”."), field=field)


def adopt(host: Host, *, path: str, actor: User | None, idempotency_key: str | None = None) -> Job:
    """Make an environment that lies on a host already one of its engines; keys as for `install`."""
    if first := _first(idempotency_key):
        return first
    check_path(path, field="path")
    payload = AdoptEnginePayload(path=path)
    with transaction.atomic():
        access.record(actor=actor, action="engine.adopt", target=path, target_url=f"/hosts/{host.pk}/", host=host.name)
        return services.create(
            kind="adopt_engine",
            title=_("Adopt %(path)s on %(host)s") % {"path": path[:100], "host": host},
            host=host,
            steps=[PlannedStep(StepKind.ADOPT_ENGINE, payload.model_dump(mode="json"), EXAMINE_SECONDS)],
            actor=actor,
            subject=("host", host.pk),
            idempotency_key=idempotency_key,
        )


def check(engine: Engine, *, actor: User | None) -> Job:
    """Test an engine again, and read its arguments anew."""
    payload = CheckEnginePayload(engine=engine.key)
    return _about(engine, "check_engine", _("Test %(engine)s on %(host)s"), StepKind.CHECK_ENGINE, payload, actor)


def repair(engine: Engine, *, actor: User | None, reason: str) -> Job:
    """Install an engine anew, as it was installed: beside the old environment, which goes when the new one works."""
    if engine.adopted:
        raise Refused(_("Slipway did not install %(engine)s, so it can't install it anew.") % {"engine": engine})
    plan = InstallPlan.model_validate(engine.details.get("plan") or {})
    allowed = settings.ENV.extra_indexes
    wish = EngineWish(
        distribution=engine.distribution,
        version=engine.version,
        extra_index_urls=tuple(url for url in plan.extra_index_urls if url in allowed),
        constraints=tuple(plan.constraints),
        wheel_directory=plan.wheel_directory,
        relax=bool(plan.loosened),
    )
    payload = _install_payload(wish, replace=True)
    return _about(
        engine, "repair_engine", _("Repair %(engine)s on %(host)s"), StepKind.INSTALL_ENGINE, payload, actor,
        reason=reason, seconds=INSTALL_SECONDS,
    )  # fmt: skip


def remove(engine: Engine, *, actor: User | None, reason: str) -> Job:
    """Take an engine from its host. Refused while a deployment or an instance uses it."""
    refuse_in_use(engine)
    title = _("Forget %(engine)s on %(host)s") if engine.adopted else _("Remove %(engine)s from %(host)s")
    payload = RemoveEnginePayload(engine=engine.key)
    return _about(
        engine, "remove_engine", title, StepKind.REMOVE_ENGINE, payload, actor, reason=reason, seconds=REMOVE_SECONDS
    )


def clear_cache(engine: Engine, *, model: str, actor: User | None, reason: str) -> Job:
    """Delete what an engine compiled for one model, or with an empty name for all."""
    if model and model not in {cache["model"] for cache in engine.caches}:
        raise Refused(_("There is no such cache any more. Look at the engine's page again."))
    payload = ClearCachePayload(engine=engine.key, model=model)
    title = _("Clear the compile cache of %(engine)s on %(host)s")
    return _about(engine, "clear_cache", title, StepKind.CLEAR_CACHE, payload, actor, reason=reason)


def refuse_in_use(engine: Engine) -> None:
    """Raise Refused, with names, while deployments name an engine or instances run on it."""
    usage = usage_of([engine])[engine.pk]
    if usage.live:
        raise Refused(_("In use by %(names)s. Stop and change them first.") % {"names": usage.names})
    if usage.idle:
        raise Refused(
            _("%(names)s could not start again without it. Delete them, or give them another engine first.")
            % {"names": usage.names}
        )


def _about(
    engine: Engine, kind: str, title: str, step: StepKind, payload: BaseModel, actor: User | None, *, reason: str = "",
    seconds: float = EXAMINE_SECONDS,
) -> Job:  # fmt: skip
    services.refuse_while_busy(subject_kind="engine", subject_id=engine.pk)
    with transaction.atomic():
        access.record(
            actor=actor, action=f"engine.{kind.partition('_')[0]}", target=f"{engine} · {engine.host}", reason=reason,
            target_url=f"/engines/{engine.pk}/",
        )  # fmt: skip
        job = services.create(
            kind=kind,
            title=title % {"engine": engine, "host": engine.host},
            host=engine.host,
            steps=[PlannedStep(step, payload.model_dump(mode="json"), seconds)],
            actor=actor,
            subject=("engine", engine.pk),
            reason=reason,
        )
        live.changed("engine", engine.pk)
    return job


class EngineHandler(JobHandler):
    """Pages of engines show the jobs about them: tell those when one ends."""

    def step_succeeded(self, step: Step) -> None:
        """An engine that was removed is gone now, not only with the next inventory."""
        if step.kind == StepKind.REMOVE_ENGINE:
            Engine.objects.filter(pk=step.job.about).update(present=False)
        live.changed("engine")

    def before_step(self, step: Step) -> None:
        """Someone may have deployed with it since it was asked for."""
        if step.kind == StepKind.REMOVE_ENGINE:
            refuse_in_use(Engine.objects.get(pk=step.job.about))

    def before_retry(self, job: Job, step: Step) -> None:
        """The same, when a person asks again."""
        if step.kind == StepKind.REMOVE_ENGINE:
            refuse_in_use(Engine.objects.get(pk=job.about))

    def job_failed(self, job: Job, step: Step) -> None:  # noqa: ARG002
        """Tell the pages."""
        live.changed("engine")

    def job_cancelled(self, job: Job) -> None:  # noqa: ARG002
        """Tell the pages."""
        live.changed("engine")


def running_steps(hosts: Iterable[Host]) -> list[Step]:
    """Steps about engines of these hosts that may still change, oldest first."""
    return list(
        Step.objects.filter(host__in=list(hosts), kind__in=ENGINE_STEPS, state__in=LIVE_STATES)
        .select_related("job", "host")
        .order_by("pk")
    )


def payload_key(step: Step) -> str:
    """Key of the engine that a step is about; empty for an adoption, which finds it out."""
    payload: dict[str, Any] = step.payload
    if step.kind == StepKind.INSTALL_ENGINE:
        return f"{payload.get('distribution')}-{payload.get('version')}"
    return str(payload.get("engine") or "")


def register_handlers() -> None:
    """Called once, when the app is ready."""
    for kind in ("install_engine", "adopt_engine", "check_engine", "repair_engine", "remove_engine", "clear_cache"):
        register(kind, EngineHandler())

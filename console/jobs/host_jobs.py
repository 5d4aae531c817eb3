"""Jobs about a host's files: verify a copy, add a directory, make the demo model."""

from pathlib import PurePosixPath
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.catalog.models import Copy, Model, Revision
from console.common import live
from console.common.errors import Refused
from console.common.states import move
from console.fleet.models import Engine, Host
from console.jobs import services
from console.jobs.copy_checks import (
    refuse_busy,
    store_damage,
    store_verification,
    trim_result,
    verify_payload,
    verify_step,
)
from console.jobs.kinds import JobHandler, register
from console.jobs.models import Job, Step
from console.jobs.services import PlannedStep
from workers.contracts import StepKind
from workers.step_payloads import MakeDemoModelPayload

DEMO_MODEL_SECONDS = 1800


def verify_copy(copy: Copy, *, actor: User | None) -> Job:
    """Read every byte of a copy's files and compare them with all that is known of them."""
    refuse_busy(copy)
    return services.create(
        kind="verify",
        title=_("Verify %(model)s on %(host)s") % {"model": copy.revision.model, "host": copy.host},
        host=copy.host,
        steps=[verify_step(copy)],
        actor=actor,
        subject=("copy", copy.pk),
    )


def add_directory(
    *, name: str, host: Host, path: str, actor: User | None, license: str = "", notes: str = ""
) -> tuple[Copy, Job]:
    """Register a model directory that lies on a host, and verify it."""
    pure = PurePosixPath(path)
    if not pure.is_absolute() or ".." in pure.parts:
        raise Refused(_("Give the directory's absolute path on the host, without “..”."), field="path")
    with transaction.atomic():
        known = Copy.objects.filter(host=host, path=str(pure)).select_related("revision__model").first()
        if known and known.state == "removed" and not known.revision.is_pinned:
            move(known, to="unverified", reason=_("added again"), actor=actor)
            access.record(
                actor=actor, action="model.add", target=str(known.revision.model), host=host.name, path=path,
                target_url=f"/models/{known.revision.model_id}/",
            )  # fmt: skip
            return known, verify_copy(known, actor=actor)
        if known:
            raise Refused(
                _("This directory is already known as %(model)s.") % {"model": known.revision.model}, field="path"
            )
        try:
            with transaction.atomic():
                model = Model.objects.create(name=name, team_id=host.team_id, license=license, notes=notes)
        except IntegrityError:
            raise Refused(_("There is a model with this name already."), field="name") from None
        revision = Revision.objects.create(model=model, commit="local")
        copy = Copy.objects.create(revision=revision, host=host, path=str(pure))
        access.record(
            actor=actor, action="model.add", target=name, target_url=f"/models/{model.pk}/", host=host.name, path=path
        )
        live.changed("model", model.pk)
        job = verify_copy(copy, actor=actor)
    return copy, job


def make_demo_model(host: Host, *, engine: Engine, actor: User | None) -> Job:
    """Make the small real chat model of the demo on a host."""
    payload = MakeDemoModelPayload(engine=engine.key)
    return services.create(
        kind="make_demo_model",
        title=_("Make the demo model on %(host)s") % {"host": host},
        host=host,
        steps=[PlannedStep(StepKind.MAKE_DEMO_MODEL, payload.model_dump(mode="json"), DEMO_MODEL_SECONDS)],
        actor=actor,
        subject=("host", host.pk),
    )


class VerifyHandler(JobHandler):
    """Keeps the copy's verification."""

    def payload(self, step: Step) -> dict[str, Any]:
        """What the host compares the files with, as it is known now."""
        return verify_payload(self._copy(step.job), launch=False)

    def step_succeeded(self, step: Step) -> None:
        """Store the result with the copy."""
        store_verification(self._copy(step.job), step.result, job=step.job_id)
        trim_result(step)

    def job_failed(self, job: Job, step: Step) -> None:
        """Store what is wrong with the copy."""
        store_damage(self._copy(job), step.failure or {}, job=job.pk)

    def _copy(self, job: Job) -> Copy:
        return Copy.objects.select_related("revision__model__origin").get(pk=job.about)


class MakeDemoModelHandler(JobHandler):
    """Registers the model that was made."""

    def step_succeeded(self, step: Step) -> None:
        """Add the model to the catalogue, once."""
        path = step.result["model_path"]
        if Copy.objects.filter(host=step.host, path=path).exists():
            return
        name = PurePosixPath(path).name
        model, _created = Model.objects.get_or_create(
            team=step.host.team, name=name, defaults={"license": step.result.get("license", "")}
        )
        revision, _created = Revision.objects.get_or_create(model=model, commit="local")
        Copy.objects.create(revision=revision, host=step.host, path=path, size_bytes=step.result.get("size_bytes", 0))
        live.changed("model", model.pk)


def register_handlers() -> None:
    """Called once, when the app is ready."""
    register("verify", VerifyHandler())
    register("make_demo_model", MakeDemoModelHandler())

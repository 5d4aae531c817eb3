"""The control run of an instance: are its files at fault, or its engine? Asked for by a person, after a failed validation."""

from django.db import transaction
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.common.errors import Refused
from console.deployments.models import Instance
from console.jobs import services as jobs
from console.jobs.models import Job, Step
from console.jobs.services import PlannedStep
from workers.contracts import Probe, StepKind
from workers.step_payloads import ControlRunPayload

CONTROL_SECONDS = 1800


def control_run(instance: Instance, *, actor: User | None, reason: str) -> Job:
    """Ask the probe's question of the instance's files without its engine, on its host's CPU."""
    spec = instance.spec
    if not instance.engine.present:
        gone = _("%(engine)s is no longer installed on %(host)s.") % {"engine": instance.engine, "host": instance.host}
        raise Refused(gone)
    jobs.refuse_while_busy(subject_kind="instance", subject_id=instance.pk)
    probe = Probe.model_validate(spec.probe)
    if probe.mode == "embeddings":
        raise Refused(_("A control run asks a question, and this model gives vectors: verify its files instead."))
    payload = ControlRunPayload(
        engine=instance.engine.key,
        model_path=instance.copy.path,
        question=probe.prompt,
        mode=probe.mode,
        expected=probe.expected,
        language=probe.language,
        engine_answer=_last_answer(instance),
    )
    with transaction.atomic():
        access.record(
            actor=actor, action="instance.control_run", target=str(instance),
            target_url=f"/instances/{instance.pk}/", reason=reason,
        )  # fmt: skip
        return jobs.create(
            kind="control_run",
            title=_("Control run of %(name)s") % {"name": instance},
            host=instance.host,
            steps=[PlannedStep(StepKind.CONTROL_RUN, payload.model_dump(mode="json"), CONTROL_SECONDS)],
            actor=actor,
            subject=("instance", instance.pk),
            reason=reason,
        )


def _last_answer(instance: Instance) -> str:
    """What the engine said at its last validation by a job."""
    steps = Step.objects.filter(kind=StepKind.VALIDATE, payload__instance=str(instance.uuid)).order_by("-pk")[:5]
    return next((str(step.result["answer"]) for step in steps if step.result.get("answer")), "")

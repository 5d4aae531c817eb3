"""What deploy, restart and stop jobs do beside running their steps."""

from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from console.common import live
from console.common.states import move
from console.deployments import services
from console.deployments.models import RUNNING_STATES, Deployment, Instance, Spec
from console.fleet import desired
from console.jobs.copy_checks import store_damage, store_verification, trim_result, verify_payload
from console.jobs.kinds import JobHandler, RunAgain, register
from console.jobs.models import Job, Step
from workers.contracts import StepKind

BRING_UP = (StepKind.LAUNCH, StepKind.LISTENING, StepKind.VALIDATE, StepKind.WARMUP)


class BringUpHandler(JobHandler):
    """Deploy and restart: both end with an instance that is ready."""

    def payload(self, step: Step) -> dict[str, Any]:
        """Ports promised to others, and the start number, as they are now."""
        payload = dict(step.payload)
        instance = instance_of(step.job)
        if step.kind == StepKind.PREFLIGHT:
            others = Instance.objects.filter(host=step.host).exclude(pk=instance.pk).exclude(port=None)
            payload["reserved_ports"] = list(
                others.exclude(state__in=("stopped", "crashed")).values_list("port", flat=True)
            )
        elif step.kind == StepKind.VERIFY:
            payload = verify_payload(instance.spec.copy, launch=True)
        elif step.kind in BRING_UP:
            payload["start"] = instance.start
        return payload

    def before_step(self, step: Step) -> None:
        """The launch step waits for what the desired state orders: order it now."""
        if step.kind == StepKind.LAUNCH:
            instance = instance_of(step.job)
            instance.ordered = instance.run = True
            instance.save(update_fields=["ordered", "run"])
            desired.change(instance.host)

    def step_succeeded(self, step: Step) -> None:
        """Take over the port, the verification, and readiness."""
        instance = instance_of(step.job)
        if step.kind == StepKind.PREFLIGHT:
            self._take_port(instance, step.result["port"])
        elif step.kind == StepKind.VERIFY:
            store_verification(instance.spec.copy, step.result, job=step.job_id)
            trim_result(step)
        elif step.kind == StepKind.WARMUP:
            self._ready(instance)

    def _take_port(self, instance: Instance, port: int) -> None:
        try:
            with transaction.atomic():
                instance.port = port
                instance.save(update_fields=["port"])
        except IntegrityError:
            raise RunAgain(
                _("Port %(port)d was promised to another instance meanwhile; choosing again.") % {"port": port}
            ) from None

    def _ready(self, instance: Instance) -> None:
        instance.bring_up, instance.failure = "agent", None
        instance.save(update_fields=["bring_up", "failure"])
        if instance.STATES.allows(instance.state, "ready"):
            move(instance, to="ready", reason=_("warm-up passed"))
        desired.change(instance.host)
        live.changed("instance", instance.pk)

    def job_succeeded(self, job: Job) -> None:
        """The deployment serves."""
        services.settle(job.about)

    def job_failed(self, job: Job, step: Step) -> None:
        """Free the device: a process whose start failed is stopped, not left half alive."""
        instance = instance_of(job)
        failure = step.failure or {}
        instance.failure = failure
        instance.save(update_fields=["failure"])
        if step.kind == StepKind.VERIFY:
            store_damage(instance.spec.copy, failure, job=job.pk)
        _give_up(instance, reason=failure.get("message", ""))
        deployment = Deployment.objects.get(pk=job.about)
        if deployment.state == "deploying":
            move(deployment, to="failed", reason=failure.get("message", ""))
            live.changed("deployment", deployment.pk)

    def job_cancelled(self, job: Job) -> None:
        """Stop what was being started."""
        _give_up(instance_of(job), reason=_("cancelled"))
        deployment = Deployment.objects.get(pk=job.about)
        if deployment.state == "deploying":
            move(deployment, to="stopping", reason=job.state_reason or _("cancelled"))
        services.settle(deployment.pk)
        live.changed("deployment", deployment.pk)

    def resume_from(self, step: Step) -> int:
        """A failed start left no process: whatever failed after the launch, the launch comes first again."""
        launch = step.job.steps.get(kind=StepKind.LAUNCH)
        return min(step.position, launch.position)

    def before_retry(self, job: Job, step: Step) -> None:  # noqa: ARG002
        """A new start of the same instance."""
        instance = instance_of(job)
        deployment = Deployment.objects.get(pk=job.about)
        instance.start += 1
        instance.bring_up, instance.failure, instance.restarts = "job", None, 0
        instance.save(update_fields=["start", "bring_up", "failure", "restarts"])
        if instance.state in ("stopped", "crashed"):
            move(instance, to="starting", reason=_("retried"))
        move(deployment, to="deploying", reason=_("retried"))


class ChangeHandler(BringUpHandler):
    """Change: the old engine serves until the new spec's files are verified, then the launch puts the new one in place."""

    def payload(self, step: Step) -> dict[str, Any]:
        """Verification is of the new spec's files."""
        if step.kind == StepKind.VERIFY:
            return verify_payload(_wanted_spec(step.job).copy, launch=True)
        return super().payload(step)

    def before_step(self, step: Step) -> None:
        """From the launch on, the new spec is the current one."""
        if step.kind == StepKind.LAUNCH:
            instance, spec = instance_of(step.job), _wanted_spec(step.job)
            if instance.spec_id != spec.pk:
                self._swap(instance, spec)
        super().before_step(step)

    def _swap(self, instance: Instance, spec: Spec) -> None:
        instance.spec = spec
        instance.start += 1
        instance.bring_up, instance.failure, instance.restarts = "job", None, 0
        instance.port = spec.port or instance.port
        instance.save(update_fields=["spec", "start", "bring_up", "failure", "restarts", "port"])
        Deployment.objects.filter(pk=instance.deployment_id).update(current_spec=spec)
        if instance.STATES.allows(instance.state, "restarting"):
            move(instance, to="restarting", reason=_("spec %(number)d") % {"number": spec.number})
        elif instance.STATES.allows(instance.state, "starting"):
            move(instance, to="starting", reason=_("spec %(number)d") % {"number": spec.number})

    def step_succeeded(self, step: Step) -> None:
        """What the verification found belongs to the new spec's files."""
        if step.kind == StepKind.VERIFY:
            store_verification(_wanted_spec(step.job).copy, step.result, job=step.job_id)
            trim_result(step)
            return
        super().step_succeeded(step)

    def job_failed(self, job: Job, step: Step) -> None:
        """Before the launch nothing was touched: the old engine goes on serving."""
        spec = _wanted_spec(job)
        if instance_of(job).spec_id == spec.pk:
            super().job_failed(job, step)
            return
        if step.kind == StepKind.VERIFY:
            store_damage(spec.copy, step.failure or {}, job=job.pk)
        self._leave_as_it_was(job)

    def job_cancelled(self, job: Job) -> None:
        """Before the launch, a cancelled change leaves what serves alone."""
        if instance_of(job).spec_id == _wanted_spec(job).pk:
            super().job_cancelled(job)
        else:
            self._leave_as_it_was(job)

    def _leave_as_it_was(self, job: Job) -> None:
        services.settle(job.about)
        live.changed("deployment", job.about)

    def resume_from(self, step: Step) -> int:
        """A change whose files were not sound begins with them again."""
        return step.position if step.kind == StepKind.VERIFY else super().resume_from(step)

    def before_retry(self, job: Job, step: Step) -> None:
        """A new start, if the new spec was in place already."""
        if instance_of(job).spec_id == _wanted_spec(job).pk:
            super().before_retry(job, step)
        else:
            move(Deployment.objects.get(pk=job.about), to="deploying", reason=_("retried"))


def _wanted_spec(job: Job) -> Spec:
    """The spec that a change puts in place."""
    return Spec.objects.select_related("copy__revision__model__origin", "copy__host").get(pk=job.payload["spec"])


class StopHandler(JobHandler):
    """Stop: an instance is only said to be stopped once its host has proven it."""

    def step_succeeded(self, step: Step) -> None:
        """The host has seen the last process of the group end."""
        instance = Instance.objects.get(uuid=step.payload["instance"])
        forget(instance, reason=_("stopped"))

    def job_succeeded(self, job: Job) -> None:
        """Nothing of the deployment runs any more."""
        services.settle(job.about)

    def job_failed(self, job: Job, step: Step) -> None:
        """Say why it could not be stopped; a retry tries again."""
        deployment = Deployment.objects.get(pk=job.about)
        if deployment.state == "stopping":
            move(deployment, to="failed", reason=(step.failure or {}).get("message", ""))
            live.changed("deployment", deployment.pk)

    def before_retry(self, job: Job, step: Step) -> None:  # noqa: ARG002
        """Stopping again."""
        deployment = Deployment.objects.get(pk=job.about)
        if deployment.STATES.allows(deployment.state, "stopping"):
            move(deployment, to="stopping", reason=_("retried"))


def instance_of(job: Job) -> Instance:
    """The instance that a deploy or restart job is about."""
    return Instance.objects.select_related("spec__copy__revision__model__origin", "host", "deployment").get(
        pk=job.payload["instance"]
    )


def _give_up(instance: Instance, *, reason: str) -> None:
    if instance.ordered:
        services.halt(instance)
        return
    Instance.objects.filter(pk=instance.pk).update(run=False)
    if instance.state in RUNNING_STATES:
        move(instance, to="stopped", reason=reason)
    live.changed("instance", instance.pk)


def forget(instance: Instance, *, reason: str) -> None:
    """An instance that nobody wants has stopped: take it out of its host's desired state and free its port."""
    Instance.objects.filter(pk=instance.pk).update(ordered=False, run=False)
    if instance.state not in ("stopped", "crashed"):
        move(instance, to="stopped", reason=reason)
    desired.change(instance.host)
    live.changed("instance", instance.pk)


def register_handlers() -> None:
    """Called once, when the app is ready."""
    register("deploy", BringUpHandler())
    register("restart", BringUpHandler())
    register("change", ChangeHandler())
    register("stop", StopHandler())

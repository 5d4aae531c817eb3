"""What deploy, restart and stop jobs do beside running their steps."""

from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from console.catalog.models import Copy
from console.common import live
from console.common.errors import Refused
from console.common.states import move
from console.deployments import adapters, claims, fetching, gates, measurements, rooms, services
from console.deployments.models import RUNNING_STATES, Deployment, Instance, Spec
from console.fleet import desired
from console.fleet.models import Engine
from console.jobs import copy_fetching
from console.jobs import services as jobs
from console.jobs.copy_checks import store_damage, store_verification, trim_result
from console.jobs.kinds import JobHandler, NotGoodEnough, RunAgain, register
from console.jobs.models import Job, Step
from workers.contracts import Level, StepKind, StepPart

BRING_UP = (StepKind.LAUNCH, StepKind.LISTENING, StepKind.VALIDATE, StepKind.WARMUP)


class BringUpHandler(JobHandler):
    """Deploy and restart: both end with instances that are ready, brought up one after the other."""

    def payload(self, step: Step) -> dict[str, Any]:
        """Ports promised to others, and the start number, as they are now."""
        if fetcher := fetching.fetcher_of(step):
            return fetcher.payload(step)
        payload = dict(step.payload)
        instance = instance_at(step)
        if step.kind == StepKind.PREFLIGHT:
            others = Instance.objects.filter(host=step.host).exclude(pk=instance.pk).exclude(port=None)
            payload["reserved_ports"] = list(
                others.exclude(state__in=("stopped", "crashed")).values_list("port", flat=True)
            )
        elif step.kind == StepKind.VERIFY:
            payload = fetching.verification(step, instance.copy)
        elif step.kind in BRING_UP:
            payload["start"] = instance.start
        elif step.kind == StepKind.BENCHMARK and (keeper := gates.keeper()):
            payload = keeper.payload(instance)
        return payload

    def secrets(self, step: Step) -> dict[str, str]:
        """What the source, or the giving host, asks for."""
        fetcher = fetching.fetcher_of(step)
        return fetcher.secrets(step) if fetcher else {}

    def before_step(self, step: Step) -> None:
        """The launch step waits for what the desired state orders: order it now."""
        if fetcher := fetching.fetcher_of(step):
            fetcher.before_step(step)
        if step.kind == StepKind.LAUNCH:
            instance = instance_at(step)
            instance.ordered = instance.run = True
            instance.prediction = measurements.predicted(instance)
            instance.save(update_fields=["ordered", "run", "prediction"])
            desired.change(instance.host)
        elif step.kind == StepKind.BENCHMARK and (keeper := gates.keeper()):
            keeper.begun(step, instance_at(step))

    def step_part(self, step: Step, part: StepPart) -> None:
        """A run of the gate's measurement."""
        if keeper := gates.keeper():
            keeper.took_part(step, part)

    def step_succeeded(self, step: Step) -> None:
        """Take over the port, what was fetched, the verification, and readiness."""
        if fetcher := fetching.fetcher_of(step):
            fetcher.step_succeeded(step)
            return
        instance = instance_at(step)
        if step.kind == StepKind.PREFLIGHT:
            self._take_port(instance, step.result["port"])
        elif step.kind == StepKind.VERIFY:
            store_verification(instance.copy, step.result, job=step.job_id)
            trim_result(step)
        elif step.kind == StepKind.WARMUP and not _gate_follows(step):
            self._ready(instance)
        elif step.kind == StepKind.BENCHMARK:
            self._pass_gate(step, instance)
            self._ready(instance)

    def _pass_gate(self, step: Step, instance: Instance) -> None:
        keeper = gates.keeper()
        if keeper is None:
            return
        if refusal := keeper.judge(step, instance):
            raise NotGoodEnough(refusal)
        keeper.admitted(step, instance)

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
            move(instance, to="ready", reason=_("gate passed") if instance.spec.gate else _("warm-up passed"))
        adapters.attend(instance)
        desired.change(instance.host)
        live.changed("instance", instance.pk)

    def job_succeeded(self, job: Job) -> None:
        """The deployment serves."""
        services.settle(job.about)

    def job_failed(self, job: Job, step: Step) -> None:
        """Free the devices: a process whose start failed is stopped, not left half alive. Replicas that are ready serve on."""
        instance = instance_at(step)
        failure = step.failure or {}
        instance.failure = failure
        instance.save(update_fields=["failure"])
        if step.kind == StepKind.VERIFY:
            store_damage(instance.copy, failure, job=job.pk)
        _tell_gate_refused(step)
        fetching.stop(job, step)
        _give_up_unready(job, reason=failure.get("message", ""))
        deployment = Deployment.objects.get(pk=job.about)
        if deployment.state == "deploying":
            if deployment.instances.filter(run=True, state="ready").exists():
                services.settle(deployment.pk)
            else:
                move(deployment, to="failed", reason=failure.get("message", ""))
            live.changed("deployment", deployment.pk)

    def job_cancelled(self, job: Job) -> None:
        """Stop what was being fetched and started; replicas that are ready serve on."""
        _tell_gate_abandoned(job)
        fetching.stop(job)
        _give_up_unready(job, reason=_("cancelled"))
        deployment = Deployment.objects.get(pk=job.about)
        serves = deployment.instances.filter(run=True, state="ready").exists()
        if deployment.state == "deploying" and not serves:
            move(deployment, to="stopping", reason=job.state_reason or _("cancelled"))
        services.settle(deployment.pk)
        live.changed("deployment", deployment.pk)

    def resume_from(self, step: Step) -> int:
        """A failed start left no process: whatever failed after the launch, that instance's launch comes first again."""
        if fetcher := fetching.fetcher_of(step):
            first = step.job.steps.filter(kind__in=copy_fetching.FETCHING).order_by("position")[0].position
            return max(first, fetcher.resume_from(step))
        instance = instance_at(step).pk
        launches = [one for one in step.job.steps.filter(kind=StepKind.LAUNCH) if instance_at(one).pk == instance]
        return min(step.position, launches[0].position)

    def before_retry(self, job: Job, step: Step) -> None:
        """New starts of the instances that were not ready, with claims anew: others may have taken their memory."""
        fetching.go_on(job, step)
        for instance in instances_of(job):
            if instance.bring_up == "job":
                _start_again(instance)
        move(Deployment.objects.get(pk=job.about), to="deploying", reason=_("retried"))


def _start_again(instance: Instance) -> None:
    claims.take_again(instance)
    instance.start += 1
    instance.failure, instance.restarts = None, 0
    instance.save(update_fields=["start", "failure", "restarts"])
    if instance.state in ("stopped", "crashed"):
        move(instance, to="starting", reason=_("retried"))


class RollingRestartHandler(BringUpHandler):
    """Restart one instance after the other: one that has not had its turn goes on serving as it is."""

    def before_step(self, step: Step) -> None:
        """An instance's turn begins with its launch."""
        instance = instance_at(step)
        if step.kind == StepKind.LAUNCH and instance.bring_up == "agent":
            instance.start += 1
            instance.bring_up, instance.failure, instance.restarts = "job", None, 0
            instance.save(update_fields=["start", "bring_up", "failure", "restarts"])
            for to in ("restarting", "starting"):
                if instance.state != to and instance.STATES.allows(instance.state, to):
                    move(instance, to=to, reason=step.job.reason)
                    break
        super().before_step(step)


class ChangeHandler(BringUpHandler):
    """Change: what serves goes on until the new spec's files are verified; then instance after instance is replaced.

    Where there was room for both, a new instance comes up beside the old one, which is stopped once the new one is ready;
    elsewhere the launch puts the new spec in the old instance's place.
    """

    def payload(self, step: Step) -> dict[str, Any]:
        """Verification is of the new spec's files."""
        if step.kind == StepKind.VERIFY:
            return fetching.verification(step, _copy_wanted(step))
        return super().payload(step)

    def before_step(self, step: Step) -> None:
        """An old instance's turn: the launch swaps its spec, or the stop ends it."""
        if step.kind == StepKind.STOP:
            services.halt(instance_at(step))
            return
        if step.kind == StepKind.LAUNCH:
            instance, spec = instance_at(step), _wanted_spec(step.job)
            if instance.spec_id != spec.pk:
                self._swap(instance, spec, step.job)
        super().before_step(step)

    def _there(self, instance: Instance, spec: Spec) -> tuple[Copy | None, Engine | None]:
        """The new spec's files and engine on the instance's host; none of its own where that is the spec's host."""
        if instance.host_id == spec.host_id:
            return None, None
        sites = rooms.sites_of(spec.copy, spec.engine, here_only=False)
        site = next((one for one in sites if one.host.pk == instance.host_id), None)
        return (site.copy, site.engine) if site else (instance.own_copy, instance.own_engine)

    def _claim(self, instance: Instance, job: Job) -> None:
        """Room was there when the change was asked for. If it is gone, the old claim stays and the start decides."""
        try:
            claims.take_again(instance)
        except Refused as refusal:
            jobs.note(job, str(refusal), level=Level.WARNING)

    def _swap(self, instance: Instance, spec: Spec, job: Job) -> None:
        instance.spec = spec
        instance.own_copy, instance.own_engine = self._there(instance, spec)
        self._claim(instance, job)
        instance.start += 1
        instance.bring_up, instance.failure, instance.restarts = "job", None, 0
        instance.port = spec.port or instance.port
        instance.save(
            update_fields=["spec", "own_copy", "own_engine", "start", "bring_up", "failure", "restarts", "port"]
        )
        Deployment.objects.filter(pk=instance.deployment_id).update(current_spec=spec)
        if instance.STATES.allows(instance.state, "restarting"):
            move(instance, to="restarting", reason=_("spec %(number)d") % {"number": spec.number})
        elif instance.STATES.allows(instance.state, "starting"):
            move(instance, to="starting", reason=_("spec %(number)d") % {"number": spec.number})

    def step_succeeded(self, step: Step) -> None:
        """The first new instance that is ready makes its spec the current one; an old one that ended is forgotten."""
        if step.kind == StepKind.VERIFY:
            store_verification(_copy_wanted(step), step.result, job=step.job_id)
            trim_result(step)
            return
        if step.kind == StepKind.STOP:
            forget(instance_at(step), reason=_("replaced"))
            return
        super().step_succeeded(step)
        if step.kind == StepKind.BENCHMARK or (step.kind == StepKind.WARMUP and not _gate_follows(step)):
            Deployment.objects.filter(pk=step.job.about).update(current_spec=_wanted_spec(step.job))

    def job_failed(self, job: Job, step: Step) -> None:
        """Before the first swap nothing was touched: what serves goes on serving."""
        fetching.stop(job, step)
        if step.kind == StepKind.VERIFY:
            store_damage(_copy_wanted(step), step.failure or {}, job=job.pk)
        if step.kind == StepKind.STOP or not _touched(job):
            _tell_gate_refused(step)
            self._leave_as_it_was(job, reason=(step.failure or {}).get("message", ""))
        else:
            super().job_failed(job, step)

    def job_cancelled(self, job: Job) -> None:
        """Before the first swap, a cancelled change leaves what serves alone."""
        if _touched(job):
            super().job_cancelled(job)
        else:
            fetching.stop(job)
            _tell_gate_abandoned(job)
            self._leave_as_it_was(job, reason=_("cancelled"))

    def _leave_as_it_was(self, job: Job, *, reason: str) -> None:
        spec = _wanted_spec(job).pk
        for instance in instances_of(job):
            if instance.spec_id == spec and instance.bring_up == "job":
                give_up(instance, reason=reason)
        services.settle(job.about)
        live.changed("deployment", job.about)

    def resume_from(self, step: Step) -> int:
        """A change whose files were not sound, or whose old instance didn't stop, begins there again."""
        return step.position if step.kind in (StepKind.VERIFY, StepKind.STOP) else super().resume_from(step)

    def before_retry(self, job: Job, step: Step) -> None:
        """A new start of each instance of the new spec that was not ready; the others are left alone."""
        fetching.go_on(job, step)
        spec = _wanted_spec(job).pk
        for instance in instances_of(job):
            if instance.spec_id == spec and instance.bring_up == "job":
                _start_again(instance)
        move(Deployment.objects.get(pk=job.about), to="deploying", reason=_("retried"))


def _touched(job: Job) -> bool:
    """True once an old instance was swapped: from then on a failed start is the deployment's."""
    spec = _wanted_spec(job)
    swapped = [
        one for one in instances_of(job) if one.spec_id == spec.pk and one.pk not in job.payload.get("fresh", [])
    ]
    return bool(swapped) or Deployment.objects.filter(pk=job.about, current_spec=spec).exists()


def _copy_wanted(step: Step) -> Copy:
    """The new spec's files on the host of the step's instance."""
    instance, spec = instance_at(step), _wanted_spec(step.job)
    if instance.spec_id == spec.pk:
        return instance.copy
    here = spec.copy.revision.copies.filter(host_id=instance.host_id).order_by("pk").first()
    return spec.copy if instance.host_id == spec.host_id or here is None else here


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


_RELATED = (
    "spec__copy__revision__model__origin", "spec__engine", "spec__host", "own_copy__revision__model__origin",
    "own_engine", "host", "deployment",
)  # fmt: skip


def instance_at(step: Step) -> Instance:
    """The instance that a step of a deploy, restart or change job is about."""
    owners = step.job.payload.get("owners")
    pk = owners[step.position - 1] if owners else step.job.payload["instance"]
    return Instance.objects.select_related(*_RELATED).get(pk=pk)


def instances_of(job: Job) -> list[Instance]:
    """All instances that a job is about, in the order of their turns."""
    pks = job.payload.get("instances") or [job.payload["instance"]]
    found = {one.pk: one for one in Instance.objects.select_related(*_RELATED).filter(pk__in=pks)}
    return [found[pk] for pk in pks if pk in found]


def _gate_follows(step: Step) -> bool:
    """True if the step after this one measures the same instance before it may serve."""
    following = step.job.steps.filter(position=step.position + 1, kind=StepKind.BENCHMARK).first()
    return following is not None and instance_at(following).pk == instance_at(step).pk


def _tell_gate_refused(step: Step) -> None:
    if step.kind == StepKind.BENCHMARK and (keeper := gates.keeper()):
        keeper.refused(step)


def _tell_gate_abandoned(job: Job) -> None:
    for step in job.steps.filter(kind=StepKind.BENCHMARK, state="cancelled"):
        if keeper := gates.keeper():
            keeper.abandoned(step)


def _give_up_unready(job: Job, *, reason: str) -> None:
    for instance in instances_of(job):
        if instance.bring_up == "job":
            give_up(instance, reason=reason)


def give_up(instance: Instance, *, reason: str) -> None:
    """Stop what a job brought up and nobody wants any more; one that was never ordered is stopped at once."""
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
    register("rolling_restart", RollingRestartHandler())
    register("change", ChangeHandler())
    register("stop", StopHandler())

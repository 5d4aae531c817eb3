"""Deployments: create, start, restart, stop, delete, and the truth about them in one sentence."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.catalog import consents
from console.catalog.models import Copy
from console.common import live
from console.common.errors import Refused
from console.common.secrets import decrypt, encrypt
from console.common.states import move
from console.deployments import arguments_check, claims, gates, holds, public
from console.deployments.models import RUNNING_STATES, Deployment, Instance, Spec
from console.deployments.rooms import Site
from console.fleet import desired
from console.fleet.models import Engine, Host
from console.jobs import copy_fetching
from console.jobs import services as jobs
from console.jobs.copy_checks import verify_step
from console.jobs.models import Job
from console.jobs.services import PlannedStep
from workers.contracts import Probe, RestartPolicy, StepKind
from workers.step_payloads import InstancePayload, PreflightPayload, StopPayload

PREFLIGHT_SECONDS = 120
LAUNCH_SECONDS = 180
VALIDATE_SECONDS = 600
WARMUP_SECONDS = 900
STOP_SECONDS = 300
GRACE_SECONDS = 20


@dataclass(frozen=True)
class Endpoint:
    """Where a deployment answers: `/v1/chat/completions` is appended to `url`; `key` is the bearer token."""

    url: str
    key: str
    model: str


def create(
    *,
    name: str,
    copy: Copy,
    engine: Engine,
    devices: Sequence[str] = (),
    placement: dict[str, Any] | None = None,
    replicas: int = 1,
    arguments: list[str],
    environment: dict[str, str],
    port: int | None,
    probe: Probe,
    restart: RestartPolicy,
    start_deadline_seconds: float,
    notes: str,
    reason: str,
    actor: User | None,
    idempotency_key: str,
    public_name: str = "",
    gate: Mapping[str, Any] | None = None,
) -> Job:
    """Create a deployment with its first spec and its replicas' claims and instances, and start the deploy job.

    `devices` are uuids of the host's devices that the engine may use; none: placement chooses, as `Spec.placement` says.
    Refused, with nothing created, when the replicas don't find room beside what others claim, or `public_name`, under
    which clients shall ask the gateway for it, is taken.
    The same `idempotency_key` again returns the job that the first call made: a second click starts nothing.
    """
    if known := Job.objects.filter(idempotency_key=idempotency_key).first():
        return known
    arguments_check.refuse_guarded(arguments, engine=engine, actor=actor)
    check_fits_together(copy, engine, port)
    check_placement(copy.host, devices=devices, replicas=replicas, port=port)
    try:
        with transaction.atomic():
            deployment = Deployment.objects.create(
                name=name,
                team_id=copy.host.team_id,
                api_key=encrypt(f"sk-slipway-{secrets.token_urlsafe(32)}"),
                notes=notes,
                created_by=actor,
            )
            spec = Spec.objects.create(
                deployment=deployment,
                number=1,
                copy=copy_fetching.stored(copy),
                engine=engine,
                host=copy.host,
                devices=list(devices),
                placement=placement or {},
                replicas=replicas,
                port=port,
                arguments=arguments,
                environment=environment,
                probe=probe.model_dump(),
                restart=restart.model_dump(),
                start_deadline_seconds=start_deadline_seconds,
                gate=dict(gate or {}),
                author=actor,
                reason=reason,
            )
            deployment.current_spec = spec
            deployment.save(update_fields=["current_spec"])
            access.record(
                actor=actor, action="deployment.create", target=name, target_url=_url(deployment), reason=reason
            )
            if public_name:
                public.publish(deployment, public_name, actor=actor, reason=reason)
            return _deploy(deployment, actor=actor, reason=reason, idempotency_key=idempotency_key)
    except IntegrityError:
        if known := Job.objects.filter(idempotency_key=idempotency_key).first():
            return known
        raise Refused(_("There is a deployment with this name already."), field="name") from None


def start(deployment: Deployment, *, actor: User | None, reason: str) -> Job:
    """Deploy the current spec of a stopped or failed deployment again."""
    with transaction.atomic():
        deployment = Deployment.objects.select_for_update().get(pk=deployment.pk)
        if deployment.state not in ("stopped", "failed"):
            raise Refused(
                _("%(name)s is %(state)s; only a stopped or failed deployment can be started.")
                % {"name": deployment, "state": deployment.look.word}
            )
        refuse_while_busy(deployment)
        access.record(
            actor=actor, action="deployment.start", target=deployment.name, target_url=_url(deployment), reason=reason
        )
        return _deploy(deployment, actor=actor, reason=reason)


def _deploy(deployment: Deployment, *, actor: User | None, reason: str, idempotency_key: str | None = None) -> Job:
    spec = deployment.current_spec
    if spec is None:
        raise Refused(_("%(name)s has no spec yet.") % {"name": deployment})
    check_copy(spec)
    instances = new_instances(deployment, spec, claims.place(spec))
    move(deployment, to="deploying", reason=reason, actor=actor)
    steps = StepsOfInstances()
    for instance in instances:
        steps.prepare(instance, actor=actor)
        steps.add(instance, *bring_up(instance, spec.start_deadline_seconds), *gates.steps_of(instance))
    job = jobs.create(
        kind="deploy",
        title=_("Deploy %(name)s") % {"name": deployment},
        host=instances[0].host,
        steps=steps.planned,
        actor=actor,
        subject=("deployment", deployment.pk),
        reason=reason,
        payload=steps.payload,
        idempotency_key=idempotency_key,
    )
    live.changed("deployment", deployment.pk)
    return job


@dataclass
class StepsOfInstances:
    """Steps of a job that brings up several instances one after the other, and which step belongs to which of them."""

    planned: list[PlannedStep] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    verified: set[int] = field(default_factory=set)
    """Copies that an earlier step verifies."""
    fetched: dict[str, Any] = field(default_factory=dict)
    """What the job's payload says of the copy that it fetches; only a spec's own copy can be absent."""

    def add(self, instance: Instance, *steps: PlannedStep) -> None:
        """Append steps of an instance; they run on its host."""
        self.planned += [replace(step, host=step.host or instance.host) for step in steps]
        self.owners += [instance.pk] * len(steps)

    def prepare(self, instance: Instance, *, actor: User | None) -> None:
        """Append what comes before an instance's launch. Each copy is verified once, and fetched before if it isn't there."""
        copy = instance.copy
        if copy.pk in self.verified:
            self.add(instance, PlannedStep(StepKind.PREFLIGHT, _preflight(instance), PREFLIGHT_SECONDS))
            return
        self.verified.add(copy.pk)
        absent = copy_fetching.is_absent(copy)
        self.add(instance, PlannedStep(StepKind.PREFLIGHT, _preflight(instance, files=not absent), PREFLIGHT_SECONDS))
        if absent:
            self.fetch(instance, copy, actor=actor)
        self.add(instance, verify_step(copy))

    def fetch(self, instance: Instance, copy: Copy, *, actor: User | None) -> None:
        """Append the steps that bring a copy's files to the instance's host."""
        fetch = copy_fetching.begin(copy, actor=actor)
        self.fetched = fetch.payload
        self.add(instance, *fetch.steps)

    @property
    def payload(self) -> dict[str, Any]:
        """What the job's handler reads: the instances, the owner of the step at each position, what is fetched."""
        instances = list(dict.fromkeys(self.owners))
        return {"instance": instances[0], "instances": instances, "owners": self.owners, **self.fetched}


def new_instances(deployment: Deployment, spec: Spec, places: Sequence[claims.Place]) -> list[Instance]:
    """Instances of a spec with their claims: stopped ones of the same spec and host come up again, the rest are new."""
    used: list[int] = []
    for place in places:
        instance = _instance_for(deployment, spec, place.site, besides=used)
        claims.take(instance, place)
        used.append(instance.pk)
    related = ("host", "deployment", "spec__copy__revision__model__origin", "own_copy__revision__model__origin",
               "spec__engine", "own_engine", "spec__host")  # fmt: skip
    found = {one.pk: one for one in Instance.objects.filter(pk__in=used).select_related(*related)}
    return [found[pk] for pk in used]


def _instance_for(deployment: Deployment, spec: Spec, site: Site, *, besides: Sequence[int]) -> Instance:
    idle = deployment.instances.filter(spec=spec, host=site.host, state__in=("stopped", "crashed"), ordered=False)
    instance = idle.exclude(pk__in=besides).order_by("number").first()
    if instance is None:
        number = (deployment.instances.aggregate(last=Max("number"))["last"] or 0) + 1
        elsewhere = site.host.pk != spec.host_id
        return Instance.objects.create(
            deployment=deployment, spec=spec, host=site.host, number=number, run=False,
            own_copy=site.copy if elsewhere else None, own_engine=site.engine if elsewhere else None,
        )  # fmt: skip
    instance.start += 1
    instance.bring_up, instance.failure, instance.restarts, instance.port = "job", None, 0, None
    instance.save(update_fields=["start", "bring_up", "failure", "restarts", "port"])
    move(instance, to="starting", reason=_("deployed again"))
    return instance


def _preflight(instance: Instance, *, files: bool = True) -> dict[str, Any]:
    return PreflightPayload(
        engine=instance.engine.key,
        model_path=instance.copy.path if files else "",
        port=instance.spec.port,
        port_range=(instance.host.port_first, instance.host.port_last),
        environment=instance.spec.environment,
        arguments=claims.arguments_of(instance),
    ).model_dump(mode="json")


def bring_up(instance: Instance, start_deadline_seconds: float) -> list[PlannedStep]:
    """The steps from a launch to an instance that is ready."""
    payload = InstancePayload(instance=instance.uuid, start=instance.start).model_dump(mode="json")
    return [
        PlannedStep(StepKind.LAUNCH, payload, LAUNCH_SECONDS),
        PlannedStep(StepKind.LISTENING, payload, start_deadline_seconds),
        PlannedStep(StepKind.VALIDATE, payload, VALIDATE_SECONDS),
        PlannedStep(StepKind.WARMUP, payload, WARMUP_SECONDS),
    ]


def restart(instance: Instance, *, actor: User | None, reason: str) -> Job:
    """Stop an instance's process and bring a new one up; its deployment serves again when it has warmed up."""
    with transaction.atomic():
        instance = Instance.objects.select_for_update().select_related("deployment", "spec", "host").get(pk=instance.pk)
        deployment = instance.deployment
        refuse_while_busy(deployment)
        if not instance.ordered:
            raise Refused(_("%(name)s does not run. Start its deployment instead.") % {"name": instance})
        claims.take_again(instance)
        instance.start += 1
        instance.run, instance.bring_up, instance.failure, instance.restarts = True, "job", None, 0
        instance.save(update_fields=["start", "run", "bring_up", "failure", "restarts"])
        if instance.state == "crashed":
            move(instance, to="starting", reason=reason, actor=actor)
        elif instance.state not in ("starting", "restarting"):
            move(instance, to="restarting", reason=reason, actor=actor)
        why = _("restart of %(name)s: %(reason)s") % {"name": instance, "reason": reason}
        move(deployment, to="deploying", reason=why, actor=actor)
        access.record(
            actor=actor,
            action="instance.restart",
            target=str(instance),
            target_url=f"/instances/{instance.pk}/",
            reason=reason,
        )
        desired.change(instance.host)
        live.changed("instance", instance.pk)
        return jobs.create(
            kind="restart",
            title=_("Restart %(name)s") % {"name": instance},
            host=instance.host,
            steps=bring_up(instance, instance.spec.start_deadline_seconds),
            actor=actor,
            subject=("deployment", deployment.pk),
            reason=reason,
            payload={"instance": instance.pk},
        )


def restart_all(deployment: Deployment, *, actor: User | None, reason: str) -> Job:
    """Restart a deployment's instances one after the other: the next one ends only when the one before serves again."""
    with transaction.atomic():
        deployment = Deployment.objects.select_for_update().get(pk=deployment.pk)
        refuse_while_busy(deployment)
        running = list(
            deployment.instances.filter(ordered=True, run=True).select_related("host", "spec").order_by("number")
        )
        if not running:
            raise Refused(_("Nothing of %(name)s runs. Start it instead.") % {"name": deployment})
        steps = StepsOfInstances()
        for instance in running:
            steps.add(instance, *bring_up(instance, instance.spec.start_deadline_seconds))
        move(deployment, to="deploying", reason=reason, actor=actor)
        access.record(
            actor=actor, action="deployment.restart", target=deployment.name, target_url=_url(deployment), reason=reason
        )
        live.changed("deployment", deployment.pk)
        return jobs.create(
            kind="rolling_restart",
            title=_("Restart %(name)s, one instance at a time") % {"name": deployment},
            host=running[0].host,
            steps=steps.planned,
            actor=actor,
            subject=("deployment", deployment.pk),
            reason=reason,
            payload=steps.payload,
        )


def stop(deployment: Deployment, *, actor: User | None, reason: str) -> Job:
    """Stop all instances of a deployment; jobs that would bring some up are cancelled first."""
    with transaction.atomic():
        deployment = Deployment.objects.select_for_update().get(pk=deployment.pk)
        if deployment.state in ("stopped", "stopping", "draft"):
            raise Refused(_("%(name)s is %(state)s already.") % {"name": deployment, "state": deployment.look.word})
        access.record(
            actor=actor, action="deployment.stop", target=deployment.name, target_url=_url(deployment), reason=reason
        )
        for job in jobs.live_jobs(subject_kind="deployment", subject_id=deployment.pk):
            jobs.cancel(job, actor=actor, reason=reason)
        deployment.refresh_from_db()
        if deployment.state != "stopping":
            move(deployment, to="stopping", reason=reason, actor=actor)
        instance = _halt_all(deployment)
        job = jobs.create(
            kind="stop",
            title=_("Stop %(name)s") % {"name": deployment},
            host=instance.host,
            steps=[
                stop_step(one)
                for one in deployment.instances.filter(ordered=True).select_related("host").order_by("number")
            ],
            actor=actor,
            subject=("deployment", deployment.pk),
            reason=reason,
        )
        live.changed("deployment", deployment.pk)
    return job


def stop_some(deployment: Deployment, instances: Sequence[Instance], *, actor: User | None, reason: str) -> Job:
    """Stop some of a deployment's instances; the others go on serving, and it stands as degraded meanwhile."""
    with transaction.atomic():
        refuse_while_busy(deployment)
        names = ", ".join(map(str, instances))
        access.record(
            actor=actor, action="deployment.stop_some", target=names[:200], target_url=_url(deployment), reason=reason
        )
        for instance in instances:
            halt(instance)
        return jobs.create(
            kind="stop",
            title=_("Stop %(names)s") % {"names": names},
            host=instances[0].host,
            steps=[stop_step(one) for one in instances],
            actor=actor,
            subject=("deployment", deployment.pk),
            reason=reason,
        )


def as_swapped(instance: Instance, spec: Spec) -> Instance:
    """The instance as it will be once it runs by another spec; nothing is stored."""
    return Instance(
        pk=instance.pk, uuid=instance.uuid, deployment=instance.deployment, host=instance.host, number=instance.number,
        start=instance.start, spec=spec,
    )  # fmt: skip


def stop_step(instance: Instance) -> PlannedStep:
    """The step that waits until an instance's last process has ended and its memory is back."""
    payload = StopPayload(instance=instance.uuid, grace_seconds=GRACE_SECONDS).model_dump(mode="json")
    return PlannedStep(StepKind.STOP, payload, STOP_SECONDS, host=instance.host)


def _halt_all(deployment: Deployment) -> Instance:
    """Order every instance of a deployment to stop; returns one of them."""
    for instance in deployment.instances.filter(ordered=True).select_related("host"):
        halt(instance)
    last = deployment.instances.select_related("host").last()
    if last is None:
        raise Refused(_("%(name)s never had an instance.") % {"name": deployment})
    return last


def halt(instance: Instance) -> None:
    """Order one instance to stop, through its host's desired state."""
    Instance.objects.filter(pk=instance.pk).update(run=False)
    desired.change(instance.host)


def delete(deployment: Deployment, *, actor: User | None, reason: str) -> None:
    """Delete a stopped deployment with its specs, instances and their logs. Its jobs and audit entries stay."""
    with transaction.atomic():
        deployment = Deployment.objects.select_for_update().get(pk=deployment.pk)
        if deployment.state not in ("stopped", "failed", "draft"):
            raise Refused(
                _("%(name)s is %(state)s. Stop it first.") % {"name": deployment, "state": deployment.look.word}
            )
        if deployment.instances.filter(ordered=True).exists():
            raise Refused(_("An instance of %(name)s has not been seen stopped yet.") % {"name": deployment})
        refuse_while_busy(deployment)
        access.record(actor=actor, action="deployment.delete", target=deployment.name, reason=reason)
        Deployment.objects.filter(pk=deployment.pk).update(current_spec=None)
        deployment.instances.all().delete()
        deployment.delete()
        live.changed("deployment")


def endpoint(deployment: Deployment) -> Endpoint | None:
    """Address, key and model name of the first ready instance; None while there is none."""
    return next(iter(endpoints(deployment)), None)


def endpoints(deployment: Deployment) -> list[Endpoint]:
    """One for each ready instance, in their order. All have the deployment's key and name."""
    ready = deployment.instances.filter(state="ready").exclude(port=None).select_related("host", "deployment")
    return [endpoint_of(one) for one in ready.order_by("number")]


def endpoint_of(instance: Instance) -> Endpoint:
    """Where one instance answers."""
    deployment = instance.deployment
    return Endpoint(f"http://{instance.host.address}:{instance.port}", decrypt(deployment.api_key), deployment.name)


def command_line(spec: Spec) -> list[str]:
    """The command that an instance of this spec runs, without its secrets."""
    return preview_command(
        model_path=spec.copy.path, name=spec.deployment.name, port=spec.port, arguments=spec.arguments
    )


def preview_command(*, model_path: str, name: str, port: int | None, arguments: list[str]) -> list[str]:
    """The command that will run, as argv; the port is `PORT` where the host will choose it."""
    return [
        "vllm",
        "serve",
        model_path,
        "--host",
        "127.0.0.1",
        "--port",
        str(port or "PORT"),
        "--served-model-name",
        name,
        *arguments,
    ]


def describe(deployment: Deployment) -> str:
    """The truth about a deployment in one sentence."""
    instances = [one for one in deployment.instances.select_related("host").all() if one.run or one.ordered]
    ready = [one for one in instances if one.state == "ready" and not one.is_unknown]
    silent = [one for one in instances if one.is_unknown]
    if silent:
        since = silent[0].host.last_seen_at
        return _(
            "%(host)s has been silent since %(time)s; %(count)d of %(all)d instances are unknown, last seen %(state)s."
        ) % {
            "host": silent[0].host,
            "time": f"{since:%H:%M:%S} UTC" if since else "–",
            "count": len(silent),
            "all": len(instances),
            "state": silent[0].look.word,
        }
    if deployment.state in ("serving", "degraded"):
        text = _("Serving on %(ready)d of %(all)d instances.") % {"ready": len(ready), "all": len(instances)}
        bad = next((one for one in instances if one.state in ("crashed", "unhealthy", "restarting")), None)
        return f"{text} {bad}: {bad.look.word}. {bad.state_reason}".strip() if bad else text
    if deployment.state == "deploying":
        running = jobs.live_jobs(subject_kind="deployment", subject_id=deployment.pk)
        step = running[-1].steps.exclude(state="succeeded").first() if running else None
        return _("Deploying: %(step)s.") % {"step": step.title} if step else _("Deploying.")
    if deployment.state == "failed":
        return _("Not serving: %(reason)s") % {"reason": deployment.state_reason or _("no instance is ready.")}
    if deployment.state == "stopped":
        return _("Stopped. No process runs.")
    return _("%s.") % str(deployment.look.word).capitalize()


def settle(deployment_id: int) -> None:
    """Derive a deployment's state from its instances and its running jobs."""
    deployment = Deployment.objects.select_for_update().get(pk=deployment_id)
    if deployment.for_study and deployment.state != "stopping":
        return  # its engines come and go as its study says, and serve nobody
    instances = list(deployment.instances.all())
    running = jobs.live_jobs(subject_kind="deployment", subject_id=deployment.pk)
    to, reason = _state_of(deployment, instances, busy=bool(running))
    if to != deployment.state and deployment.STATES.allows(deployment.state, to):
        move(deployment, to=to, reason=reason)
        live.changed("deployment", deployment.pk)


def _state_of(deployment: Deployment, instances: list[Instance], *, busy: bool) -> tuple[str, str]:
    wanted = [one for one in instances if one.run]
    if deployment.state == "stopping":
        gone = not any(one.ordered or one.state in RUNNING_STATES for one in instances)
        return ("stopped", deployment.state_reason) if gone else ("stopping", "")
    if busy or deployment.state in ("stopped", "draft"):
        return deployment.state, ""
    ready = [one for one in wanted if one.state == "ready"]
    expected = deployment.current_spec.replicas if deployment.current_spec else 1
    if ready and len(ready) == len(wanted) < expected:
        return "degraded", _("%(ready)d of %(all)d replicas are there") % {"ready": len(ready), "all": expected}
    if wanted and len(ready) == len(wanted):
        return "serving", _("all instances are ready")
    if ready or any(one.state not in ("stopped", "crashed") for one in wanted):
        return "degraded", next((one.state_reason for one in wanted if one.state != "ready"), "")
    crashed = next((one for one in instances if one.state == "crashed"), None)
    last = crashed or max(instances, key=lambda one: one.state_since, default=None)
    return "failed", (last.state_reason if last else deployment.state_reason)


def refuse_while_busy(deployment: Deployment) -> None:
    """Raise Refused while somebody holds the deployment as it is, or a job works on it."""
    holds.refuse_while_held(deployment)
    jobs.refuse_while_busy(subject_kind="deployment", subject_id=deployment.pk)


def check_placement(host: Host, *, devices: Sequence[str], replicas: int, port: int | None = None) -> None:
    """Refuse devices that the host hasn't (any more), and one port for several replicas."""
    known = set(host.devices.filter(uuid__in=devices, lost_at=None).values_list("uuid", flat=True))
    if gone := [uuid for uuid in devices if uuid not in known]:
        raise Refused(
            _("%(host)s has no device %(uuid)s any more. Choose again.") % {"host": host, "uuid": gone[0]},
            field="devices",
        )
    if replicas > 1 and port is not None:
        raise Refused(
            _("%(count)d replicas can't share port %(port)d. Leave it empty: each takes a free one.")
            % {"count": replicas, "port": port},
            field="port",
        )


def check_fits_together(copy: Copy, engine: Engine, port: int | None) -> None:
    """Refuse an engine of another host, one that is gone, and a port that belongs to another instance."""
    if engine.host_id != copy.host_id:
        raise Refused(
            _("The engine is on %(engine)s, the files are on %(copy)s. Choose an engine of the same host.")
            % {"engine": engine.host, "copy": copy.host},
            field="engine",
        )
    if not engine.present:
        gone = _("%(engine)s is no longer installed on %(host)s.") % {"engine": engine, "host": engine.host}
        raise Refused(gone, field="engine")
    if port is not None:
        first, last = copy.host.port_first, copy.host.port_last
        if not first <= port <= last:
            outside = _(
                "Port %(port)d is not among those of %(host)s: %(first)d–%(last)d. An admin can change that range."
            )
            raise Refused(outside % {"port": port, "host": copy.host, "first": first, "last": last}, field="port")
        holder = Instance.objects.filter(host=copy.host, port=port).exclude(state__in=("stopped", "crashed")).first()
        if holder:
            raise Refused(_("Port %(port)d belongs to %(name)s.") % {"port": port, "name": holder}, field="port")


def check_copy(spec: Spec) -> None:
    """Refuse what can't come up: files that are gone or on their way, adapters, and code that no admin allowed."""
    if copy_fetching.is_absent(spec.copy):
        return  # it is fetched first; what it holds is judged by its verification
    if spec.copy.state in ("downloading", "incomplete", "deleting", "removed"):
        raise Refused(
            _("%(copy)s is %(state)s. Choose another copy, or wait until it is complete.")
            % {"copy": spec.copy, "state": spec.copy.look.word},
            field="copy",
        )
    if spec.copy.revision.is_adapter:
        raise Refused(
            _(
                "%(model)s is a LoRA adapter. Deploy its base model with --enable-lora and add the adapter on that "
                "deployment's page, under Adapters; or give %(path)s with --lora-modules."
            )
            % {"model": spec.copy.revision.model, "path": spec.copy.path},
            field="copy",
        )
    consents.refuse_unallowed(spec.copy, spec.arguments)


def _url(deployment: Deployment) -> str:
    return f"/deployments/{deployment.pk}/"

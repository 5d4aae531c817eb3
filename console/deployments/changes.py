"""Changing a deployment: a new numbered spec, what that does to what runs, and going back to an older one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.catalog.models import Copy
from console.common import live
from console.common.errors import Refused
from console.common.spans import readable_duration
from console.common.states import move
from console.deployments import arguments_check, launches, services
from console.deployments.models import Deployment, Instance, Spec
from console.fleet.models import Engine
from console.jobs import services as jobs
from console.jobs.copy_checks import verify_step
from console.jobs.models import Job
from workers.contracts import Probe, RestartPolicy

NEEDS_RESTART = ("copy", "engine", "devices", "arguments", "environment", "port")
"""Parts of a spec that a running engine can't take over."""


@dataclass(frozen=True)
class Wish:
    """What a deployment's next spec shall hold."""

    copy: Copy
    engine: Engine
    devices: Sequence[str]
    replicas: int
    arguments: list[str]
    environment: dict[str, str]
    port: int | None
    probe: Probe
    restart: RestartPolicy
    start_deadline_seconds: float

    @classmethod
    def of_order(cls, order: Mapping[str, Any]) -> "Wish":
        """From what the deploy form gives."""
        return cls(**{name: order[name] for name in cls.__dataclass_fields__})

    @classmethod
    def of_spec(cls, spec: Spec) -> "Wish":
        """What an older spec held."""
        return cls(
            copy=spec.copy,
            engine=spec.engine,
            devices=list(spec.devices),
            replicas=spec.replicas,
            arguments=list(spec.arguments),
            environment=dict(spec.environment),
            port=spec.port,
            probe=Probe.model_validate(spec.probe),
            restart=RestartPolicy.model_validate(spec.restart),
            start_deadline_seconds=spec.start_deadline_seconds,
        )

    def as_spec(self, deployment: Deployment, number: int) -> Spec:
        """An unsaved spec of it."""
        return Spec(
            deployment=deployment,
            number=number,
            copy=self.copy,
            engine=self.engine,
            host=self.copy.host,
            devices=list(self.devices),
            replicas=self.replicas,
            port=self.port,
            arguments=self.arguments,
            environment=self.environment,
            probe=self.probe.model_dump(),
            restart=self.restart.model_dump(),
            start_deadline_seconds=self.start_deadline_seconds,
        )


@dataclass(frozen=True)
class Effect:
    """What applying a wish will do. `restarts`: the running engine ends and a new one is brought up."""

    restarts: bool
    parts: tuple[str, ...]
    sentences: tuple[str, ...]


def changed_parts(old: Spec, new: Spec) -> tuple[str, ...]:
    """Names of the fields in which two specs differ."""
    names = ("copy_id", "engine_id", "devices", "replicas", "port", "arguments", "environment", "probe", "restart",
             "start_deadline_seconds")  # fmt: skip
    return tuple(name.removesuffix("_id") for name in names if getattr(old, name) != getattr(new, name))


def effect(deployment: Deployment, wish: Wish) -> Effect:
    """Say what applying a wish will do, before it is done. Refused when it can't be done, or changes nothing."""
    old = _current(deployment)
    new = wish.as_spec(deployment, old.number + 1)
    parts = changed_parts(old, new)
    if not parts:
        raise Refused(_("Nothing is different from spec %(number)d.") % {"number": old.number})
    services.check_placement(wish.copy.host, devices=wish.devices, replicas=wish.replicas)
    running = list(deployment.instances.filter(ordered=True).select_related("host"))
    own_port = any(one.port == wish.port for one in running)
    services.check_fits_together(wish.copy, wish.engine, None if own_port else wish.port)
    if not running:
        return Effect(
            parts=parts,
            restarts=False,
            sentences=(_("Nothing runs, so nothing is stopped. The next start uses the new spec."),),
        )
    if any(one.host_id != new.host_id for one in running):
        raise Refused(
            _("%(name)s runs on %(host)s. Stop it first, then change it to another host.")
            % {"name": deployment, "host": running[0].host},
            field="copy",
        )
    if not set(parts) & set(NEEDS_RESTART):
        return Effect(
            restarts=False,
            parts=parts,
            sentences=(
                _("No engine is restarted. It holds from the next start on, the host's own restarts included."),
            ),
        )
    return Effect(restarts=True, parts=parts, sentences=tuple(_restart_words(deployment, running[0])))


def _restart_words(deployment: Deployment, instance: Instance) -> list[str]:
    words = [
        _("The files are verified first; %(instance)s goes on serving meanwhile.") % {"instance": instance},
        _("Then its engine ends: requests in flight have %(seconds)d s to finish, and new ones get no answer.")
        % {"seconds": services.GRACE_SECONDS},
    ]
    last = launches.latest(deployment)
    seconds = last.truth.get("seconds") if last is not None else None
    if seconds:
        words.append(
            _("The new engine is validated and warmed up before it serves; the last one was ready after %(time)s.")
            % {"time": readable_duration(float(seconds))}
        )
    else:
        words.append(_("The new engine is validated and warmed up before it serves."))
    words.append(_("If it doesn't come up, the deployment stands as failed, and you can go back to this spec."))
    return words


def change(
    deployment: Deployment, wish: Wish, *, reason: str, actor: User, idempotency_key: str | None = None
) -> Job | None:
    """Make the next spec. What runs is replaced by a job, which is returned; None where nothing has to be restarted."""
    if idempotency_key and (known := Job.objects.filter(idempotency_key=idempotency_key).first()):
        return known
    arguments_check.refuse_guarded(wish.arguments, engine=wish.engine, actor=actor)
    with transaction.atomic():
        deployment = Deployment.objects.select_for_update().get(pk=deployment.pk)
        if busy := jobs.live_jobs(subject_kind="deployment", subject_id=deployment.pk):
            raise Refused(_("“%(job)s” still runs. Wait for it or cancel it.") % {"job": busy[0]})
        planned = effect(deployment, wish)
        services.check_copy(wish.as_spec(deployment, 0))
        spec = wish.as_spec(deployment, _next_number(deployment))
        spec.author, spec.reason = actor, reason
        spec.save()
        access.record(
            actor=actor, action="deployment.change", target=deployment.name, target_url=f"/deployments/{deployment.pk}/",
            reason=reason, spec=spec.number, parts=list(planned.parts), restarts=planned.restarts,
        )  # fmt: skip
        live.changed("deployment", deployment.pk)
        if not planned.restarts:
            _put_in_place(deployment, spec)
            return None
        return _replace(deployment, spec, actor=actor, reason=reason, idempotency_key=idempotency_key)


def _put_in_place(deployment: Deployment, spec: Spec) -> None:
    """Nothing runs by the old spec that couldn't run by the new one: the next start uses it."""
    Deployment.objects.filter(pk=deployment.pk).update(current_spec=spec)
    deployment.instances.filter(ordered=True).update(spec=spec)


def _replace(deployment: Deployment, spec: Spec, *, actor: User, reason: str, idempotency_key: str | None) -> Job:
    instance = deployment.instances.filter(ordered=True).select_related("spec", "host").order_by("number")[0]
    move(deployment, to="deploying", reason=reason, actor=actor)
    return jobs.create(
        kind="change",
        title=_("Change %(name)s to spec %(number)d") % {"name": deployment, "number": spec.number},
        host=instance.host,
        steps=[verify_step(spec.copy), *services.bring_up(instance, spec.start_deadline_seconds)],
        actor=actor,
        subject=("deployment", deployment.pk),
        reason=reason,
        payload={"instance": instance.pk, "spec": spec.pk},
        idempotency_key=idempotency_key,
    )


def roll_back(deployment: Deployment, number: int, *, reason: str, actor: User) -> Job | None:
    """Apply an older spec again, as a new one: history only grows."""
    spec = spec_of(deployment, number)
    why = _("back to spec %(number)d: %(reason)s") % {"number": number, "reason": reason}
    return change(deployment, Wish.of_spec(spec), reason=why[:500], actor=actor)


def spec_of(deployment: Deployment, number: int) -> Spec:
    """A numbered spec. Refused when there is none."""
    spec = (
        deployment.specs.select_related("copy__host", "copy__revision__model", "engine", "host")
        .filter(number=number)
        .first()
    )
    if spec is None:
        raise Refused(_("%(name)s has no spec %(number)d.") % {"name": deployment, "number": number})
    return spec


def _current(deployment: Deployment) -> Spec:
    if deployment.current_spec is None:
        raise Refused(_("%(name)s has no spec yet.") % {"name": deployment})
    return deployment.current_spec


def _next_number(deployment: Deployment) -> int:
    newest = deployment.specs.order_by("-number").first()
    return newest.number + 1 if newest else 1

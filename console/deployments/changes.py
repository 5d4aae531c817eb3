"""Changing a deployment: a new numbered spec, what that does to what runs, and going back to an older one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.access import services as access
from console.access.models import User
from console.catalog.models import Copy
from console.common import live
from console.common.errors import Refused
from console.common.spans import readable_duration
from console.common.states import move
from console.deployments import adapter_fit, arguments_check, claims, gates, launches, rooms, services
from console.deployments.models import Deployment, Instance, Spec
from console.fleet.models import Engine
from console.jobs import copy_fetching
from console.jobs import services as jobs
from console.jobs.copy_checks import verify_step
from console.jobs.models import Job
from workers.contracts import Probe, RestartPolicy

NEEDS_RESTART = ("copy", "engine", "devices", "placement", "arguments", "environment", "port")
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
    placement: Mapping[str, Any] = field(default_factory=dict)
    gate: Mapping[str, Any] | None = None
    """None: the gate that is in force stays, whatever else changes; an older spec doesn't bring its own back."""

    @classmethod
    def of_order(cls, order: Mapping[str, Any]) -> "Wish":
        """From what the deploy form gives."""
        return cls(**{name: order[name] for name in cls.__dataclass_fields__ if name in order})

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
            placement=dict(spec.placement),
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
            placement=dict(self.placement),
            replicas=self.replicas,
            port=self.port,
            arguments=self.arguments,
            environment=self.environment,
            probe=self.probe.model_dump(),
            restart=self.restart.model_dump(),
            start_deadline_seconds=self.start_deadline_seconds,
            gate=self._gate_of(deployment),
        )

    def _gate_of(self, deployment: Deployment) -> dict[str, Any]:
        if self.gate is not None:
            return dict(self.gate)
        return dict(deployment.current_spec.gate) if deployment.current_spec else {}


@dataclass(frozen=True)
class Effect:
    """What applying a wish will do. `restarts`: running engines end and new ones are brought up.

    `turns` are what happens to instances, in their order; empty where none is touched.
    """

    restarts: bool
    parts: tuple[str, ...]
    sentences: tuple[str, ...]
    turns: tuple["Turn", ...] = ()


@dataclass(frozen=True)
class Turn:
    """One instance's part of a change. `old` None: one is added; `place` None and `stop`: one ends for good.

    `place` set: a new instance comes up there, and `old` ends once it is ready. Neither: `old` is swapped where it is.
    """

    old: Instance | None
    place: claims.Place | None = None
    stop: bool = False


def changed_parts(old: Spec, new: Spec) -> tuple[str, ...]:
    """Names of the fields in which two specs differ."""
    names = ("copy_id", "engine_id", "devices", "placement", "replicas", "port", "arguments", "environment", "probe", "restart",
             "start_deadline_seconds", "gate")  # fmt: skip
    return tuple(name.removesuffix("_id") for name in names if getattr(old, name) != getattr(new, name))


def effect(deployment: Deployment, wish: Wish) -> Effect:
    """Say what applying a wish will do, before it is done. Refused when it can't be done, or changes nothing."""
    old = _current(deployment)
    new = wish.as_spec(deployment, old.number + 1)
    parts = changed_parts(old, new)
    running = list(deployment.instances.filter(ordered=True).select_related("host", "spec").order_by("number"))
    # Replicas that were stopped with their host are missing although the spec wants them: the same spec adds them again.
    if not parts and not 0 < len(running) < new.replicas:
        raise Refused(_("Nothing is different from spec %(number)d.") % {"number": old.number})
    adapter_fit.refuse_losing(deployment, wish.arguments, wish.copy.revision)
    services.check_placement(wish.copy.host, devices=wish.devices, replicas=wish.replicas, port=wish.port)
    own_port = any(one.port == wish.port for one in running)
    services.check_fits_together(wish.copy, wish.engine, None if own_port else wish.port)
    if not running:
        return Effect(
            parts=parts,
            restarts=False,
            sentences=(_("Nothing runs, so nothing is stopped. The next start uses the new spec."),),
        )
    replaces = bool(set(parts) & set(NEEDS_RESTART))
    if not replaces and len(running) == new.replicas:
        return Effect(
            restarts=False,
            parts=parts,
            sentences=(
                _("No engine is restarted. It holds from the next start on, the host's own restarts included."),
            ),
        )
    turns = tuple(_turns(new, running, replaces=replaces))
    return Effect(restarts=True, parts=parts, sentences=tuple(_words(deployment, turns)), turns=turns)


def _turns(new: Spec, running: list[Instance], *, replaces: bool) -> Iterator[Turn]:
    """What happens to each instance, in order: new ones beside, replacements, ends. Refused where there is no room.

    As many as find room beside all that runs come up before what they replace ends; the rest are swapped where they are,
    one at a time. All places are found together, so that none is counted on twice.
    """
    kept, surplus = running[: new.replicas], running[new.replicas :]
    added = new.replicas - len(kept)
    most = len(kept) if replaces and new.port is None else 0
    places, swapped = _arranged(new, kept, added=added, most=most, replaces=replaces)
    beside = kept[: len(places) - added] if replaces else []
    for old, place in zip(beside, places, strict=False):
        yield Turn(old, place)
    for old in swapped:
        yield Turn(old)
    for place in places[len(beside) :]:
        yield Turn(None, place)
    for old in surplus:
        yield Turn(old, stop=True)


def _arranged(
    new: Spec, kept: list[Instance], *, added: int, most: int, replaces: bool
) -> tuple[list[claims.Place], list[Instance]]:
    """Places for new instances, and which old ones are swapped where they are: the most that come up beside the old."""
    for count in range(most, -1, -1):
        swapped = kept[count:] if replaces else []
        try:
            found = claims.find(new, replicas=count + added + len(swapped), without=[one.pk for one in swapped])
        except Refused:
            if count:
                continue
            raise
        if count and any(one.choice is None for one in found):
            continue  # the host has told of no device: whether there is room for two is not known
        _refuse_homeless(new, swapped)
        return found[: count + added], swapped
    return [], []


def _refuse_homeless(new: Spec, swapped: list[Instance]) -> None:
    """An engine is only swapped on a host that has the new spec's files and engine."""
    hosts = {site.host.pk for site in rooms.sites_of(new.copy, new.engine, here_only=False) if site.engine is not None}
    for one in swapped:
        if one.host_id not in hosts or (one.own_copy_id is None and one.host_id != new.host_id):
            raise Refused(
                _("%(name)s runs on %(host)s. Stop it first, then change it to another host.")
                % {"name": new.deployment, "host": one.host},
                field="copy",
            )


def _words(deployment: Deployment, turns: Sequence[Turn]) -> Iterator[str]:
    swapped = [turn.old for turn in turns if turn.old and not turn.stop and turn.place is None]
    beside = [turn for turn in turns if turn.old and turn.place is not None]
    replaced = [turn.old for turn in turns if turn.old and not turn.stop]
    if swapped and beside:
        yield from _words_of_both(beside, swapped)
    elif replaced and (swapped or not any(one.state == "ready" for one in replaced)):
        yield from _restart_words(deployment, replaced)
    elif replaced:
        yield _("The files are verified first. Then, one at a time, a new engine is brought up, validated and warmed up; "
                "only when it is ready the old one it replaces ends, with %(seconds)d s for requests in flight.") % {
                    "seconds": services.GRACE_SECONDS}  # fmt: skip
        yield _("There is room for both, so the deployment goes on serving all the time. If a new engine doesn't come up, "
                "the old one stays.")  # fmt: skip
    if (spec := deployment.current_spec) is not None and spec.gate and (swapped or beside):
        yield _("Its gate measures each new engine before it gets traffic. One that doesn't pass is not admitted.")
    if added := sum(turn.old is None for turn in turns):
        yield ngettext("%(count)d replica is added.", "%(count)d replicas are added.", added) % {"count": added}
    ended = [str(turn.old) for turn in turns if turn.stop]
    if ended:
        yield _("%(names)s ends: requests in flight have %(seconds)d s to finish.") % {
            "names": ", ".join(ended), "seconds": services.GRACE_SECONDS,
        }  # fmt: skip


def _words_of_both(beside: Sequence[Turn], swapped: Sequence[Instance]) -> Iterator[str]:
    """Room beside what runs for some of the new engines only: those come first, and serve while the others are swapped."""
    values = {
        "names": ", ".join(str(turn.old) for turn in beside), "others": ", ".join(map(str, swapped)),
        "seconds": services.GRACE_SECONDS,
    }  # fmt: skip
    yield _("The files are verified first. Then replicas are replaced one at a time, and the deployment goes on serving all "
            "the time.")  # fmt: skip
    yield _("%(names)s: there is room for both, so the old engine ends only when the new one is ready.") % values
    yield _("%(others)s: there is no room for both, so the old engine ends first, with %(seconds)d s for requests in flight; "
            "new ones go to the others until the new engine is validated and warmed up.") % values  # fmt: skip
    yield _(
        "If a new engine doesn't come up, what is not replaced yet stays as it is, and you can go back to this spec."
    )


def _end_words(count: int) -> str:
    if count == 1:
        return _("Then its engine ends: requests in flight have %(seconds)d s to finish, and new ones get no answer.")
    return _("Then their engines end one at a time, the next once the one before is ready again: requests in flight "
             "have %(seconds)d s to finish, new ones go to the others.")  # fmt: skip


def _restart_words(deployment: Deployment, swapped: Sequence[Instance]) -> list[str]:
    serving = [one for one in swapped if one.state == "ready"]
    if not serving:
        words = [_("The files are verified first. Nothing of it serves now, so no request is cut off.")]
    else:
        first = ngettext("The files are verified first; %(instance)s goes on serving meanwhile.",
                         "The files are verified first; %(instance)s go on serving meanwhile.", len(serving))  # fmt: skip
        words = [first % {"instance": ", ".join(map(str, serving))}]
        words.append(_end_words(len(swapped)) % {"seconds": services.GRACE_SECONDS})
    last = launches.latest(deployment)
    seconds = last.truth.get("seconds") if last is not None else None
    if seconds:
        words.append(
            _("The new engine is validated and warmed up before it serves; the last one was ready after %(time)s.")
            % {"time": readable_duration(float(seconds))}
        )
    else:
        words.append(_("The new engine is validated and warmed up before it serves."))
    if len(serving) > 1:
        words.append(_("If one doesn't come up, those that are not replaced yet serve on as they are, and you can go back to "
                       "this spec."))  # fmt: skip
    else:
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
        services.refuse_while_busy(deployment)
        wish = replace(wish, copy=copy_fetching.stored(wish.copy))
        claims.lock(wish.as_spec(deployment, 0))
        planned = effect(deployment, wish)
        services.check_copy(wish.as_spec(deployment, 0))
        spec = add_spec(deployment, wish, actor=actor, reason=reason)
        access.record(
            actor=actor, action="deployment.change", target=deployment.name, target_url=f"/deployments/{deployment.pk}/",
            reason=reason, spec=spec.number, parts=list(planned.parts), restarts=planned.restarts,
        )  # fmt: skip
        live.changed("deployment", deployment.pk)
        if not planned.restarts:
            _put_in_place(deployment, spec)
            return None
        if not set(planned.parts) & set(NEEDS_RESTART):
            _put_in_place(deployment, spec)  # only the number of replicas: those that run, run by it already
        title = _("Change %(name)s to spec %(number)d") % {"name": deployment, "number": spec.number}
        return take_turns(
            deployment, spec, planned.turns, title=title, actor=actor, reason=reason, idempotency_key=idempotency_key
        )


def _put_in_place(deployment: Deployment, spec: Spec) -> None:
    """Nothing runs by the old spec that couldn't run by the new one: the next start uses it."""
    Deployment.objects.filter(pk=deployment.pk).update(current_spec=spec)
    deployment.instances.filter(ordered=True).update(spec=spec)


def take_turns(
    deployment: Deployment, spec: Spec, turns: Sequence[Turn], *, title: str, actor: User, reason: str,
    idempotency_key: str | None = None,
) -> Job:  # fmt: skip
    """A job that takes the turns one after the other: an old instance ends only once what replaces it is ready.

    Belongs into the transaction in which the turns' places were found and the hosts locked.
    """
    steps, fresh = services.StepsOfInstances(), []
    for turn in turns:
        old = turn.old
        if turn.place is not None:
            new = services.new_instances(deployment, spec, [turn.place])[0]
            fresh.append(new.pk)
            steps.prepare(new, actor=actor)
            steps.add(new, *services.bring_up(new, spec.start_deadline_seconds), *gates.steps_of(new))
        elif old is not None and not turn.stop:
            if spec.copy_id not in steps.verified:
                steps.verified.add(spec.copy_id)
                if copy_fetching.is_absent(spec.copy):
                    steps.fetch(old, spec.copy, actor=actor)
                steps.add(old, verify_step(spec.copy))
            steps.add(old, *services.bring_up(old, spec.start_deadline_seconds))
            steps.add(old, *gates.steps_of(services.as_swapped(old, spec)))
        if old is not None and (turn.stop or turn.place is not None):
            steps.add(old, services.stop_step(old))
    move(deployment, to="deploying", reason=reason, actor=actor)
    return jobs.create(
        kind="change",
        title=title,
        host=steps.planned[0].host or spec.host,
        steps=steps.planned,
        actor=actor,
        subject=("deployment", deployment.pk),
        reason=reason,
        payload=steps.payload | {"spec": spec.pk, "fresh": fresh},
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


def add_spec(deployment: Deployment, wish: Wish, *, actor: User | None, reason: str) -> Spec:
    """Store a wish as the deployment's next spec, without putting it in place. Belongs into the caller's transaction."""
    spec = wish.as_spec(deployment, _next_number(deployment))
    spec.author, spec.reason = actor, reason
    spec.save()
    return spec


def _next_number(deployment: Deployment) -> int:
    newest = deployment.specs.order_by("-number").first()
    return newest.number + 1 if newest else 1

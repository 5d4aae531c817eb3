"""Rollouts' verbs: start one, hold it, go on, skip a step, abort; and what its driver does to it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Max, Q
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.access import services as access
from console.access.models import User
from console.common import live
from console.common.errors import Refused
from console.common.spans import readable_duration
from console.common.states import move
from console.deployments import adapter_fit, arguments_check, changes, claims, gates
from console.deployments import services as deployments
from console.deployments.changes import Wish
from console.deployments.models import Deployment, Instance, Spec
from console.gateway import bell
from console.gateway.models import Canary, GatewayRequest, Route, Target
from console.jobs import services as jobs
from console.jobs.models import Job
from console.rollouts.models import ABORTABLE_STATES, LIVE_STATES, MOVING_STATES, Happening, Rollout, RolloutStep
from console.rollouts.plans import Plan, Stage


@dataclass(frozen=True)
class Preview:
    """What a rollout will do, said before it starts."""

    sentences: tuple[str, ...]
    places: tuple[claims.Place, ...]


def why_held(deployment: Deployment) -> str:
    """Why a deployment must not be changed now: it is being rolled out. Empty if it isn't."""
    rollout = live_of(deployment)
    if rollout is None:
        return ""
    return _("Spec %(number)d is being rolled out. Abort that or wait for its end (rollout %(pk)d).") % {
        "number": rollout.new_spec.number, "pk": rollout.pk,
    }  # fmt: skip


def live_of(deployment: Deployment) -> Rollout | None:
    """The deployment's rollout that has not ended."""
    return Rollout.objects.filter(deployment=deployment, state__in=LIVE_STATES).select_related("new_spec").first()


def preview(deployment: Deployment, wish: Wish, plan: Plan) -> Preview:
    """Say what will be done. Refused when it can't be: no route, no room beside, nothing different, a fixed port."""
    old = deployment.current_spec
    if old is None or deployment.state not in ("serving", "degraded"):
        raise Refused(
            _("%(name)s is %(state)s. Only what serves can be rolled over; change it instead.")
            % {"name": deployment, "state": deployment.look.word}
        )
    new = wish.as_spec(deployment, old.number + 1)
    if not set(changes.changed_parts(old, new)) & set(changes.NEEDS_RESTART):
        raise Refused(_("Nothing that an engine runs by is different from spec %(number)d.") % {"number": old.number})
    adapter_fit.refuse_losing(deployment, wish.arguments, wish.copy.revision)
    routes = routes_of(deployment)
    if not routes:
        raise Refused(_("No route leads to %(name)s, so there are no requests to shift. Make a route first.")
                      % {"name": deployment})  # fmt: skip
    if plan.shadow and not any(route.shadow_allowed_at for route in routes):
        raise Refused(
            _("None of the routes %(routes)s allows its requests to be copied. Allow it on the route's page, or leave this"
              " empty.") % {"routes": ", ".join(map(str, routes))},
            field="shadow_percent",
        )  # fmt: skip
    if new.port is not None:
        raise Refused(_("Old and new can't share port %(port)d. Leave the port empty.") % {"port": new.port})
    deployments.check_placement(wish.copy.host, devices=wish.devices, replicas=wish.replicas)
    deployments.check_fits_together(wish.copy, wish.engine, None)
    try:
        places = claims.find(new)
    except Refused as refusal:
        raise Refused(
            _("There is no room for both at once: %(why)s Or change the deployment, which swaps engines in place.")
            % {"why": refusal.message}
        ) from None
    return Preview(tuple(_sentences(old, new, plan, places, routes)), tuple(places))


def routes_of(deployment: Deployment) -> list[Route]:
    """The routes whose requests a rollout of a deployment shifts."""
    return [target.route for target in _targets(deployment)]


def _targets(deployment: Deployment) -> list[Target]:
    return list(Target.objects.filter(deployment=deployment, route__enabled=True).select_related("route"))


def _sentences(
    old: Spec, new: Spec, plan: Plan, places: Sequence[claims.Place], routes: Sequence[Route]
) -> Iterable[str]:
    hosts = ", ".join(sorted({place.site.host.name for place in places}))
    yield ngettext(
        "%(count)d new engine comes up beside the old ones on %(hosts)s.",
        "%(count)d new engines come up beside the old ones on %(hosts)s.",
        len(places),
    ) % {"count": len(places), "hosts": hosts}
    if any(place.choice is None for place in places):
        yield _("The host has told of no device, so whether there is room for both is not known. If there isn't, the old "
                "ones serve on.")  # fmt: skip
    else:
        yield _("There is room for both at once.")
    yield _("It is validated and warmed up before it gets a request.")
    if new.gate:
        yield _("Its gate measures it then. If it doesn't pass, it never gets one.")
    if plan.version:
        yield _("Clients that send X-Model-Version: %(version)s can try it then, before anybody.") % {
            "version": plan.version
        }
    if plan.shadow:
        yield from _shadow_sentences(plan.shadow, routes)
    yield _("Requests of %(routes)s shift in steps: %(weights)s. Nothing is dropped while they do.") % {
        "routes": ", ".join(map(str, routes)), "weights": ", ".join(f"{weight} %" for weight in plan.weights),
    }  # fmt: skip
    yield _(
        "If it is worse, dies, hangs or answers nonsense, all requests go back to spec %(old)d within two seconds."
    ) % {"old": old.number}
    yield _("At the end the engines of spec %(old)d finish what they have begun and are stopped; spec %(new)d is in force.") % {
        "old": old.number, "new": new.number,
    }  # fmt: skip


def _shadow_sentences(shadow: Stage, routes: Sequence[Route]) -> Iterable[str]:
    copied = [str(route) for route in routes if route.shadow_allowed_at]
    left_out = [str(route) for route in routes if not route.shadow_allowed_at]
    yield _("First %(percent)d %% of the requests of %(routes)s are also sent to it for %(time)s at least. Those answers are"
            " thrown away: clients notice nothing, and pay nothing.") % {
        "percent": shadow.shadow_percent, "routes": ", ".join(copied), "time": readable_duration(shadow.hold_seconds),
    }  # fmt: skip
    if left_out:
        yield _("Requests of %(routes)s are not copied: that was not allowed there.") % {"routes": ", ".join(left_out)}


def start(deployment: Deployment, wish: Wish, plan: Plan, *, actor: User | None, reason: str) -> Rollout:
    """Make the new spec and bring it up beside the old one. Refused as `preview` says, and while anything else runs."""
    arguments_check.refuse_guarded(wish.arguments, engine=wish.engine, actor=actor)
    with transaction.atomic():
        deployment = Deployment.objects.select_for_update().get(pk=deployment.pk)
        deployments.refuse_while_busy(deployment)
        claims.lock(wish.as_spec(deployment, 0))
        found = preview(deployment, wish, plan)
        deployments.check_copy(wish.as_spec(deployment, 0))
        old = deployment.current_spec
        assert old is not None  # noqa: S101 - `preview` refuses without one
        spec = changes.add_spec(deployment, wish, actor=actor, reason=reason)
        rollout = Rollout.objects.create(
            team_id=deployment.team_id, deployment=deployment, old_spec=old, new_spec=spec, plan=plan.as_json(),
            created_by=actor, reason=reason,
        )  # fmt: skip
        for target in _targets(deployment):
            Canary.objects.update_or_create(target=target, defaults={"spec": spec, "share": 0, "version": plan.version})
        rollout.job = _bring_up(rollout, found.places, actor=actor, reason=reason)
        rollout.save(update_fields=["job"])
        happened(rollout, "player-play", _("Started: spec %(old)d to spec %(new)d.") % {
            "old": old.number, "new": spec.number}, actor=actor, reason=reason)  # fmt: skip
        _record(rollout, "rollout.start", actor=actor, reason=reason)
        bell.ring()
    return rollout


def _bring_up(rollout: Rollout, places: Sequence[claims.Place], *, actor: User | None, reason: str) -> Job:
    spec, steps = rollout.new_spec, deployments.StepsOfInstances()
    for instance in deployments.new_instances(rollout.deployment, spec, places):
        steps.prepare(instance, actor=actor)
        steps.add(instance, *deployments.bring_up(instance, spec.start_deadline_seconds), *gates.steps_of(instance))
    return jobs.create(
        kind="rollout",
        title=_("Bring up %(name)s spec %(number)d beside spec %(old)d")
        % {"name": rollout.deployment, "number": spec.number, "old": rollout.old_spec.number},
        host=steps.planned[0].host or spec.host,
        steps=steps.planned,
        actor=actor,
        subject=("deployment", rollout.deployment_id),
        reason=reason,
        payload=steps.payload,
    )


def happened(rollout: Rollout, icon: str, text: str, *, actor: User | None = None, reason: str = "") -> None:
    """Write a line of its timeline, and tell pages."""
    Happening.objects.create(rollout=rollout, icon=icon, text=text, actor=actor, reason=reason)
    live.changed("rollout", rollout.pk)


def _record(rollout: Rollout, action: str, *, actor: User | None, reason: str) -> None:
    access.record(
        actor=actor, action=action, target=str(rollout), target_url=f"/rollouts/{rollout.pk}/", reason=reason,
        deployment=rollout.deployment.name, old=rollout.old_spec.number, new=rollout.new_spec.number,
    )  # fmt: skip


def instances_of(rollout: Rollout, side: str) -> list[Instance]:
    """Instances of one side (`old` or `new`) that should run."""
    rows = rollout.deployment.instances.filter(run=True).select_related("host", "deployment").order_by("number")
    return list(rows.filter(spec=rollout.new_spec) if side == "new" else rows.exclude(spec=rollout.new_spec))


def given_up(rollout: Rollout) -> str:
    """The side whose engines are stopped at its end; empty while none is."""
    return {"draining": "old", "rolling_back": "new"}.get(rollout.state, "") if rollout.stop_job is not None else ""


def is_stuck(rollout: Rollout) -> bool:
    """True if the engines of the side that was given up could not be stopped: a person is needed."""
    return (
        bool(given_up(rollout)) and rollout.stop_job is not None and rollout.stop_job.state in ("failed", "cancelled")
    )


# -- what people do -------------------------------------------------------------------------------------------------------


def locked(rollout: Rollout) -> Rollout:
    """The rollout as it is now, kept from others until the transaction ends."""
    related = ("deployment", "old_spec", "new_spec", "job", "stop_job")
    return Rollout.objects.select_for_update(of=("self",)).select_related(*related).get(pk=rollout.pk)


def hold(rollout: Rollout, *, actor: User | None, reason: str) -> None:
    """Stay at this step until somebody says to go on. It is still rolled back by itself if it turns out to be bad."""
    with transaction.atomic():
        rollout = locked(rollout)
        _refuse_unless(rollout, *MOVING_STATES)
        move(rollout, to="held", reason=reason, actor=actor)
        happened(rollout, "player-pause", _("On hold."), actor=actor, reason=reason)
        _record(rollout, "rollout.hold", actor=actor, reason=reason)


def go_on(rollout: Rollout, *, actor: User, reason: str) -> None:
    """Look on for a verdict at the step at which it was held; its patience begins anew."""
    with transaction.atomic():
        rollout = locked(rollout)
        _refuse_unless(rollout, "held")
        step = rollout.current()
        move(rollout, to="shadowing" if step and step.shadow_percent else "shifting", reason=reason, actor=actor)
        rollout.steps.filter(ended_at=None).update(patient_since=timezone.now())
        happened(rollout, "player-play", _("Goes on."), actor=actor, reason=reason)
        _record(rollout, "rollout.go_on", actor=actor, reason=reason)


def skip(rollout: Rollout, *, actor: User, reason: str) -> None:
    """Take the next step without a verdict of this one."""
    with transaction.atomic():
        rollout = locked(rollout)
        _refuse_unless(rollout, *MOVING_STATES, "held")
        happened(rollout, "player-skip-forward", _("Next step, without a verdict."), actor=actor, reason=reason)
        _record(rollout, "rollout.skip", actor=actor, reason=reason)
        advance(rollout, by="person", actor=actor, reason=reason)


def abort(rollout: Rollout, *, actor: User, reason: str) -> None:
    """Send all requests back to the old side and stop the new one."""
    with transaction.atomic():
        rollout = locked(rollout)
        _refuse_unless(rollout, *ABORTABLE_STATES)
        if rollout.stop_job is not None:
            raise Refused(_("The old engines are being stopped already. Roll back to spec %(number)d on the deployment's"
                            " page.") % {"number": rollout.old_spec.number})  # fmt: skip
        rollout.ended_by_person = True
        rollout.save(update_fields=["ended_by_person"])
        _record(rollout, "rollout.abort", actor=actor, reason=reason)
        if rollout.job is not None and rollout.state == "preparing" and rollout.job.state in ("queued", "running"):
            jobs.cancel(rollout.job, actor=actor, reason=reason)
        go_back(rollout, _("Aborted."), actor=actor, reason=reason)


def stop_again(rollout: Rollout, *, actor: User, reason: str) -> Job | None:
    """Try once more to stop the engines of the side that was given up; None if nothing of them is left."""
    with transaction.atomic():
        rollout = locked(rollout)
        _refuse_unless_stuck(rollout)
        happened(rollout, "refresh", _("Stops the engines once more."), actor=actor, reason=reason)
        _record(rollout, "rollout.stop_again", actor=actor, reason=reason)
        stop_side(rollout, given_up(rollout), actor=actor, reason=reason)
        return rollout.stop_job


def let_go(rollout: Rollout, *, actor: User, reason: str) -> None:
    """End it although engines of the side that was given up may still run: their host stops them once it can."""
    with transaction.atomic():
        rollout = locked(rollout)
        _refuse_unless_stuck(rollout)
        for instance in _left_of(rollout, given_up(rollout)):
            deployments.halt(instance)
        _record(rollout, "rollout.let_go", actor=actor, reason=reason)
        happened(rollout, "player-skip-forward", _("Not waited for the engines to end."), actor=actor, reason=reason)
        finish(rollout, rollout.outcome, _("Ended by a person; engines that were given up may still run."))


def _refuse_unless_stuck(rollout: Rollout) -> None:
    if not is_stuck(rollout):
        raise Refused(_("Its engines are being stopped, or were. Look at it again."))


def _refuse_unless(rollout: Rollout, *states: str) -> None:
    if rollout.state not in states:
        raise Refused(_("The rollout is %(state)s by now. Look at it again.") % {"state": rollout.look.word})


# -- what its driver does, inside the transaction of `locked` -------------------------------------------------------------


def advance(rollout: Rollout, *, by: str, actor: User | None = None, reason: str = "") -> None:
    """End the step it is at and begin the next one; after the last, let the old side drain."""
    step, stages = rollout.current(), rollout.chosen.stages
    if step is not None:
        step.ended_at, step.passed_by = timezone.now(), by
        step.save(update_fields=["ended_at", "passed_by"])
    position = step.position + 1 if step is not None else 1
    if position > len(stages):
        move(rollout, to="draining", reason=reason, actor=actor)
        shift(rollout, 100)
        happened(rollout, "progress-down", _("All requests go to the new engines; the old ones finish theirs."))
        return
    stage = stages[position - 1]
    newest = GatewayRequest.objects.aggregate(newest=Max("pk"))["newest"] or 0
    RolloutStep.objects.create(
        rollout=rollout, position=position, weight=stage.weight, shadow_percent=stage.shadow_percent,
        hold_seconds=stage.hold_seconds, first_request=newest,
    )  # fmt: skip
    shift(rollout, stage.weight, shadow=stage.shadow_percent)
    to = "shadowing" if stage.shadow_percent else "shifting"
    if rollout.state != to:
        move(rollout, to=to, reason=reason, actor=actor)
    text = _("%(weight)d %% of the requests go to the new engines.")
    if stage.shadow_percent:
        text = _("%(copied)d %% of the requests are also sent to the new engines, whose answers are thrown away.")
    happened(rollout, "adjustments", text % {"weight": stage.weight, "copied": stage.shadow_percent})


def shift(rollout: Rollout, share: int, *, shadow: int = 0, pinned: bool = True) -> None:
    """Send a share (per cent) of the requests to the new side, and copies of as many others as `shadow` says (per cent).

    In force as soon as the gateway hears the bell.
    """
    rows = Canary.objects.filter(spec=rollout.new_spec_id)
    rows.update(share=share, shadow=shadow, **({} if pinned else {"version": ""}))
    bell.ring()
    live.changed("route")


def go_back(rollout: Rollout, text: str, *, code: str = "", actor: User | None = None, reason: str = "") -> None:
    """All requests go back to the old side, at once; the new one is stopped when it has finished what it had begun."""
    shift(rollout, 0, pinned=False)
    if code:
        rollout.finding = {"code": code, "text": text}
        rollout.save(update_fields=["finding"])
    rollout.steps.filter(ended_at=None).update(ended_at=timezone.now(), **({"verdict": "worse"} if code else {}))
    move(rollout, to="rolling_back", reason=reason or text, actor=actor)
    happened(rollout, "history", text, actor=actor, reason=reason)
    if code:
        access.record(
            actor=None, action="rollout.roll_back", target=str(rollout), target_url=f"/rollouts/{rollout.pk}/",
            reason=text, code=code,
        )  # fmt: skip


def stop_side(rollout: Rollout, side: str, *, actor: User | None = None, reason: str = "") -> None:
    """Stop a side whose requests have ended."""
    steps = deployments.StepsOfInstances()
    ended = _left_of(rollout, side)
    for instance in ended:
        steps.add(instance, deployments.stop_step(instance))
    if not ended:
        return
    rollout.stop_job = jobs.create(
        kind="rollout_stop",
        title=_("Stop the engines of %(name)s that a rollout gave up") % {"name": rollout.deployment},
        host=ended[0].host,
        steps=steps.planned,
        actor=actor,
        subject=("deployment", rollout.deployment_id),
        reason=reason,
        payload=steps.payload,
    )
    rollout.save(update_fields=["stop_job"])


def _left_of(rollout: Rollout, side: str) -> list[Instance]:
    """Instances of one side of which something may still run, also those that were told to stop."""
    rows = rollout.deployment.instances.filter(Q(run=True) | Q(ordered=True)).select_related("host", "deployment")
    return list((rows.filter if side == "new" else rows.exclude)(spec=rollout.new_spec).order_by("number"))


def finish(rollout: Rollout, to: str, text: str) -> None:
    """It has ended: the targets are whole again."""
    if to == "succeeded":
        Deployment.objects.filter(pk=rollout.deployment_id).update(current_spec=rollout.new_spec)
    Canary.objects.filter(spec=rollout.new_spec_id).delete()
    move(rollout, to=to, reason=rollout.finding.get("text", "") or text)
    rollout.ended_at = timezone.now()
    rollout.save(update_fields=["ended_at"])
    happened(rollout, "check" if to == "succeeded" else "circle-off", text)
    deployments.settle(rollout.deployment_id)
    bell.ring()
    live.changed("deployment", rollout.deployment_id)

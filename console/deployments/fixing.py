"""Remedies as people see and press them: what each will do, before it is done, and doing it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import transaction
from django.urls import reverse
from django.utils.translation import gettext as _

from console.access import policies
from console.access import services as access
from console.access.models import User
from console.access.policies import Action
from console.common.errors import Refused
from console.deployments import arguments_check, changes, services, what_changed
from console.deployments.changes import Wish
from console.deployments.models import Deployment, Instance
from console.deployments.remedies import Kind, Remedy, Situation, remedies, with_arguments
from console.deployments.what_changed import SinceGood
from console.fleet.models import Engine
from console.jobs.models import Job
from workers.vllm.arguments import guarded_names

ICONS = {
    Kind.ARGUMENTS: "adjustments",
    Kind.PORT: "refresh",
    Kind.ENGINE: "cpu",
    Kind.ROLL_BACK: "history",
    Kind.REPAIR: "download",
    Kind.INSTALL: "cpu",
    Kind.START: "refresh",
}


@dataclass(frozen=True)
class Fix:
    """A remedy with its button."""

    remedy: Remedy
    label: str
    icon: str
    url: str
    is_page: bool
    """True if the button leads to a page of its own, which asks there."""
    action: Action
    """What a person must be allowed to do."""


def failure_of(deployment: Deployment, instances: Sequence[Instance]) -> dict[str, Any] | None:
    """The failure that keeps a deployment from serving as it should; None if nothing does."""
    if deployment.state in ("failed", "degraded"):
        for instance in instances:
            if instance.failure and instance.state != "ready":
                return dict(instance.failure)
    if deployment.state == "failed":
        last = Job.objects.filter(subject_kind="deployment", subject_id=deployment.pk).order_by("-pk").first()
        return dict(last.failure) if last and last.failure else None
    return None


def fixes(user: User, deployment: Deployment, failure: dict[str, Any] | None, since: SinceGood) -> list[Fix]:
    """What this person can do about a failure with one button."""
    if not failure or deployment.current_spec is None or not policies.can(user, Action.OPERATE):
        return []
    found = [_fix(deployment, remedy) for remedy in remedies(_situation(deployment, failure, since))]
    return [fix for fix in found if policies.can(user, fix.action)]


def current_fixes(user: User, deployment: Deployment) -> list[Fix]:
    """The same, of the failure that a deployment has now."""
    instances = list(deployment.instances.select_related("host"))
    failure = failure_of(deployment, instances)
    return fixes(user, deployment, failure, what_changed.since_good(deployment)) if failure else []


def _situation(deployment: Deployment, failure: dict[str, Any], since: SinceGood) -> Situation:
    spec = deployment.current_spec
    if spec is None:
        raise Refused(_("%(name)s has no spec yet.") % {"name": deployment})
    lines = [str(line.get("text", "")) for line in failure.get("evidence") or [] if isinstance(line, dict)]
    others = Engine.objects.filter(host_id=spec.host_id, present=True).exclude(pk=spec.engine_id)
    usable = [(one.pk, one.version) for one in others if not one.problem and one.platform == spec.engine.platform]
    good = since.spec if since.spec is not None and since.spec.pk != spec.pk else None
    return Situation(
        code=str(failure.get("code", "")),
        text="\n".join([str(failure.get("message", "")), *lines]),
        arguments=spec.arguments,
        has_fixed_port=spec.port is not None,
        engine_version=spec.engine.version,
        engines=usable,
        has_source=spec.copy.revision.is_pinned,
        good_spec=good.number if good else None,
    )


def _fix(deployment: Deployment, remedy: Remedy) -> Fix:
    spec = deployment.current_spec
    pages = {
        Kind.REPAIR: lambda: reverse("copy_repair", args=[spec.copy_id]) if spec else "",
        Kind.INSTALL: lambda: reverse("engine_install") + (f"?host={spec.host_id}" if spec else ""),
    }
    page = pages[remedy.kind]() if remedy.kind in pages else ""
    # What an admin made and what served well may be brought back by whoever is on call; making something new is theirs.
    operates = remedy.kind in (Kind.ROLL_BACK, Kind.REPAIR, Kind.START)
    weakens = any(arguments_check.dest_of(flag) in guarded_names() for flag in remedy.sets)
    return Fix(
        remedy=remedy,
        label=label(remedy),
        icon=ICONS[remedy.kind],
        url=page or reverse("deployment_fix", args=[deployment.pk, remedy.key]),
        is_page=remedy.kind == Kind.INSTALL,
        action=Action.ADMINISTER if weakens else Action.OPERATE if operates else Action.DEPLOY,
    )


def label(remedy: Remedy) -> str:
    """What stands on the button."""
    if remedy.kind == Kind.ARGUMENTS:
        return _argument_label(remedy)
    if remedy.kind == Kind.ENGINE:
        return _("Use engine %(engine)s") % {"engine": Engine.objects.get(pk=int(remedy.value)).version}
    texts = {
        Kind.PORT: _("Choose a free port and redeploy"),
        Kind.ROLL_BACK: _("Roll back to spec %(number)s") % {"number": remedy.value},
        Kind.REPAIR: _("Repair the files"),
        Kind.INSTALL: _("Install a newer engine"),
        Kind.START: _("Start it again"),
    }
    return texts[remedy.kind]


def _argument_label(remedy: Remedy) -> str:
    if remedy.drops:
        return _("Leave out %(flag)s and redeploy") % {"flag": remedy.drops[0]}
    if remedy.variables:
        return _("Set the KV cache to %(size)s GiB and redeploy") % {"size": remedy.value}
    flag = next(iter(remedy.sets))
    if not remedy.value:
        return _("Add %(flag)s and redeploy") % {"flag": flag}
    number = f"{int(remedy.value):,}" if remedy.value.isdigit() else remedy.value
    if flag == "--max-model-len":
        return _("Set context to %(tokens)s and redeploy") % {"tokens": number}
    return _("Set %(flag)s to %(value)s and redeploy") % {"flag": flag, "value": number}


def find(user: User, deployment: Deployment, key: str) -> Fix:
    """The fix that is offered under this key now. Refused when the failure is another one by now."""
    fix = next((one for one in current_fixes(user, deployment) if one.remedy.key == key), None)
    if fix is None:
        raise Refused(_("This is no longer offered: what is wrong with %(name)s has changed.") % {"name": deployment})
    return fix


def consequences(deployment: Deployment, remedy: Remedy) -> list[str]:
    """What carrying a remedy out will do, in sentences. Refused when it can't be done."""
    if remedy.kind == Kind.START:
        return [
            _("The same spec is started again on %(host)s: verified, validated and warmed up before it serves.")
            % {"host": deployment.current_spec.host if deployment.current_spec else "–"},
            _("If the cause is still there, it fails again with the same words."),
        ]
    planned = changes.effect(deployment, _wish(deployment, remedy))
    differences = what_will_change(deployment, remedy)
    sentences = [f"{one.name}: {one.before or '–'} → {one.after or '–'}" for one in differences]
    if not planned.restarts:
        return [*sentences, _("A new spec is made and started: verified, validated and warmed up before it serves.")]
    return [*sentences, *planned.sentences]


def what_will_change(deployment: Deployment, remedy: Remedy) -> list[what_changed.Difference]:
    """Each fact of the spec that will be another."""
    old = deployment.current_spec
    return what_changed.spec_differences(old, _wish(deployment, remedy).as_spec(deployment, 0))


def apply(deployment: Deployment, remedy: Remedy, *, actor: User, reason: str) -> Job | None:
    """Carry a remedy out; returns the job that brings the deployment up."""
    with transaction.atomic():
        access.record(
            actor=actor, action="deployment.fix", target=deployment.name, target_url=f"/deployments/{deployment.pk}/",
            reason=reason, fix=remedy.key,
        )  # fmt: skip
        if remedy.kind == Kind.START:
            return start_again(deployment, actor=actor, reason=reason)
        if remedy.kind == Kind.ROLL_BACK:
            job = changes.roll_back(deployment, int(remedy.value), reason=reason, actor=actor)
        else:
            why = f"{label(remedy)}: {reason}"[:500]
            job = changes.change(deployment, _wish(deployment, remedy), reason=why, actor=actor)
        deployment.refresh_from_db()
        if job is None and deployment.state in ("failed", "stopped"):
            job = services.start(deployment, actor=actor, reason=reason)
        return job


def start_again(deployment: Deployment, *, actor: User, reason: str) -> Job:
    """Restart what is ordered, or deploy the spec again where nothing is."""
    instance = deployment.instances.filter(ordered=True, run=True).order_by("number").first()
    if instance is not None:
        return services.restart(instance, actor=actor, reason=reason)
    return services.start(deployment, actor=actor, reason=reason)


def _wish(deployment: Deployment, remedy: Remedy) -> Wish:
    spec = deployment.current_spec
    if spec is None:
        raise Refused(_("%(name)s has no spec yet.") % {"name": deployment})
    if remedy.kind == Kind.ROLL_BACK:
        return Wish.of_spec(changes.spec_of(deployment, int(remedy.value)))
    wish = Wish.of_spec(spec)
    if remedy.kind == Kind.PORT:
        return replace(wish, port=None)
    if remedy.kind == Kind.ENGINE:
        return replace(wish, engine=Engine.objects.select_related("host").get(pk=int(remedy.value)))
    arguments = with_arguments(wish.arguments, sets=remedy.sets, drops=remedy.drops)
    return replace(wish, arguments=arguments, environment=wish.environment | dict(remedy.variables))

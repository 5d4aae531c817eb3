"""Pages of instances and their attempts."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.deployments import control, fixing, golden, services, snippets, what_changed
from console.deployments.models import Attempt, Instance
from console.deployments.what_changed import SinceGood
from console.jobs.asking import ask
from console.jobs.check_rows import check_rows

ATTEMPTS_SHOWN = 50


def _instance(user: Any, pk: int, action: Action) -> Instance:
    rows = Instance.objects.select_related(
        "deployment", "host", "spec__copy__revision__model", "spec__engine", "spec__deployment", "spec__host"
    )
    return policies.get(user, rows, action, team_path="deployment__team", pk=pk)


@require_GET
def instance_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One instance: its attempts, and of the chosen one argv, environment, diagnosis and log."""
    instance = _instance(request.user, pk, Action.VIEW)
    attempts = list(instance.attempts.order_by("-number")[:ATTEMPTS_SHOWN])
    for attempt in attempts:
        attempt.instance = instance
    chosen = request.GET.get("attempt", "")
    shown = next((one for one in attempts if str(one.number) == chosen), attempts[0] if attempts else None)
    since = what_changed.since_good(instance.deployment) if _failure(instance, shown) else None
    context = {
        "since_good": since,
        "fixes": _fixes(request.user, instance, shown, since),
        "instance": instance,
        "deployment": instance.deployment,
        "attempts": attempts,
        "attempt": shown,
        "may_accept": bool(shown and golden.differing(shown)),
        "checks": check_rows(shown.validation.get("checks")) if shown else [],
        "following": shown is None or not chosen,
        "command": snippets.folded(shown.argv) if shown and shown.argv else "",
    }
    return render(request, "deployments/instance.html", context)


def _failure(instance: Instance, shown: Attempt | None) -> bool:
    code = shown.diagnosis.get("code") if shown else None
    return bool(instance.failure) or bool(code and code != "healthy")


def _fixes(user: Any, instance: Instance, shown: Attempt | None, since: SinceGood | None) -> list[fixing.Fix]:
    """Buttons only at the newest attempt, while its failure is what keeps the deployment from serving."""
    deployment = instance.deployment
    if since is None or (shown and instance.attempts.filter(number__gt=shown.number).exists()):
        return []
    failure = fixing.failure_of(deployment, [instance])
    return fixing.fixes(policies.require(user, Action.VIEW), deployment, failure, since)


@require_http_methods(["GET", "POST"])
def instance_restart(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop the process and bring a new one up."""
    instance = _instance(request.user, pk, Action.OPERATE)
    others = instance.deployment.instances.filter(state="ready").exclude(pk=pk).count()
    rest = _("%(count)d other instances go on serving.") if others else _("Nothing else serves this model meanwhile.")
    context = {
        "title": _("Restart %(name)s") % {"name": instance},
        "heading": _("Restart %(name)s?") % {"name": instance},
        "consequences": [
            _("Its engine on %(host)s ends; requests in flight have 20 s to finish, then they fail.")
            % {"host": instance.host},
            _("A new one starts, answers the probe, warms up, and serves again."),
            rest % {"count": others} if others else rest,
        ],
        "button": _("Restart"),
        "danger": not others and instance.state == "ready",
        "back": f"/deployments/{instance.deployment_id}/",
    }
    return ask(request, context, lambda user, reason: services.restart(instance, actor=user, reason=reason))


@require_http_methods(["GET", "POST"])
def instance_control_run(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask the probe's question of the same files without the engine."""
    instance = _instance(request.user, pk, Action.OPERATE)
    context = {
        "title": _("Control run of %(name)s") % {"name": instance},
        "heading": _("Ask %(name)s without its engine?") % {"name": instance},
        "consequences": [
            _("transformers loads the same files on the CPU of %(host)s and answers the probe's question.")
            % {"host": instance.host},
            _("It needs about 1.3 times the size of the weights as free RAM, and minutes for a large model."),
            _("What serves goes on serving; it shares the CPU meanwhile."),
        ],
        "button": _("Start"),
        "danger": False,
        "back": f"/instances/{pk}/",
    }
    return ask(request, context, lambda user, reason: control.control_run(instance, actor=user, reason=reason))


@require_http_methods(["GET", "POST"])
def attempt_accept_answer(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the golden answer and the new one beside each other, and take the new one for golden."""
    rows = Attempt.objects.select_related("instance__deployment", "instance__spec__copy")
    attempt = policies.get(request.user, rows, Action.OPERATE, team_path="instance__deployment__team", pk=pk)
    page = f"/instances/{attempt.instance_id}/?attempt={attempt.number}"
    pairs = [
        _("“%(question)s” — golden: “%(before)s”; new: “%(after)s”")
        % {"question": question[:200], "before": before[:400], "after": after[:400]}
        for question, before, after in golden.differing(attempt)
    ]
    context = {
        "title": _("Accept the new answer of %(name)s") % {"name": attempt.instance},
        "heading": _("Take this answer as golden from now on?"),
        "consequences": [
            *pairs,
            _("The next start with this engine is compared with it; restart to have it validated again."),
        ],
        "button": _("Accept"),
        "back": page,
    }

    def act(user: User, reason: str) -> None:
        golden.accept(attempt, actor=user, reason=reason)

    return ask(request, context, act, then=page)

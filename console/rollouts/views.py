"""Pages of rollouts: the list, starting one, one rollout, and what people do with it."""

from typing import Any

from django.core.paginator import Paginator
from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods

from console.access import policies
from console.access.policies import Action
from console.common.errors import Refused
from console.common.forms import add_refusal
from console.common.given import whole_number
from console.deployments.models import Deployment
from console.deployments.spec_difference import compare
from console.jobs.asking import ask
from console.rollouts import presentation, services
from console.rollouts.forms import RolloutForm
from console.rollouts.models import ABORTABLE_STATES, MOVING_STATES, Happening, Rollout, RolloutStep

PAGE_SIZE = 50


def _rows() -> QuerySet[Rollout]:
    steps = Prefetch("steps", RolloutStep.objects.order_by("position"))
    related = ("deployment", "old_spec__engine", "new_spec__engine", "created_by", "job", "stop_job")
    return Rollout.objects.select_related(*related).prefetch_related(steps)


def find(user: Any, pk: int, action: Action) -> Rollout:
    """One rollout of the person's team."""
    return policies.get(user, _rows(), action, pk=pk)


@require_GET
def rollout_list(request: HttpRequest) -> HttpResponse:
    """All rollouts, newest first; of one deployment with `?deployment=PK`."""
    rows = policies.visible(request.user, _rows())
    chosen = request.GET.get("deployment", "")
    if (deployment := whole_number(chosen)) is not None:
        rows = rows.filter(deployment=deployment)
    page = Paginator(rows.order_by("-pk"), PAGE_SIZE).get_page(request.GET.get("page"))
    shown = [(rollout, presentation.sentence(rollout)) for rollout in page]
    return render(request, "rollouts/list.html", {"page": page, "rollouts": shown, "filtered": bool(chosen)})


@require_http_methods(["GET", "POST"])
def rollout_new(request: HttpRequest, pk: int) -> HttpResponse:
    """Describe a rollout of a deployment; look at what it will do; start it."""
    related = ("current_spec__engine", "current_spec__copy__revision__model", "current_spec__host")
    deployment = policies.get(request.user, Deployment.objects.select_related(*related), Action.DEPLOY, pk=pk)
    user, spec = policies.require(request.user, Action.DEPLOY), deployment.current_spec
    if spec is None:
        return redirect("deployment_detail", pk=pk)
    if living := services.live_of(deployment):
        return redirect("rollout_detail", pk=living.pk)
    form = RolloutForm(request.POST or None, deployment=deployment, spec=spec)
    context: dict[str, Any] = {"form": form, "deployment": deployment, "spec": spec}
    context["routes"] = services.routes_of(deployment)
    if request.method == "POST" and form.is_valid():
        try:
            if "start" in request.POST:
                rollout = services.start(
                    deployment, form.wish(), form.plan(), actor=user, reason=form.cleaned_data["reason"]
                )
                return redirect("rollout_detail", pk=rollout.pk)
            wish = form.wish()
            context["preview"] = services.preview(deployment, wish, form.plan()).sentences
            context["comparison"] = compare(spec, wish.as_spec(deployment, spec.number + 1))
            context["features"] = form.features
        except Refused as refusal:
            add_refusal(form, refusal)
    return render(request, "rollouts/new.html", context, status=400 if form.errors else 200)


@require_GET
def rollout_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One rollout: how it goes, what each step showed, what happened."""
    rollout = find(request.user, pk, Action.VIEW)
    steps = list(rollout.steps.all())
    happenings = Happening.objects.filter(rollout=rollout).select_related("actor").order_by("-pk")[:200]
    context = {
        "rollout": rollout,
        "sentence": presentation.sentence(rollout),
        "stages": presentation.stages(rollout, steps),
        "shown": [presentation.shown(step) for step in reversed(steps)],
        "margins": presentation.margins(rollout.chosen),
        "happenings": happenings,
        "figure": presentation.figure(steps),
        "pinned": rollout.chosen.version if rollout.state in (*MOVING_STATES, "held", "draining") else "",
        "moving": rollout.state in MOVING_STATES,
        "stuck": services.is_stuck(rollout),
        "may_abort": rollout.state in ABORTABLE_STATES and rollout.stop_job is None,
    }
    return render(request, "rollouts/detail.html", context)


@require_http_methods(["GET", "POST"])
def rollout_hold(request: HttpRequest, pk: int) -> HttpResponse:
    """Stay at this step."""
    rollout = find(request.user, pk, Action.OPERATE)
    said = [_("It stays at this share until somebody says to go on."),
            _("It is still rolled back by itself if it dies, hangs or answers nonsense.")]  # fmt: skip
    return _ask(request, rollout, services.hold, _("Hold"), said)


@require_http_methods(["GET", "POST"])
def rollout_go_on(request: HttpRequest, pk: int) -> HttpResponse:
    """Look on for a verdict."""
    rollout = find(request.user, pk, Action.OPERATE)
    said = [_("It looks on for a verdict of this step; its patience begins anew.")]
    return _ask(request, rollout, services.go_on, _("Go on"), said)


@require_http_methods(["GET", "POST"])
def rollout_skip(request: HttpRequest, pk: int) -> HttpResponse:
    """Take the next step without a verdict."""
    rollout = find(request.user, pk, Action.DEPLOY)
    said = [_("The next step begins now, whatever this one showed: more requests go to the new engines.")]
    return _ask(request, rollout, services.skip, _("Skip this step"), said)


@require_http_methods(["GET", "POST"])
def rollout_abort(request: HttpRequest, pk: int) -> HttpResponse:
    """Back to the old side."""
    rollout = find(request.user, pk, Action.OPERATE)
    said = [_("All requests go to the engines of spec %(number)d within two seconds.") % {"number": rollout.old_spec.number},
            _("What the new engines have begun they finish; then they are stopped.")]  # fmt: skip
    return _ask(request, rollout, services.abort, _("Abort"), said, danger=True)


@require_http_methods(["GET", "POST"])
def rollout_stop_again(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop once more what could not be stopped."""
    rollout = find(request.user, pk, Action.OPERATE)
    said = [_("The engines of the side that was given up are told to stop once more; they get no requests.")]
    return _ask(request, rollout, services.stop_again, _("Stop them again"), said)


@require_http_methods(["GET", "POST"])
def rollout_let_go(request: HttpRequest, pk: int) -> HttpResponse:
    """End it without waiting for engines that can't be stopped."""
    rollout = find(request.user, pk, Action.OPERATE)
    said = [_("The rollout ends now, and the deployment can be changed again."),
            _("What still runs gets no requests, and keeps its memory until its host stops it.")]  # fmt: skip
    return _ask(request, rollout, services.let_go, _("End it without them"), said, danger=True)


def _ask(
    request: HttpRequest, rollout: Rollout, act: Any, button: str, consequences: list[str], *, danger: bool = False
) -> HttpResponse:
    there = reverse("rollout_detail", args=[rollout.pk])
    context = {
        "title": f"{button}: {rollout}", "heading": f"{button}: {rollout}", "consequences": consequences,
        "button": button, "danger": danger, "back": there, "back_label": str(rollout),
    }  # fmt: skip
    return ask(request, context, lambda user, reason: act(rollout, actor=user, reason=reason), then=there)

"""Pages of studies: the list, asking for one, one study as it goes, and taking over what it found."""

from typing import Any

from django.core.paginator import Paginator
from django.db.models import Count, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.benchmarks.views import profiles
from console.catalog.models import Copy
from console.common.errors import Refused
from console.common.forms import add_refusal
from console.common.given import whole_number
from console.common.parts import confirmation
from console.fleet.models import Engine
from console.jobs.asking import ask
from console.studies import exports, presentation, services
from console.studies.forms import StudyForm
from console.studies.models import Study, Trial
from console.studies.ready import READY

PAGE_SIZE = 50
USUAL_LOADS = {"values": "1, 8", "requests": 32, "repeats": 3}


def rows() -> QuerySet[Study]:
    """Studies with what their pages show beside them."""
    return Study.objects.select_related(
        "deployment", "own", "host", "engine", "copy__revision__model", "requested_by", "dataset"
    )


def find(user: Any, pk: int, action: Action) -> Study:
    """One study of the person's team."""
    return policies.get(user, rows(), action, pk=pk)


@require_GET
def study_list(request: HttpRequest) -> HttpResponse:
    """All studies, newest first, and the rules of thumb that can be measured."""
    counted = rows().annotate(
        all_trials=Count("trials"),
        measured=Count("trials", filter=Q(trials__state="succeeded")),
        skipped=Count("trials", filter=Q(trials__state="skipped")),
    )
    page = Paginator(policies.visible(request.user, counted).order_by("-pk"), PAGE_SIZE).get_page(
        request.GET.get("page")
    )
    return render(request, "studies/list.html", {"page": page, "ready": READY.values()})


@require_http_methods(["GET", "POST"])
def study_add(request: HttpRequest) -> HttpResponse:
    """Ask for a study. `?deployment=PK` chooses the base, `?ready=KEY` one of the rules, `?from=PK` asks again."""
    user = policies.require(request.user, Action.DEPLOY)
    form = StudyForm(request.POST or None, user=user, initial=_initial(request, user))
    if request.method == "POST" and form.is_valid():
        try:
            study = services.start(form.base(), form.order(), actor=user, reason=form.cleaned_data["reason"])
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("study_detail", pk=study.pk)
    chosen = READY.get(str(form["ready_made"].value() or ""))
    context = {"form": form, "profiles": profiles(), "ready": READY.values(), "chosen": chosen,
               "deployment": whole_number(request.GET.get("deployment", ""))}  # fmt: skip
    return render(request, "studies/new.html", context, status=400 if form.errors else 200)


def _initial(request: HttpRequest, user: User) -> dict[str, Any]:
    given: dict[str, Any] = dict(USUAL_LOADS)
    if (pk := whole_number(request.GET.get("from", ""))) is not None:
        return given | _as_before(find(user, pk, Action.VIEW))
    if (ready := READY.get(request.GET.get("ready", ""))) is not None:
        given |= {"ready_made": ready.key, "changes": ready.changes, **ready.load}
    if (control := whole_number(request.GET.get("control", ""))) is not None:
        given |= _against(user, control, whole_number(request.GET.get("against", "")))
    if (deployment := request.GET.get("deployment", "")) != "":
        given["deployment"] = deployment
    return given


def _against(user: User, control: int, other: int | None) -> dict[str, Any]:
    """The form that compares a model with another on the same host: both as they come, at the same loads."""
    rows = policies.visible(user, Copy.objects.select_related("host"), team_path="host__team")
    copy = rows.filter(pk=control).first()
    if copy is None:
        return {}
    engine = Engine.objects.filter(host=copy.host, present=True).order_by("-seen_at").first()
    return {
        "source": "own",
        "copy": copy.pk,
        "engine": engine.pk if engine else None,
        "others": [other],
        "quality": True,
    }


def _as_before(study: Study) -> dict[str, Any]:
    """The form as a study was asked for, to ask again."""
    tried = list(study.trials.exclude(position=0))
    changes = [" ".join(trial.changes) for trial in tried if trial.changes]
    others = [trial.copy_id for trial in tried if trial.copy_id]
    loads = study.question.loads
    return {
        "source": "deployment" if study.deployment_id else "own", "deployment": study.deployment_id, "copy": study.copy_id,
        "engine": study.engine_id, "arguments": " ".join(study.arguments), "changes": "\n".join(changes), "others": others,
        "ready_made": study.ready_made, "title": study.title, "profile": study.profile, "by": loads.by,
        "values": ", ".join(f"{one:g}" for one in loads.values), "requests": loads.requests, "seconds": loads.seconds,
        "repeats": loads.repeats, "warmups": loads.warmups, "seed": loads.seed, "ignore_eos": loads.ignore_eos,
        "quality": study.with_quality, "neighbours": study.neighbours, "dataset": study.dataset_id,
        **study.question.targets.model_dump(),
    }  # fmt: skip


@require_GET
def study_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One study: the truth, every variant beside the base, what guides claim, what runs now."""
    study = find(request.user, pk, Action.VIEW)
    context = presentation.context(study, request.GET.get("load", ""))
    return render(request, "studies/detail.html", context | {"now": presentation.now(study)})


@require_http_methods(["GET", "POST"])
def study_cancel(request: HttpRequest, pk: int) -> HttpResponse:
    """End a study before it is whole."""
    study = find(request.user, pk, Action.OPERATE)
    said = [_("The engine that is being measured is stopped. What was measured stays.")]
    if study.stopped:
        said.append(_("What was stopped for the study is started again."))
    return _ask(request, study, services.cancel, _("Cancel"), said, danger=True)


@require_http_methods(["GET", "POST"])
def study_go_on(request: HttpRequest, pk: int) -> HttpResponse:
    """Try what was not measured once more."""
    study = find(request.user, pk, Action.DEPLOY)
    count = study.trials.exclude(state="succeeded").count()
    said = [_("%(count)d engines that were not measured are started, one after the other.") % {"count": count}]
    if study.neighbours == "stop":
        said.append(_("What serves on the device is stopped for it again, as was agreed."))
    return _ask(request, study, services.go_on, _("Go on"), said)


def _ask(
    request: HttpRequest, study: Study, act: Any, button: str, consequences: list[str], *, danger: bool = False
) -> HttpResponse:
    there = reverse("study_detail", args=[study.pk])
    context = {
        "title": f"{button}: {study}", "heading": f"{button}: {study}", "consequences": consequences, "button": button,
        "danger": danger, "back": there, "back_label": str(study),
    }  # fmt: skip
    return ask(request, context, lambda user, reason: act(study, actor=user, reason=reason), then=there)


@require_http_methods(["GET", "POST"])
def study_delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete one that has ended."""
    study = find(request.user, pk, Action.DEPLOY)
    context = {
        "title": _("Delete %s") % study, "heading": _("Delete “%s”?") % study, "danger": True, "button": _("Delete"),
        "consequences": [_("Its engines' logs go with it; the benchmarks stay in their list. This can't be undone.")],
        "back": reverse("study_detail", args=[pk]),
    }  # fmt: skip
    return ask(request, context, lambda user, _reason: services.delete(study, actor=user), then="study_list")


@require_GET
def study_export(request: HttpRequest, pk: int, kind: str) -> HttpResponse:
    """CSV or JSON."""
    study = find(request.user, pk, Action.VIEW)
    if kind not in exports.KINDS:
        raise Http404
    return exports.export(study, kind)


@require_POST
def trial_apply(request: HttpRequest, pk: int) -> HttpResponse:
    """Open the deploy form with a variant's arguments filled in; nothing is changed before that is sent."""
    user = policies.require(request.user, Action.DEPLOY)
    related = ("study__deployment__current_spec__engine", "study__copy", "study__engine", "study__host", "copy")
    known = Trial.objects.select_related(*related)
    trial = policies.get(user, known, Action.DEPLOY, team_path="study__team", pk=pk)
    try:
        draft = services.filled_form(trial, actor=user)
    except Refused as refusal:
        context = {"title": _("Apply this"), "heading": _("Apply this"), "refused": str(refusal), "consequences": [],
                   "button": _("Apply this"), "back": reverse("study_detail", args=[trial.study_id])}  # fmt: skip
        return confirmation(request, context)
    deployment = trial.study.deployment
    page = reverse("deployment_change", args=[deployment.pk]) if deployment is not None else reverse("deployment_add")
    return redirect(f"{page}?draft={draft.key}")

"""The deploy form's pages: new, change, what follows each keystroke, what follows each click, drafts."""

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.common.errors import Refused
from console.common.forms import add_refusal
from console.deployments import changes, drafts, engine_schema, fit_presentation, form_texts, services, snippets
from console.deployments.form_page import Fold, FormPage, fix_text
from console.deployments.form_texts import Texts
from console.deployments.forms import DeployForm
from console.deployments.models import Deployment, Draft, Spec
from console.deployments.spec_difference import compare
from console.deployments.views import find
from console.fleet.models import Engine

FOLDS = (
    ("environment", ("environment", "port")),
    (
        "checks",
        (
            "probe_mode",
            "probe_prompt",
            "probe_expected",
            "probe_language",
            "declares_tools",
            "declares_json",
            "patience_seconds",
            "warmup_prompt",
            "warmup_prompts",
            "ttft_target_seconds",
            "start_minutes",
            "hang_seconds",
            "probe_seconds",
            "probe_under_load",
            "gate",
        ),
    ),
    ("restarts", ("restart_budget", "restart_minutes", "notes")),
)


@require_http_methods(["GET", "POST"])
def deployment_add(request: HttpRequest) -> HttpResponse:
    """The deploy form; a good one becomes a job, whose page follows.

    GET takes `copy`, `engine`, `name`, a whole `command` to read in, `clone` (a deployment's id) or `draft` (its key).
    """
    user = policies.require(request.user, Action.DEPLOY)
    if request.method == "GET":
        texts, command = _first_texts(request, user)
        return _page(request, _unsent(texts, user), command=command)
    form = DeployForm(request.POST, user=user)
    if form.is_valid():
        try:
            order = form.order() | {name: form.cleaned_data[name] for name in ("name", "notes", "public_name")}
            job = services.create(**order, actor=user)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            drafts.discard(form.cleaned_data["idempotency_key"], person=user)
            return redirect("job_detail", pk=job.pk)
    return _page(request, form)


@require_http_methods(["GET", "POST"])
def deployment_change(request: HttpRequest, pk: int) -> HttpResponse:
    """The same form on a deployment: what it will do is shown first, then it becomes the next spec.

    GET takes `draft` (its key), or `copy`: other files than the deployment has now.
    """
    deployment = find(request.user, pk, Action.DEPLOY)
    user = policies.require(request.user, Action.DEPLOY)
    if request.method == "GET":
        draft = request.GET.get("draft")
        texts = _draft_texts(draft, user) if draft else _spec_texts(deployment.current_spec)
        if copy := request.GET.get("copy"):
            texts.fields["copy"] = copy
        return _page(request, _unsent(texts, user, changing=deployment), changing=deployment)
    form = DeployForm(request.POST, user=user, changing=deployment, initial={"name": deployment.name})
    if form.is_valid():
        try:
            return _look_or_change(request, deployment, form, user)
        except Refused as refusal:
            add_refusal(form, refusal)
    return _page(request, form, changing=deployment)


def _look_or_change(request: HttpRequest, deployment: Deployment, form: DeployForm, user: User) -> HttpResponse:
    order = form.order()
    wish = changes.Wish.of_order(order)
    if request.POST.get("go") != "apply":
        current = deployment.current_spec
        new = wish.as_spec(deployment, (current.number if current else 0) + 1)
        context = {
            "deployment": deployment,
            "effect": changes.effect(deployment, wish),
            "comparison": compare(current, new) if current else None,
            "reason": order["reason"],
            "draft": drafts.save(
                form.cleaned_data["idempotency_key"], person=user, fields=form_texts.of_post(request.POST).fields,
                deployment=deployment,
            ),
            "sent": [(name, value) for name in request.POST for value in request.POST.getlist(name)
                     if name not in ("csrfmiddlewaretoken", "go")],
        }  # fmt: skip
        return render(request, "deployments/change_confirm.html", context)
    key = order["idempotency_key"]
    job = changes.change(deployment, wish, reason=order["reason"], actor=user, idempotency_key=key)
    drafts.discard(form.cleaned_data["idempotency_key"], person=user)
    return redirect("job_detail", pk=job.pk) if job else redirect("deployment_specs", pk=deployment.pk)


@require_POST
def deployment_preview(request: HttpRequest) -> HttpResponse:
    """The command that will run, what is wrong with its arguments, and the fit card, while someone types."""
    form = _sent(request)
    form.is_valid()
    context = {"preview": _preview(form), "card": fit_presentation.card(form.fit, form.places)}
    return render(request, "deployments/_preview_live.html", context)


@require_POST
def deployment_redraw(request: HttpRequest) -> HttpResponse:
    """The form after a click: a pasted line was read, a fix taken, a preset chosen, the engine changed."""
    user = policies.require(request.user, Action.DEPLOY)
    changing = _changing(request)
    texts = form_texts.of_post(request.POST)
    before = _engine(texts.fields.get("drawn_for"), user)
    after = _engine(texts.fields.get("engine"), user)
    if before != after:
        form_texts.change_engine(texts, before, after)
    command = request.POST.get("command", "")
    schema = engine_schema.schema_of(after)
    act, _colon, detail = request.POST.get("act", "").partition(":")
    if schema is not None:
        if act == "read" and command.strip():
            form_texts.read_line(texts, command, schema, user=user)
            command = ""
        elif act == "take":
            form_texts.take_fixes(texts, schema, detail)
        elif act == "preset":
            form_texts.apply_preset(texts, schema, detail)
        elif act == "switch-on":
            form_texts.switch_on(texts, schema, detail)
    form = _unsent(texts, user, changing=changing)
    return render(request, "deployments/_form.html", _context(form, changing=changing, command=command))


@require_POST
def deployment_draft(request: HttpRequest) -> HttpResponse:
    """Save the form as it stands."""
    user = policies.require(request.user, Action.DEPLOY)
    try:
        key = UUID(request.POST.get("idempotency_key", ""))
    except ValueError:
        return HttpResponse(status=400)
    fields = form_texts.of_post(request.POST).fields
    saved = drafts.save(key, person=user, fields=fields, deployment=_changing(request))
    return render(request, "deployments/_draft_saved.html", {"draft": saved})


@require_POST
def deployment_draft_discard(request: HttpRequest, key: UUID) -> HttpResponse:
    """Forget a draft."""
    drafts.discard(key, person=policies.require(request.user, Action.DEPLOY))
    return HttpResponse() if request.htmx else redirect("deployment_add")  # type: ignore[attr-defined]


def _first_texts(request: HttpRequest, user: User) -> tuple[Texts, str]:
    given = {name: request.GET[name] for name in ("copy", "engine", "name") if request.GET.get(name)}
    command = request.GET.get("command", "")
    if draft := request.GET.get("draft"):
        return _draft_texts(draft, user), ""
    if (clone := request.GET.get("clone", "")).isdigit():
        texts = _spec_texts(find(user, int(clone), Action.VIEW).current_spec)
        texts.fields["name"] = _free_name(texts.fields.get("name", ""))
        texts.fields.pop("port", None)
        return texts, ""
    texts = Texts(given)
    if command.strip():
        schema = engine_schema.schema_of(_engine(given.get("engine"), user))
        if schema is not None:
            form_texts.read_line(texts, command[:20_000], schema, user=user)
    return texts, ""


def _free_name(name: str) -> str:
    stem = name[:58].rstrip("-._")
    taken = set(Deployment.objects.filter(name__startswith=stem).values_list("name", flat=True))
    return next(one for number in range(2, 10_000) if (one := f"{stem}-{number}") not in taken)


def _draft_texts(key: str, user: User) -> Texts:
    try:
        draft: Draft = drafts.find(key, person=user)
    except Refused:
        return Texts({})
    return Texts(dict(draft.fields) | {"idempotency_key": str(draft.key)})


def _spec_texts(spec: Spec | None) -> Texts:
    return form_texts.of_spec(spec, schema=engine_schema.schema_of(spec.engine)) if spec else Texts({})


def _engine(pk: Any, user: User) -> Engine | None:
    if not str(pk or "").isdigit():
        return None
    rows = Engine.objects.filter(pk=pk, present=True).select_related("host")
    return policies.visible(user, rows, team_path="host__team").first()


def _changing(request: HttpRequest) -> Deployment | None:
    pk = request.POST.get("changing", "")
    return find(request.user, int(pk), Action.DEPLOY) if pk.isdigit() else None


def _sent(request: HttpRequest) -> DeployForm:
    changing = _changing(request)
    initial = {"name": changing.name} if changing else {}
    return DeployForm(
        request.POST, user=policies.require(request.user, Action.DEPLOY), changing=changing, initial=initial
    )


def _unsent(texts: Texts, user: User, *, changing: Deployment | None = None) -> DeployForm:
    form = DeployForm(user=user, changing=changing, initial=texts.fields)
    form.notes_made = texts.notes
    return form


def _page(
    request: HttpRequest, form: DeployForm, *, changing: Deployment | None = None, command: str = ""
) -> HttpResponse:
    key = form["idempotency_key"].value()
    context = _context(form, changing=changing, command=command) | {
        "drafts": drafts.of_person(form.user, besides=key if not form.is_bound else None) if not form.is_bound else [],
    }
    return render(request, "deployments/add.html", context, status=400 if form.errors else 200)


def _context(form: DeployForm, *, changing: Deployment | None, command: str) -> dict[str, Any]:
    titles = {
        "environment": _("Environment and port"),
        "checks": _("Health, validation and gate"),
        "restarts": _("Restarts and notes"),
    }
    return {
        "form": form,
        "page": FormPage(form),
        "folds": [Fold(titles[name], tuple(form[one] for one in names)) for name, names in FOLDS],
        "preview": _preview(form) if form.is_bound else {"kept": _kept(form)},
        "card": fit_presentation.card(form.fit, form.places) if form.is_bound else fit_presentation.card(None),
        "changing": changing,
        "command": command,
    }


def _preview(form: DeployForm) -> dict[str, Any]:
    data = form.cleaned_data
    copy, engine = data.get("copy"), data.get("engine")
    argv = services.preview_command(
        # Where fetched files will lie is said by the host.
        model_path=copy.path if copy and copy.path.startswith("/") else "MODEL",
        name=data.get("name") or (form.changing.name if form.changing else "NAME"),
        port=data.get("port"),
        arguments=form.argv(),
    )
    kept = _kept(form)
    explained = {finding.flag for one in kept for finding in one["kept"].findings}
    return {
        "command": snippets.folded(argv),
        "environment": data.get("environment") or {},
        "engine": engine,
        "copy": copy,
        "kept": kept,
        "findings": [one for one in form.findings if one.flag not in explained and not form.says_at_field(one)],
        "errors": form.errors_so_far(),
        "error": "" if form.findings else " ".join(str(text) for text in form.errors.get("arguments", [])),
    }


def _kept(form: DeployForm) -> list[dict[str, Any]]:
    return [{"index": index, "kept": kept, "fix": fix_text(form.schema, kept)} for index, kept in FormPage(form).kept()]

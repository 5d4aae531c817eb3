"""Pages of gateway keys."""

from typing import Any

from django import forms
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from console import env
from console.access import policies
from console.access.policies import Action
from console.common.errors import Refused
from console.common.forms import ReasonForm, add_refusal
from console.gateway import keys, presentation
from console.gateway.forms import KeyForm, RotateForm, TeamLimitsForm
from console.gateway.models import Key, Route, TeamLimits
from console.gateway.usage import used_today

PAGE_SIZE = 50


@require_GET
def key_list(request: HttpRequest) -> HttpResponse:
    """All keys, those in use first."""
    user = policies.require(request.user, Action.OPERATE)
    rows = policies.visible(user, Key.objects.select_related("owner", "replaced_by").prefetch_related("routes"))
    shown = request.GET.get("show", "valid")
    if shown == "valid":
        rows = rows.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None)
    if text := request.GET.get("q", "").strip():
        rows = rows.filter(Q(name__icontains=text) | Q(owner__username__icontains=text) | Q(shown__icontains=text))
    page = Paginator(rows, PAGE_SIZE).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "show": shown,
        "today": used_today([key.pk for key in page]),
        "team": TeamLimits.objects.filter(team=user.team).first(),
        "any": policies.visible(user, Key.objects.all()).exists(),
    }
    return render(request, "gateway/keys.html", context)


@require_GET
def key_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One key: what it may do, and what it took."""
    key = _key(request, pk, Action.OPERATE)
    context = {
        "key": key,
        "facts": presentation.key_facts(key),
        "today": used_today([key.pk]).get(key.pk, 0),
        "requests": key.gatewayrequest_set.order_by("-pk")[:20],
    }
    return render(request, "gateway/key.html", context)


@never_cache
@require_http_methods(["GET", "POST"])
def key_add(request: HttpRequest) -> HttpResponse:
    """Make a key, and show it once."""
    user = policies.require(request.user, Action.ADMINISTER)
    form = KeyForm(request.POST or None, user=user, initial=_wanted_route(request))
    if request.method == "POST" and form.is_valid():
        key, secret = keys.create(**form.order(), actor=user, team_id=user.team_id)
        return _show_once(request, key, secret)
    return _form(request, form, _("Make a key"), _("It is shown once, on the next page."), _("Make it"))


@require_http_methods(["GET", "POST"])
def key_edit(request: HttpRequest, pk: int) -> HttpResponse:
    """Change what a key may do."""
    user = policies.require(request.user, Action.ADMINISTER)
    key = _key(request, pk, Action.ADMINISTER)
    title = _("Change %(name)s") % {"name": key}
    form = KeyForm(request.POST or None, instance=key, user=user)
    if request.method == "POST" and form.is_valid():
        try:
            keys.change(key, **form.order(), actor=user)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("key_detail", pk=pk)
    return _form(request, form, title, _("In force within two seconds. The key itself stays."), _("Save"))


@never_cache
@require_http_methods(["GET", "POST"])
def key_rotate(request: HttpRequest, pk: int) -> HttpResponse:
    """Make a key's successor, and show it once."""
    user = policies.require(request.user, Action.ADMINISTER)
    key = _key(request, pk, Action.ADMINISTER)
    form = RotateForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            new, secret = keys.rotate(key, overlap=form.span(), actor=user, reason=form.cleaned_data["reason"])
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return _show_once(request, new, secret)
    consequences = [_("You get a new key with the same rights. Both work until the old one's time is over.")]
    return _ask(request, form, key, _("Rotate %(name)s"), consequences, _("Rotate"))


@require_http_methods(["GET", "POST"])
def key_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    """End a key."""
    user = policies.require(request.user, Action.OPERATE)
    key = _key(request, pk, Action.OPERATE)
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        keys.revoke(key, actor=user, reason=form.cleaned_data["reason"])
        return redirect("key_list")
    used = (
        _("It was last used %(when)s.") % {"when": f"{key.last_used_at:%Y-%m-%d %H:%M} UTC"} if key.last_used_at else ""
    )
    consequences = [
        _("Whatever uses it gets 401 within two seconds. This can't be undone."),
        used or _("It was never used."),
    ]
    return _ask(request, form, key, _("Revoke %(name)s"), consequences, _("Revoke"), danger=True)


@require_http_methods(["GET", "POST"])
def team_limits(request: HttpRequest) -> HttpResponse:
    """What all keys of the team may take together."""
    user = policies.require(request.user, Action.ADMINISTER)
    limits = TeamLimits.objects.filter(team=user.team).first() or TeamLimits(team=user.team)
    form = TeamLimitsForm(request.POST or None, instance=limits)
    if request.method == "POST" and form.is_valid():
        keys.limit_team(form.instance, actor=user)
        return redirect("key_list")
    return _form(request, form, _("Limits of the team"), _("All keys of the team share them."), _("Save"))


def _key(request: HttpRequest, pk: int, action: Action) -> Key:
    rows = Key.objects.select_related("owner", "replaces", "replaced_by", "created_by").prefetch_related("routes")
    return policies.get(request.user, rows, action, pk=pk)


def _wanted_route(request: HttpRequest) -> dict[str, Any]:
    wanted = request.GET.get("route", "")
    if not wanted.isdigit():
        return {}
    route = policies.visible(request.user, Route.objects.filter(pk=int(wanted))).first()
    return {"all_routes": False, "routes": [route], "name": route.name} if route else {}


def _show_once(request: HttpRequest, key: Key, secret: str) -> HttpResponse:
    model = next(iter(key.routes.all()), None) or policies.visible(request.user, Route.objects.all()).first()
    context = {
        "key": key,
        "secret": secret,
        "url": env.gateway_url(),
        "snippets": presentation.snippets(model.name, key=secret) if model else None,
    }
    response = render(request, "gateway/key_once.html", context)
    response["Cache-Control"] = "no-store"
    return response


def _form(request: HttpRequest, form: forms.BaseForm, title: str, text: str, button: str) -> HttpResponse:
    context = {"form": form, "title": title, "text": text, "button": button}
    return render(request, "gateway/key_form.html", context, status=400 if form.errors else 200)


def _ask(
    request: HttpRequest,
    form: ReasonForm,
    key: Key,
    title: str,
    consequences: list[str],
    button: str,
    *,
    danger: bool = False,
) -> HttpResponse:
    context = {
        "form": form,
        "action": request.get_full_path(),
        "title": title % {"name": key},
        "consequences": consequences,
        "button": button,
        "danger": danger,
        "back": reverse("key_detail", args=[key.pk]),
        "back_label": key.name,
    }
    # A key that is shown once needs a page of its own, so this is never a dialog.
    return render(request, "common/confirm.html", context, status=400 if form.errors else 200)

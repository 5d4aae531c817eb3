"""People, one's own account, and the audit log."""

import csv
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.decorators import login_not_required
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import check_for_language
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console.access import policies, presentation, services
from console.access.filters import AuditFilter
from console.access.forms import AddPersonForm, OwnPasswordForm, RoleForm
from console.access.models import AuditEntry, Role, User
from console.access.policies import Action
from console.common.errors import Refused
from console.common.forms import add_refusal
from console.common.given import harmless
from console.common.parts import confirmation, wants_part

AUDIT_PAGE_SIZE = 50
YEAR_SECONDS = 365 * 24 * 3600


@require_GET
def people_list(request: HttpRequest) -> HttpResponse:
    """Everybody who can sign in, admins first."""
    policies.require(request.user, Action.ADMINISTER)
    people = list(policies.visible(request.user, User.objects.all()))
    order = [Role.ADMIN, Role.OPERATOR, Role.VIEWER]
    people.sort(key=lambda person: (not person.is_active, order.index(Role(person.role)), person.username.lower()))
    return render(request, "access/people.html", {"people": people, "counts": _counts(people)})


@never_cache
@require_http_methods(["GET", "POST"])
def person_add(request: HttpRequest) -> HttpResponse:
    """Add a person, and show their first password once."""
    actor = policies.require(request.user, Action.ADMINISTER)
    form = AddPersonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            person, password = services.add_person(**form.cleaned_data, actor=actor)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return _show_password(request, person, password, added=True)
    return _ask(
        request,
        {
            "form": form,
            "title": _("Add a person"),
            "button": _("Add"),
            "consequences": [_("You get a first password to pass on. They choose their own when they first sign in.")],
        },
    )


@require_http_methods(["GET", "POST"])
def person_role(request: HttpRequest, pk: int) -> HttpResponse:
    """Give a person another role."""
    person = policies.get(request.user, User.objects.all(), Action.ADMINISTER, pk=pk)
    form = RoleForm(request.POST or None, initial={"role": person.role})
    if request.method == "POST" and form.is_valid():
        try:
            services.change_role(
                person, role=form.cleaned_data["role"], actor=policies.require(request.user, Action.ADMINISTER)
            )
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            messages.success(
                request,
                _("%(name)s is %(role)s now.")
                % {"name": person.username, "role": Role(form.cleaned_data["role"]).label},
            )
            return redirect("people_list")
    return _ask(request, {"form": form, "title": _("Role of %s") % person.username, "button": _("Change role")})


@require_http_methods(["GET", "POST"])
def person_active(request: HttpRequest, pk: int) -> HttpResponse:
    """Disable a person, or enable them again."""
    person = policies.get(request.user, User.objects.all(), Action.ADMINISTER, pk=pk)
    wanted = not person.is_active
    context: dict[str, Any] = {
        "title": (_("Enable %s") if wanted else _("Disable %s")) % person.username,
        "button": _("Enable") if wanted else _("Disable"),
        "danger": not wanted,
        "consequences": [
            _("They can sign in again, as %(role)s.") % {"role": person.get_role_display()}
            if wanted
            else _("They are signed out everywhere and can't sign in until someone enables them again.")
        ],
    }
    if request.method == "POST":
        try:
            services.set_active(person, active=wanted, actor=policies.require(request.user, Action.ADMINISTER))
        except Refused as refusal:
            context["refused"] = refusal.message
        else:
            text = _("%s can sign in again.") if wanted else _("%s is disabled.")
            messages.success(request, text % person.username)
            return redirect("people_list")
    return _ask(request, context)


@never_cache
@require_http_methods(["GET", "POST"])
def person_password(request: HttpRequest, pk: int) -> HttpResponse:
    """Reset a person's password, and show the new one once."""
    person = policies.get(request.user, User.objects.all(), Action.ADMINISTER, pk=pk)
    if request.method == "POST":
        password = services.reset_password(person, actor=policies.require(request.user, Action.ADMINISTER))
        if person.pk == request.user.pk:
            update_session_auth_hash(request, person)
        return _show_password(request, person, password, added=False)
    return _ask(
        request,
        {
            "title": _("Reset the password of %s") % person.username,
            "button": _("Reset password"),
            "danger": True,
            "consequences": [
                _("Their password stops working and they are signed out everywhere."),
                _("You get a new one to pass on; they choose their own when they next sign in."),
            ],
        },
    )


def _counts(people: list[User]) -> dict[str, int]:
    active = [person for person in people if person.is_active]
    counts = {role.value: sum(person.role == role for person in active) for role in Role}
    return counts | {"active": len(active), "disabled": len(people) - len(active)}


def _show_password(request: HttpRequest, person: User, password: str, *, added: bool) -> HttpResponse:
    # Answered directly, not after a redirect: the password is never stored readable, not even in the session.
    return render(request, "access/password_once.html", {"person": person, "password": password, "added": added})


def _ask(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    return confirmation(
        request, context | {"back": reverse("people_list"), "back_label": _("People"), "action": request.path}
    )


@never_cache
@require_http_methods(["GET", "POST"])
def account_me(request: HttpRequest) -> HttpResponse:
    """One's own account: password, theme, language, second factor."""
    user = policies.require(request.user, Action.VIEW)
    form = OwnPasswordForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            services.change_own_password(user, current=form.cleaned_data["current"], new=form.cleaned_data["new"])
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            update_session_auth_hash(request, user)
            messages.success(request, _("Your password is changed. Other sessions of yours were signed out."))
            return redirect("account_me")
    return render(request, "access/me.html", {"form": form}, status=400 if form.errors else 200)


@login_not_required
@require_POST
def set_theme(request: HttpRequest) -> HttpResponse:
    """Remember light, dark or as the system has it, in a cookie."""
    response = _back(request)
    theme = request.POST.get("theme")
    if theme in {"light", "dark", "auto"}:
        response.set_cookie("theme", theme, max_age=YEAR_SECONDS, samesite="Lax", secure=settings.SESSION_COOKIE_SECURE)
    return response


@login_not_required
@require_POST
def set_language(request: HttpRequest) -> HttpResponse:
    """Remember the language, in Django's cookie."""
    response = _back(request)
    language = request.POST.get("language", "")
    if language in dict(settings.LANGUAGES) and check_for_language(language):
        response.set_cookie(
            settings.LANGUAGE_COOKIE_NAME,
            language,
            max_age=YEAR_SECONDS,
            samesite="Lax",
            secure=settings.SESSION_COOKIE_SECURE,
        )
    return response


def _back(request: HttpRequest) -> HttpResponse:
    page = request.headers.get("referer", "")
    allowed = url_has_allowed_host_and_scheme(page, {request.get_host()}, require_https=request.is_secure())
    return redirect(page if allowed else reverse("overview"))


@login_not_required
def closed(request: HttpRequest) -> HttpResponse:  # noqa: ARG001
    """Nobody signs up, and nobody resets a password by mail: an admin does both."""
    raise Http404


@require_GET
def audit_list(request: HttpRequest) -> HttpResponseBase:
    """Who did what, on what, why, and from where; as a page or as CSV."""
    user = policies.require(request.user, Action.OPERATE)
    chosen = AuditFilter(request.GET, queryset=presentation.entries_for(user), request=request)
    if request.GET.get("format") == "csv":
        return _as_csv(chosen.qs)
    page = Paginator(chosen.qs, AUDIT_PAGE_SIZE).get_page(request.GET.get("page"))
    query = request.GET.copy()
    query.pop("page", None)
    for entry in page:
        entry.deed = presentation.deed(entry)
    context = {"filter": chosen, "page": page, "filtered": any(query.values())}
    return render(request, "access/_audit_rows.html" if wants_part(request) else "access/audit.html", context)


class _Line:
    """A file for the csv module that hands each line back."""

    def write(self, text: str) -> str:
        return text


def _as_csv(entries: QuerySet[AuditEntry]) -> StreamingHttpResponse:
    writer = csv.writer(_Line())
    heads = ["at", "person", "action", "target", "reason", "address", "details"]

    def lines() -> Iterator[str]:
        yield writer.writerow(heads)
        for entry in entries.iterator(chunk_size=500):
            cells = [
                entry.actor_name,
                entry.action,
                entry.target,
                entry.reason,
                entry.address,
                str(entry.details or ""),
            ]
            yield writer.writerow([entry.at.isoformat(), *map(harmless, cells)])

    name = f"audit-{timezone.localdate():%Y-%m-%d}.csv"
    return StreamingHttpResponse(
        lines(),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )

"""Pages of sources: where models come from, and their tokens."""

from django.contrib import messages
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.catalog import sources
from console.catalog.forms import SourceForm, TokenForm, source_initial
from console.catalog.models import Source
from console.common.errors import Refused
from console.common.forms import ReasonForm, add_refusal
from console.common.parts import confirmation


@require_GET
def source_list(request: HttpRequest) -> HttpResponse:
    """All sources, whose token each has, and whether it works."""
    rows = policies.visible(request.user, Source.objects.annotate(models_count=Count("models")))
    return render(request, "catalog/sources.html", {"sources": list(rows)})


@require_http_methods(["GET", "POST"])
def source_add(request: HttpRequest) -> HttpResponse:
    """Add a source."""
    return _edit(request, Source(), policies.require(request.user, Action.ADMINISTER))


@require_http_methods(["GET", "POST"])
def source_edit(request: HttpRequest, pk: int) -> HttpResponse:
    """Change a source's name, protocol or address."""
    return _edit(request, _source(request, pk), policies.require(request.user, Action.ADMINISTER))


def _edit(request: HttpRequest, source: Source, actor: User) -> HttpResponse:
    form = SourceForm(request.POST or None, initial=source_initial(source))
    if request.method == "POST" and form.is_valid():
        try:
            sources.save(source, **form.cleaned_data, actor=actor)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            messages.success(request, _("%(name)s is saved.") % {"name": source})
            return redirect("source_list")
    context = {
        "form": form,
        "title": _("Change %(name)s") % {"name": source_initial(source)["name"]} if source.pk else _("Add a source"),
        "text": _("Another address drops the token: it was given for the old one.") if source.token else "",
        "button": _("Save"),
    }
    return render(request, "catalog/source_form.html", context, status=400 if form.errors else 200)


@never_cache
@require_http_methods(["GET", "POST"])
def source_token(request: HttpRequest, pk: int) -> HttpResponse:
    """Store an access token; it is tested at once."""
    source = _source(request, pk)
    actor = policies.require(request.user, Action.ADMINISTER)
    form = TokenForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            sources.set_token(source, token=form.cleaned_data["token"], actor=actor)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            _test(request, source, actor)
            return redirect("source_list")
    context = {
        "form": form,
        "title": _("Token for %(name)s") % {"name": source},
        "text": _("It goes to %(address)s, and sealed to the hosts that download; nowhere else.")
        % {"address": source.endpoint},
        "button": _("Store and test"),
    }
    return render(request, "catalog/source_form.html", context, status=400 if form.errors else 200)


@require_POST
def source_test(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask the source whose token it is."""
    source = _source(request, pk)
    _test(request, source, policies.require(request.user, Action.ADMINISTER))
    return redirect("source_list")


def _test(request: HttpRequest, source: Source, actor: User) -> None:
    try:
        sources.check_token(source, actor=actor)
    except Refused as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(
            request, _("%(name)s knows the token as %(who)s.") % {"name": source, "who": source.token_account}
        )


@require_http_methods(["GET", "POST"])
def source_remove(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask for a reason, then remove a source with its token."""
    source = _source(request, pk)
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        actor = policies.require(request.user, Action.ADMINISTER)
        sources.remove(source, actor=actor, reason=form.cleaned_data["reason"])
        return redirect("source_list")
    context = {
        "form": form,
        "title": _("Remove %(name)s") % {"name": source},
        "consequences": [
            _("Its token is deleted."),
            _("Models fetched from it stay as they are, but their files can't be fetched or repaired again."),
        ],
        "button": _("Remove"),
        "danger": True,
        "back": reverse("source_list"),
        "back_label": _("Sources"),
    }
    return confirmation(request, context)


@require_POST
def source_drop_token(request: HttpRequest, pk: int) -> HttpResponse:
    """Remove a source's token."""
    source = _source(request, pk)
    sources.set_token(source, token="", actor=policies.require(request.user, Action.ADMINISTER))
    return redirect("source_list")


def _source(request: HttpRequest, pk: int) -> Source:
    return policies.get(request.user, Source.objects.all(), Action.ADMINISTER, pk=pk)

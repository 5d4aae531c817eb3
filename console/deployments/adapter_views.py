"""Pages that add, load anew and remove a deployment's adapters."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.common.errors import Refused
from console.common.forms import add_refusal
from console.deployments import adapter_fit, adapters
from console.deployments.adapter_forms import AdapterForm, adapters_known
from console.deployments.models import Adapter, Deployment
from console.deployments.views import find
from console.jobs.asking import ask


@require_http_methods(["GET", "POST"])
def adapter_add(request: HttpRequest, pk: int) -> HttpResponse:
    """Choose an adapter and its name. What keeps it from being loaded is said before anything is sent to a host."""
    deployment = find(request.user, pk, Action.DEPLOY)
    user = policies.require(request.user, Action.DEPLOY)
    form = AdapterForm(request.POST or None, user=user)
    if request.method == "POST" and form.is_valid():
        try:
            made = adapters.add(deployment, actor=user, **form.cleaned_data)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            messages.success(
                request,
                _("%(name)s is added. Each engine loads it as soon as its host has the files.") % {"name": made},
            )
            return redirect(_card(deployment))
    settings = adapter_fit.settings_for(deployment)
    context = {
        "deployment": deployment,
        "form": form,
        "settings": settings,
        "room": adapter_fit.room_words(deployment.current_spec) if deployment.current_spec else "",
        "there_are": adapters_known(user),
    }
    return render(request, "deployments/adapter_add.html", context, status=400 if form.errors else 200)


@require_http_methods(["GET", "POST"])
def adapter_load_again(request: HttpRequest, pk: int, adapter: int) -> HttpResponse:
    """Have every engine load an adapter anew."""
    deployment, found = _find(request, pk, adapter, Action.OPERATE)
    context = _asking(
        deployment,
        _("Load %(name)s again") % {"name": found},
        [
            _("Files that are not verified are verified first; then each engine loads them in place of what it has."),
            _("Requests for “%(name)s” go only where it is loaded; until the first engine has it they get 503.")
            % {"name": found},
        ],
        _("Load again"),
    )

    def act(user: User, reason: str) -> None:
        adapters.load_again(found, actor=user, reason=reason)

    return ask(request, context, act, then=_card(deployment))


@require_http_methods(["GET", "POST"])
def adapter_remove(request: HttpRequest, pk: int, adapter: int) -> HttpResponse:
    """Take an adapter away from a deployment."""
    deployment, found = _find(request, pk, adapter, Action.DEPLOY)
    context = _asking(
        deployment,
        _("Remove %(name)s") % {"name": found},
        [
            _("Clients that ask for “%(name)s” get 404 from the next second on. Answers that have begun are finished.")
            % {"name": found},
            _("The engines go on serving %(model)s. The adapter's files and its usage stay.") % {"model": deployment},
        ],
        _("Remove"),
    )

    def act(user: User, reason: str) -> None:
        adapters.remove(found, actor=user, reason=reason)

    return ask(request, {**context, "danger": True}, act, then=_card(deployment))


def _find(request: HttpRequest, pk: int, adapter: int, action: Action) -> tuple[Deployment, Adapter]:
    deployment = find(request.user, pk, action)
    rows = deployment.adapters.select_related("deployment", "revision__model__origin")
    return deployment, get_object_or_404(rows, pk=adapter)


def _asking(deployment: Deployment, title: str, consequences: list[str], button: str) -> dict[str, Any]:
    return {
        "title": title,
        "heading": f"{title}?",
        "consequences": consequences,
        "button": button,
        "back": _card(deployment),
        "back_label": deployment.name,
    }


def _card(deployment: Deployment) -> str:
    return reverse("deployment_detail", args=[deployment.pk]) + "#adapters"

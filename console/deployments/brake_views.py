"""The banner of the brake, and letting go of it."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods

from console.access import policies
from console.access.policies import Action
from console.deployments import brake
from console.jobs.asking import ask


@require_GET
def brake_banner(request: HttpRequest) -> HttpResponse:
    """The banner that every page fetches for itself, so that no page pays a query for what is nearly always absent."""
    policies.require(request.user, Action.VIEW)
    return render(request, "common/_brake.html", {"brake": brake.engaged()})


@require_http_methods(["GET", "POST"])
def brake_release(request: HttpRequest) -> HttpResponse:
    """Let automatic actions go on."""
    policies.require(request.user, Action.OPERATE)
    context = {
        "title": _("Release the brake"),
        "heading": _("Let automatic actions go on?"),
        "consequences": [
            _("Hosts end engines that hang and start them again, as their restart policies say."),
            _("It will not engage again by itself for 15 minutes."),
        ],
        "button": _("Release"),
        "danger": False,
        "back": "/",
    }
    return ask(request, context, lambda user, reason: brake.release(actor=user, reason=reason), then="overview")

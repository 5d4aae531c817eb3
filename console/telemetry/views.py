"""The overview, and the search behind Ctrl-K."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from console.access import policies
from console.access.policies import Action


@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    """What serves, what doesn't, what runs, and what changed."""
    policies.require(request.user, Action.VIEW)
    return render(request, "overview/page.html")


@require_GET
def search(request: HttpRequest) -> HttpResponse:
    """Pages and objects whose name contains the query's words."""
    policies.require(request.user, Action.VIEW)
    return render(request, "common/_palette.html")

"""The overview, and the search behind Ctrl-K."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from console.access import policies
from console.access.policies import Action
from console.common.parts import wants_part
from console.telemetry import overview as overviews
from console.telemetry import search as searches

LONGEST_QUERY = 200


@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    """What serves, what doesn't, what runs, and what changed."""
    user = policies.require(request.user, Action.VIEW)
    return render(request, "overview/page.html", overviews.context(user))


@require_GET
def search(request: HttpRequest) -> HttpResponse:
    """Pages and objects whose name contains the query's words."""
    user = policies.require(request.user, Action.VIEW)
    query = request.GET.get("q", "")[:LONGEST_QUERY].strip()
    context = {"groups": searches.find(user, query), "query": query}
    return render(request, "common/_palette.html" if wants_part(request) else "overview/search.html", context)

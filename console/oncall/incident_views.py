"""Pages of incidents: all of them, one with its timeline, its export, and notes about it."""

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from console.access import policies
from console.access.policies import Action
from console.oncall import services, timeline
from console.oncall.forms import NoteForm
from console.oncall.models import Incident

PAGE_SIZE = 30


def _incidents(user: object) -> QuerySet[Incident]:
    return policies.visible(user, Incident.objects.select_related("deployment", "host"))


@require_GET
def incident_list(request: HttpRequest) -> HttpResponse:
    """What is open, and what was."""
    rows = _incidents(request.user)
    about = request.GET.get("q", "").strip()[:120]
    if about:
        rows = rows.filter(name__icontains=about)
    context = {
        "open": list(rows.filter(state="open").order_by("served", "-opened_at")[:100]),
        "page": Paginator(rows.filter(state="closed"), PAGE_SIZE).get_page(request.GET.get("page")),
        "q": about,
    }
    return render(request, "oncall/incidents.html", context)


@require_GET
def incident_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One incident with its timeline."""
    incident = policies.get(request.user, _incidents(request.user), Action.VIEW, pk=pk)
    context = {"incident": incident, "entries": timeline.timeline(incident), "form": NoteForm()}
    return render(request, "oncall/incident.html", context)


@require_GET
def incident_export(request: HttpRequest, pk: int, form: str) -> HttpResponse:
    """The same as a file: `json` or `md`."""
    incident = policies.get(request.user, _incidents(request.user), Action.VIEW, pk=pk)
    entries = timeline.timeline(incident)
    if form == "json":
        response: HttpResponse = JsonResponse(
            timeline.as_json(incident, entries), json_dumps_params={"indent": 2, "ensure_ascii": False}
        )
    else:
        response = HttpResponse(timeline.as_markdown(incident, entries), content_type="text/markdown; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="incident-{incident.pk}.{form}"'
    return response


@require_http_methods(["POST"])
def incident_note(request: HttpRequest, pk: int) -> HttpResponse:
    """Write something down."""
    incident = policies.get(request.user, _incidents(request.user), Action.OPERATE, pk=pk)
    form = NoteForm(request.POST)
    if not form.is_valid():
        context = {"incident": incident, "entries": timeline.timeline(incident), "form": form}
        return render(request, "oncall/incident.html", context, status=400)
    services.note(incident, text=form.cleaned_data["text"], actor=policies.require(request.user, Action.OPERATE))
    return redirect("incident_detail", pk=pk)

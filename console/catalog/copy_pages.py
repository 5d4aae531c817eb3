"""Pages of copies: one with its verification, and all of a host with the disk that they take."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from console.access import policies
from console.access.policies import Action
from console.catalog import charts, consents
from console.catalog.copy_presentation import HELD_STATES, last_sound, shown_copies, truth
from console.catalog.models import Copy
from console.fleet.models import Host

SHOWN_FILES = 500
RELATED = ("revision__model__origin", "host")


@require_GET
def copy_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One copy: its state, what the last verification found, consents, who uses it, its files."""
    rows = Copy.objects.select_related(*RELATED)
    copy = policies.get(request.user, rows, Action.VIEW, team_path="revision__model__team", pk=pk)
    shown = shown_copies([copy])[0]
    others = Copy.objects.filter(revision__model=copy.revision.model_id).select_related(*RELATED)
    files = copy.manifest.get("files", []) if isinstance(copy.manifest, dict) else []
    held = copy.state in HELD_STATES
    questions = consents.questions(copy)
    unallowed = [question.label for question in questions if question.consent is None]
    context = {
        "copy": copy,
        "shown": shown,
        "truth": truth(shown, unallowed),
        "questions": questions,
        "unallowed": unallowed,
        "optional_questions": [one for one in consents.questions(copy, trusts_code=True) if one not in questions],
        "fallback": last_sound(copy, others) if held else None,
        "files": files[:SHOWN_FILES],
        "files_cut": len(files) > SHOWN_FILES,
    }
    return render(request, "catalog/copy.html", context)


@require_GET
def host_copies(request: HttpRequest, pk: int) -> HttpResponse:
    """All copies on a host: which revision, where, how large, verified when and how, used by what; and the disk."""
    host = policies.get(request.user, Host.objects.all(), Action.VIEW, pk=pk)
    copies = list(host.copies.exclude(state="removed").select_related(*RELATED).order_by("-size_bytes", "pk"))
    total, free = host.models_disk
    context = {
        "host": host,
        "copies": shown_copies(copies),
        "size_bytes": sum(copy.size_bytes for copy in copies),
        "disk_total": total,
        "disk_free": free,
        "figure": charts.disk_use(copies, total=total, free=free),
        "states": {state: sum(copy.state == state for copy in copies) for state in ("verified", "damaged")},
    }
    return render(request, "catalog/host_copies.html", context)

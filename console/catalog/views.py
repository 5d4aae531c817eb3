"""Pages of models."""

from django.core.paginator import Paginator
from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from console.access import policies
from console.access.policies import Action
from console.catalog import presentation
from console.catalog.copy_presentation import last_sound, shown_copies
from console.catalog.filters import ModelFilter
from console.catalog.models import Copy, File, Model, Revision
from console.common.parts import wants_part

PAGE_SIZE = 50
SHOWN_FILES = 500


def _models() -> QuerySet[Model]:
    """Models with revisions and copies, in a constant number of queries."""
    copies = Prefetch("copies", Copy.objects.exclude(state="removed").select_related("host"))
    return Model.objects.prefetch_related(Prefetch("revisions", Revision.objects.prefetch_related(copies)))


@require_GET
def model_list(request: HttpRequest) -> HttpResponse:
    """All models with their facts and copies."""
    every = policies.visible(request.user, _models())
    chosen = ModelFilter(request.GET, queryset=every)
    page = Paginator(chosen.qs, PAGE_SIZE).get_page(request.GET.get("page"))
    copies = policies.visible(request.user, Copy.objects.all(), team_path="revision__model__team")
    states = list(copies.exclude(state="removed").values_list("state", flat=True))
    context = {
        "rows": [presentation.row(model) for model in page],
        "page": page,
        "filter": chosen,
        "filtered": any(request.GET.get(name) for name in ("q", "copy")),
        "all": policies.visible(request.user, Model.objects.all()).count(),
        "states": {state: states.count(state) for state in ("verified", "unverified", "damaged")},
    }
    return render(request, "catalog/_model_rows.html" if wants_part(request) else "catalog/models.html", context)


@require_GET
def model_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One model: facts, revisions, files, copies with their verification."""
    model = policies.get(request.user, _models().select_related("origin"), Action.VIEW, pk=pk)
    revisions = list(model.revisions.all())
    newest = revisions[0] if revisions else None
    files = list(File.objects.filter(revision=newest)[: SHOWN_FILES + 1]) if newest else []
    copies = [copy for revision in revisions for copy in revision.copies.all()]
    for revision in revisions:
        revision.model = model
        for copy in revision.copies.all():
            copy.revision = revision
    damaged = next((copy for copy in copies if copy.state == "damaged"), None)
    context = {
        "model": model,
        "best": presentation.best_copy(model),
        "truth": presentation.truth(model),
        "revisions": revisions,
        "newest": newest,
        "facts": presentation.facts(newest) if newest else [],
        "files": files[:SHOWN_FILES],
        "files_cut": len(files) > SHOWN_FILES,
        "copies": shown_copies(copies),
        "damaged": damaged,
        "fallback": last_sound(damaged, copies) if damaged else None,
    }
    return render(request, "catalog/model.html", context)

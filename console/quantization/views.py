"""Pages of quantisation: what can be made and was made, a copy's own part, bringing llm-compressor to a host."""

from typing import Any

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods

from console.access import policies
from console.access.policies import Action
from console.catalog.models import Copy
from console.common.errors import Refused
from console.common.forms import add_refusal
from console.common.given import whole_number
from console.jobs.asking import ask
from console.quantization import services
from console.quantization.forms import InstallForm, QuantizeForm
from console.quantization.models import Quantization, Quantizer

PAGE_SIZE = 50
_COPIES = ("revision__model", "host")


def _rows() -> QuerySet[Quantization]:
    return Quantization.objects.select_related(
        "control__revision__model", "control__host", "made__revision__model", "made__host", "quantizer", "job",
        "requested_by",
    )  # fmt: skip


def _copy(request: HttpRequest, pk: int, action: Action) -> Copy:
    rows = Copy.objects.select_related(*_COPIES)
    return policies.get(request.user, rows, action, team_path="revision__model__team", pk=pk)


@require_GET
def quantization_list(request: HttpRequest) -> HttpResponse:
    """Where llm-compressor is, and what was made with it."""
    tools = Quantizer.objects.filter(present=True).select_related("host")
    page = Paginator(policies.visible(request.user, _rows()), PAGE_SIZE).get_page(request.GET.get("page"))
    context = {"page": page, "quantizers": policies.visible(request.user, tools, team_path="host__team")}
    return render(request, "quantization/list.html", context)


@require_GET
def copy_quantization(request: HttpRequest, pk: int) -> HttpResponse:
    """A copy's part: what it was made from, what was made from it, and whether more can be made."""
    copy = _copy(request, pk, Action.VIEW)
    context = {
        "copy": copy,
        "origin": _rows().filter(made=copy).first(),
        "made": _rows().filter(control=copy)[:20],
        "quantized_as": services.quantized_as(copy.revision),
        "quantizer": Quantizer.objects.filter(host=copy.host, present=True).first(),
    }
    return render(request, "quantization/_copy.html", context)


@require_http_methods(["GET", "POST"])
def quantize(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask for a quantised model of a copy; its job's page follows."""
    copy = _copy(request, pk, Action.DEPLOY)
    user = policies.require(request.user, Action.DEPLOY)
    initial = {
        "name": f"{copy.revision.model.name[:108]}-FP8",
        "quantizer": copy.host.quantizers.filter(present=True).first(),
    }
    form = QuantizeForm(request.POST or None, user=user, copy=copy, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            row = services.quantize(form.order(), actor=user, reason=form.cleaned_data["reason"])
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            assert row.job is not None  # noqa: S101 - it was just made
            return redirect("job_detail", pk=row.job.pk)
    context: dict[str, Any] = {"form": form, "copy": copy, "refused": _why_not(copy)}
    return render(request, "quantization/new.html", context, status=400 if form.errors else 200)


def _why_not(copy: Copy) -> str:
    """Why there is nothing to ask for; empty if there is."""
    try:
        services.refuse(copy)
    except Refused as refusal:
        return str(refusal)
    return ""


@require_http_methods(["GET", "POST"])
def quantizer_install(request: HttpRequest) -> HttpResponse:
    """Bring llm-compressor to a host. `?host=PK` chooses which."""
    user = policies.require(request.user, Action.DEPLOY)
    form = InstallForm(request.POST or None, user=user, initial={"host": whole_number(request.GET.get("host", ""))})
    if request.method == "POST" and form.is_valid():
        try:
            job = services.install(form.cleaned_data["host"], **form.wish, actor=user)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("job_detail", pk=job.pk)
    return render(request, "quantization/install.html", {"form": form}, status=400 if form.errors else 200)


@require_http_methods(["GET", "POST"])
def quantizer_remove(request: HttpRequest, pk: int) -> HttpResponse:
    """Take it from its host."""
    rows = Quantizer.objects.filter(present=True).select_related("host")
    quantizer = policies.get(request.user, rows, Action.DEPLOY, team_path="host__team", pk=pk)
    gone = (
        _("Its environment stays where it is; Slipway only forgets it.")
        if quantizer.adopted
        else _("Its environment is deleted. It can be installed again.")
    )
    context = {
        "title": _("Remove %(what)s") % {"what": quantizer}, "button": _("Forget") if quantizer.adopted else _("Remove"),
        "heading": _("Remove %(what)s from %(host)s?") % {"what": quantizer, "host": quantizer.host}, "danger": True,
        "consequences": [gone, _("Models that were made with it stay.")], "back": reverse("quantization_list"),
    }  # fmt: skip
    return ask(request, context, lambda user, reason: services.remove(quantizer, actor=user, reason=reason))

"""The page that brings a revision that is known here to more hosts: from a host that has it, or from its source."""

from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.catalog.copy_presentation import PRESENT_STATES
from console.catalog.models import Copy
from console.common.errors import Refused
from console.common.forms import add_refusal
from console.fleet.models import Host
from console.jobs import copy_jobs, copy_sharing
from console.jobs.copy_forms import CopyToForm
from console.jobs.model_add import ShownHost
from console.jobs.models import Job

ORIGIN = "origin"
"""Value of the form's `source` for the model's own source; a host's copy has its number."""


@dataclass(frozen=True)
class ShownGiver:
    """One place that the files can come from. `copy` None: the model's source."""

    value: str
    copy: Copy | None = None


@require_http_methods(["GET", "POST"])
def copy_to(request: HttpRequest, pk: int) -> HttpResponse:
    """Choose hosts and where their files come from, then start one job for each host."""
    rows = Copy.objects.select_related("revision__model__origin", "host")
    copy = policies.get(request.user, rows, Action.DEPLOY, team_path="revision__model__team", pk=pk)
    actor = policies.require(request.user, Action.DEPLOY)
    hosts = policies.visible(request.user, Host.objects.exclude(public_key=""))
    places = _places(copy)
    form = CopyToForm(
        request.POST or None, sources=[(place.value, place.value) for place in places], hosts=hosts,
        initial={"source": _first(copy, places)},
    )  # fmt: skip
    if request.method == "POST" and form.is_valid():
        try:
            jobs = _start(copy, form, actor)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return _to(request, jobs)
    shown_hosts = _shown_hosts(copy, list(hosts), request.POST.getlist("hosts"))
    context = {
        "copy": copy,
        "form": form,
        "places": places,
        "receivers": [one for one in shown_hosts if one.copy is None],
        "chosen_source": form["source"].value(),
        "shown_hosts": shown_hosts,
        "size_bytes": copy.size_bytes,
    }
    return render(request, "catalog/copy_to.html", context, status=400 if form.errors else 200)


def _places(copy: Copy) -> list[ShownGiver]:
    """Hosts whose copy is sound, then the source that published the revision."""
    found = [ShownGiver(str(giver.pk), giver) for giver in copy_sharing.givers(copy.revision)]
    if copy.revision.is_pinned and copy.revision.model.origin_id is not None:
        found.append(ShownGiver(ORIGIN))
    return found


def _first(copy: Copy, places: list[ShownGiver]) -> str:
    """The copy whose page led here, if it can be given; else the first place that can be reached."""
    usable = [place for place in places if place.copy is None or place.copy.host.is_online]
    own = next((place for place in usable if place.copy is not None and place.copy.pk == copy.pk), None)
    return (own or next(iter(usable), ShownGiver(""))).value


def _start(copy: Copy, form: CopyToForm, actor: User) -> list[Job]:
    data = form.cleaned_data
    rate_limit = (data["rate_limit_mib"] or 0) << 20
    hosts, key = list(data["hosts"]), data["idempotency_key"]
    if data["source"] == ORIGIN:
        files = copy.selection or [file.path for file in copy.revision.files.all()]
        return copy_jobs.fetch_to(
            copy.revision, files, hosts=hosts, actor=actor, idempotency_key=key, rate_limit=rate_limit
        )
    giver = Copy.objects.select_related("revision__model__origin", "host").get(pk=int(data["source"]))
    return copy_sharing.share(giver, hosts=hosts, actor=actor, idempotency_key=key, rate_limit=rate_limit)


def _shown_hosts(copy: Copy, hosts: list[Host], chosen: list[str]) -> list[ShownHost]:
    there = {
        one.host_id: one
        for one in Copy.objects.filter(revision=copy.revision, host__in=hosts, state__in=PRESENT_STATES)
    }
    left = [host for host in hosts if host.pk not in there]
    return [
        ShownHost(
            host,
            str(host.pk) in chosen or (len(left) == 1 and host.pk not in there),
            host.models_disk[1],
            there.get(host.pk),
        )
        for host in hosts
    ]


def _to(request: HttpRequest, jobs: list[Job]) -> HttpResponse:
    if len(jobs) == 1:
        return redirect("job_detail", pk=jobs[0].pk)
    messages.success(request, _("%(count)d copies have started.") % {"count": len(jobs)})
    return redirect("job_list")

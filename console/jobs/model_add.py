"""The page that adds a model: from a source (look it up, choose files and hosts) or a directory on a host."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.catalog import lookups
from console.catalog.models import Copy, Model, Source
from console.catalog.presentation import readable_count
from console.common.errors import Refused
from console.common.forms import add_refusal
from console.common.parts import wants_part
from console.fleet.models import Host
from console.jobs import copy_jobs, host_jobs
from console.jobs.copy_forms import DownloadForm, LookupForm
from console.jobs.host_forms import AddDirectoryForm
from console.jobs.models import Job
from workers.weights.hub_selection import Choice, select_files
from workers.weights.hub_types import RepositoryFacts

DIRECTORY = "directory"
SHOWN_REVISIONS = 200


@dataclass(frozen=True)
class ShownHost:
    """A host that a model may go to, with the room it has."""

    host: Host
    chosen: bool
    free: int | None
    """Bytes free on the disk of its state directory, as its last heartbeat said; None: unknown."""
    copy: Copy | None = None
    """The copy of this revision that it has already."""


@require_http_methods(["GET", "POST"])
def model_add(request: HttpRequest) -> HttpResponse:
    """Choose a source, look a model up, start its download; or register a directory and verify it."""
    actor = policies.require(request.user, Action.DEPLOY)
    hosts = policies.visible(request.user, Host.objects.exclude(public_key=""))
    sources = policies.visible(request.user, Source.objects.all())
    if request.method == "POST" and request.POST.get("commit"):
        return _download(request, actor, sources, hosts)
    asked = request.GET.get("source", "")
    if request.method == "POST" or asked == DIRECTORY or (not asked and not sources):
        return _directory(request, actor, sources, hosts)
    return _look_up(request, sources, hosts)


def _directory(request: HttpRequest, actor: User, sources: QuerySet[Source], hosts: QuerySet[Host]) -> HttpResponse:
    form = AddDirectoryForm(request.POST or None, hosts=hosts, initial=_initial(request))
    if request.method == "POST" and form.is_valid():
        try:
            _copy, job = host_jobs.add_directory(**form.cleaned_data, actor=actor)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("job_detail", pk=job.pk)
    context = {"directory": True, "form": form, "sources": sources, "hosts": hosts.exists()}
    return render(request, "catalog/add.html", context, status=400 if form.errors else 200)


def _look_up(request: HttpRequest, sources: QuerySet[Source], hosts: QuerySet[Host]) -> HttpResponse:
    """The search, its hits, or what a repository holds. Errors stand at the field that they are about."""
    source = _chosen(request, sources)
    query = request.GET.copy()
    query["source"] = str(source.pk) if source else ""
    looked = bool(request.GET.get("q"))
    form = LookupForm(query if looked else None, sources=sources, initial=query.dict())
    context: dict[str, Any] = {"lookup": form, "source": source, "sources": sources, "hosts": hosts.exists()}
    if looked and source and form.is_valid():
        try:
            context |= _found(request, form, source, hosts)
        except Refused as refusal:
            context["about_token"] = getattr(refusal, "about_token", False)
            if refusal.field == "revision":
                context["revisions"] = lookups.revisions(source, form.repository)[:SHOWN_REVISIONS]
            field = refusal.field if refusal.field in ("q", "revision") else None
            form.add_error(field, refusal.message)
    return render(request, "catalog/_lookup.html" if wants_part(request) else "catalog/add.html", context)


def _found(request: HttpRequest, form: LookupForm, source: Source, hosts: QuerySet[Host]) -> dict[str, Any]:
    if not form.repository:
        return {"hits": lookups.search(source, form.cleaned_data["q"]), "searched": True}
    facts = lookups.look_up(source, form.repository, form.cleaned_data["revision"].strip())
    known = Model.objects.filter(team=source.team, origin=source, repository=facts.repository).first()
    download = DownloadForm(
        sources=policies.visible(request.user, Source.objects.all()),
        hosts=hosts,
        initial={
            "source": source.pk,
            "repository": facts.repository,
            "commit": facts.commit,
            "name": known.name if known else facts.repository.rpartition("/")[2],
            "license": facts.license[:60],
            "idempotency_key": uuid.uuid4().hex,
        },
    )
    host = request.GET.get("host", "")
    return _shown(facts, source, download, hosts, hosts_chosen=[host]) | {
        "known": known,
        "revisions": lookups.revisions(source, facts.repository)[:SHOWN_REVISIONS],
    }


def _shown(
    facts: RepositoryFacts,
    source: Source,
    download: DownloadForm,
    hosts: QuerySet[Host],
    *,
    hosts_chosen: Sequence[str],
    files_chosen: Sequence[str] | None = None,
) -> dict[str, Any]:
    """What the page says of a repository, with the choice of files as it is now."""
    selection = select_files(facts.files)
    if files_chosen is not None:
        selection = selection.with_paths(files_chosen)
    rows = list(hosts)
    found = Copy.objects.filter(
        host__in=rows, revision__commit=facts.commit, revision__model__origin=source,
        revision__model__repository=facts.repository, state__in=("verified", "unverified", "downloading"),
    )  # fmt: skip
    copies = {copy.host_id: copy for copy in found}
    return {
        "facts": facts,
        "shown_facts": _facts(facts),
        "source": source,
        "form": download,
        "choices": sorted(selection.choices, key=lambda choice: (not choice.chosen, choice.file.path)),
        "chosen_count": len(selection.files),
        "chosen_bytes": selection.size,
        "pickle": any(_is_pickle(choice) for choice in selection.choices if choice.chosen),
        "shown_hosts": [
            ShownHost(
                host,
                str(host.pk) in hosts_chosen or len(rows) == 1,
                host.models_disk[1],
                copies.get(host.pk),
            )
            for host in rows
        ],
    }


def _is_pickle(choice: Choice) -> bool:
    return choice.reason.startswith("weights (pickle")


def _facts(facts: RepositoryFacts) -> list[tuple[str, str]]:
    config = facts.config
    length = config.context_length
    found = [
        (_("Licence"), facts.license),
        (_("Architecture"), config.architecture),
        (_("Parameters"), readable_count(facts.parameters or 0)),
        (_("Number format"), config.dtype),
        (_("Quantisation"), config.quantization),
        (_("Context length"), _("%s tokens") % f"{length:,}" if length else ""),
        (_("Last changed"), facts.last_modified[:10]),
    ]
    return [(label, value) for label, value in found if value]


def _download(request: HttpRequest, actor: User, sources: QuerySet[Source], hosts: QuerySet[Host]) -> HttpResponse:
    form = DownloadForm(request.POST, sources=sources, hosts=hosts)
    source = _chosen(request, sources, given=request.POST.get("source", ""))
    if source is None:
        return redirect("model_add")
    facts = lookups.at_commit(source, request.POST.get("repository", ""), request.POST["commit"])
    form.offer(facts)
    if form.is_valid():
        data = form.cleaned_data
        wish = copy_jobs.Wish(
            source=source,
            facts=facts,
            files=data["files"],
            name=data["name"],
            license=data["license"],
            notes=data["notes"],
            rate_limit=(data["rate_limit_mib"] or 0) << 20,
        )
        try:
            jobs = copy_jobs.download(
                wish, hosts=list(data["hosts"]), actor=actor, idempotency_key=data["idempotency_key"]
            )
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return _to(request, jobs)
    context = {"sources": sources, "hosts": hosts.exists(), "lookup": _again(sources, source, facts)} | _shown(
        facts,
        source,
        form,
        hosts,
        hosts_chosen=request.POST.getlist("hosts"),
        files_chosen=request.POST.getlist("files"),
    )
    return render(request, "catalog/add.html", context, status=400)


def _again(sources: QuerySet[Source], source: Source, facts: RepositoryFacts) -> LookupForm:
    """The search field as it was when the form below it was shown."""
    return LookupForm({"source": str(source.pk), "q": facts.repository, "revision": facts.revision}, sources=sources)


def _to(request: HttpRequest, jobs: list[Job]) -> HttpResponse:
    if len(jobs) == 1:
        return redirect("job_detail", pk=jobs[0].pk)
    messages.success(request, _("%(count)d downloads have started.") % {"count": len(jobs)})
    return redirect("job_list")


def _chosen(request: HttpRequest, sources: QuerySet[Source], *, given: str | None = None) -> Source | None:
    asked = request.GET.get("source", "") if given is None else given
    if asked.isascii() and asked.isdigit():
        return sources.filter(pk=int(asked)).first()
    return None if asked else sources.order_by("pk").first()


def _initial(request: HttpRequest) -> dict[str, str]:
    host = request.GET.get("host", "")
    return {"host": host} if host.isascii() and host.isdigit() else {}

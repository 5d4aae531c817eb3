"""Pages of engines: hosts × versions, one engine, and everything that can be done with one."""

from datetime import timedelta
from typing import Any

from django.core.paginator import Paginator
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console.access import policies
from console.access.policies import Action
from console.common.errors import Refused
from console.common.forms import add_refusal
from console.common.spans import readable_bytes
from console.fleet import schemas
from console.fleet.models import Engine, Host
from console.fleet.presentation import NOT_REMOVED
from console.jobs import engine_jobs, engine_presentation
from console.jobs.asking import ask
from console.jobs.engine_forms import AdoptEngineForm, InstallEngineForm
from console.jobs.models import Step
from workers.contracts import StepKind

HOSTS_PER_PAGE = 50
FAILED_WITHIN = timedelta(days=1)
"""How long a failed installation stands in the table of engines."""


def _hosts(request: HttpRequest) -> QuerySet[Host]:
    """Hosts that have joined: only they can be given work."""
    return policies.visible(request.user, Host.objects.exclude(public_key=""))


def _engine(request: HttpRequest, pk: int, action: Action) -> Engine:
    rows = Engine.objects.select_related("host")
    return policies.get(request.user, rows, action, team_path="host__team", pk=pk)


@require_GET
def engine_list(request: HttpRequest) -> HttpResponse:
    """Hosts × versions, with state, size and users of each engine."""
    installed = policies.visible(request.user, Engine.objects.filter(present=True), team_path="host__team")
    has_engine = Exists(Engine.objects.filter(host=OuterRef("pk"), present=True))
    # Those that have one first: a first page of hosts without any would say that there is none.
    # What a host tells of itself is most of its row, and none of it stands here.
    every = Host.objects.filter(NOT_REMOVED).order_by(has_engine.desc(), "name").only("name", "last_seen_at")
    page = Paginator(policies.visible(request.user, every), HOSTS_PER_PAGE).get_page(request.GET.get("page"))
    hosts = list(page)
    running = engine_jobs.running_steps(hosts)
    engines = engine_presentation.shown(_engines_of(hosts), running)
    installations = Step.objects.filter(
        host__in=hosts, kind=StepKind.INSTALL_ENGINE, finished_at__gt=timezone.now() - FAILED_WITHIN
    )
    failed = engine_presentation.recent_failures(installations.select_related("job").order_by("finished_at"))
    versions, rows = engine_presentation.table(engines, hosts, running, failed)
    context = {
        "page": page,
        "versions": versions,
        "rows": rows,
        "totals": engine_presentation.totals(installed),
        "installing": [step for step in running if step.kind in (StepKind.INSTALL_ENGINE, StepKind.ADOPT_ENGINE)],
        "joined": _hosts(request).exists(),
    }
    return render(request, "fleet/engines.html", context)


def _engines_of(hosts: list[Host]) -> list[Engine]:
    """What is installed on these hosts; each engine has its host as it stands in the list, not read again."""
    by_key = {host.pk: host for host in hosts}
    found = list(Engine.objects.filter(host__in=hosts, present=True).order_by("key"))
    for engine in found:
        engine.host = by_key[engine.host_id]
    return found


@require_GET
def engine_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One engine: what its self-test said, who uses it, what it has compiled, its arguments."""
    engine = _engine(request, pk, Action.VIEW)
    steps = engine_jobs.running_steps([engine.host])
    one = engine_presentation.shown([engine], steps)[0]
    more, less = schemas.difference(engine) if engine.schema_id else ([], [])
    context = {
        "engine": engine,
        "shown": one,
        "truth": engine_presentation.truth(one),
        "facts": engine_presentation.facts(engine),
        "tested_at": engine_presentation.tested_at(engine),
        "instances": engine.host.instances.filter(spec__engine=engine)
        .exclude(state="stopped")
        .select_related("deployment", "host"),
        "caches": [cache | {"used_at": engine_presentation.moment(cache.get("used_at"))} for cache in engine.caches],
        "arguments": _argument_count(engine),
        "more": more,
        "less": less,
        "jobs": engine_presentation.last_jobs(engine),
    }
    return render(request, "fleet/engine.html", context)


def _argument_count(engine: Engine) -> int:
    return len(schemas.schema_of(engine).arguments) if engine.schema_id else 0


@require_GET
def engine_arguments(request: HttpRequest, pk: int) -> HttpResponse:
    """The schema as the engine printed it, for `slipway args check --schema`."""
    engine = _engine(request, pk, Action.VIEW)
    if engine.schema is None:
        return JsonResponse(
            {"error": _("%(engine)s has not printed its arguments yet. Test it again.") % {"engine": engine}},
            status=404,
        )
    answer = JsonResponse(engine.schema.content)
    answer["Content-Disposition"] = f'attachment; filename="{engine.key}.json"'
    return answer


@require_http_methods(["GET", "POST"])
def engine_install(request: HttpRequest) -> HttpResponse:
    """Ask which version for which host, start the job, and go to its page."""
    actor = policies.require(request.user, Action.DEPLOY)
    hosts = _hosts(request)
    form = InstallEngineForm(request.POST or None, hosts=hosts, initial=_initial(request, hosts))
    if request.method == "POST" and form.is_valid():
        try:
            job = engine_jobs.install(
                form.cleaned_data["host"],
                form.wish(),
                actor=actor,
                idempotency_key=form.cleaned_data["idempotency_key"],
            )
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("job_detail", pk=job.pk)
    context = {
        "form": form,
        "hosts": hosts.exists(),
        "title": _("Install an engine"),
        "text": _(
            "A vLLM version in an environment of its own. Deployments choose among the versions that their host has."
        ),
        "button": _("Install"),
        "other": reverse("engine_adopt"),
        "other_label": _("Adopt an environment that is there already"),
    }
    return render(request, "fleet/engine_form.html", context, status=400 if form.errors else 200)


@require_http_methods(["GET", "POST"])
def engine_adopt(request: HttpRequest) -> HttpResponse:
    """Ask for a path on a host, start the job, and go to its page."""
    actor = policies.require(request.user, Action.DEPLOY)
    hosts = _hosts(request)
    form = AdoptEngineForm(request.POST or None, hosts=hosts, initial=_initial(request, hosts))
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            job = engine_jobs.adopt(
                data["host"], path=data["path"].strip(), actor=actor, idempotency_key=data["idempotency_key"]
            )
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("job_detail", pk=job.pk)
    context = {
        "form": form,
        "hosts": hosts.exists(),
        "title": _("Adopt an engine"),
        "text": _(
            "A Python with vLLM that someone installed on a host becomes an engine of it. It is tested like any other, and"
            " nothing is ever written into it."
        ),
        "button": _("Adopt"),
        "other": reverse("engine_install"),
        "other_label": _("Install a version instead"),
    }
    return render(request, "fleet/engine_form.html", context, status=400 if form.errors else 200)


def _initial(request: HttpRequest, hosts: QuerySet[Host]) -> dict[str, Any]:
    """What the address says; a lone host is chosen already."""
    alone = list(hosts.values_list("pk", flat=True)[:2])
    host = request.GET.get("host", "") or (str(alone[0]) if len(alone) == 1 else "")
    given: dict[str, Any] = {
        name: request.GET[name][:400] for name in ("distribution", "version", "path") if name in request.GET
    }
    return given | ({"host": host} if host.isascii() and host.isdigit() else {})


@require_POST
def engine_check(request: HttpRequest, pk: int) -> HttpResponse:
    """Test an engine again."""
    engine = _engine(request, pk, Action.DEPLOY)
    job = engine_jobs.check(engine, actor=policies.require(request.user, Action.DEPLOY))
    return redirect("job_detail", pk=job.pk)


@require_http_methods(["GET", "POST"])
def engine_repair(request: HttpRequest, pk: int) -> HttpResponse:
    """Say what an installation anew means, then do it."""
    engine = _engine(request, pk, Action.DEPLOY)
    context = {
        "title": _("Repair %(engine)s") % {"engine": engine},
        "heading": _("Install %(engine)s on %(host)s anew") % {"engine": engine, "host": engine.host},
        "consequences": [
            _("It is installed beside the present one, in the same way, and takes over when its self-test has passed."),
            _("If that fails, everything stays as it is."),
            _("Instances that run go on with the old one until they are started again; then its files are removed."),
        ],
        "button": _("Repair"),
        "back": _page(engine),
        "back_label": str(engine),
    }
    return ask(request, context, lambda actor, reason: engine_jobs.repair(engine, actor=actor, reason=reason))


@require_http_methods(["GET", "POST"])
def engine_remove(request: HttpRequest, pk: int) -> HttpResponse:
    """Say what will be gone and who would miss it, then remove the engine."""
    engine = _engine(request, pk, Action.DEPLOY)
    one = engine_presentation.shown([engine], [])[0]
    context = {
        "title": _("Remove %(engine)s") % {"engine": engine},
        "heading": _("Remove %(engine)s from %(host)s") % {"engine": engine, "host": engine.host},
        "consequences": _removal(one),
        "button": _("Forget") if engine.adopted else _("Remove"),
        "danger": not engine.adopted,
        "back": _page(engine),
        "back_label": str(engine),
    }
    return ask(request, context, lambda actor, reason: engine_jobs.remove(engine, actor=actor, reason=reason))


def _removal(one: engine_presentation.ShownEngine) -> list[str]:
    engine = one.engine
    caches = readable_bytes(one.cache_bytes)
    if engine.adopted:
        lines = [_("%(path)s stays as it is; only this console and its host forget it.") % {"path": engine.path}]
    else:
        lines = [
            _("%(size)s in %(path)s are removed from the disk. It can be installed again.")
            % {"size": readable_bytes(engine.size_bytes), "path": engine.path}
        ]
    if one.cache_bytes:
        lines.append(_("What it has compiled goes too: %(size)s.") % {"size": caches})
    if one.usage.everyone:
        lines.append(_("It is refused while these use it: %(names)s.") % {"names": one.usage.names})
    return lines


@require_http_methods(["GET", "POST"])
def engine_clear_cache(request: HttpRequest, pk: int) -> HttpResponse:
    """Say what clearing costs, then clear one model's cache (`?model=`) or all."""
    engine = _engine(request, pk, Action.DEPLOY)
    model = request.GET.get("model", "")
    chosen = [cache for cache in engine.caches if model in ("", cache.get("model"))]
    size = readable_bytes(sum(int(cache.get("size_bytes") or 0) for cache in chosen))
    context = {
        "title": _("Clear the compile cache"),
        "heading": _("Clear the compile cache of %(model)s") % {"model": model} if model else "",
        "consequences": [
            _("%(size)s on %(host)s are removed.") % {"size": size, "host": engine.host},
            _("The next start compiles anew, which takes minutes for a large model."),
            _("It is refused while an instance runs with it."),
        ],
        "button": _("Clear"),
        "back": _page(engine),
        "back_label": str(engine),
    }
    return ask(
        request, context, lambda actor, reason: engine_jobs.clear_cache(engine, model=model, actor=actor, reason=reason)
    )


def _page(engine: Engine) -> str:
    return reverse("engine_detail", args=[engine.pk])

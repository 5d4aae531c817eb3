"""Pages of benchmarks: the list, one benchmark, asking for one, comparing, exports and links."""

from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console import env
from console.access import policies, share_links
from console.access import services as access
from console.access.models import User
from console.access.policies import Action
from console.access.share_pages import ask_for_link, render_shared
from console.benchmarks import (
    answers,
    charts,
    comparison,
    endpoints,
    exports,
    imports,
    presentation,
    services,
    subjects,
)
from console.benchmarks.curves import points
from console.benchmarks.filters import BenchmarkFilter
from console.benchmarks.forms import BenchmarkForm, DescribeForm, EndpointForm, ImportForm, initial_of
from console.benchmarks.models import Benchmark, Endpoint
from console.benchmarks.profiles import PROFILES
from console.benchmarks.route_targets import measure_route
from console.common.errors import Refused
from console.common.forms import add_refusal
from console.common.given import whole_number
from console.gateway.models import Route
from console.jobs.asking import ask

PAGE_SIZE = 50
SHARE_SALT = "slipway.benchmarks.share"
MOST_COMPARED = charts.MOST_CURVES


def rows() -> QuerySet[Benchmark]:
    """Benchmarks with what their pages show beside them."""
    return Benchmark.objects.select_related(
        "deployment", "instance__host", "instance__deployment", "host", "requested_by", "dataset", "job"
    )


def find(user: Any, pk: int, action: Action) -> Benchmark:
    """One benchmark of the person's team."""
    return policies.get(user, rows(), action, pk=pk)


@require_GET
def benchmark_list(request: HttpRequest) -> HttpResponse:
    """All benchmarks, newest first."""
    chosen = BenchmarkFilter(request.GET, queryset=policies.visible(request.user, rows()), request=request)
    page = Paginator(chosen.qs.order_by("-pk"), PAGE_SIZE).get_page(request.GET.get("page"))
    filtered = any(request.GET.get(name) for name in chosen.filters)
    return render(request, "benchmarks/list.html", {"page": page, "filter": chosen, "filtered": filtered})


@require_http_methods(["GET", "POST"])
def benchmark_new(request: HttpRequest) -> HttpResponse:
    """Ask for a benchmark. `?instance=PK` chooses what, `?from=PK` asks again as another one did."""
    user = policies.require(request.user, Action.OPERATE)
    form = BenchmarkForm(request.POST or None, request.FILES or None, user=user, initial=_initial(request, user))
    if request.method == "POST" and form.is_valid():
        try:
            benchmark = _start(form, user)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("benchmark_detail", pk=benchmark.pk)
    context = {
        "form": form,
        "may_remote": policies.can(user, Action.DEPLOY),
        "may_choose": policies.can(user, Action.DEPLOY)
        or any(policies.visible(user, rows).exists() for rows in (Endpoint.objects.all(), Route.objects.all())),
        "profiles": profiles(),
    }
    return render(request, "benchmarks/new.html", context, status=400 if form.errors else 200)


def _initial(request: HttpRequest, user: User) -> dict[str, Any]:
    if (earlier := whole_number(request.GET.get("from", ""))) is not None:
        return initial_of(find(user, earlier, Action.VIEW))
    return {"instance": request.GET.get("instance", "")}


def profiles() -> list[dict[str, Any]]:
    """The profiles as the forms show them."""
    names = ("input_tokens", "output_tokens", "spread", "prefix_tokens", "prefixes")
    return [
        {"key": one.key, "about": one.about, "lengths": {name: getattr(one.workload, name) for name in names}}
        for one in PROFILES.values()
    ]


def _start(form: BenchmarkForm, user: User) -> Benchmark:
    data = form.cleaned_data
    more = {"title": data["title"], "notes": data["notes"], "tags": form.tag_list(), "actor": user}
    question = form.asked()
    if data["target"] == "remote":
        policies.require(user, Action.DEPLOY)
    if data["target"] == "route":
        return measure_route(data["route"], question, despite_traffic=data["despite_traffic"], **more)
    if data["target"] in ("remote", "endpoint"):
        return services.measure_remote(form.remote(), question, **more)
    return services.measure_instance(
        data["instance"], question, despite_traffic=data["despite_traffic"], with_quality=data["quality"], **more
    )


@require_http_methods(["GET", "POST"])
def benchmark_import(request: HttpRequest) -> HttpResponse:
    """Keep what another tool measured, to compare with."""
    user = policies.require(request.user, Action.OPERATE)
    form = ImportForm(request.POST or None, request.FILES or None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            benchmark = imports.import_files(data["results"], title=data["title"], notes=data["notes"], actor=user)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("benchmark_detail", pk=benchmark.pk)
    return render(request, "benchmarks/import.html", {"form": form}, status=400 if form.errors else 200)


@require_http_methods(["GET", "POST"])
def endpoint_list(request: HttpRequest) -> HttpResponse:
    """Servers that may be measured; admins allow more of them."""
    user = policies.require(request.user, Action.DEPLOY)
    form = EndpointForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            endpoints.allow(**form.cleaned_data, actor=user)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("endpoint_list")
    known = policies.visible(user, Endpoint.objects.select_related("allowed_by"))
    context = {"form": form, "endpoints": known}
    return render(request, "benchmarks/endpoints.html", context, status=400 if form.errors else 200)


@require_http_methods(["GET", "POST"])
def endpoint_forget(request: HttpRequest, pk: int) -> HttpResponse:
    """Allow a server no longer."""
    endpoint = policies.get(request.user, Endpoint.objects.all(), Action.DEPLOY, pk=pk)
    context = {
        "title": _("Forget %s") % endpoint, "heading": _("Forget “%s”?") % endpoint, "button": _("Forget"), "danger": True,
        "consequences": [_("Nobody can measure it any more, and its key is deleted. What was measured stays.")],
        "back": reverse("endpoint_list"),
    }  # fmt: skip

    def act(user: User, reason: str) -> None:
        endpoints.forget(endpoint, actor=user, reason=reason)

    return ask(request, context, act, then="endpoint_list")


@require_GET
def benchmark_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One benchmark: the truth, the table, the charts, what was measured and how."""
    benchmark = find(request.user, pk, Action.VIEW)
    context = presentation.context(benchmark, request.GET.get("load", ""))
    context |= {
        "now": presentation.live_numbers(benchmark),
        "form": DescribeForm(initial={"notes": benchmark.notes, "tags": ", ".join(benchmark.tags)}),
        "similar": _similar(request.user, benchmark),
    }
    return render(request, "benchmarks/detail.html", context)


def _similar(user: Any, benchmark: Benchmark) -> list[Benchmark]:
    """Others that asked the same of the same model or server, to compare with."""
    others = policies.visible(user, Benchmark.objects.filter(state="succeeded", profile=benchmark.profile))
    others = others.exclude(pk=benchmark.pk)
    if benchmark.revision_id:
        others = others.filter(revision=benchmark.revision_id)
    return [one for one in others.order_by("-pk")[:50] if one.load_plan.by == benchmark.load_plan.by][:8]


@require_POST
def benchmark_describe(request: HttpRequest, pk: int) -> HttpResponse:
    """Notes and tags."""
    benchmark = find(request.user, pk, Action.OPERATE)
    form = DescribeForm(request.POST)
    if not form.is_valid():
        context = presentation.context(benchmark) | {"now": presentation.live_numbers(benchmark), "form": form}
        return render(request, "benchmarks/detail.html", context, status=400)
    user = policies.require(request.user, Action.OPERATE)
    services.describe(benchmark, notes=form.cleaned_data["notes"], tags=form.tag_list(), actor=user)
    return redirect("benchmark_detail", pk=pk)


@require_http_methods(["GET", "POST"])
def benchmark_delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete one that has ended."""
    benchmark = find(request.user, pk, Action.DEPLOY)
    context = {
        "title": _("Delete %s") % benchmark,
        "heading": _("Delete “%s”?") % benchmark,
        "consequences": [_("Its runs and raw results go with it. This can't be undone.")],
        "button": _("Delete"),
        "danger": True,
        "back": f"/benchmarks/{pk}/",
    }
    return ask(request, context, lambda user, _reason: services.delete(benchmark, actor=user), then="benchmark_list")


@require_GET
def benchmark_export(request: HttpRequest, pk: int, kind: str) -> HttpResponse:
    """CSV, JSON or HTML."""
    benchmark = find(request.user, pk, Action.VIEW)
    if kind not in exports.KINDS:
        raise Http404
    return exports.export(benchmark, kind)


@require_GET
def benchmark_raw(request: HttpRequest, pk: int, key: str) -> HttpResponse:
    """One run's result as the engine wrote it."""
    benchmark = find(request.user, pk, Action.VIEW)
    run = presentation.runs_by_key(benchmark).get(key)
    raw = run.raw_json() if run is not None else None
    if raw is None:
        raise Http404(_("This run has no raw result here."))
    response = JsonResponse(raw, safe=False)
    response["Content-Disposition"] = f'attachment; filename="benchmark-{pk}-{key}.json"'
    return response


@require_GET
def benchmark_compare(request: HttpRequest) -> HttpResponse:
    """Several side by side; of the first two the difference at each load, and whether it is real."""
    wanted = [pk for one in request.GET.getlist("id") if (pk := whole_number(one)) is not None]
    found = {one.pk: one for one in policies.visible(request.user, rows()).filter(pk__in=wanted)}
    chosen = [found[pk] for pk in dict.fromkeys(wanted) if pk in found][:MOST_COMPARED]
    context = compared(chosen)
    context["others"] = policies.visible(request.user, Benchmark.objects.exclude(pk__in=wanted)).order_by("-pk")[:50]
    return render(request, "benchmarks/compare.html", context)


def compared(chosen: list[Benchmark]) -> dict[str, Any]:
    """What a comparison shows."""
    curves = {one.pk: points(one.runs.defer("raw", "requests")) for one in chosen}
    names = {f"{index}. {one.title}": curves[one.pk] for index, one in enumerate(chosen, start=1)}
    pairs = comparison.pairs(curves[chosen[0].pk], curves[chosen[1].pk]) if len(chosen) > 1 else []
    shown = presentation.shown_measures([point for own in curves.values() for point in own])
    return {
        "chosen": [(one, presentation.sentence(one, curves[one.pk]), dict(presentation.facts(one))) for one in chosen],
        "chart": charts.throughput_over_latency(names),
        "measures": shown,
        "pairs": [
            (charts.load_name(pair.by, pair.load), [pair.differences.get(measure.key) for measure in shown]) for pair in pairs
        ],
        "asked_the_same": len({subjects.digest([one.workload, one.targets]) for one in chosen}) <= 1,
        "labels": list(dict.fromkeys(label for one in chosen for label, _value in presentation.facts(one))),
        "answers": answers.lines(*chosen),
        "apart": answers.apart(chosen[0], chosen[1]) if len(chosen) > 1 else None,
        "not_whole": [one for one in chosen if not one.is_whole],
    }  # fmt: skip


@require_http_methods(["GET", "POST"])
def benchmark_share(request: HttpRequest, pk: int) -> HttpResponse:
    """Make a link that shows this benchmark without an account."""
    benchmark = find(request.user, pk, Action.VIEW)

    def link_of(user: User, hours: int) -> str:
        token = share_links.make(pk, salt=SHARE_SALT, hours=hours, actor=user)
        access.record(actor=user, action="benchmark.share", target=benchmark.title,
                      target_url=f"/benchmarks/{pk}/", hours=hours)  # fmt: skip
        return f"{env.public_url()}{reverse('shared_benchmark', args=[token])}"

    return ask_for_link(request, "benchmarks", {"benchmark": benchmark}, link_of)


@login_not_required
@require_GET
def shared_benchmark(request: HttpRequest, token: str) -> HttpResponse:
    """What a link shows."""
    opened = share_links.opened(token, salt=SHARE_SALT)
    benchmark = find(opened.by, opened.key, Action.VIEW)
    context = presentation.context(benchmark, request.GET.get("load", ""))
    context["until"] = datetime.fromtimestamp(opened.until, tz=UTC)
    return render_shared(request, "benchmarks/shared.html", context)

"""Pages of deployments."""

from typing import Any

from django.core.paginator import Paginator
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.catalog.copy_presentation import HELD_STATES, fallback_for
from console.catalog.models import Copy
from console.common.models import StateChange
from console.deployments import (
    adapter_presentation,
    annotations,
    current,
    fixing,
    measurements,
    public,
    services,
    snippets,
    what_changed,
)
from console.deployments.filters import DeploymentFilter
from console.deployments.forms import NotesForm
from console.deployments.models import RUNNING_STATES, Deployment, Instance, Spec
from console.deployments.spec_difference import compare
from console.jobs.asking import ask
from console.jobs.models import Job

PAGE_SIZE = 50
SORTS = {
    "name": ["name"],
    "model": ["current_spec__copy__revision__model__name", "name"],
    "state": ["state", "name"],
    "host": ["current_spec__host__name", "name"],
    "engine": ["current_spec__engine__version", "name"],
    "changed": ["state_since", "name"],
}


def _rows() -> QuerySet[Deployment]:
    return Deployment.objects.select_related(
        "current_spec__copy__revision__model", "current_spec__engine", "current_spec__host"
    )


def find(user: Any, pk: int, action: Action) -> Deployment:
    """A deployment with what its pages show of its current spec."""
    return policies.get(user, _rows(), action, pk=pk)


@require_GET
def deployment_list(request: HttpRequest) -> HttpResponse:
    """All deployments."""
    rows = (
        policies.visible(request.user, _rows())
        .filter(for_study=False)
        .annotate(
            wanted=Count("instances", filter=Q(instances__run=True) | Q(instances__state__in=RUNNING_STATES)),
            ready=Count("instances", filter=Q(instances__run=True, instances__state="ready")),
        )
    )
    chosen = DeploymentFilter(request.GET, queryset=rows, request=request)
    name = request.GET.get("sort", "name")
    order = SORTS.get(name.removeprefix("-"), SORTS["name"])
    if name.startswith("-"):
        order = [f"-{order[0]}", *order[1:]]
    page = Paginator(chosen.qs.order_by(*order), PAGE_SIZE).get_page(request.GET.get("page"))
    filtered = any(request.GET.get(field) for field in ("state", "host", "q"))
    instances = dict(
        Instance.objects.filter(deployment__in=[one.pk for one in page])
        .exclude(state="stopped")
        .values_list("uuid", "deployment_id")
    )
    context = {"page": page, "filter": chosen, "filtered": filtered, "numbers": current.by_deployment(instances)}
    return render(request, "deployments/list.html", context)


@require_GET
def deployment_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """First tab: the truth, the endpoint, instances, jobs, changes."""
    deployment = find(request.user, pk, Action.VIEW)
    instances = list(instance_rows(deployment))
    about = Q(subject_kind="deployment", subject_id=pk)
    about |= Q(subject_kind="instance", subject_id__in=[one.pk for one in instances])
    trouble = fixing.failure_of(deployment, instances)
    since = what_changed.since_good(deployment) if trouble else None
    context = frame(deployment, "overview") | {
        "instances": instances,
        "trouble": trouble,
        "since_good": since,
        "fixes": fixing.fixes(policies.require(request.user, Action.VIEW), deployment, trouble, since) if since else [],
        "fallback": _fallback(deployment),
        "jobs": Job.objects.filter(about).select_related("requested_by").order_by("-pk")[:5],
        "changes": _changes(deployment, instances),
        "endpoint": _endpoint_card(deployment),
        "fit_truth": measurements.card(deployment),
        "adapters": adapter_presentation.card(deployment, instances),
        "command": snippets.command(deployment.current_spec) if deployment.current_spec else "",
    }
    return render(request, "deployments/detail.html", context)


@require_POST
def deployment_key(request: HttpRequest, pk: int) -> HttpResponse:
    """The endpoint card with its key, for those who may use it; each look is recorded."""
    deployment = find(request.user, pk, Action.OPERATE)
    found = annotations.reveal_key(deployment, actor=policies.require(request.user, Action.OPERATE))
    context = {
        "deployment": deployment,
        "endpoint": _card(found, key=found.key, others=services.endpoints(deployment)[1:]) if found else None,
    }
    response = render(request, "deployments/_endpoint.html", context)
    response["Cache-Control"] = "no-store"
    return response


@require_GET
def deployment_specs(request: HttpRequest, pk: int) -> HttpResponse:
    """All specs, and what changed between two of them."""
    deployment = find(request.user, pk, Action.VIEW)
    related = ("copy__revision__model", "engine", "host", "author", "deployment")
    specs = list(deployment.specs.select_related(*related).order_by("-number")[:100])
    old, new = _chosen_pair(specs, request.GET.get("from"), request.GET.get("to"))
    context = frame(deployment, "specs") | {
        "specs": specs,
        "old": old,
        "new": new,
        "comparison": compare(old, new) if old and new else None,
        "only_changed": request.GET.get("only") == "changed",
        "command": snippets.command(new) if new else "",
        "lines": snippets.spec_lines(new) if new and not old else [],
    }
    return render(request, "deployments/specs.html", context)


@require_GET
def deployment_playground(request: HttpRequest, pk: int) -> HttpResponse:
    """Talk to this deployment."""
    deployment = find(request.user, pk, Action.OPERATE)
    context = frame(deployment, "playground") | {"endpoint": services.endpoint(deployment)}
    return render(request, "deployments/detail_playground.html", context)


@require_http_methods(["GET", "POST"])
def deployment_settings(request: HttpRequest, pk: int) -> HttpResponse:
    """Notes, and deleting."""
    deployment = find(request.user, pk, Action.DEPLOY)
    form = NotesForm(request.POST or None, instance=deployment)
    if request.method == "POST" and form.is_valid():
        user = policies.require(request.user, Action.DEPLOY)
        annotations.set_notes(deployment, notes=form.cleaned_data["notes"], actor=user)
        return redirect("deployment_settings", pk=pk)
    context = frame(deployment, "settings") | {"form": form}
    return render(request, "deployments/settings.html", context, status=400 if form.errors else 200)


@require_http_methods(["GET", "POST"])
def deployment_start(request: HttpRequest, pk: int) -> HttpResponse:
    """Start a stopped or failed deployment again."""
    deployment = find(request.user, pk, Action.OPERATE)
    context = {
        "title": _("Start %(name)s") % {"name": deployment},
        "heading": _("Start %(name)s again?") % {"name": deployment},
        "consequences": [
            _("Its files are verified again, then an engine starts on %(host)s.")
            % {"host": deployment.current_spec.host}
            if deployment.current_spec
            else "",
            _("It serves once it has answered its probe and warmed up."),
        ],
        "button": _("Start"),
        "back": f"/deployments/{pk}/",
    }
    return ask(request, context, lambda user, reason: services.start(deployment, actor=user, reason=reason))


@require_http_methods(["GET", "POST"])
def deployment_restart(request: HttpRequest, pk: int) -> HttpResponse:
    """Restart all of a deployment's instances, one at a time."""
    deployment = find(request.user, pk, Action.OPERATE)
    running = deployment.instances.filter(ordered=True, run=True).count()
    turns = (
        _(
            "Its %(count)d engines end one at a time, the next once the one before is ready again; the others go on serving."
        )
        % {"count": running}
        if running > 1
        else _("Its only engine ends; until it is ready again, clients get no answer.")
    )
    context = {
        "title": _("Restart %(name)s") % {"name": deployment},
        "heading": _("Restart %(name)s, one instance at a time?") % {"name": deployment},
        "consequences": [
            turns,
            _("Requests in flight on the one that ends have 20 s to finish. Each is validated and warmed up again."),
            _("If one doesn't come up, the rest is left alone."),
        ],
        "button": _("Restart"),
        "back": f"/deployments/{pk}/",
    }
    return ask(request, context, lambda user, reason: services.restart_all(deployment, actor=user, reason=reason))


@require_http_methods(["GET", "POST"])
def deployment_stop(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop all of a deployment's instances."""
    deployment = find(request.user, pk, Action.OPERATE)
    running = deployment.instances.filter(run=True).count()
    context = {
        "title": _("Stop %(name)s") % {"name": deployment},
        "heading": _("Stop %(name)s?") % {"name": deployment},
        "consequences": [
            ngettext(
                "%(count)d running instance ends; requests in flight have 20 s to finish, then they fail.",
                "%(count)d running instances end; requests in flight have 20 s to finish, then they fail.",
                running,
            )
            % {"count": running},
            _("Clients of “%(name)s” get no answer until it is started again.") % {"name": deployment},
            _("Jobs that would bring it up are cancelled. Its specs, logs and settings stay."),
        ],
        "button": _("Stop"),
        "danger": True,
        "back": f"/deployments/{pk}/",
    }
    return ask(request, context, lambda user, reason: services.stop(deployment, actor=user, reason=reason))


@require_http_methods(["GET", "POST"])
def deployment_delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete a stopped deployment."""
    deployment = find(request.user, pk, Action.DEPLOY)
    context = {
        "title": _("Delete %(name)s") % {"name": deployment},
        "heading": _("Delete %(name)s?") % {"name": deployment},
        "consequences": [
            _("Its specs, instances, attempts and their logs are deleted. This can't be undone."),
            _("The model's files on the host stay, and so do its jobs and the audit log."),
        ],
        "button": _("Delete"),
        "danger": True,
        "back": f"/deployments/{pk}/settings/",
    }

    def act(user: User, reason: str) -> None:
        services.delete(deployment, actor=user, reason=reason)

    return ask(request, context, act, then="deployment_list")


def instance_rows(deployment: Deployment) -> QuerySet[Instance]:
    """A deployment's instances with what tables show of them."""
    related = ("host", "deployment", "spec__engine", "own_engine")
    return (
        deployment.instances.select_related(*related)
        .prefetch_related("claims__device")
        .annotate(attempt_count=Count("attempts"))
    )


def frame(deployment: Deployment, tab: str) -> dict[str, Any]:
    """What the frame around all tabs of a deployment needs."""
    return {
        "deployment": deployment,
        "spec": deployment.current_spec,
        "sentence": services.describe(deployment),
        "tab": tab,
        "spec_count": deployment.specs.count(),
        "may_start": deployment.state in ("stopped", "failed"),
        "may_stop": deployment.state not in ("stopped", "stopping", "draft"),
        "busy_job": Job.objects.filter(
            subject_kind="deployment", subject_id=deployment.pk, state__in=("queued", "running", "cancelling")
        )
        .order_by("-pk")
        .first(),
    }


def _fallback(deployment: Deployment) -> Copy | None:
    """The copy of the same model that could serve while this deployment's own is held."""
    spec = deployment.current_spec
    return fallback_for(spec.copy) if spec is not None and spec.copy.state in HELD_STATES else None


def _endpoint_card(deployment: Deployment) -> dict[str, Any] | None:
    if reached := public.endpoint(deployment):
        found = services.Endpoint(url=reached.url, key="", model=reached.model)
        each = services.endpoints(deployment)
        return _card(found, key=snippets.HIDDEN_KEY, others=each) | {"through_gateway": True}
    own = services.endpoints(deployment)
    return _card(own[0], key=snippets.HIDDEN_KEY, others=own[1:]) if own else None


def _card(endpoint: services.Endpoint, *, key: str, others: list[services.Endpoint]) -> dict[str, Any]:
    """What the endpoint card shows. The key itself is in it only if it was asked for."""
    shown = key != snippets.HIDDEN_KEY
    return {
        "url": endpoint.url,
        "others": [one.url for one in others],
        "model": endpoint.model,
        "key": key if shown else "",
        "curl": snippets.curl(endpoint, key=key),
        "python": snippets.openai_python(endpoint, key=key),
    }


def _changes(deployment: Deployment, instances: list[Instance]) -> list[StateChange]:
    about = Q(kind="deployments.deployment", object_id=deployment.pk)
    about |= Q(kind="deployments.instance", object_id__in=[one.pk for one in instances])
    return list(StateChange.objects.filter(about).select_related("actor").order_by("-at", "-pk")[:8])


def _chosen_pair(specs: list[Spec], old: str | None, new: str | None) -> tuple[Spec | None, Spec | None]:
    by_number = {str(spec.number): spec for spec in specs}
    shown = by_number.get(new or "", specs[0] if specs else None)
    if old:
        return by_number.get(old), shown
    at = specs.index(shown) if shown else 0
    return (specs[at + 1] if at + 1 < len(specs) else None), shown

"""Pages of routes."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods

from console import env
from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.common.errors import Refused
from console.common.forms import ReasonForm, add_refusal
from console.common.parts import confirmation
from console.gateway import adapters, controller, presentation, routes
from console.gateway.forms import RouteForm, WeightsForm
from console.gateway.models import Route


def _rows() -> "presentation.RouteRows":
    return presentation.route_rows()


@require_GET
def route_list(request: HttpRequest) -> HttpResponse:
    """All public names, what is behind each, and what the gateway says of itself."""
    rows = list(policies.visible(request.user, _rows()))
    status = controller.status()
    context = {
        "routes": [presentation.shown(route, status) for route in rows],
        "status": status,
        "sentence": presentation.gateway_sentence(status),
        "url": env.gateway_url(),
    }
    return render(request, "gateway/routes.html", context)


@require_GET
def route_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One route: where its requests go now, how to call it, how it treats them."""
    route = policies.get(request.user, _rows(), Action.VIEW, pk=pk)
    shown = presentation.shown(route, controller.status())
    context = {
        "route": route,
        "shown": shown,
        "url": env.gateway_url(),
        "snippets": presentation.snippets(route.answering[0]),
        "facts": presentation.route_facts(route),
        "adapters": adapters.names_of(route),
    }
    return render(request, "gateway/route.html", context)


@require_http_methods(["GET", "POST"])
def route_add(request: HttpRequest) -> HttpResponse:
    """Make a route."""
    user = policies.require(request.user, Action.DEPLOY)
    return _edit(request, Route(team_id=user.team_id), user)


@require_http_methods(["GET", "POST"])
def route_edit(request: HttpRequest, pk: int) -> HttpResponse:
    """Change a route."""
    route = policies.get(request.user, Route.objects.all(), Action.DEPLOY, pk=pk)
    return _edit(request, route, policies.require(request.user, Action.DEPLOY))


def _edit(request: HttpRequest, route: Route, actor: User) -> HttpResponse:
    name = route.name
    form = RouteForm(request.POST or None, instance=route, user=actor)
    if request.method == "POST" and form.is_valid():
        try:
            saved = routes.save(route, actor=actor, **form.order())
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            messages.success(request, _("%(name)s is saved; the gateway follows within a second.") % {"name": saved})
            if waits := presentation.what_waits(saved):
                messages.warning(request, f"{waits} " + _("Names that answered before go on answering."))
            return redirect("route_detail", pk=saved.pk)
    context = {"form": form, "rows": list(form.rows()), "name": name, "pk": route.pk}
    return render(request, "gateway/route_form.html", context, status=400 if form.errors else 200)


@require_http_methods(["GET", "POST"])
def route_weights(request: HttpRequest, pk: int) -> HttpResponse:
    """Send more or less of a route's requests to one of its deployments."""
    route = policies.get(request.user, Route.objects.all(), Action.OPERATE, pk=pk)
    form = WeightsForm(request.POST or None, route=route)
    if request.method == "POST" and form.is_valid():
        actor = policies.require(request.user, Action.OPERATE)
        routes.weigh(route, form.weights(), actor=actor, reason=form.cleaned_data["reason"])
        return redirect("route_detail", pk=pk)
    consequences = [
        _("In force within a second. Requests that have begun stay where they are."),
        _("0 sends nothing there; what is pinned by X-Model-Version goes there all the same."),
    ]
    return _ask(request, form, route, _("Weights of %(name)s"), consequences, _("Change"))


@require_http_methods(["GET", "POST"])
def route_allow_shadows(request: HttpRequest, pk: int) -> HttpResponse:
    """Consent to copies of a route's requests."""
    route = policies.get(request.user, Route.objects.all(), Action.DEPLOY, pk=pk)
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        routes.allow_shadows(
            route, actor=policies.require(request.user, Action.DEPLOY), reason=form.cleaned_data["reason"]
        )
        return redirect("route_detail", pk=pk)
    consequences = [
        _("Rollouts may also send a sample of what clients ask here to engines that are being tried out."),
        _("Those answers are thrown away. Clients notice nothing, and it counts for no limit and no usage."),
        _("The new engines see what clients wrote. They run on your hosts, behind this same gateway."),
    ]
    return _ask(request, form, route, _("Allow copies of requests to %(name)s"), consequences, _("Allow"))


@require_http_methods(["GET", "POST"])
def route_forbid_shadows(request: HttpRequest, pk: int) -> HttpResponse:
    """Take that consent back."""
    route = policies.get(request.user, Route.objects.all(), Action.OPERATE, pk=pk)
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        routes.forbid_shadows(
            route, actor=policies.require(request.user, Action.OPERATE), reason=form.cleaned_data["reason"]
        )
        return redirect("route_detail", pk=pk)
    consequences = [
        _("No further request is copied, within two seconds. Copies that are under way end by themselves."),
        _("A rollout that copies this route's requests alone is put on hold."),
    ]
    return _ask(request, form, route, _("No more copies of requests to %(name)s"), consequences, _("Forbid"))


@require_http_methods(["GET", "POST"])
def route_remove(request: HttpRequest, pk: int) -> HttpResponse:
    """Take a name off the gateway."""
    route = policies.get(request.user, Route.objects.all(), Action.DEPLOY, pk=pk)
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        actor = policies.require(request.user, Action.DEPLOY)
        routes.remove(route, actor=actor, reason=form.cleaned_data["reason"])
        return redirect("route_list")
    consequences = [
        _("Clients that ask for %(names)s get 404 from the next second on.") % {"names": ", ".join(route.names)},
        _("Its deployments go on running. Its usage stays."),
    ]
    return _ask(request, form, route, _("Remove %(name)s"), consequences, _("Remove"), danger=True)


def _ask(
    request: HttpRequest,
    form: ReasonForm,
    route: Route,
    title: str,
    consequences: list[str],
    button: str,
    *,
    danger: bool = False,
) -> HttpResponse:
    context = {
        "form": form,
        "title": title % {"name": route},
        "consequences": consequences,
        "button": button,
        "danger": danger,
        "back": reverse("route_detail", args=[route.pk]),
        "back_label": route.name,
    }
    return confirmation(request, context)

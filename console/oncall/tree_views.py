"""Pages of the decision trees: the symptoms, and one tree walked for one instance."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from console.access import policies
from console.access.policies import Action
from console.deployments.models import Instance
from console.oncall.tree import Answer, Row, walk
from console.oncall.tree_facts import gather
from console.oncall.trees import TREES

MOST_INSTANCES = 500


@dataclass(frozen=True)
class Act:
    """A next step that is a button or a link. `asks`: it opens a dialog."""

    label: str | Promise
    icon: str
    url: Callable[[Instance], str]
    action: Action = Action.VIEW
    asks: bool = False


ACTS: dict[str, Act] = {
    "log": Act(_("Look at the log"), "file-text", lambda one: f"{reverse('instance_detail', args=[one.pk])}#log"),
    "instance": Act(_("Look at the instance"), "eye", lambda one: reverse("instance_detail", args=[one.pk])),
    "host": Act(_("Look at the host"), "server-2", lambda one: reverse("host_detail", args=[one.host_id])),
    "copy": Act(_("Look at the files"), "files", lambda one: reverse("copy_detail", args=[one.copy.pk])),
    "specs": Act(_("Compare specs"), "git-compare", lambda one: reverse("deployment_specs", args=[one.deployment_id])),
    "dashboard": Act(
        _("Look at the dashboard"), "chart-line", lambda one: reverse("deployment_metrics", args=[one.deployment_id])
    ),
    "requests": Act(_("Look at the requests"), "search", lambda _one: reverse("request_list"), Action.OPERATE),
    "routes": Act(_("Look at the routes"), "share", lambda _one: reverse("route_list")),
    "playground": Act(
        _("Ask it something"), "message-circle", lambda one: reverse("deployment_playground", args=[one.deployment_id]),
        Action.OPERATE,
    ),
    "change": Act(
        _("Change the deployment"), "adjustments", lambda one: reverse("deployment_change", args=[one.deployment_id]),
        Action.DEPLOY,
    ),
    "restart": Act(
        _("Restart"), "refresh", lambda one: reverse("instance_restart", args=[one.pk]), Action.OPERATE, asks=True
    ),
    "control_run": Act(
        _("Control run"), "scale", lambda one: reverse("instance_control_run", args=[one.pk]), Action.OPERATE, asks=True
    ),
    "roll_back": Act(
        _("Roll back"), "history", lambda one: reverse("oncall_roll_back", args=[one.deployment_id]), Action.OPERATE,
        asks=True,
    ),
    "drain": Act(
        _("Drain the host"), "progress-down", lambda one: reverse("host_drain", args=[one.host_id]), Action.OPERATE,
        asks=True,
    ),
}  # fmt: skip


@require_GET
def tree_list(request: HttpRequest) -> HttpResponse:
    """The symptoms to choose from."""
    policies.require(request.user, Action.VIEW)
    return render(request, "oncall/trees.html", {"trees": TREES.values(), "chosen": request.GET.get("instance", "")})


@require_GET
def tree_detail(request: HttpRequest, key: str) -> HttpResponse:
    """A tree; with `?instance=` walked for it."""
    policies.require(request.user, Action.VIEW)
    tree = TREES.get(key)
    if tree is None:
        raise Http404
    instances = _instances(request.user)
    chosen = request.GET.get("instance", "")
    instance = next((one for one in instances if str(one.pk) == chosen), None)
    if chosen and instance is None:
        raise Http404
    context: dict[str, Any] = {"tree": tree, "instances": instances, "instance": instance}
    if instance is not None:
        walked = walk(tree, gather(instance))
        rows = [(row, _acts(request, _offered(row), instance)) for row in walked.rows]
        context |= {"walk": walked, "rows": rows, "acts": _acts(request, walked.acts, instance)}
    return render(request, "oncall/tree.html", context)


def _offered(row: Row) -> tuple[str, ...]:
    """What could not be answered may have a way to find out."""
    return row.found.acts if row.found is not None and row.found.answer is Answer.UNKNOWN else ()


def _acts(request: HttpRequest, keys: Iterable[str], instance: Instance) -> list[dict[str, Any]]:
    """Those of these next steps that this person may take."""
    found = [ACTS[key] for key in keys]
    return [
        {"label": act.label, "icon": act.icon, "url": act.url(instance), "asks": act.asks}
        for act in found
        if policies.can(request.user, act.action)
    ]


def _instances(user: Any) -> list[Instance]:
    """Those that a tree can be walked for: what is broken first, then by name."""
    rows = Instance.objects.select_related(
        "deployment", "host", "spec__engine", "spec__copy__revision__model", "own_copy__revision", "own_engine"
    )
    seen = policies.visible(user, rows, team_path="deployment__team")
    found = list(seen.order_by("deployment__name", "number")[:MOST_INSTANCES])
    rank = {"crashed": 0, "unhealthy": 1, "restarting": 2}
    return sorted(found, key=lambda one: rank.get(one.state, 3))

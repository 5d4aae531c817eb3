"""Pages of metrics: a deployment's board, its data, its table as CSV, and links that share it."""

import csv
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods

from console import env
from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.access.share_pages import ask_for_link, render_shared
from console.common.given import harmless, whole_number
from console.deployments import views as deployments
from console.deployments.models import Deployment
from console.fleet.models import Host
from console.telemetry import boards, fleet_board, host_board, sharing, windows
from console.telemetry.boards import Board
from console.telemetry.history import LONGEST_SECONDS, Span
from console.telemetry.measures import CHARTS, Chart
from console.telemetry.windows import Window

RANGE_NAMES = {900: "15 min", 3600: "1 h", 21_600: "6 h", 86_400: "24 h", 604_800: "7 d", 2_592_000: "30 d"}
SHORTEST_SECONDS = 10


class BadRange(Exception):
    """The query asks for a range that there is not."""


def asked_span(query: Mapping[str, str]) -> Span:
    """The range of `?range=SECONDS` (up to now) or `?from=…&to=…` in milliseconds since the epoch. Raises BadRange."""
    return Span.between(*_asked(query, longest=LONGEST_SECONDS))


def asked_window(query: Mapping[str, str]) -> Window:
    """The same of a board whose history is a day. Raises BadRange."""
    return Window(*_asked(query, longest=windows.LONGEST_SECONDS))


def _asked(query: Mapping[str, str], *, longest: int) -> tuple[float, float]:
    try:
        if "from" in query or "to" in query:
            first, end = int(query["from"]) / 1000, int(query["to"]) / 1000
        else:
            end = time.time()
            first = end - int(query.get("range", "900")) + 1
    except (ValueError, KeyError, OverflowError):
        first = end = 0
    if 0 < first < end < time.time() + 86_400 and SHORTEST_SECONDS <= end - first + 1 <= longest:
        return first, end
    text = _("Ask for range=SECONDS, 10 to %(longest)s, or for from=MS and to=MS, at least 10 s apart.")
    raise BadRange(text % {"longest": f"{longest:,}"})


def _board(request: HttpRequest, deployment: Deployment, *, user: Any, shared: bool) -> Board:
    compared = request.GET.get("compare", "")
    other: Deployment | None = None
    if compared == "week":
        other = deployment
    elif not shared and (pk := whole_number(compared)) is not None:
        other = policies.get(user, Deployment.objects.all(), Action.VIEW, pk=pk)
    apart = request.GET.get("apart") == "1"
    return Board(deployment, asked_span(request.GET), apart=apart, compared=other, shared=shared)


@require_GET
def fleet(request: HttpRequest) -> HttpResponse:
    """The fleet's dashboard."""
    return _fleet(request, "telemetry/fleet.html")


@require_GET
def fleet_wall(request: HttpRequest) -> HttpResponse:
    """The same for a screen on a wall."""
    return _fleet(request, "telemetry/wall.html")


def _fleet(request: HttpRequest, template: str) -> HttpResponse:
    user = policies.require(request.user, Action.VIEW)
    shown = {"charts": boards.described(fleet_board.CHARTS), "ranges": windows.RANGES}
    return render(request, template, fleet_board.context(user) | shown)


@require_GET
def fleet_series(request: HttpRequest) -> HttpResponse:
    """The lines of the fleet's charts as JSON."""
    return _json(request, _fleet_board)


@require_GET
def fleet_csv(request: HttpRequest) -> HttpResponse:
    """What the fleet's charts draw, as a table."""
    return _csv(request, _fleet_board, "fleet", fleet_board.CHARTS)


def _fleet_board(request: HttpRequest) -> dict[str, Any]:
    user = policies.require(request.user, Action.VIEW)
    return fleet_board.board(user, asked_window(request.GET), apart=request.GET.get("apart") == "1")


@require_GET
def host_metrics(request: HttpRequest, pk: int) -> HttpResponse:
    """The board of one host and its devices."""
    host = _host(request, pk)
    charts = boards.described(host_board.charts(host))
    return render(request, "telemetry/host.html", {"host": host, "charts": charts, "ranges": windows.RANGES})


@require_GET
def host_series(request: HttpRequest, pk: int) -> HttpResponse:
    """The lines of a host's charts as JSON."""
    host = _host(request, pk)
    return _json(request, lambda request: host_board.board(host, asked_window(request.GET)))


@require_GET
def host_csv(request: HttpRequest, pk: int) -> HttpResponse:
    """What a host's charts draw, as a table."""
    host = _host(request, pk)
    return _csv(
        request, lambda request: host_board.board(host, asked_window(request.GET)), host.name, host_board.charts(host)
    )


def _host(request: HttpRequest, pk: int) -> Host:
    return policies.get(request.user, Host.objects.prefetch_related("devices"), Action.VIEW, pk=pk)


@require_GET
def deployment_metrics(request: HttpRequest, pk: int) -> HttpResponse:
    """The board of one deployment."""
    deployment = deployments.find(request.user, pk, Action.VIEW)
    others = policies.visible(request.user, Deployment.objects.lasting().exclude(pk=pk)).order_by("name")[:100]
    context = deployments.frame(deployment, "metrics") | {
        "others": others,
        **_page(reverse("deployment_series", args=[pk]), reverse("deployment_csv", args=[pk])),
        "socket": f"/ws/deployments/{pk}/metrics/",
    }
    return render(request, "telemetry/deployment.html", context)


def _page(series: str, table: str) -> dict[str, Any]:
    return {"charts": boards.described(CHARTS), "ranges": RANGE_NAMES, "series": series, "csv": table}


@require_GET
def deployment_series(request: HttpRequest, pk: int) -> HttpResponse:
    """The board's data as JSON."""
    deployment = deployments.find(request.user, pk, Action.VIEW)
    return _series(request, deployment, user=request.user)


def _series(request: HttpRequest, deployment: Deployment, *, user: Any, shared: bool = False) -> HttpResponse:
    return _json(request, lambda request: boards.board(_board(request, deployment, user=user, shared=shared)))


@require_GET
def deployment_csv(request: HttpRequest, pk: int) -> HttpResponse:
    """What the board draws, as a table."""
    return _table(request, deployments.find(request.user, pk, Action.VIEW), user=request.user)


def _table(request: HttpRequest, deployment: Deployment, *, user: Any, shared: bool = False) -> HttpResponse:
    def board_of(request: HttpRequest) -> dict[str, Any]:
        return boards.board(_board(request, deployment, user=user, shared=shared))

    return _csv(request, board_of, deployment.name, CHARTS)


def _json(request: HttpRequest, board_of: Callable[[HttpRequest], dict[str, Any]]) -> HttpResponse:
    try:
        return JsonResponse(board_of(request))
    except BadRange as error:
        return JsonResponse({"error": str(error)}, status=400)


def _csv(
    request: HttpRequest, board_of: Callable[[HttpRequest], dict[str, Any]], name: str, charts: Sequence[Chart]
) -> HttpResponse:
    try:
        board = board_of(request)
    except BadRange as error:
        return HttpResponse(str(error), status=400, content_type="text/plain; charset=utf-8")
    response = HttpResponse("".join(_rows(board, charts)), content_type="text/csv; charset=utf-8")
    stamp = f"{datetime.fromtimestamp(board['span']['first'], tz=UTC):%Y%m%dT%H%M%SZ}"
    response["Content-Disposition"] = f'attachment; filename="{name}-{stamp}.csv"'
    return response


def _rows(board: Mapping[str, Any], charts: Sequence[Chart]) -> Iterator[str]:
    keys = list(dict.fromkeys(line.key for chart in charts for line in chart.lines))
    yield _line(["time", "slot_seconds", "of", *keys])
    for group in board["groups"]:
        for at, moment in enumerate(board["t"]):
            values = [group["values"][key][at] for key in keys]
            if any(value is not None for value in values):
                when = datetime.fromtimestamp(moment / 1000, tz=UTC).isoformat().replace("+00:00", "Z")
                who = harmless(group["name"] or group["key"])
                yield _line([when, board["span"]["step"], who, *("" if v is None else v for v in values)])


def _line(values: list[object]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(values)
    return buffer.getvalue()


@require_http_methods(["GET", "POST"])
def deployment_share(request: HttpRequest, pk: int) -> HttpResponse:
    """Make a link that shows this board without an account."""
    deployment = deployments.find(request.user, pk, Action.VIEW)

    def link_of(user: User, hours: int) -> str:
        token = sharing.share(deployment, hours=hours, actor=user)
        return f"{env.public_url()}{reverse('shared_metrics', args=[token])}"

    return ask_for_link(request, "telemetry", {"deployment": deployment}, link_of)


@login_not_required
@require_GET
def shared_metrics(request: HttpRequest, token: str) -> HttpResponse:
    """The board behind a link."""
    shared = sharing.opened(token)
    context = {
        "deployment": shared.deployment,
        "until": datetime.fromtimestamp(shared.until, tz=UTC),
        **_page(reverse("shared_series", args=[token]), reverse("shared_csv", args=[token])),
        "socket": f"/ws/shared/{token}/metrics/",
    }
    return render_shared(request, "telemetry/shared.html", context)


@login_not_required
@require_GET
def shared_series(request: HttpRequest, token: str) -> HttpResponse:
    """The data of a shared board. A comparison with another deployment is not part of what was shared."""
    shared = sharing.opened(token)
    return _series(request, shared.deployment, user=shared.by, shared=True)


@login_not_required
@require_GET
def shared_csv(request: HttpRequest, token: str) -> HttpResponse:
    """The table of a shared board."""
    shared = sharing.opened(token)
    return _table(request, shared.deployment, user=shared.by, shared=True)

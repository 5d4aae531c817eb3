"""Pages of usage and of single requests."""

import csv
from collections.abc import Iterator

from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from console.access import policies
from console.access.models import Team
from console.access.policies import Action
from console.common.given import harmless
from console.gateway import usage
from console.gateway.models import GatewayRequest, TeamLimits, UsageDay

PAGE_SIZE = 50
HEADS = ("day", "team", "key", "route", "deployment", *usage.COUNTS)


@require_GET
def usage_page(request: HttpRequest) -> HttpResponseBase:
    """Who took how much, as a page or as CSV."""
    user = policies.require(request.user, Action.VIEW)
    days = request.GET.get("days", "7")
    span = int(days) if days.isdigit() and int(days) in usage.SPANS else 7
    group = request.GET.get("by", "key")
    group = group if group in usage.GROUPS else "key"
    rows = usage.within(policies.visible(user, UsageDay.objects.all()), span)
    if request.GET.get("format") == "csv":
        return _as_csv(rows)
    context = {
        "days": span,
        "by": group,
        "spans": [(1, _("today")), *((days, _("%d days") % days) for days in usage.SPANS[1:])],
        "groups": {"key": _("key"), "route": _("route"), "deployment": _("deployment"), "team": _("team")},
        "whole": usage.whole(rows),
        "totals": usage.totals(rows, group),
        "figure": usage.figure(rows, group, span),
        "budget": _budget(user.team),
    }
    return render(request, "gateway/usage.html", context)


def _budget(team: Team) -> dict[str, int] | None:
    limits = TeamLimits.objects.filter(team=team, daily_tokens__isnull=False).first()
    if limits is None:
        return None
    used = usage.whole(UsageDay.objects.filter(team=team, day=usage.today())).tokens
    return {"used": used, "limit": limits.daily_tokens or 0}


@require_GET
def request_list(request: HttpRequest) -> HttpResponse:
    """The last requests; one is found by its id."""
    rows = policies.visible(request.user, GatewayRequest.objects.select_related("key"))
    text = request.GET.get("q", "").strip()
    if text:
        rows = rows.filter(Q(request_id=text) | Q(request_id__startswith=text) | Q(model=text) | Q(refusal=text))
    outcome = request.GET.get("outcome", "")
    if outcome == "failed":
        rows = rows.filter(status__gte=500)
    elif outcome == "refused":
        rows = rows.exclude(refusal="")
    page = Paginator(rows, PAGE_SIZE).get_page(request.GET.get("page"))
    filtered = bool(text or outcome)
    return render(request, "gateway/requests.html", {"page": page, "filtered": filtered, "outcome": outcome})


class _Line:
    """A file for the csv module that hands each line back."""

    def write(self, text: str) -> str:
        return text


def _as_csv(rows: QuerySet[UsageDay]) -> StreamingHttpResponse:
    writer = csv.writer(_Line())
    columns = ("day", "team__name", "key__name", "route", "deployment", *usage.COUNTS)

    def lines() -> Iterator[str]:
        yield writer.writerow(HEADS)
        for cells in rows.order_by("day", "key__name", "route").values_list(*columns).iterator(chunk_size=500):
            yield writer.writerow([harmless(cell) for cell in cells])

    headers = {"Content-Disposition": f'attachment; filename="usage-{usage.today()}.csv"'}
    return StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8", headers=headers)

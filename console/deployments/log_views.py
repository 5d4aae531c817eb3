"""Logs of attempts: any lines by number, the lines that match, the file, and the newest attempt's log as a part of a page."""

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from console.access import policies
from console.access.policies import Action
from console.common.given import whole_number
from console.deployments import log_index, log_reading
from console.deployments.log_index import LogIndex, Match
from console.deployments.models import Attempt, Instance
from console.deployments.views import find, frame

MOST_LINES = 1000
ATTEMPTS_SHOWN = 50
PIECES_AT_ONCE = 16
"""So many pieces (1 MiB) are looked through before other requests have a turn."""


def _attempt(user: Any, pk: int) -> Attempt:
    rows = Attempt.objects.select_related("instance__deployment")
    return policies.get(user, rows, Action.VIEW, team_path="instance__deployment__team", pk=pk)


@require_GET
def deployment_logs(request: HttpRequest, pk: int) -> HttpResponse:
    """The log of one attempt: the newest, or the one that was chosen; `?beside=` shows another one next to it."""
    deployment = find(request.user, pk, Action.VIEW)
    rows = Attempt.objects.filter(instance__deployment=deployment)
    attempts = list(rows.select_related("instance__host", "instance__deployment").order_by("-pk")[:ATTEMPTS_SHOWN])
    chosen = {name: request.GET.get(name, "") for name in ("attempt", "beside")}
    found = {name: next((one for one in attempts if str(one.pk) == key), None) for name, key in chosen.items()}
    attempt = found["attempt"] or (attempts[0] if attempts else None)
    context = frame(deployment, "logs") | {
        "attempts": attempts,
        "attempt": attempt,
        "beside": found["beside"],
        "pair": [attempt, found["beside"]],
        "following": not chosen["attempt"] and found["beside"] is None,
    }
    return render(request, "deployments/logs.html", context)


@require_GET
def deployment_log_part(request: HttpRequest, pk: int) -> HttpResponse:
    """The log of the newest attempt of a deployment, for other pages."""
    deployment = find(request.user, pk, Action.VIEW)
    return _log_part(request, _newest(Attempt.objects.filter(instance__deployment=deployment).order_by("-pk")))


@require_GET
def instance_log_part(request: HttpRequest, pk: int) -> HttpResponse:
    """The log of the newest attempt of an instance, for other pages."""
    instance = policies.get(request.user, Instance.objects.all(), Action.VIEW, team_path="deployment__team", pk=pk)
    return _log_part(request, _newest(instance.attempts.order_by("-number")))


def _newest(attempts: Any) -> Attempt | None:
    found: Attempt | None = attempts.select_related("instance__host", "instance__deployment").first()
    return found


def _log_part(request: HttpRequest, attempt: Attempt | None) -> HttpResponse:
    """204 while the page shows this attempt already, so that an open log is never torn down."""
    if request.GET.get("shown") == (str(attempt.pk) if attempt else "none"):
        return HttpResponse(status=204)
    return render(request, "deployments/_log_part.html", {"attempt": attempt})


@require_GET
def attempt_log_lines(request: HttpRequest, pk: int) -> HttpResponse:
    """`?from=N&count=M` or `?at=N,N,…`: {lines, whole}. Lines count from 0; `whole`: how many are complete now."""
    attempt = _attempt(request.user, pk)
    index = log_index.index_of(attempt.log_path)
    whole = index.count()
    numbers = [_number(one) for one in request.GET.get("at", "").split(",") if one]
    first, count = _number(request.GET.get("from", "0")), _number(request.GET.get("count", "200"))
    if first is None or count is None or None in numbers or max(count, len(numbers)) > MOST_LINES:
        text = _("Give ?from= and ?count=, or ?at= with line numbers from 0 on; %(most)d lines at most.")
        return JsonResponse({"error": text % {"most": MOST_LINES}}, status=400)
    wanted = sorted(one for one in numbers if one is not None)
    try:
        lines = index.picked(wanted) if wanted else index.lines(first, count)
    except FileNotFoundError:
        lines = []
    return JsonResponse({"lines": lines, "whole": whole})


@require_GET
def attempt_log_matches(request: HttpRequest, pk: int) -> StreamingHttpResponse:
    """Numbers of the lines that match `?level=&process=&text=`: four bytes each, little end first, as they are found."""
    attempt = _attempt(request.user, pk)
    wanted = Match(*(request.GET.get(name, "")[:500] for name in ("level", "process", "text")))
    index = log_index.index_of(attempt.log_path)
    return StreamingHttpResponse(_matches(index, wanted), content_type="application/octet-stream")


async def _matches(index: LogIndex, wanted: Match) -> AsyncIterator[bytes]:
    await asyncio.to_thread(index.count)
    while not await asyncio.to_thread(index.sort, pieces=PIECES_AT_ONCE):
        pass
    found = index.matches(wanted)

    def some() -> list[int] | None:
        numbers: list[int] = []
        for _piece in range(PIECES_AT_ONCE):
            piece = next(found, None)
            if piece is None:
                return numbers or None
            numbers += piece
        return numbers

    while (numbers := await asyncio.to_thread(some)) is not None:
        if numbers:
            yield struct.pack(f"<{len(numbers)}I", *numbers)


def _number(value: str) -> int | None:
    return whole_number(value, digits=9)


@require_GET
def attempt_log_file(request: HttpRequest, pk: int) -> StreamingHttpResponse:
    """The stored log as a file."""
    attempt = _attempt(request.user, pk)
    size = log_reading.stored_bytes(attempt.log_path)
    if not attempt.log_path.exists():
        raise Http404
    instance = attempt.instance
    name = f"{instance.deployment.name}-{instance.number}-attempt-{attempt.number}.log"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Length": str(size)}
    chunks = log_reading.chunks(attempt.log_path, size)
    return StreamingHttpResponse(chunks, content_type="text/plain; charset=utf-8", headers=headers)

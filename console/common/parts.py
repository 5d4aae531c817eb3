"""One address answers a page or a part of it."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


def wants_part(request: HttpRequest) -> bool:
    """True if htmx asks for a part; a boosted link wants the whole page."""
    details = getattr(request, "htmx", None)
    return bool(details) and not getattr(details, "boosted", False)


def confirmation(request: HttpRequest, context: Mapping[str, Any]) -> HttpResponse:
    """Ask before something is done: a page, or a dialog where htmx asks.

    `context`: title, heading, consequences, button, back, back_label, danger, and the form with the reason if there is one.
    400 if that form has errors, or if `refused` says why it can't be done.
    """
    form = context.get("form")
    failed = bool(context.get("refused") or (form is not None and form.errors))
    template = "common/_dialog.html" if wants_part(request) else "common/confirm.html"
    return render(request, template, {"action": request.get_full_path(), **context}, status=400 if failed else 200)

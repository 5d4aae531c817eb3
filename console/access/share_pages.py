"""The page (or dialog) that makes a link for people without an account, and how what a link shows is answered."""

from collections.abc import Callable, Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.common.errors import Refused

USUAL_HOURS = 24


def ask_for_link(
    request: HttpRequest, folder: str, context: Mapping[str, Any], link_of: Callable[[User, int], str]
) -> HttpResponse:
    """Ask for how long a link shall be good, then show `link_of(user, hours)`.

    The caller has authorised the look. `folder` has the templates `share.html`, and `_share.html` for htmx; both include
    `common/_share_form.html`.
    """
    shown = {**context, "chosen": USUAL_HOURS, "link": "", "error": ""}
    if request.method == "POST":
        try:
            hours = int(request.POST.get("hours", ""))
            shown |= {"link": link_of(policies.require(request.user, Action.VIEW), hours), "chosen": hours}
        except (ValueError, Refused) as error:
            shown["error"] = str(error) if isinstance(error, Refused) else _("Choose for how long.")
    template = f"{folder}/_share.html" if request.htmx else f"{folder}/share.html"  # type: ignore[attr-defined]
    response = render(request, template, shown, status=400 if shown["error"] else 200)
    response["Cache-Control"] = "no-store"
    return response


def render_shared(request: HttpRequest, template: str, context: Mapping[str, Any]) -> HttpResponse:
    """What a link shows. The address itself is the key: it must not travel in a Referer or stay in a cache."""
    response = render(request, template, dict(context))
    response["Referrer-Policy"] = "no-referrer"
    response["Cache-Control"] = "no-store"
    return response

"""Asking for a reason before something disruptive is done: one page (or dialog) for all such actions."""

from collections.abc import Callable, Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.common.errors import Refused
from console.common.forms import ReasonForm, add_refusal
from console.common.parts import confirmation
from console.jobs.models import Job


def ask(
    request: HttpRequest, context: Mapping[str, Any], act: Callable[[User, str], Job | None], *, then: str = "job_list"
) -> HttpResponse:
    """Ask for a reason, then `act(user, reason)`.

    The page of the job that comes of it follows, or the page `then`, a name or an address. `context`: title, heading,
    consequences, button, back, danger. The caller has authorised the action already. As a dialog when htmx asks.
    """
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            job = act(policies.require(request.user, Action.OPERATE), form.cleaned_data["reason"])
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("job_detail", pk=job.pk) if job else redirect(then)
    return confirmation(request, {"form": form, **context})

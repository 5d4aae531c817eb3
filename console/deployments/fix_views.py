"""The page that shows what a fix will do, and does it."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.common.errors import Refused
from console.deployments import fixing, what_changed
from console.deployments.views import find
from console.jobs.asking import ask
from console.jobs.models import Job


@require_GET
def deployment_fixes(request: HttpRequest, pk: int) -> HttpResponse:
    """What can be done about the failure that a deployment has now, and what changed: a part for the page of its job."""
    deployment = find(request.user, pk, Action.VIEW)
    failure = fixing.failure_of(deployment, list(deployment.instances.select_related("host")))
    since = what_changed.since_good(deployment) if failure else None
    user = policies.require(request.user, Action.VIEW)
    context = {"since_good": since, "fixes": fixing.fixes(user, deployment, failure, since) if since else []}
    return render(request, "deployments/_fixes.html", context)


@require_http_methods(["GET", "POST"])
def deployment_fix(request: HttpRequest, pk: int, key: str) -> HttpResponse:
    """Say what the fix changes and what that does to what runs; then ask for a reason, and do it."""
    deployment = find(request.user, pk, Action.OPERATE)
    user = policies.require(request.user, Action.OPERATE)
    refused, fix, sentences = "", None, []
    try:
        fix = fixing.find(user, deployment, key)
        sentences = fixing.consequences(deployment, fix.remedy)
    except Refused as refusal:
        refused = refusal.message
    context = {
        "title": fix.label if fix else _("Fix %(name)s") % {"name": deployment},
        "heading": f"{fix.label}?" if fix else _("Fix %(name)s") % {"name": deployment},
        "consequences": sentences,
        "refused": refused,
        "button": fix.label if fix else _("Fix"),
        "back": reverse("deployment_detail", args=[pk]),
        "back_label": deployment.name,
    }

    def act(actor: User, reason: str) -> Job | None:
        if fix is None:
            raise Refused(refused)
        policies.require(actor, fix.action)
        return fixing.apply(deployment, fix.remedy, actor=actor, reason=reason)

    return ask(request, context, act, then="deployment_list")

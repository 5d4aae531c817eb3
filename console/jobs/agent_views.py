"""The page that asks before a host's agent is upgraded."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from console.access import policies
from console.access.policies import Action
from console.common.errors import Refused
from console.common.forms import ReasonForm, add_refusal
from console.fleet import agent_card
from console.fleet.models import Host
from console.fleet.upkeep_views import ask
from console.jobs import agent_jobs


@require_http_methods(["GET", "POST"])
def host_upgrade(request: HttpRequest, pk: int) -> HttpResponse:
    """Say what an upgrade does, ask for a reason, start the job and go to its page."""
    host = policies.get(request.user, Host.objects.all(), Action.ADMINISTER, pk=pk)
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        actor = policies.require(request.user, Action.ADMINISTER)
        try:
            job = agent_jobs.upgrade_agent(host, actor=actor, reason=form.cleaned_data["reason"])
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("job_detail", pk=job.pk)
    card = agent_card.describe(host)
    versions = {"old": host.agent_version or "–", "new": card.offered}
    context = {
        "form": form,
        "title": _("Upgrade the agent of %s") % host.name,
        "button": _("Upgrade"),
        "consequences": [
            _("Version %(new)s is installed beside %(old)s, then the agent is restarted with it.") % versions,
            _("If its first heartbeat doesn't come within 60 s, the host goes back to the old version by itself."),
            _("Engines go on serving: they don't belong to the agent. A running step is sent again and resumes."),
        ],
    }
    return ask(request, host, context)

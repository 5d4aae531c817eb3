"""The page that asks before a host is drained."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods

from console.access import policies
from console.access.policies import Action
from console.common.forms import ReasonForm
from console.deployments import draining
from console.deployments.services import GRACE_SECONDS
from console.fleet.models import Host
from console.fleet.upkeep_views import ask


@require_http_methods(["GET", "POST"])
def host_drain(request: HttpRequest, pk: int) -> HttpResponse:
    """Say what will be stopped, ask for a reason, and drain the host."""
    host = policies.get(request.user, Host.objects.all(), Action.OPERATE, pk=pk)
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        actor = policies.require(request.user, Action.OPERATE)
        jobs = draining.drain(host, actor=actor, reason=form.cleaned_data["reason"])
        text = ngettext("%(count)d deployment is being stopped.", "%(count)d deployments are being stopped.", len(jobs))
        messages.success(request, text % {"count": len(jobs)})
        return redirect("host_detail", pk=host.pk)
    context = {
        "form": form,
        "title": _("Drain %s") % host.name,
        "button": _("Drain"),
        "danger": True,
        "consequences": _consequences(host),
    }
    return ask(request, host, context)


def _consequences(host: Host) -> list[str]:
    found = []
    there = draining.on_host(host)
    elsewhere = [one.name for one in there if draining.is_elsewhere(one, host)]
    names = [one.name for one in there if one.name not in elsewhere]
    if not there:
        found = [_("Nothing runs there now.")]
    if elsewhere:
        text = ngettext("%(names)s loses its instances there and goes on serving on other hosts.",
                        "%(names)s lose their instances there and go on serving on other hosts.", len(elsewhere))  # fmt: skip
        found.append(text % {"names": ", ".join(elsewhere)})
    if names:
        text = ngettext("%(names)s is stopped.", "%(names)s are stopped.", len(names)) % {"names": ", ".join(names)}
        grace = _("Requests in flight have up to %(seconds)d s to end; new ones are refused meanwhile.")
        found += [text, grace % {"seconds": GRACE_SECONDS}]
    if not host.is_online:
        found.append(_("The host is silent: it stops them when it is back."))
    return [*found, _("It takes no new work until someone resumes it. Engines and models stay on its disk.")]

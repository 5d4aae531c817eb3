"""Pages that ask before a host is drained, and before it is brought back."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods

from console.access import policies
from console.access.policies import Action
from console.common.errors import Refused
from console.common.forms import ReasonForm, add_refusal
from console.deployments import draining
from console.deployments.services import GRACE_SECONDS
from console.fleet.models import Host
from console.fleet.upkeep_views import ask


class BringBackForm(ReasonForm):
    """Why, and whether what the drain stopped is started again."""

    start = forms.BooleanField(label="", required=False, initial=True)

    def __init__(self, *args: object, names: str, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        if names:
            self.fields["start"].label = _("Start %(names)s again") % {"names": names}
        else:
            del self.fields["start"]


@require_http_methods(["GET", "POST"])
def host_drain(request: HttpRequest, pk: int) -> HttpResponse:
    """Say what will move and what will be stopped, ask for a reason, and drain the host."""
    host = policies.get(request.user, Host.objects.all(), Action.OPERATE, pk=pk)
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        actor = policies.require(request.user, Action.OPERATE)
        jobs = draining.drain(host, actor=actor, reason=form.cleaned_data["reason"])
        moves = sum(job.kind == "change" for job in jobs)
        stops = len(jobs) - moves
        if moves:
            text = ngettext("%(count)d deployment is being moved.", "%(count)d deployments are being moved.", moves)
            messages.success(request, text % {"count": moves})
        if stops or not moves:
            text = ngettext("%(count)d deployment is being stopped.", "%(count)d deployments are being stopped.", stops)
            messages.success(request, text % {"count": stops})
        return redirect("host_detail", pk=host.pk)
    context = {
        "form": form,
        "title": _("Drain %s") % host.name,
        "button": _("Drain"),
        "danger": True,
        "consequences": _consequences(host),
    }
    return ask(request, host, context)


@require_http_methods(["GET", "POST"])
def host_bring_back(request: HttpRequest, pk: int) -> HttpResponse:
    """End a host's maintenance: it takes new work again, and what its drain stopped is started if that is wanted."""
    host = policies.get(request.user, Host.objects.all(), Action.OPERATE, pk=pk)
    waiting = draining.stopped_by_drain(host)
    names = ", ".join(one.name for one in waiting)
    form = BringBackForm(request.POST or None, names=names)
    if request.method == "POST" and form.is_valid():
        data, user = form.cleaned_data, policies.require(request.user, Action.OPERATE)
        try:
            jobs = draining.bring_back(host, start=data.get("start", False), actor=user, reason=data["reason"])
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            text = ngettext("%(name)s is back; %(count)d start has begun.", "%(name)s is back; %(count)d starts have begun.",
                            len(jobs))  # fmt: skip
            messages.success(request, text % {"name": host.name, "count": len(jobs)})
            return redirect("host_detail", pk=host.pk)
    return ask(request, host, {
        "form": form,
        "title": _("Bring %(name)s back") % {"name": host.name},
        "heading": _("End the maintenance of %(name)s?") % {"name": host.name},
        "consequences": [
            _("It takes new work again."),
            _("Its drain stopped %(names)s.") % {"names": names} if names else _("Nothing of it waits to be started."),
        ],
        "button": _("Bring back"),
    })  # fmt: skip


def _words_of_move(one: draining.Leaving) -> list[str]:
    goes = ", ".join(f"{instance} → {place.site.host}" for instance, place in one.moved)
    text = _("%(names)s: moves, there is room for it now.") % {"names": goes}
    if not one.stopped:
        return [text]
    ends = _("%(names)s: stops, no other host has room for it.") % {"names": ", ".join(map(str, one.stopped))}
    return [text, ends]


def _consequences(host: Host) -> list[str]:
    found = []
    there = draining.on_host(host)
    moving = [one for one in (draining.leaving(deployment, host) for deployment in there) if one.moved]
    staying = [one for one in there if one not in [leaving.deployment for leaving in moving]]
    elsewhere = [one.name for one in staying if draining.is_elsewhere(one, host)]
    names = [one.name for one in staying if one.name not in elsewhere]
    if not there:
        found = [_("Nothing runs there now.")]
    for one in moving:
        found += _words_of_move(one)
    if moving:
        found.append(_("Each new engine is ready before the old one ends. If one doesn't come up, the old one goes on there "
                       "until you stop it."))  # fmt: skip
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

"""The on-call page, and what only it can do."""

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_GET, require_http_methods

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.common.errors import Refused
from console.common.given import whole_number
from console.common.parts import confirmation
from console.deployments import changes
from console.deployments.models import Deployment, Spec
from console.deployments.what_changed import SinceGood, since_good, spec_to_go_back_to
from console.fleet.host_rows import instance_counts
from console.fleet.models import Host
from console.fleet.presentation import work_look
from console.jobs.asking import ask
from console.jobs.models import Job
from console.oncall import board, services
from console.oncall.forms import QuietForm, RestartAllForm

MOST_HOSTS = 100


@require_GET
def oncall(request: HttpRequest) -> HttpResponse:
    """What is broken, the worst first."""
    user = policies.require(request.user, Action.VIEW)
    found = board.problems(user)
    hosts = [one for one in policies.visible(user, Host.objects.defer("facts", "vitals")) if not one.is_removed]
    context = {
        "problems": found,
        "truth": board.truth(found),
        "kept_hosts": _kept(hosts),
        "hosts": [one for one in hosts if one.state == "accepting"][:MOST_HOSTS],
        "may_restart_all": sum(one.ident.startswith("deployment-") for one in found) > 1,
    }
    return render(request, "oncall/page.html", context)


def _kept(hosts: Sequence[Host]) -> list[tuple[Host, str]]:
    """Hosts that take no new work, with the look of it: what is drained has nothing left to end."""
    kept = [one for one in hosts if one.state != "accepting"]
    counts = instance_counts([one.pk for one in kept])
    return [(one, work_look(one, counts[one.pk][0])) for one in kept]


@require_http_methods(["GET", "POST"])
def restart_all(request: HttpRequest) -> HttpResponse:
    """Restart everything that is listed as broken."""
    user = policies.require(request.user, Action.OPERATE)
    broken = _broken(user)
    hurts = any(one.instances.filter(state="ready").exists() for one in broken)
    form = RestartAllForm(request.POST or None, hurts=hurts)
    if request.method == "POST" and form.is_valid():
        jobs, refused = services.restart_all(broken, actor=user, reason=form.cleaned_data["reason"])
        text = ngettext("%(count)d restart has begun.", "%(count)d restarts have begun.", len(jobs))
        messages.success(request, text % {"count": len(jobs)})
        for sentence in refused:
            messages.warning(request, sentence)
        return redirect("oncall")
    names = ", ".join(one.name for one in broken)
    return _ask(request, form, {
        "title": _("Restart all"),
        "heading": ngettext("Restart %(count)d deployment?", "Restart %(count)d deployments?", len(broken))
        % {"count": len(broken)},
        "consequences": [
            names or _("Nothing is broken now."),
            _("All at once: engines that still run end; requests in flight have 20 s to finish, then they fail."),
            _("Each is validated and warmed up before it serves again. What is busy with a job is left out."),
        ],
        "button": _("Restart all"),
        "danger": hurts,
    })  # fmt: skip


@require_http_methods(["GET", "POST"])
def roll_back(request: HttpRequest, pk: int) -> HttpResponse:
    """Bring the spec back that last started well, or did before the one in force."""
    deployment = policies.get(request.user, Deployment.objects.all(), Action.OPERATE, pk=pk)
    since = since_good(deployment)
    good = spec_to_go_back_to(deployment, since)
    sentences = [_("%(name)s has no other spec that ever started well.") % {"name": deployment}]
    if good is not None:
        try:
            sentences = list(changes.effect(deployment, changes.Wish.of_spec(good)).sentences)
        except Refused as refusal:
            sentences = [refusal.message]
    number = good.number if good else 0
    context = {
        "title": _("Roll back %(name)s") % {"name": deployment},
        "heading": _("Bring %(name)s back to spec %(number)d?") % {"name": deployment, "number": number},
        "consequences": [*sentences, _which(since, good)],
        "button": _("Roll back"),
        "back": reverse("oncall"),
    }  # fmt: skip

    def act(user: User, reason: str) -> Job | None:
        return services.roll_back(deployment, actor=user, reason=reason)

    return ask(request, context, act, then="oncall")


def _which(since: SinceGood, good: Spec | None) -> str:
    if since.spec is None or good is None or good.pk == since.spec.pk:
        return _("It is the spec that last started well. It becomes a new one; nothing is erased.")
    return _("Spec %(now)d started well, too; %(number)d is the last one before it that did. It becomes a new one; nothing is "
             "erased.") % {"now": since.spec.number, "number": good.number}  # fmt: skip


@require_http_methods(["GET", "POST"])
def silence(request: HttpRequest) -> HttpResponse:
    """Keep alerts about a deployment or a host quiet for a while."""
    about = _subject(request)
    form = QuietForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        data, user = form.cleaned_data, policies.require(request.user, Action.OPERATE)
        services.silence(about, hours=float(data["hours"]), actor=user, reason=data["reason"])
        messages.success(request, _("Alerts about %(name)s are quiet.") % {"name": about.name})
        return redirect("oncall")
    return _ask(request, form, {
        "title": _("Silence %(name)s") % {"name": about.name},
        "heading": _("Keep alerts about %(name)s quiet?") % {"name": about.name},
        "consequences": [_("What goes wrong is still shown here and on its page; nobody is told of it.")],
        "button": _("Silence"),
    })  # fmt: skip


def _subject(request: HttpRequest) -> Deployment | Host:
    deployment, host = _number(request, "deployment"), _number(request, "host")
    if deployment is not None:
        return policies.get(request.user, Deployment.objects.all(), Action.OPERATE, pk=deployment)
    if host is not None:
        return policies.get(request.user, Host.objects.all(), Action.OPERATE, pk=host)
    policies.require(request.user, Action.OPERATE)
    raise Http404


def _number(request: HttpRequest, name: str) -> int | None:
    return whole_number(request.GET.get(name, ""))


def _broken(user: User) -> list[Deployment]:
    idents = [one.ident.removeprefix("deployment-") for one in board.problems(user) if "deployment-" in one.ident]
    return list(policies.visible(user, Deployment.objects.filter(pk__in=idents)))


def _ask(request: HttpRequest, form: Any, context: dict[str, Any]) -> HttpResponse:
    return confirmation(request, {"form": form, "back": reverse("oncall"), **context})

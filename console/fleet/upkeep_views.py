"""Pages that ask before something is done to a host: pause, resume, new credentials, removal."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.common.errors import Refused
from console.common.forms import ReasonForm, add_refusal
from console.common.parts import confirmation
from console.fleet import credentials, intake, services
from console.fleet.forms import RemoveForm, RotateForm
from console.fleet.models import Host


@require_http_methods(["GET", "POST"])
def host_pause(request: HttpRequest, pk: int) -> HttpResponse:
    """Take no new work."""
    host = policies.get(request.user, Host.objects.all(), Action.OPERATE, pk=pk)
    context = {
        "title": _("Pause %s") % host.name,
        "button": _("Pause"),
        "consequences": [
            _("It takes no new work: deploys, downloads and installations for it are refused, and say so."),
            _("What runs goes on, and may be restarted and stopped. Jobs that have begun end as they would."),
        ],
    }
    return _confirmed(request, host, context, Action.OPERATE, ReasonForm(request.POST or None), intake.pause)


@require_http_methods(["GET", "POST"])
def host_resume(request: HttpRequest, pk: int) -> HttpResponse:
    """Take new work again."""
    host = policies.get(request.user, Host.objects.all(), Action.OPERATE, pk=pk)
    context = {
        "title": _("Resume %s") % host.name,
        "button": _("Resume"),
        "consequences": [_("It takes new work again. What was stopped stays stopped until someone starts it.")],
    }
    return _confirmed(request, host, context, Action.OPERATE, ReasonForm(request.POST or None), intake.resume)


@require_http_methods(["GET", "POST"])
def host_credentials(request: HttpRequest, pk: int) -> HttpResponse:
    """Rotate the host's credentials."""
    host = policies.get(request.user, Host.objects.all(), Action.ADMINISTER, pk=pk)
    form = RotateForm(request.POST or None)

    def rotate(host: Host, *, actor: User, reason: str) -> None:
        credentials.rotate(host, new_key=form.cleaned_data["new_key"], actor=actor, reason=reason)
        messages.success(
            request, _("New credentials are on their way to %s; both passwords hold until it uses them.") % host
        )

    consequences = [
        _("The host gets a new password for the broker. The old one dies, with its connections, once it has switched."),
        _("Its agent starts itself anew: engines go on serving, and no report is lost. A running step is sent again."),
    ]
    if not host.is_online:
        consequences.append(_("The host is silent: it switches when it is back, and both passwords hold until then."))
    context = {
        "title": _("New credentials for %s") % host.name,
        "button": _("Rotate"),
        "consequences": consequences,
    }
    return _confirmed(request, host, context, Action.ADMINISTER, form, rotate)


@require_http_methods(["GET", "POST"])
def host_remove(request: HttpRequest, pk: int) -> HttpResponse:
    """Forget a host, for a reason."""
    host = policies.get(request.user, Host.objects.all(), Action.ADMINISTER, pk=pk)
    form = RemoveForm(request.POST or None)
    if not host.instances.filter(ordered=True).exists():
        del form.fields["force"]  # nothing would have to be given up
    if request.method == "POST" and form.is_valid():
        actor = policies.require(request.user, Action.ADMINISTER)
        force = form.cleaned_data.get("force", False)
        try:
            services.remove_host(host, actor=actor, reason=form.cleaned_data["reason"], force=force)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            messages.success(request, _("%s is removed.") % host.name)
            return redirect("host_list")
    context = {
        "form": form,
        "title": _("Remove %s") % host.name,
        "button": _("Remove host"),
        "danger": True,
        "consequences": _what_stays(host),
    }
    return ask(request, host, context)


def _what_stays(host: Host) -> list[str]:
    running = host.instances.filter(ordered=True).count()
    found = [_("Its agent loses its access at once, and its devices, engines and copies leave these pages.")]
    if running:
        text = ngettext(
            "%(count)d instance runs there. Drain the host first; by force it goes on running there, unseen.",
            "%(count)d instances run there. Drain the host first; by force they go on running there, unseen.",
            running,
        )
        found.append(text % {"count": running})
    places = [str(host.facts[name]) for name in ("engines_dir", "models_dir") if host.facts.get(name)]
    if places:
        text = _("On the machine itself nothing is deleted: engines and models stay in %(places)s.")
        found.append(text % {"places": ", ".join(places)})
    else:
        found.append(_("Nothing is deleted on the machine itself."))
    if host.vitals.get("kept"):
        unit = f"slipway-host-{host.name}.service"
        # The agent doesn't say who starts it: a unit, or the person who ran the command.
        found.append(
            _("Its agent is refused from now on. If it is a service there, disable %(unit)s.") % {"unit": unit}
        )
    return found


def _confirmed(
    request: HttpRequest,
    host: Host,
    context: dict[str, Any],
    action: Action,
    form: forms.Form,
    service: Callable[..., None],
) -> HttpResponse:
    """Call `service` once a reason was given, and go back to the host's page."""
    if request.method == "POST" and form.is_valid():
        try:
            service(host, actor=policies.require(request.user, action), reason=form.cleaned_data["reason"])
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("host_detail", pk=host.pk)
    return ask(request, host, context | {"form": form})


def ask(request: HttpRequest, host: Host, context: dict[str, Any]) -> HttpResponse:
    """The page, or the dialog, that says what will happen."""
    back = {"back": reverse("host_detail", args=[host.pk]), "back_label": host.name, "action": request.path}
    return confirmation(request, context | back)

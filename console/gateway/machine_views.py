"""Pages of gateways on other machines, and where such a machine joins."""

from dataclasses import asdict
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console import env
from console.access import policies
from console.access.policies import Action
from console.common.errors import Refused
from console.common.forms import ReasonForm, add_refusal
from console.common.parts import confirmation
from console.common.states import LOOKS
from console.fleet import joining, membership
from console.fleet.api import answer_to_join
from console.fleet.forms import RotateForm
from console.gateway import controller, machine_presentation, machines, plan, presentation
from console.gateway.forms import AddMachineForm
from console.gateway.models import GatewayMachine


@csrf_exempt  # a machine has no session; the one-time token is what authorises it
@login_not_required
@require_POST
def join(request: HttpRequest) -> JsonResponse:
    """Take `{"token", "public_key"}` and answer with the gateway's credentials, once per token; 4xx with a plain `error`."""
    return answer_to_join(request, lambda token, public_key: asdict(machines.join(token=token, public_key=public_key)))


@require_GET
def machine_list(request: HttpRequest) -> HttpResponse:
    """The console's own gateway and those elsewhere: what is live on each."""
    rows = policies.visible(request.user, GatewayMachine.objects.all())
    status = controller.status()
    context = {
        "own": status,
        "own_look": LOOKS["unknown" if status is None else "serving" if status.up else "failed"],
        "own_repaired_at": machine_presentation.repaired_at(status),
        "own_sentence": presentation.gateway_sentence(status),
        "url": env.gateway_url(),
        "machines": [machine_presentation.shown(machine) for machine in rows],
        "unreachable": machines.unreachable(plan.read()) if rows else 0,
    }
    return render(request, "gateway/machines.html", context)


@never_cache
@require_http_methods(["GET", "POST"])
def machine_add(request: HttpRequest) -> HttpResponse:
    """Add a gateway, and show its join command once."""
    actor = policies.require(request.user, Action.ADMINISTER)
    form = AddMachineForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            machine, token = machines.add(name=form.cleaned_data["name"], actor=actor)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return _show_join(request, machine, token)
    return render(request, "gateway/machine_add.html", {"form": form}, status=400 if form.errors else 200)


@never_cache
@require_http_methods(["GET", "POST"])
def machine_token(request: HttpRequest, pk: int) -> HttpResponse:
    """Make a new join token."""
    machine = _find(request, pk)
    if request.method == "POST":
        token = machines.renew_token(machine, actor=policies.require(request.user, Action.ADMINISTER))
        return _show_join(request, machine, token)
    consequences = [
        _("An older command for this gateway stops working."),
        _(
            "A machine that runs the new one takes this gateway's place. What serves now serves on, but follows no longer."
        ),
    ]
    return _ask(request, machine, _("New join command for %(name)s"), _("Make a new command"), consequences)


@require_http_methods(["GET", "POST"])
def machine_credentials(request: HttpRequest, pk: int) -> HttpResponse:
    """Rotate a gateway's credentials."""
    machine = _find(request, pk)
    form = RotateForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        actor, data = policies.require(request.user, Action.ADMINISTER), form.cleaned_data
        try:
            machines.rotate(machine, new_key=data["new_key"], actor=actor, reason=data["reason"])
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("gateway_list")
    consequences = [
        _("It gets a new password for the broker. The old one dies, with its connections, once it has switched."),
        _("Its agent starts itself anew; HAProxy serves on, and no line of its log is lost."),
    ]
    return _ask(request, machine, _("New credentials for %(name)s"), _("Rotate"), consequences, form=form)


@require_http_methods(["GET", "POST"])
def machine_remove(request: HttpRequest, pk: int) -> HttpResponse:
    """Take a gateway off."""
    machine = _find(request, pk)
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            with transaction.atomic():
                actor = policies.require(request.user, Action.ADMINISTER)
                machines.remove(machine, actor=actor, reason=form.cleaned_data["reason"])
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("gateway_list")
    consequences = [_("Clients that use its address get no answer any more. What it has begun has 30 s to finish.")]
    if machines.told_by(machine) is None:
        consequences = [
            _("It is not heard of, so it is only forgotten here. If its machine runs, HAProxy serves on there with what it"
              " has, until somebody runs “slipway gateway stop” on it.")
        ]  # fmt: skip
    title = _("Remove %(name)s")
    return _ask(request, machine, title, _("Remove"), consequences, form=form, danger=True)


def _find(request: HttpRequest, pk: int) -> GatewayMachine:
    return policies.get(request.user, GatewayMachine.objects.filter(leaving_since=None), Action.ADMINISTER, pk=pk)


def _show_join(request: HttpRequest, machine: GatewayMachine, token: str) -> HttpResponse:
    # Answered directly, not after a redirect: the token is stored hashed only.
    context = {
        "machine": machine,
        "command": joining.command_for_bare_machine(token, "--gateway"),
        "short_command": joining.command_with_slipway(token, "gateway"),
        "hours": membership.JOIN_TOKEN_HOURS,
        "elsewhere": env.serves_other_machines(),
        "url": env.hosts_url(),
        "fingerprint": joining.fingerprint(),
    }
    return render(request, "gateway/machine_join.html", context)


def _ask(
    request: HttpRequest,
    machine: GatewayMachine,
    title: str,
    button: str,
    consequences: list[str],
    *,
    form: Any = None,
    danger: bool = False,
) -> HttpResponse:
    heading = title % {"name": machine}
    context = {
        "form": form, "title": heading, "heading": heading, "consequences": consequences, "button": button,
        "danger": danger, "back": reverse("gateway_list"), "back_label": _("Gateways"),
    }  # fmt: skip
    return confirmation(request, context)

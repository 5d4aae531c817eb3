"""What alert rules see of gateways: the console's own and those on other machines, each by the sentence of its page."""

from collections.abc import Iterable

from django.urls import reverse
from django.utils.translation import gettext as _

from console.access.models import DEFAULT_TEAM_ID
from console.alerts.readings import Reading, Scene
from console.common.states import LOOKS
from console.gateway import controller, machine_presentation
from console.gateway.models import GatewayMachine, Route
from console.gateway.presentation import gateway_sentence

TROUBLED = ("offline", "failed", "degraded")


def troubled(scene: Scene) -> Iterable[Reading]:
    """1 for a gateway that is silent, whose HAProxy doesn't answer, or that can't do what was ordered last.

    The console's own is everybody's: the first team is told, once there is a route.
    """
    if scene.team == DEFAULT_TEAM_ID and Route.objects.exists():
        status = controller.status()
        is_well = status is not None and status.up and not status.problem
        yield _reading("own", _("Gateway of the console"), "" if is_well else gateway_sentence(status))
    for machine in GatewayMachine.objects.filter(team_id=scene.team, leaving_since=None).exclude(public_key=""):
        shown = machine_presentation.shown(machine)
        is_well = shown.look not in [LOOKS[name] for name in TROUBLED]
        yield _reading(str(machine.pk), machine.name, "" if is_well else shown.sentence)


def _reading(subject: str, name: str, trouble: str) -> Reading:
    return Reading(f"gateway:{subject}", name, float(bool(trouble)), trouble, url=reverse("gateway_list"))

"""Under which names a deployment is asked for, and where: what the gateway above tells, without being imported here."""

from collections.abc import Callable
from dataclasses import dataclass

from django.core.validators import RegexValidator
from django.utils.translation import gettext_lazy as _

from console.access.models import User
from console.deployments.models import Deployment

MODEL_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,126}[A-Za-z0-9]$|^[A-Za-z0-9]$"
MODEL_NAME = RegexValidator(
    MODEL_NAME_PATTERN,
    _("Use letters, digits and inner . _ : / -, 128 at most, such as my-model or org/model-8b."),
)


@dataclass(frozen=True)
class PublicEndpoint:
    """Where clients reach a deployment: `/v1/chat/completions` is appended to `url`."""

    url: str
    model: str


Namer = Callable[[Deployment], list[str]]
Finder = Callable[[Deployment], PublicEndpoint | None]
Publisher = Callable[[Deployment, str, User | None, str], None]
NameKeeper = Callable[[Deployment, str], str]
"""Why an adapter of a deployment can't have a name, in a sentence; empty: nothing is against it."""
_namers: list[Namer] = []
_finders: list[Finder] = []
_publishers: list[Publisher] = []
_name_keepers: list[NameKeeper] = []


def name_by(namer: Namer) -> None:
    """Register who knows further names of deployments. Called once, from an app's `ready`."""
    if namer not in _namers:
        _namers.append(namer)


def reach_by(finder: Finder) -> None:
    """Register who knows a deployment's public endpoint. Called once, from an app's `ready`."""
    if finder not in _finders:
        _finders.append(finder)


def publish_by(publisher: Publisher) -> None:
    """Register who makes a deployment known under a public name. Called once, from an app's `ready`."""
    if publisher not in _publishers:
        _publishers.append(publisher)


def keep_names_by(keeper: NameKeeper) -> None:
    """Register who knows which names are taken. Called once, from an app's `ready`."""
    if keeper not in _name_keepers:
        _name_keepers.append(keeper)


def why_taken(deployment: Deployment, name: str) -> str:
    """Why an adapter of a deployment can't be asked for by a name; empty if it can."""
    return next((why for keeper in _name_keepers if (why := keeper(deployment, name))), "")


def publish(deployment: Deployment, name: str, *, actor: User | None, reason: str) -> None:
    """Let clients ask the gateway for a deployment under a name. Refused at `public_name` when it is taken or none."""
    for publisher in _publishers:
        publisher(deployment, name, actor, reason)


def served_names(deployment: Deployment) -> list[str]:
    """Every name under which its engines serve the model: its own first, which probes use."""
    names = [deployment.name, *(name for namer in _namers for name in namer(deployment))]
    return list(dict.fromkeys(names))


def endpoint(deployment: Deployment) -> PublicEndpoint | None:
    """Where clients reach it through the gateway; None if no route leads to it."""
    return next((found for finder in _finders if (found := finder(deployment))), None)

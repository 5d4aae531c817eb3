"""Servers that may be measured though they are none of ours: admins allow them, operators measure them."""

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.benchmarks.models import Endpoint
from console.common.errors import Refused
from console.common.secrets import encrypt


def allow(*, name: str, url: str, model: str, key: str, actor: User) -> Endpoint:
    """Allow a server to be measured. Refused when its name is taken."""
    try:
        with transaction.atomic():
            endpoint = Endpoint.objects.create(
                team_id=actor.team_id, name=name, url=url.rstrip("/").removesuffix("/v1"), model=model,
                key=encrypt(key) if key else "", allowed_by=actor,
            )  # fmt: skip
            access.record(actor=actor, action="benchmark.endpoint.allow", target=name, url=endpoint.url, model=model)
    except IntegrityError:
        raise Refused(_("There is one of this name already."), field="name") from None
    return endpoint


def forget(endpoint: Endpoint, *, actor: User, reason: str) -> None:
    """Allow it no longer; its key is forgotten. What was measured stays."""
    access.record(actor=actor, action="benchmark.endpoint.forget", target=endpoint.name, reason=reason)
    endpoint.delete()

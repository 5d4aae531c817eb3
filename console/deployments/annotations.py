"""What people write about a deployment and what they look up of it, with a trace in the audit log."""

from django.db import transaction

from console.access import services as access
from console.access.models import User
from console.common import live
from console.deployments import services
from console.deployments.models import Deployment


def set_notes(deployment: Deployment, *, notes: str, actor: User) -> None:
    """Replace a deployment's notes."""
    with transaction.atomic():
        Deployment.objects.filter(pk=deployment.pk).update(notes=notes)
        access.record(
            actor=actor, action="deployment.note", target=deployment.name, target_url=f"/deployments/{deployment.pk}/"
        )
        live.changed("deployment", deployment.pk)


def reveal_key(deployment: Deployment, *, actor: User) -> services.Endpoint | None:
    """The endpoint with its key; that it was looked at is recorded. None while nothing is ready."""
    found = services.endpoint(deployment)
    if found:
        access.record(
            actor=actor,
            action="deployment.reveal_key",
            target=deployment.name,
            target_url=f"/deployments/{deployment.pk}/",
        )
    return found

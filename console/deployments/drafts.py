"""Drafts of the deploy form: saved while one types, found again, gone with the deployment or when they are discarded."""

from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils.translation import gettext as _

from console.access.models import User
from console.common.errors import Refused
from console.deployments.models import Deployment, Draft

MOST_DRAFTS = 20
"""A person's drafts; the oldest goes when another is saved."""
LARGEST_CHARACTERS = 200_000


def save(key: UUID, *, person: User, fields: dict[str, Any], deployment: Deployment | None) -> Draft | None:
    """Keep a form's texts; None when there is nothing in them worth keeping."""
    kept = {
        name: value for name, value in fields.items() if name not in ("idempotency_key", "drawn_for", "changing", "go")
    }
    if not kept or sum(len(str(value)) for value in kept.values()) > LARGEST_CHARACTERS:
        return None
    with transaction.atomic():
        draft, _made = Draft.objects.update_or_create(
            key=key, person=person, defaults={"fields": kept, "deployment": deployment}
        )
        old = Draft.objects.filter(person=person).order_by("-saved_at").values_list("pk", flat=True)[MOST_DRAFTS:]
        Draft.objects.filter(pk__in=list(old)).delete()
    return draft


def of_person(person: User, *, besides: UUID | None = None) -> list[Draft]:
    """A person's drafts, newest first."""
    rows = Draft.objects.filter(person=person).select_related("deployment")
    return list(rows.exclude(key=besides) if besides else rows)


def find(key: str, *, person: User) -> Draft:
    """One of a person's drafts. Refused when it is gone."""
    try:
        draft = Draft.objects.filter(key=UUID(key), person=person).first()
    except ValueError:
        draft = None
    if draft is None:
        raise Refused(_("This draft is gone: it was deployed or discarded."))
    return draft


def discard(key: UUID, *, person: User) -> None:
    """Forget a draft; one that is gone already is no mistake."""
    Draft.objects.filter(key=key, person=person).delete()

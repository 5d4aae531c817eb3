"""People and the audit log."""

import secrets
from typing import Any

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext as _

from console.access.models import AuditEntry, Role, User
from console.common.errors import Refused


def record(
    *,
    actor: User | None,
    action: str,
    target: str = "",
    target_url: str = "",
    reason: str = "",
    address: str = "",
    **details: Any,
) -> AuditEntry:
    """Write one audit entry. `actor` None: the console itself did it."""
    return AuditEntry.objects.create(
        actor=actor,
        actor_name=actor.get_username() if actor else "system",
        action=action,
        target=target[:200],
        target_url=target_url,
        reason=reason,
        address=address or getattr(actor, "request_address", ""),
        details=details,
    )


def generate_password() -> str:
    """A password of 20 characters from an alphabet without look-alikes: 115 bits."""
    alphabet = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
    return "".join(secrets.choice(alphabet) for _index in range(20))


def add_person(*, username: str, role: str, actor: User | None, password: str = "") -> tuple[User, str]:
    """Add a person; returns them and their first password, which is shown once and must be changed at first sign-in."""
    if User.objects.filter(username__iexact=username).exists():
        raise Refused(_("There is a person with this name already."), field="username")
    first = password or generate_password()
    with transaction.atomic():
        person = User(username=username, role=Role(role), must_change_password=not password)
        person.set_password(first)
        person.full_clean()
        person.save()
        record(actor=actor, action="person.add", target=username, role=role)
    return person, first


def change_role(person: User, *, role: str, actor: User) -> None:
    """Give a person another role; the last active admin keeps theirs."""
    with transaction.atomic():
        locked = User.objects.select_for_update().get(pk=person.pk)
        before = locked.role
        if role != Role.ADMIN:
            _keep_an_admin(locked)
        locked.role = Role(role)
        locked.save(update_fields=["role"])
        record(actor=actor, action="person.change_role", target=locked.username, before=before, after=role)


def set_active(person: User, *, active: bool, actor: User) -> None:
    """Disable a person (their sessions end at the next request) or enable them again."""
    with transaction.atomic():
        locked = User.objects.select_for_update().get(pk=person.pk)
        if not active:
            _keep_an_admin(locked)
        locked.is_active = active
        locked.save(update_fields=["is_active"])
        record(actor=actor, action="person.enable" if active else "person.disable", target=locked.username)


def reset_password(person: User, *, actor: User) -> str:
    """Give a person a new password, shown once, to be changed at the next sign-in; their open sessions end."""
    password = generate_password()
    with transaction.atomic():
        person.set_password(password)
        person.must_change_password = True
        person.save(update_fields=["password", "must_change_password"])
        record(actor=actor, action="person.reset_password", target=person.username)
    return password


def change_own_password(person: User, *, current: str, new: str) -> None:
    """Change one's own password after the current one was given."""
    if not person.check_password(current):
        raise Refused(_("This is not your current password."), field="current")
    try:
        validate_password(new, person)
    except ValidationError as error:
        raise Refused(" ".join(error.messages), field="new") from None
    with transaction.atomic():
        person.set_password(new)
        person.must_change_password = False
        person.save(update_fields=["password", "must_change_password"])
        record(actor=person, action="person.change_password", target=person.username)


def _keep_an_admin(person: User) -> None:
    others = User.objects.select_for_update().filter(role=Role.ADMIN, is_active=True).exclude(pk=person.pk)
    if person.role == Role.ADMIN and person.is_active and not others.exists():
        raise Refused(_("%(name)s is the last admin. Make another person admin first.") % {"name": person.username})

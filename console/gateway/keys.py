"""Gateway keys: make, change, rotate, revoke."""

import hashlib
import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.common import live
from console.common.errors import Refused
from console.gateway import bell
from console.gateway.models import Key, Route, TeamLimits

PREFIX = "sk-"
LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrency", "daily_tokens")


def digest(secret: str) -> str:
    """What is stored of a key. A key has 256 bits by chance, so that a plain digest can't be guessed back."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create(
    *,
    name: str,
    owner: User | None,
    routes: Iterable[Route] | None,
    expires_at: datetime | None,
    actor: User | None,
    team_id: int | None,
    **limits: int | None,
) -> tuple[Key, str]:
    """Make a key; returns it and the secret, which is not stored. `routes` None: every route of the team."""
    secret = PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        key = Key.objects.create(
            name=name,
            team_id=team_id,
            sha256=digest(secret),
            shown=_shown(secret),
            owner=owner,
            all_routes=routes is None,
            expires_at=expires_at,
            created_by=actor,
            **limits,
        )
        if routes is not None:
            key.routes.set(_of_team(routes, team_id))
        _record(key, "key.create", actor, expires=expires_at)
    return key, secret


def change(key: Key, *, actor: User, routes: Iterable[Route] | None, **fields: Any) -> None:
    """Change a key's name, owner, expiry, routes or limits; the secret stays."""
    with transaction.atomic():
        locked = Key.objects.select_for_update().get(pk=key.pk)
        if locked.revoked_at:
            raise Refused(_("%(key)s is revoked. Make a new one.") % {"key": locked})
        for field, value in fields.items():
            setattr(locked, field, value)
        locked.all_routes = routes is None
        locked.save()
        locked.routes.set(_of_team(routes or [], locked.team_id))
        _record(locked, "key.change", actor, expires=locked.expires_at)


def rotate(key: Key, *, overlap: timedelta, actor: User, reason: str) -> tuple[Key, str]:
    """Make a successor with the same rights; the old key goes on working for `overlap`, then it expires."""
    with transaction.atomic():
        old = Key.objects.select_for_update().get(pk=key.pk)
        if not old.is_usable:
            raise Refused(_("%(key)s is no longer valid. Make a new one.") % {"key": old})
        if Key.objects.filter(replaces=old).exists():
            raise Refused(_("%(key)s has a successor already. Rotate that one.") % {"key": old})
        limits = {name: getattr(old, name) for name in LIMITS}
        new, secret = create(
            name=old.name,
            owner=old.owner,
            routes=None if old.all_routes else old.routes.all(),
            expires_at=old.expires_at,
            actor=actor,
            team_id=old.team_id,
            **limits,
        )
        Key.objects.filter(pk=new.pk).update(replaces=old)
        ends = timezone.now() + overlap
        old.expires_at = min(old.expires_at, ends) if old.expires_at else ends
        old.save(update_fields=["expires_at"])
        _record(old, "key.rotate", actor, reason=reason, expires=old.expires_at)
    return new, secret


def revoke(key: Key, *, actor: User | None, reason: str) -> None:
    """End a key now and for good: the gateway refuses it within two seconds."""
    with transaction.atomic():
        locked = Key.objects.select_for_update().get(pk=key.pk)
        if locked.revoked_at:
            return
        locked.revoked_at = timezone.now()
        locked.save(update_fields=["revoked_at"])
        _record(locked, "key.revoke", actor, reason=reason)


def _of_team(routes: Iterable[Route], team_id: int | None) -> list[Route]:
    return [route for route in routes if route.team_id == team_id]


def _shown(secret: str) -> str:
    return f"{secret[:7]}…{secret[-4:]}"


def _record(key: Key, action: str, actor: User | None, *, reason: str = "", expires: datetime | None = None) -> None:
    details = {"expires": expires.isoformat()} if expires else {}
    access.record(
        actor=actor,
        action=action,
        target=f"{key.name} {key.shown}",
        target_url=f"/keys/{key.pk}/",
        reason=reason,
        **details,
    )
    bell.ring()
    live.changed("key", key.pk)


def limit_team(limits: TeamLimits, *, actor: User) -> None:
    """Change what all keys of a team may take together."""
    with transaction.atomic():
        limits.save()
        given = {name: getattr(limits, name) for name in LIMITS}
        access.record(actor=actor, action="team.limit", target=str(limits.team), target_url="/keys/", **given)
        bell.ring()
        live.changed("key")

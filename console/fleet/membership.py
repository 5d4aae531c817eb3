"""How a host, or a gateway elsewhere, becomes a member: a token that is good once and for one hour, then a broker user."""

import hashlib
import re
import secrets
from datetime import timedelta
from typing import TypeVar

from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from redis.exceptions import RedisError

from console.common.errors import Refused
from console.fleet import broker_users
from console.fleet.models import Member
from workers.contracts import HOST_NAME_PATTERN
from workers.sealing import SealingError, seal

JOIN_TOKEN_HOURS = 1
_JOINED_FIELDS = (
    "public_key",
    "redis_password_sha256",
    "join_token_sha256",
    "join_token_expires_at",
    "next_password",
    "next_key",
)

M = TypeVar("M", bound=Member)


def give_token(member: Member) -> str:
    """Set a new join token on a member, which the caller saves; it is stored hashed, so only now it can be shown.

    One in 64 of the bare ones begins with a hyphen, which a command line takes for an option.
    """
    token = f"join-{secrets.token_urlsafe(32)}"
    member.join_token_sha256 = _hash(token)
    member.join_token_expires_at = timezone.now() + timedelta(hours=JOIN_TOKEN_HOURS)
    return token


def refuse_bad_name(name: str) -> None:
    """Raise Refused unless a member may be called this."""
    if not re.match(HOST_NAME_PATTERN, name):
        raise Refused(_("Use lower-case letters, digits and inner hyphens, 32 at most."), field="name")


def by_token(rows: QuerySet[M], token: str) -> M:
    """The member whose token that is. Refused if it is nobody's, or its hour is over."""
    member = rows.filter(join_token_sha256=_hash(token)).first() if token else None
    if member is None:
        raise Refused(
            _("This join token is not known. It may have been used already: make a new one on the console's page.")
        )
    if member.join_token_expires_at is None or member.join_token_expired:
        raise Refused(_("This join token has expired. Make a new one on the console's page."))
    return member


def refuse_bad_key(public_key: str) -> None:
    """Raise Refused unless something can be sealed to this key."""
    try:
        seal(public_key, "test")
    except SealingError as error:
        raise Refused(_("The public key can't be used: %(error)s.") % {"error": error}) from None


def let_in(member: Member, public_key: str) -> str:
    """Spend its token, store its key and make its broker user; returns the password. Refused while the broker is away.

    Called in a transaction.
    """
    password = secrets.token_urlsafe(32)
    member.public_key = public_key
    member.redis_password_sha256 = broker_users.digest(password)
    member.join_token_sha256, member.join_token_expires_at = "", None
    member.next_password, member.next_key = "", False
    member.save(update_fields=_JOINED_FIELDS)
    try:
        broker_users.ensure(member)
    except RedisError as error:
        raise Refused(_("The broker does not answer, so nobody can join now: %(error)s") % {"error": error}) from None
    return password


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()

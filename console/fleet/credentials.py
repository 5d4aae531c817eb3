"""New credentials for a host: a new password for the broker and, if asked, a new key pair.

Two passwords hold while the host switches; the old one dies when the host was heard of with the new one. So neither side
can lock the other out, whatever fails in between, and reports wait in the host's outbox meanwhile.
"""

import secrets

import structlog
from django.db import transaction
from django.utils.translation import gettext as _
from redis.exceptions import RedisError

from console.access import services as access
from console.access.models import User
from console.common import live
from console.common.errors import Refused
from console.common.secrets import decrypt, encrypt
from console.fleet import broker_users, desired
from console.fleet.models import Host, Member
from workers.contracts import CredentialsOrder, Heartbeat
from workers.sealing import SealingError, seal

log = structlog.get_logger(__name__)


def rotate(host: Host, *, new_key: bool, actor: User, reason: str) -> None:
    """Order new credentials; the host takes them when it reads its desired state, now or when it is back."""
    with transaction.atomic():
        host = Host.objects.select_for_update().get(pk=host.pk)
        begin(host, new_key=new_key)
        access.record(
            actor=actor, action="host.rotate_credentials", target=host.name, target_url=f"/hosts/{host.pk}/",
            reason=reason, new_key=new_key,
        )  # fmt: skip
        desired.change(host)
        live.changed("host", host.pk)


def begin(member: Member, *, new_key: bool) -> None:
    """Make a new password that holds beside the old one. Called in a transaction that has the row locked. Refused as said."""
    if not member.public_key:
        raise Refused(_("%(host)s has not joined, so it has no credentials yet.") % {"host": member})
    if member.next_password:
        raise Refused(_("%(host)s has not switched to its last new credentials yet.") % {"host": member})
    member.credentials += 1
    member.next_password, member.next_key = encrypt(secrets.token_urlsafe(32)), new_key
    member.save(update_fields=["credentials", "next_password", "next_key"])
    try:
        broker_users.ensure(member)
    except RedisError as error:
        raise Refused(
            _("The broker does not answer, so nothing can be rotated now: %(error)s") % {"error": error}
        ) from None


def order(member: Member) -> CredentialsOrder | None:
    """What it is told while it has not switched."""
    if not member.next_password:
        return None
    password = seal(member.public_key, decrypt(member.next_password))
    return CredentialsOrder(number=member.credentials, sealed_password=password, new_key=member.next_key)


def settle(host: Host, heartbeat: Heartbeat) -> None:
    """Has the host switched? Then its old password dies now, with whoever is connected by it."""
    if not has_switched(host, number=heartbeat.credentials, public_key=heartbeat.public_key):
        return
    with transaction.atomic():
        take(host, heartbeat.public_key)
        access.record(actor=None, action="host.credentials_in_use", target=host.name, target_url=f"/hosts/{host.pk}/")
        # What is sealed to the old key is sealed anew, and the order itself is taken out.
        desired.change(host)
        live.changed("host", host.pk)
    end_old(host)


def has_switched(member: Member, *, number: int, public_key: str) -> bool:
    """Is what it tells of by the new credentials, and can its new key be used, where one was asked for?"""
    if not member.next_password or number != member.credentials:
        return False
    if member.next_key:
        try:
            seal(public_key, "test")
        except SealingError:
            log.exception("the new public key can't be used, both passwords stay", host=member.name)
            return False
    return True


def take(member: Member, public_key: str) -> None:
    """Only the new password holds from now on, and what is sealed is sealed to the new key, where one was asked for."""
    member.redis_password_sha256 = broker_users.digest(decrypt(member.next_password))
    if member.next_key:
        member.public_key = public_key
    member.next_password, member.next_key = "", False
    member.save(update_fields=["redis_password_sha256", "public_key", "next_password", "next_key"])


def end_old(member: Member) -> None:
    """Forget the old password in the broker, and close what is connected by it."""
    try:
        broker_users.settle(member)
        broker_users.end_connections(member)
    except RedisError as error:
        # The beat compares passwords and makes up for it.
        log.warning("the old password lives on for now", host=member.name, error=str(error))

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
from console.fleet.models import Host
from workers.contracts import CredentialsOrder, Heartbeat
from workers.sealing import SealingError, seal

log = structlog.get_logger(__name__)


def rotate(host: Host, *, new_key: bool, actor: User, reason: str) -> None:
    """Order new credentials; the host takes them when it reads its desired state, now or when it is back."""
    with transaction.atomic():
        host = Host.objects.select_for_update().get(pk=host.pk)
        if not host.public_key:
            raise Refused(_("%(host)s has not joined, so it has no credentials yet.") % {"host": host})
        if host.next_password:
            raise Refused(_("%(host)s has not switched to its last new credentials yet.") % {"host": host})
        host.credentials += 1
        host.next_password, host.next_key = encrypt(secrets.token_urlsafe(32)), new_key
        host.save(update_fields=["credentials", "next_password", "next_key"])
        access.record(
            actor=actor, action="host.rotate_credentials", target=host.name, target_url=f"/hosts/{host.pk}/",
            reason=reason, new_key=new_key,
        )  # fmt: skip
        try:
            broker_users.ensure(host)
        except RedisError as error:
            raise Refused(
                _("The broker does not answer, so nothing can be rotated now: %(error)s") % {"error": error}
            ) from None
        desired.change(host)
        live.changed("host", host.pk)


def order(host: Host) -> CredentialsOrder | None:
    """What stands in the host's desired state while it has not switched."""
    if not host.next_password:
        return None
    password = seal(host.public_key, decrypt(host.next_password))
    return CredentialsOrder(number=host.credentials, sealed_password=password, new_key=host.next_key)


def settle(host: Host, heartbeat: Heartbeat) -> None:
    """Has the host switched? Then its old password dies now, with whoever is connected by it."""
    if not host.next_password or heartbeat.credentials != host.credentials:
        return
    fields = {"redis_password_sha256": broker_users.digest(decrypt(host.next_password)), "next_password": ""}
    if host.next_key:
        try:
            seal(heartbeat.public_key, "test")
        except SealingError:
            log.exception("the new public key can't be used, the host keeps both passwords", host=host.name)
            return
        fields["public_key"] = heartbeat.public_key
    with transaction.atomic():
        Host.objects.filter(pk=host.pk).update(**fields, next_key=False)
        host.refresh_from_db()
        access.record(actor=None, action="host.credentials_in_use", target=host.name, target_url=f"/hosts/{host.pk}/")
        # What is sealed to the old key is sealed anew, and the order itself is taken out.
        desired.change(host)
        live.changed("host", host.pk)
    try:
        broker_users.settle(host.pk)
        broker_users.end_connections(host)
    except RedisError as error:
        # The beat compares passwords and makes up for it.
        log.warning("the old password lives on for now", host=host.name, error=str(error))

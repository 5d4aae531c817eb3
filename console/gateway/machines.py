"""Gateways on other machines: add, let join, rotate, remove."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _
from pydantic import ValidationError
from redis.exceptions import RedisError

from console import env
from console.access import services as access
from console.access.models import User
from console.common import broker, live
from console.common.errors import Refused
from console.fleet import broker_users, credentials, joining, membership
from console.gateway import bell
from console.gateway.models import GatewayMachine, LogCursor
from workers.gateway import messages
from workers.gateway.description import Gateway, Server
from workers.gateway.messages import Order, Told

PAGE = "/gateways/"


@dataclass(frozen=True)
class Credentials:
    """What a gateway needs to take part."""

    gateway: str
    redis_url: str
    console_url: str
    console_ca: str
    broker_ca: str


def add(*, name: str, actor: User) -> tuple[GatewayMachine, str]:
    """Add a gateway and return it with its join token: shown once, stored hashed, good for one hour and one use."""
    membership.refuse_bad_name(name)
    machine = GatewayMachine(name=name, team_id=actor.team_id)
    token = membership.give_token(machine)
    try:
        with transaction.atomic():
            machine.save(force_insert=True)
            _record(machine, "gateway.add", actor=actor)
    except IntegrityError:
        raise Refused(_("There is a gateway with this name already."), field="name") from None
    return machine, token


def renew_token(machine: GatewayMachine, *, actor: User) -> str:
    """Make a new join token for a gateway that has not joined, or that shall join anew."""
    token = membership.give_token(machine)
    with transaction.atomic():
        machine.save(update_fields=["join_token_sha256", "join_token_expires_at"])
        _record(machine, "gateway.renew_token", actor=actor)
    return token


def join(*, token: str, public_key: str) -> Credentials:
    """Let the gateway with this token in."""
    machine = membership.by_token(GatewayMachine.objects.filter(leaving_since=None), token)
    membership.refuse_bad_key(public_key)
    with transaction.atomic():
        password = membership.let_in(machine, public_key)
        machine.joined_at = timezone.now()
        machine.save(update_fields=["joined_at"])
        # Whoever was this gateway before is no longer.
        _end_connections(machine)
        _record(machine, "gateway.join", actor=None)
        bell.ring()
    return Credentials(
        gateway=machine.name,
        redis_url=broker_users.url_for(machine, password),
        console_url=env.hosts_url(),
        console_ca=joining.console_authority(),
        broker_ca=joining.broker_authority(),
    )


def _end_connections(machine: GatewayMachine) -> None:
    try:
        broker_users.end_connections(machine)
    except RedisError as error:
        raise Refused(_("The broker does not answer, so nobody can join now: %(error)s") % {"error": error}) from None


def rotate(machine: GatewayMachine, *, new_key: bool, actor: User, reason: str) -> None:
    """Order new credentials; the gateway takes them when it reads its order, now or when it is back."""
    with transaction.atomic():
        locked = GatewayMachine.objects.select_for_update().get(pk=machine.pk)
        credentials.begin(locked, new_key=new_key)
        _record(locked, "gateway.rotate_credentials", actor=actor, reason=reason, new_key=new_key)
        bell.ring()


def settle(machine: GatewayMachine, told: Told) -> None:
    """Has it switched to its new credentials? Then the old ones die now."""
    if not credentials.has_switched(machine, number=told.credentials, public_key=told.public_key):
        return
    with transaction.atomic():
        credentials.take(machine, told.public_key)
        _record(machine, "gateway.credentials_in_use", actor=None)
    credentials.end_old(machine)


def remove(machine: GatewayMachine, *, actor: User, reason: str) -> None:
    """Order it to end, and forget it once it has; one that is not heard of is forgotten at once, and can't come back."""
    with transaction.atomic():
        _record(machine, "gateway.remove", actor=actor, reason=reason)
        if told_by(machine) is None:
            forget(machine)
        else:
            GatewayMachine.objects.filter(pk=machine.pk).update(leaving_since=timezone.now())
        bell.ring()


def forget(machine: GatewayMachine) -> None:
    """Its broker user, its keys and its row are gone."""
    with transaction.atomic():
        # Under the row's lock, as `broker_users.settle`: nobody brings its user back meanwhile.
        if GatewayMachine.objects.select_for_update().filter(pk=machine.pk).first() is None:
            return
        _forget_in_broker(machine)
        LogCursor.objects.filter(file__startswith=f"{machine.name}/").delete()
        machine.delete()
        live.changed("gateway")


def _forget_in_broker(machine: GatewayMachine) -> None:
    try:
        broker_users.remove(machine)
        connection = broker.connection()
        for key in connection.scan_iter(match=f"{machine.broker_prefix}*", count=500):
            connection.delete(key)
    except RedisError as error:
        raise Refused(
            _("The broker does not answer, so it can't be removed now: %(error)s") % {"error": error}
        ) from None


def told_by(machine: GatewayMachine) -> Told | None:
    """What it said within the last quarter of a minute; None if nothing, or nothing that can be understood."""
    try:
        text = broker.connection().get(messages.told_key(machine.name))
        return Told.model_validate_json(text) if text else None
    except (RedisError, ValidationError):
        return None


def ordered(machine: GatewayMachine) -> Order | None:
    """What it was ordered last."""
    try:
        text = broker.connection().get(messages.order_key(machine.name))
        return Order.model_validate_json(text) if text else None
    except (RedisError, ValidationError):
        return None


def live_servers() -> list[dict[str, object]] | None:
    """The servers of all gateways elsewhere; None while one of them is not heard of, or has not what it was ordered."""
    found: list[dict[str, object]] = []
    for machine in GatewayMachine.objects.exclude(redis_password_sha256="").filter(leaving_since=None):
        told, order = told_by(machine), ordered(machine)
        if told is None or order is None or told.digest != order.digest:
            return None
        found += [one for one in told.status.servers if {"backend", "instance"} <= one.keys()]
    return found


def for_others(gateway: Gateway) -> Gateway:
    """The description for another machine: without servers that answer on loopback, which would be another one's there."""
    routes = tuple(
        replace(
            route,
            targets=tuple(
                replace(target, servers=tuple(one for one in target.servers if not _is_loopback(one.address)))
                for target in route.targets
            ),
        )
        for route in gateway.routes
    )
    # Files and addresses of this machine are nothing to the other one, which has its own.
    listener = replace(gateway.listener, directory="", lua="", address="", certificate="", certificate_sha256="")
    return replace(gateway, listener=listener, routes=routes)


def unreachable(gateway: Gateway) -> int:
    """How many servers another machine can't reach, since they answer on loopback only."""
    return sum(_is_loopback(one.address) for one in _servers(gateway))


def _servers(gateway: Gateway) -> Iterable[Server]:
    return {
        (one.instance, one.address): one
        for route in gateway.routes
        for target in route.targets
        for one in target.servers
    }.values()


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("::1", "localhost")


def _record(machine: GatewayMachine, action: str, *, actor: User | None, reason: str = "", **details: Any) -> None:
    access.record(actor=actor, action=action, target=machine.name, target_url=PAGE, reason=reason, **details)
    live.changed("gateway", machine.pk)

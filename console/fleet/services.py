"""Hosts: adding, joining, hearing from them, removing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from redis.exceptions import RedisError

from console import env
from console.access import services as access
from console.access.models import User
from console.common import broker, live
from console.common.errors import Refused
from console.fleet import broker_users, credentials, desired, devices, joining, membership
from console.fleet.models import Engine, Host, UnreadReport
from workers.contracts import Heartbeat, HostInventory, key_prefix

_on_removal: list[Callable[[Host, User, str], None]] = []
_on_join: list[Callable[[Host], None]] = []

_SLOWER_COUNTS = 0.05
"""Share that one heartbeat has in what is believed of a host's clock when it makes that look slower."""


@dataclass(frozen=True)
class Credentials:
    """What a host needs to take part: its Redis address with user and password, and its ports."""

    host: str
    redis_url: str
    console_url: str
    port_first: int
    port_last: int
    console_ca: str = ""
    """Certificate authority (PEM) of the console's address; empty: the host's own trust counts."""
    broker_ca: str = ""
    """The same for the broker."""


def add_host(*, name: str, actor: User | None) -> tuple[Host, str]:
    """Add a host and return it with its join token: shown once, stored hashed, good for one hour and one use."""
    membership.refuse_bad_name(name)
    first, last = env.environment().instance_port_range
    host = Host(name=name, team_id=actor.team_id if actor else 1, port_first=first, port_last=last)
    token = membership.give_token(host)
    try:
        with transaction.atomic():
            host.save(force_insert=True)
            access.record(actor=actor, action="host.add", target=name, target_url=f"/hosts/{host.pk}/")
            live.changed("host", host.pk)
    except IntegrityError:
        raise Refused(_("There is a host with this name already."), field="name") from None
    return host, token


def renew_join_token(host: Host, *, actor: User | None) -> str:
    """Make a new join token for a host that has not joined, or that shall join anew."""
    token = membership.give_token(host)
    with transaction.atomic():
        host.save(update_fields=["join_token_sha256", "join_token_expires_at"])
        access.record(actor=actor, action="host.renew_token", target=host.name, target_url=f"/hosts/{host.pk}/")
    return token


def join(*, token: str, public_key: str) -> Credentials:
    """Let the host with this token in: store its public key, make its broker user, return its credentials."""
    host = membership.by_token(Host.objects.all(), token)
    membership.refuse_bad_key(public_key)
    with transaction.atomic():
        password = membership.let_in(host, public_key)
        for callback in _on_join:
            callback(host)
        access.record(actor=None, action="host.join", target=host.name, target_url=f"/hosts/{host.pk}/")
        live.changed("host", host.pk)
    desired.publish(host.pk)
    return Credentials(
        host=host.name,
        redis_url=broker_users.url_for(host, password),
        console_url=env.hosts_url(),
        port_first=host.port_first,
        port_last=host.port_last,
        console_ca=joining.console_authority(),
        broker_ca=joining.broker_authority(),
    )


def set_ports(host: Host, *, first: int, last: int, actor: User) -> str:
    """Set which ports instances of this host may use, and say what that means for those that run.

    Refused for a range that a specification's fixed port lies outside of, or that another host of the same machine has.
    """
    if not 1024 <= first <= last <= 65535:
        raise Refused(
            _("Give a first and a last port between 1024 and 65535, the first not above the last."), field="last"
        )
    fixed = host.specs.filter(deployment__current_spec=F("pk")).exclude(port=None)
    if outside := fixed.exclude(port__range=(first, last)).select_related("deployment").first():
        raise Refused(
            _("%(name)s asks for port %(port)d, which would lie outside. Change that deployment first.")
            % {"name": outside.deployment, "port": outside.port},
            field="last",
        )
    if neighbour := _on_same_machine(host, first, last):
        raise Refused(
            _("%(name)s is on the same machine and has ports %(first)d–%(last)d. Choose a range that doesn't overlap.")
            % {"name": neighbour.name, "first": neighbour.port_first, "last": neighbour.port_last},
            field="first",
        )
    with transaction.atomic():
        Host.objects.filter(pk=host.pk).update(port_first=first, port_last=last)
        access.record(
            actor=actor, action="host.ports", target=host.name, target_url=f"/hosts/{host.pk}/",
            before=f"{host.port_first}-{host.port_last}", after=f"{first}-{last}",
        )  # fmt: skip
        live.changed("host", host.pk)
    kept = list(
        host.instances.filter(ordered=True).exclude(port__range=(first, last)).exclude(port=None).order_by("port")
    )
    said = _("Instances of %(host)s now take ports %(first)d–%(last)d.") % {"host": host, "first": first, "last": last}
    if kept:
        names = ", ".join(f"{one} ({one.port})" for one in kept)
        said += " " + _("Until their next start these keep a port outside: %(names)s.") % {"names": names}
    return said


def _on_same_machine(host: Host, first: int, last: int) -> Host | None:
    """Another host whose agent runs on this machine and whose ports overlap: they would take each other's."""
    boot = (host.facts or {}).get("boot_id")
    others = Host.objects.filter(port_first__lte=last, port_last__gte=first).exclude(pk=host.pk).exclude(public_key="")
    same = (other for other in others if boot and (other.facts or {}).get("boot_id") == boot)
    return next((other for other in same if (other.facts or {}).get("hostname") == host.facts.get("hostname")), None)


def on_removal(callback: Callable[[Host, User, str], None]) -> None:
    """Register what an app does when a host is removed. Called once, from an app's `ready`."""
    if callback not in _on_removal:
        _on_removal.append(callback)


def on_join(callback: Callable[[Host], None]) -> None:
    """Register what an app does when a host joins, for the first time or again. Called once, from an app's `ready`."""
    if callback not in _on_join:
        _on_join.append(callback)


def remove_host(host: Host, *, actor: User, reason: str, force: bool = False) -> None:
    """Forget a host: its broker user is gone at once, and its connections with it.

    Refused while instances are ordered there, unless `force`: they are given up then, and may go on running unseen.
    """
    running = host.instances.filter(ordered=True).count()
    if running and not force:
        raise Refused(
            ngettext(
                "%(count)d instance runs on %(host)s. Drain it first, or remove it by force.",
                "%(count)d instances run on %(host)s. Drain it first, or remove it by force.",
                running,
            )
            % {"count": running, "host": host.name}
        )
    with transaction.atomic():
        # Whoever makes users in the broker waits for this lock, and finds the row as it is afterwards.
        Host.objects.select_for_update().filter(pk=host.pk).first()
        access.record(
            actor=actor, action="host.remove", target=host.name, reason=reason, force=force, instances=running
        )
        for callback in _on_removal:
            callback(host, actor, reason)
        _forget_in_broker(host)
        if host.steps.exists() or host.specs.exists():
            # The ledger still names this host, so the row stays; without a password and a key it can't come back unasked.
            Host.objects.filter(pk=host.pk).update(
                redis_password_sha256="", public_key="", join_token_sha256="", next_password="", last_seen_at=None
            )
            host.engines.update(present=False)  # its inventory brings them back, should it join again
        else:
            host.delete()
        live.changed("host", host.pk)


def _forget_in_broker(host: Host) -> None:
    try:
        broker_users.remove(host)
        connection = broker.connection()
        for key in connection.scan_iter(match=f"{key_prefix(host.name)}*", count=500):
            connection.delete(key)
    except RedisError as error:
        raise Refused(
            _(
                "The broker does not answer, so the host can't be removed now: %(error)s. Nothing was changed; try again."
            )
            % {"error": error}
        ) from None


def heard(host: Host, heartbeat: Heartbeat) -> None:
    """Note a sign of life. The host's clock is compared with ours and shown, and decides nothing."""
    now = timezone.now()
    was_online = host.is_online
    host.last_seen_at = now
    if not was_online:
        host.online_since = now
    host.clock_skew_seconds = _skew(host.clock_skew_seconds, heartbeat.at - now.timestamp())
    host.agent_version = heartbeat.agent_version
    host.contract = heartbeat.contract
    host.agent_boot = heartbeat.agent_boot
    summary = devices.note_vitals(host, heartbeat.vitals)
    host.running_steps = heartbeat.running_steps
    if heartbeat.generation:
        host.reflected_epoch, host.reflected_generation = heartbeat.generation.epoch, heartbeat.generation.number
    host.save(
        update_fields=[
            "last_seen_at",
            "online_since",
            "clock_skew_seconds",
            "agent_version",
            "contract",
            "agent_boot",
            *summary,
            "running_steps",
            "reflected_epoch",
            "reflected_generation",
        ]
    )
    credentials.settle(host, heartbeat)
    if not was_online:
        live.changed("host", host.pk)


def _skew(before: float | None, seen: float) -> float:
    """How far the host's clock is ahead, in seconds, after a heartbeat that seemed to come from `seen` seconds ahead.

    Its way can only make a clock look slower. So what looks faster counts at once, and what looks slower only little by
    little: a heartbeat that waited half a minute is no clock that is wrong, and a clock that was set back shows in minutes.
    """
    if before is None or seen >= before:
        return round(seen, 3)
    return round(before + (seen - before) * _SLOWER_COUNTS, 3)


def take_inventory(host: Host, inventory: HostInventory) -> None:
    """Store what a host has. Devices that are gone stay, marked lost; engines that are gone stay, marked absent."""
    host.facts = inventory.facts
    host.agent_version, host.contract = inventory.agent_version, inventory.contract
    host.save(update_fields=["facts", "agent_version", "contract"])
    devices.take(host, inventory)
    keys = [engine.key for engine in inventory.engines]
    host.engines.exclude(key__in=keys).update(present=False)
    for engine in inventory.engines:
        Engine.objects.update_or_create(
            host=host,
            key=engine.key,
            defaults={**engine.model_dump(exclude={"key"}), "present": True, "seen_at": timezone.now()},
        )
    live.changed("host", host.pk)
    live.changed("engine")


def keep_unread(host: Host, *, content: str, problem: str) -> None:
    """Store a report that this console can't read, instead of dropping it."""
    UnreadReport.objects.create(host=host, content=content[:100_000], problem=problem[:2000])


def refuse_forged(host: Host, *, what: str, details: dict[str, Any]) -> None:
    """Audit a report about something that isn't this host's."""
    access.record(actor=None, action="report.refused", target=f"{host.name}: {what}", **details)

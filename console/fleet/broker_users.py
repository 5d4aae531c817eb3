"""The Redis user of each host and each gateway elsewhere: it can touch nothing outside its own key prefix.

The rules were proven with some forty attacks on another host's keys, on Valkey and on Redis; a test repeats them.
"""

import hashlib
from contextlib import suppress
from typing import TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from django.db import transaction
from redis.exceptions import RedisError, ResponseError

from console import env
from console.common.broker import command
from console.common.secrets import decrypt
from console.fleet.models import Member

M = TypeVar("M", bound=Member)

RULES = [
    "-@all",
    "+@read",
    "+@write",
    "+@transaction",
    "+@pubsub",
    "+@scripting",
    "+@connection",
    "+ping",
    "+info",
    "-@admin",
    "-@dangerous",
    "-keys",
    "-scan",
    "-randomkey",
    "-dbsize",
    "-pubsub",
    "-client",
    "-eval",
    "-eval_ro",
    "-function",
    "-script",
    "-fcall",
    "-fcall_ro",
    "-swapdb",
    "-move",
    "-sort",
    "-migrate",
    "-restore",
    "-flushdb",
    "-flushall",
    "+time",
    "+script|load",
    "+script|exists",
    "+client|setname",
    "+client|id",
    "+info",
]
"""What a host's user may do; the agent's tests run under the very same rules."""


def digest(password: str) -> str:
    """SHA-256 of a password, as Redis stores it."""
    return hashlib.sha256(password.encode()).hexdigest()


def url_for(member: Member, password: str) -> str:
    """Address of the broker for this host, with its user and `password`, and without paths that are the console's."""
    parts = urlsplit(env.hosts_redis_url())
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    place = f"{member.broker_user}:{quote(password)}@{name}:{parts.port or 6379}"
    return urlunsplit(parts._replace(netloc=place, query=without_files(parts.query)))


def _first_database(url: str) -> bool:
    parts = urlsplit(url)
    return dict(parse_qsl(parts.query)).get("db", parts.path.strip("/") or "0") == "0"


def without_files(query: str) -> str:
    """The options of a broker's address, less those that name files of the console: hosts get their content."""
    return urlencode([one for one in parse_qsl(query) if not one[0].startswith("ssl_")])


def ensure(member: Member) -> None:
    """Create or repair the host's Redis user. Raises RedisError when the broker is away."""
    prefix = member.broker_prefix
    arguments = ["reset", "on", *(f"#{one}" for one in accepted(member)), f"~{prefix}*", f"&{prefix}*"]
    arguments += [f"&{prefix}/0.celery.pidbox", f"&{prefix}/0.celeryev/worker.*", *RULES]
    if _first_database(env.hosts_redis_url()):
        # Clients select a database only when it is another than the first. The key prefix holds in all of them.
        arguments.append("-select")
    command("ACL", "SETUSER", member.broker_user, *arguments)
    with suppress(ResponseError):
        # From Redis 7.2 on, clients announce their library; older ones don't know the subcommand.
        command("ACL", "SETUSER", member.broker_user, "+client|setinfo")
    _save()


def accepted(member: Member) -> list[str]:
    """SHA-256 of the passwords that it may use: two while its credentials are being rotated, none unless it joined."""
    if not member.redis_password_sha256:
        return []
    return [member.redis_password_sha256, *([digest(decrypt(member.next_password))] if member.next_password else [])]


def end_connections(member: Member) -> None:
    """Close what is connected as this host: with a password that it no longer has, nobody connects again."""
    command("CLIENT", "KILL", "USER", member.broker_user)


def remove(member: Member) -> None:
    """Delete the host's Redis user; its connections are closed at once."""
    command("ACL", "DELUSER", member.broker_user)
    _save()


def settle(member: Member) -> None:
    """Make its Redis user what its row says now: there with its passwords, or gone. Raises RedisError.

    Under the row's lock, which a removal holds too: what was read before it must not bring its user back.
    """
    with transaction.atomic():
        now = type(member)._default_manager.select_for_update().filter(pk=member.pk).first()
        if now is None:
            return
        if now.redis_password_sha256:
            ensure(now)
        else:
            remove(now)


def unsettled(members: list[M]) -> list[M]:
    """Those whose user the broker has lost, or has by other passwords, or still has although they may not come in."""
    known: dict[str, set[str]] = {}
    for line in command("ACL", "LIST"):
        _user, name, *rules = line.split()
        known[name] = {rule[1:] for rule in rules if rule.startswith("#")}
    return [member for member in members if known.get(member.broker_user, set()) != set(accepted(member))]


def _save() -> None:
    # Without an ACL file the users live in memory only; the reconcile beat makes them again after a restart.
    with suppress(RedisError):
        command("ACL", "SAVE")

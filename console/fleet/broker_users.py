"""The Redis user of each host: it can touch nothing outside the host's own key prefix.

The rules were proven with some forty attacks on another host's keys, on Valkey and on Redis; a test repeats them.
"""

import hashlib
from contextlib import suppress
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from django.db import transaction
from redis.exceptions import RedisError, ResponseError

from console import env
from console.common.broker import command
from console.common.secrets import decrypt
from console.fleet.models import Host
from workers.contracts import key_prefix

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


def user_name(host: Host) -> str:
    """Name of the host's Redis user."""
    return f"host_{host.name}"


def digest(password: str) -> str:
    """SHA-256 of a password, as Redis stores it."""
    return hashlib.sha256(password.encode()).hexdigest()


def url_for(host: Host, password: str) -> str:
    """Address of the broker for this host, with its user and `password`, and without paths that are the console's."""
    parts = urlsplit(env.hosts_redis_url())
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    place = f"{user_name(host)}:{quote(password)}@{name}:{parts.port or 6379}"
    return urlunsplit(parts._replace(netloc=place, query=without_files(parts.query)))


def without_files(query: str) -> str:
    """The options of a broker's address, less those that name files of the console: hosts get their content."""
    return urlencode([one for one in parse_qsl(query) if not one[0].startswith("ssl_")])


def ensure(host: Host) -> None:
    """Create or repair the host's Redis user. Raises RedisError when the broker is away."""
    prefix = key_prefix(host.name)
    arguments = ["reset", "on", *(f"#{one}" for one in accepted(host)), f"~{prefix}*", f"&{prefix}*"]
    arguments += [f"&{prefix}/0.celery.pidbox", f"&{prefix}/0.celeryev/worker.*", *RULES]
    command("ACL", "SETUSER", user_name(host), *arguments)
    with suppress(ResponseError):
        # From Redis 7.2 on, clients announce their library; older ones don't know the subcommand.
        command("ACL", "SETUSER", user_name(host), "+client|setinfo")
    _save()


def accepted(host: Host) -> list[str]:
    """SHA-256 of the passwords that the host may use: two while its credentials are being rotated, none unless it joined."""
    if not host.redis_password_sha256:
        return []
    return [host.redis_password_sha256, *([digest(decrypt(host.next_password))] if host.next_password else [])]


def end_connections(host: Host) -> None:
    """Close what is connected as this host: with a password that it no longer has, nobody connects again."""
    command("CLIENT", "KILL", "USER", user_name(host))


def remove(host: Host) -> None:
    """Delete the host's Redis user; its connections are closed at once."""
    command("ACL", "DELUSER", user_name(host))
    _save()


def settle(host_pk: int) -> None:
    """Make the host's Redis user what its row says now: there with its passwords, or gone. Raises RedisError.

    Under the row's lock, which a removal holds too: what was read before it must not bring its user back.
    """
    with transaction.atomic():
        host = Host.objects.select_for_update().filter(pk=host_pk).first()
        if host is None:
            return
        if host.redis_password_sha256:
            ensure(host)
        else:
            remove(host)


def unsettled(hosts: list[Host]) -> list[Host]:
    """Hosts whose user the broker has lost, or has by other passwords, or still has although they may not come in."""
    known: dict[str, set[str]] = {}
    for line in command("ACL", "LIST"):
        _user, name, *rules = line.split()
        known[name] = {rule[1:] for rule in rules if rule.startswith("#")}
    return [host for host in hosts if known.get(user_name(host), set()) != set(accepted(host))]


def _save() -> None:
    # Without an ACL file the users live in memory only; the reconcile beat makes them again after a restart.
    with suppress(RedisError):
        command("ACL", "SAVE")

"""The Redis user of each host: it can touch nothing outside the host's own key prefix.

The rules were proven with some forty attacks on another host's keys, on Valkey and on Redis; a test repeats them.
"""

import hashlib
from contextlib import suppress

from redis.exceptions import RedisError, ResponseError

from console.common.broker import command
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


def ensure(host: Host) -> None:
    """Create or repair the host's Redis user. Raises RedisError when the broker is away."""
    prefix = key_prefix(host.name)
    arguments = ["reset", "on", f"#{host.redis_password_sha256}", f"~{prefix}*", f"&{prefix}*"]
    arguments += [f"&{prefix}/0.celery.pidbox", f"&{prefix}/0.celeryev/worker.*", *RULES]
    command("ACL", "SETUSER", user_name(host), *arguments)
    with suppress(ResponseError):
        # From Redis 7.2 on, clients announce their library; older ones don't know the subcommand.
        command("ACL", "SETUSER", user_name(host), "+client|setinfo")
    _save()


def remove(host: Host) -> None:
    """Delete the host's Redis user; its connections are closed at once."""
    command("ACL", "DELUSER", user_name(host))
    _save()


def missing(hosts: list[Host]) -> list[Host]:
    """Hosts that have joined but whose user the broker doesn't know (it lost its memory)."""
    known = set(command("ACL", "USERS"))
    return [host for host in hosts if host.redis_password_sha256 and user_name(host) not in known]


def _save() -> None:
    # Without an ACL file the users live in memory only; the reconcile beat makes them again after a restart.
    with suppress(RedisError):
        command("ACL", "SAVE")

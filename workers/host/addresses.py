"""Under which address other hosts reach this one."""

import ipaddress
import socket
from contextlib import suppress
from urllib.parse import urlsplit

from workers.host.failures import StepFailedError
from workers.host_config import HostConfig

_ANYWHERE = "192.0.2.1"
"""An address of the documentation's network: asking for the way there sends nothing, but tells the default route's end."""


def own_address(config: HostConfig, *, same_machine: bool) -> str:
    """The address to give to another host: the configured one, else the one with which this host reaches the broker.

    A loopback address will do for a host on the `same_machine` only; for others it is that of the default route. An
    address of the public internet is used only if someone configured it. Raises `StepFailedError` (`copy.no_address`).
    """
    if config.advertised_address:
        return config.advertised_address
    parts = urlsplit(config.redis_url)
    found = _way_to(parts.hostname or "127.0.0.1", parts.port or 6379)
    if _is_loopback(found) and not same_machine:
        found = _way_to(_ANYWHERE, 9)
    if not found or (_is_loopback(found) and not same_machine):
        raise _none_found("this host has no address but loopback, which the other host can't reach")
    if ipaddress.ip_address(found).is_global:
        raise _none_found(f"this host's address {found} is one of the public internet, and copies travel unencrypted")
    return found


def _none_found(why: str) -> StepFailedError:
    return StepFailedError(
        "copy.no_address",
        f"{why}",
        next_step="Set advertised_address in this host's host.json to an address in a private network, then restart its agent.",
    )


def _way_to(host: str, port: int) -> str:
    """Our own address on the way to `host`; empty if there is no way. Nothing is sent."""
    with suppress(OSError):
        for family, kind, _protocol, _name, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0]).partition("%")[0]
    return ""


def _is_loopback(address: str) -> bool:
    return bool(address) and ipaddress.ip_address(address).is_loopback

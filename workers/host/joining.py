"""Joining a console: a key pair for this host, its broker user, and the file that holds them."""

import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from workers.host.bootstrap import BootstrapError, pinned_authority
from workers.host_config import KEPT_KEYS, HostConfig, HostConfigError
from workers.sealing import generate_key_pair

_TIMEOUT_SECONDS = 30.0
_OF_THE_MACHINE = ("state_dir", "engines_dir", "models_dir", "advertised_address", "driver", "trusted_roots")
"""Settings that people of the machine make in its file: a host that joins anew keeps them."""


class JoinError(Exception):
    """The console did not let this host in; the message says why and what to do."""


def join(console_url: str, token: str, *, config: Path | None = None, ca_sha256: str = "") -> tuple[HostConfig, Path]:
    """Spend the one-time `token` and write the host's configuration (mode 0600); returns it with its path.

    `ca_sha256` pins the console's certificate authority; without it, an https address must have a certificate that this
    machine trusts. An existing file is left alone: JoinError says so before the token is spent.
    """
    url = address_of(console_url)
    if config is not None and config.exists():
        raise JoinError(f"{config} exists already. Move it away, or name another file with --config.")
    private, public = generate_key_pair()
    credentials = ask_to_join(url, "hosts", token, public, pinned(url, ca_sha256))
    name = str(credentials["host"])
    path = config or HostConfig.default_path(name)
    kept = _kept_settings(path)
    if path.exists():
        path.replace(path.with_suffix(".json.before-join"))
    first, last = credentials["port_range"]
    joined = HostConfig(
        name=name,
        redis_url=credentials["redis_url"],
        broker_ca=credentials.get("broker_ca", ""),
        console_url=credentials["console_url"],
        console_ca=credentials.get("console_ca", ""),
        private_key=private,
        port_range=(first, last),
        **({"state_dir": HostConfig.default_state_dir(name)} | kept),
    )
    joined.save(path)
    return joined, path


def address_of(console_url: str) -> str:
    """A console's address as it was given, without the last slash. Raises JoinError for what is none."""
    url = console_url.rstrip("/")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise JoinError(f"{console_url!r} is no address of a console; give it as https://slipway.example.com")
    return url


def _kept_settings(path: Path) -> dict[str, Any]:
    """What a host that joins anew keeps of its file: the machine's own settings, and keys that open what lies sealed here."""
    try:
        before = HostConfig.load(path)
    except HostConfigError:
        return {}
    own = {name: getattr(before, name) for name in _OF_THE_MACHINE}
    return own | {"retired_keys": list(before.private_keys)[:KEPT_KEYS]}


def pinned(url: str, ca_sha256: str) -> str:
    """The console's certificate authority (PEM), or nothing where none is pinned."""
    if not ca_sha256:
        return ""
    if not url.startswith("https://"):
        raise JoinError(f"--ca-sha256 is for an https address, and {url} is none")
    try:
        return pinned_authority(url, ca_sha256)
    except BootstrapError as error:
        raise JoinError(str(error)) from error


def trust(authority: str) -> ssl.SSLContext:
    """Whom a connection to the console believes: the pinned authority alone, or this machine's own list."""
    return ssl.create_default_context(cadata=authority or None)


def ask_to_join(url: str, what: str, token: str, public_key: str, authority: str) -> dict[str, Any]:
    """Spend a token; returns the credentials. `what`: `hosts` or `gateways`. Raises JoinError."""
    try:
        answer = httpx2.post(
            f"{url}/api/{what}/join",
            json={"token": token, "public_key": public_key},
            timeout=_TIMEOUT_SECONDS,
            verify=trust(authority),
        )
        content = answer.json()
    except (httpx2.HTTPError, ValueError) as error:
        raise JoinError(
            f"the console at {url} did not answer as one ({error}). Check the address and whether it can be reached from here."
        ) from error
    if not isinstance(content, dict):
        raise JoinError(f"{url} does not answer like a Slipway console")
    if answer.status_code != httpx2.codes.OK:
        raise JoinError(str(content.get("error", f"the console answered {answer.status_code}")))
    return content

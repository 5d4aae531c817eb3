"""Joining a console as its gateway: a key pair, a broker user, and the file that holds them."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workers.gateway import program
from workers.host.joining import JoinError, address_of, ask_to_join, pinned
from workers.host_config import GatewayConfig, HostConfigError
from workers.sealing import generate_key_pair

ORDER = "order.json"
"""The last order, in the gateway's folder: what holds while the console is away."""


@dataclass(frozen=True)
class Wishes:
    """How clients are served here, named as in `GatewayConfig`; None stays as this machine's gateway had it."""

    bind: str | None = None
    port: int | None = None
    certificate: str | None = None
    haproxy: str | None = None
    public_url: str | None = None

    def over(self, before: GatewayConfig | None) -> dict[str, Any]:
        """The settings, with those of a gateway that was here before where nothing else is wished."""
        kept = {name: getattr(before, name) for name in asdict(self)} if before else {}
        settings = kept | {name: wish for name, wish in asdict(self).items() if wish is not None}
        if settings.get("certificate"):
            settings["certificate"] = str(Path(settings["certificate"]).absolute())
        if "port" in settings:
            settings["peer_port"] = settings["port"] + 1
        return settings


def join(
    console_url: str, token: str, wishes: Wishes, *, config: Path | None = None, ca_sha256: str = ""
) -> tuple[GatewayConfig, Path]:
    """Spend the one-time `token` and write the gateway's configuration (mode 0600); returns it with its path.

    What could not work here (no HAProxy, no certificate at its place) raises JoinError before the token is spent.
    """
    url = address_of(console_url)
    if config is not None and config.exists():
        raise JoinError(f"{config} exists already. Move it away, or name another file with --config.")
    try:
        program.find(wishes.haproxy or "")
    except program.NoHAProxy as missing:
        raise JoinError(str(missing)) from None
    if wishes.certificate and not Path(wishes.certificate).is_file():
        raise JoinError(f"there is no file {wishes.certificate}. Name a PEM file with certificate and key.")
    private, public = generate_key_pair()
    given = ask_to_join(url, "gateways", token, public, pinned(url, ca_sha256))
    name = str(given["gateway"])
    path = config or GatewayConfig.default_path(name)
    before = _configured(path)
    if path.exists():
        path.replace(path.with_suffix(".json.before-join"))
    joined = GatewayConfig(
        name=name,
        redis_url=given["redis_url"],
        broker_ca=given.get("broker_ca", ""),
        console_url=given["console_url"],
        console_ca=given.get("console_ca", ""),
        private_key=private,
        state_dir=GatewayConfig.default_state_dir(name) if config is None else config.absolute().parent / "state",
        **wishes.over(before),
    )
    # It was meant for whoever was this gateway before, and may even say that this one ends.
    (joined.state_dir / ORDER).unlink(missing_ok=True)
    joined.save(path)
    return joined, path


def _configured(path: Path) -> GatewayConfig | None:
    try:
        return GatewayConfig.load(path)
    except HostConfigError:
        return None

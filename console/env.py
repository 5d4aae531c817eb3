"""Every environment variable that the console reads, with its type, default and meaning.

A wrong value stops the start with a message that names the variable, what is wrong with it, and what to set. The table in
docs/environment.md is checked against this module by a test.
"""

import json
import os
import re
import secrets
import sys
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography.fernet import Fernet
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class Environment(BaseSettings):
    """The console's environment variables. Field names are the variables' names in lower case."""

    model_config = SettingsConfigDict(env_prefix="", case_sensitive=False, extra="ignore", env_ignore_empty=True)

    slipway_home: Path = Field(
        default=Path("~/.local/share/slipway"), description="Folder for data, engines, models, logs and secrets."
    )
    slipway_bind: str = Field(default="127.0.0.1", description="Address on which `manage.py up` serves the console.")
    slipway_port: int = Field(
        default=8400,
        ge=1,
        le=65535,
        description="Preferred port of the console; the next free one is taken if it is held.",
    )
    slipway_public_url: str = Field(
        default="", description="Address under which people reach the console, such as https://slipway.example.com."
    )
    slipway_allowed_hosts: str = Field(
        default="127.0.0.1,localhost,[::1]",
        description="Host names under which the console answers, separated by commas.",
    )
    slipway_secret_key: str = Field(
        default="", description="Django's secret key; generated into SLIPWAY_HOME when empty."
    )
    slipway_encryption_keys: str = Field(
        default="",
        description="Fernet keys that encrypt stored secrets, newest first, separated by commas; generated when empty.",
    )
    slipway_https: bool = Field(
        default=False, description="True when people reach the console by HTTPS: secure cookies, HSTS, redirect."
    )
    slipway_debug: bool = Field(default=False, description="Django's debug mode. Never in production.")
    slipway_metrics_token: str = Field(
        default="",
        description="Token with which Prometheus reads /metrics and /prometheus/sd/; empty: only signed-in admins may.",
    )
    slipway_log_level: str = Field(default="INFO", description="DEBUG, INFO, WARNING or ERROR.")
    slipway_logs_keep_days: float = Field(
        default=30, gt=0, description="How many days after its end an engine's log stays on the console."
    )
    slipway_logs_keep_gib: float = Field(
        default=20,
        gt=0,
        description="Space for engine logs on the console in GiB; beyond it the oldest ended ones go first.",
    )
    slipway_time_zone: str = Field(default="UTC", description="Time zone of the pages, such as Europe/Berlin.")
    slipway_instance_ports: str = Field(
        default="18000-18999", description="First and last port that instances of a new host may use."
    )
    slipway_torch_index_url: str = Field(
        default="https://download.pytorch.org/whl/cpu",
        description="Extra package index for PyTorch's CPU build, used when the ordinary index lacks it.",
    )
    slipway_extra_indexes: str = Field(
        default="https://download.pytorch.org/whl/cpu,https://wheels.vllm.ai/nightly",
        description="Package indexes that an admin may add to the host's own when installing an engine, separated by commas.",
    )
    slipway_hosts_address: str = Field(
        default="",
        description="Addresses or names of this machine, separated by commas, at which `manage.py up` serves the console "
        "and its embedded broker to other machines, by TLS. Empty: to this machine only.",
    )
    slipway_hosts_port: int = Field(
        default=8443, ge=1, le=65535, description="Port of the console at SLIPWAY_HOSTS_ADDRESS."
    )
    slipway_hosts_broker_port: int = Field(
        default=6391, ge=1, le=65535, description="Port of the embedded broker at SLIPWAY_HOSTS_ADDRESS."
    )
    slipway_wheels_dir: str = Field(
        default="",
        description="Folder of wheels from which hosts without a package index install their agent; empty: they use "
        "their own index.",
    )
    slipway_gateway_bind: str = Field(
        default="127.0.0.1", description="Address on which the gateway serves models to clients."
    )
    slipway_gateway_port: int = Field(
        default=8480,
        ge=1,
        le=65535,
        description="Preferred port of the gateway; the next free one is taken if it is held.",
    )
    slipway_gateway_url: str = Field(
        default="", description="Address under which clients reach the gateway, such as https://models.example.com."
    )
    slipway_gateway_certificate: str = Field(
        default="", description="PEM file with certificate and key: the gateway speaks TLS and HTTP/2 then."
    )
    slipway_gateway_body_bytes: int = Field(
        default=2 * 1024 * 1024,
        ge=64 * 1024,
        le=64 * 1024 * 1024,
        description="Largest body of a request that the gateway takes, in bytes, from 65536 to 67108864 (64 MiB). Every "
        "buffer of HAProxy is that large.",
    )
    slipway_gateway_syslog: str = Field(
        default="",
        description="Where each request of the gateway goes as a line of syslog: udp://HOST:514 or tcp://HOST:PORT.",
    )
    slipway_gateway_otlp: str = Field(
        default="",
        description="Where each request of the gateway goes as a log record of OpenTelemetry, such as "
        "http://collector:4318/v1/logs.",
    )
    slipway_haproxy: str = Field(
        default="", description="HAProxy 2.6 or later with Lua; empty: the one that comes with the Python packages."
    )
    database_url: str = Field(
        default="", description="postgres://USER:PASSWORD@HOST:PORT/NAME; empty: SQLite in SLIPWAY_HOME."
    )
    redis_url: str = Field(
        default="", description="redis:// or rediss:// with a user that may manage ACLs; empty: an embedded broker."
    )

    @field_validator("slipway_home")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("slipway_log_level")
    @classmethod
    def _level(cls, value: str) -> str:
        if value.upper() not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
            raise ValueError("use DEBUG, INFO, WARNING or ERROR")
        return value.upper()

    @field_validator("slipway_time_zone")
    @classmethod
    def _zone(cls, value: str) -> str:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError("no such time zone; use a name such as UTC or Europe/Berlin") from None
        return value

    @field_validator("slipway_instance_ports")
    @classmethod
    def _ports(cls, value: str) -> str:
        first, _, last = value.partition("-")
        if not (first.isdigit() and last.isdigit() and 1024 <= int(first) <= int(last) <= 65535):
            raise ValueError("use FIRST-LAST with 1024 <= FIRST <= LAST <= 65535, such as 18000-18999")
        return value

    @field_validator("slipway_extra_indexes")
    @classmethod
    def _indexes(cls, value: str) -> str:
        for url in filter(None, (part.strip() for part in value.split(","))):
            if not url.startswith(("https://", "http://", "file:///")) or any(sign.isspace() for sign in url):
                raise ValueError("use addresses that begin with https://, http:// or file:///, separated by commas")
        return value

    @field_validator("slipway_hosts_address")
    @classmethod
    def _addresses(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",") if name.strip()]
        if not all(re.fullmatch(r"[0-9A-Za-z.-]+|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*", name) for name in names):
            raise ValueError("use addresses or host names, separated by commas, without port, such as 10.0.0.5")
        return ",".join(names)

    @field_validator("slipway_wheels_dir")
    @classmethod
    def _wheels(cls, value: str) -> str:
        if value and not Path(value).expanduser().is_dir():
            raise ValueError("there is no such folder")
        return value

    @field_validator("database_url")
    @classmethod
    def _database(cls, value: str) -> str:
        if value and not value.startswith(("postgres://", "postgresql://", "sqlite:///")):
            raise ValueError("use postgres://USER:PASSWORD@HOST:PORT/NAME or sqlite:///PATH, or leave it empty")
        return value

    @field_validator("redis_url")
    @classmethod
    def _redis(cls, value: str) -> str:
        if value and not value.startswith(("redis://", "rediss://")):
            raise ValueError("use redis://USER:PASSWORD@HOST:PORT/0 or rediss://…, or leave it empty")
        return value

    @field_validator("slipway_encryption_keys")
    @classmethod
    def _keys(cls, value: str) -> str:
        for key in filter(None, value.split(",")):
            try:
                Fernet(key.strip())
            except ValueError:
                raise ValueError("each key must be 32 bytes in URL-safe base64 (Fernet.generate_key())") from None
        return value

    @property
    def console_dir(self) -> Path:
        """Folder of the console's own data: database, broker, logs, secrets."""
        return self.slipway_home / "console"

    @property
    def extra_indexes(self) -> list[str]:
        """Package indexes that may be added to a host's own."""
        return [url for part in self.slipway_extra_indexes.split(",") if (url := part.strip())]

    @property
    def hosts_names(self) -> list[str]:
        """Addresses and names under which other machines reach this one; empty: they don't."""
        return self.slipway_hosts_address.split(",") if self.slipway_hosts_address else []

    @property
    def wheels_dir(self) -> Path | None:
        """Folder of wheels that hosts install from, or None."""
        return Path(self.slipway_wheels_dir).expanduser().absolute() if self.slipway_wheels_dir else None

    @property
    def instance_port_range(self) -> tuple[int, int]:
        """First and last port for instances."""
        first, _, last = self.slipway_instance_ports.partition("-")
        return int(first), int(last)


class Secrets:
    """Generated secrets of an embedded console, kept in `console/secrets.json` with mode 0600."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[str, str] = self._load()

    def _load(self) -> dict[str, str]:
        try:
            values: dict[str, str] = json.loads(self._path.read_text())
        except FileNotFoundError:
            return self._create()
        return values

    def _create(self) -> dict[str, str]:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        values = {
            "secret_key": secrets.token_urlsafe(50),
            "encryption_key": Fernet.generate_key().decode(),
            "broker_password": secrets.token_urlsafe(32),
        }
        draft = self._path.with_suffix(f".{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(values, file)
        try:
            # link, not rename: of two processes that start at once, the first one's secrets stand.
            os.link(draft, self._path)
        except FileExistsError:
            values = json.loads(self._path.read_text())
        draft.unlink()
        return values

    def __getitem__(self, name: str) -> str:
        return self._values[name]


@cache
def environment() -> Environment:
    """Read and check the environment once per process; exit with a plain message if a value is wrong."""
    try:
        return Environment()
    except ValidationError as error:
        sys.exit("\n".join(_explain(entry) for entry in error.errors()))


@cache
def generated_secrets() -> Secrets:
    """Read, or on first use generate, the console's own secrets."""
    return Secrets(environment().console_dir / "secrets.json")


def _explain(entry: Any) -> str:
    name = str(entry["loc"][0]).upper()
    field = Environment.model_fields[name.lower()]
    problem = entry["msg"].removeprefix("Value error, ")
    return f"{name}={entry['input']!s}: {problem}. It means: {field.description} Default: {field.default or 'empty'}."


def runtime_file() -> Path:
    """File in which `manage.py up` records the ports it chose."""
    return environment().console_dir / "runtime.json"


def runtime() -> dict[str, Any]:
    """Ports and addresses of the running console; empty if it was never started."""
    try:
        values: dict[str, Any] = json.loads(runtime_file().read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return values


def redis_url() -> str:
    """Address of the broker with the console's own credentials."""
    if environment().redis_url:
        return environment().redis_url
    port = runtime().get("broker_port", 6390)
    return f"redis://console:{generated_secrets()['broker_password']}@127.0.0.1:{port}/0"


def gateway_port() -> int:
    """Port of the gateway."""
    return int(runtime().get("gateway_port", environment().slipway_gateway_port))


def gateway_url() -> str:
    """Address of the gateway for clients, without a slash at its end and without `/v1`."""
    settled = environment()
    if settled.slipway_gateway_url:
        return settled.slipway_gateway_url.rstrip("/")
    bind = settled.slipway_gateway_bind
    address = "127.0.0.1" if bind in ("0.0.0.0", "::") else bind  # noqa: S104 - compared, not bound
    shown = f"[{address}]" if ":" in address else address
    return f"{'https' if settled.slipway_gateway_certificate else 'http'}://{shown}:{gateway_port()}"


def public_url() -> str:
    """Address of the console for people and hosts, without a slash at its end."""
    if environment().slipway_public_url:
        return environment().slipway_public_url.rstrip("/")
    return str(runtime().get("console_url", f"http://{environment().slipway_bind}:{environment().slipway_port}"))


def hosts_url() -> str:
    """Address of the console for other machines' agents: by TLS where `manage.py up` serves it, else as for people."""
    return str(runtime().get("hosts_url") or public_url())


def hosts_redis_url() -> str:
    """Address of the broker for hosts, without credentials that are theirs: by TLS where `manage.py up` serves it."""
    if environment().redis_url:
        return environment().redis_url
    return str(runtime().get("hosts_redis_url") or redis_url())


def serves_other_machines() -> bool:
    """True if a host on another machine can reach the console: its address is not a loopback one."""
    name = urlsplit(hosts_url()).hostname or ""
    return name != "localhost" and not name.startswith("127.") and name != "::1"

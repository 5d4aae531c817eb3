"""What is asked of the running HAProxy through its sockets, and told to it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workers.gateway import unix_sockets
from workers.gateway.config import check_of
from workers.gateway.description import Server
from workers.gateway.program import ADMIN_SOCKET, MASTER_SOCKET

SECONDS = 5.0
_MAINTENANCE, _DRAIN = 0x01, 0x08


class Away(Exception):
    """HAProxy does not answer on its socket."""


@dataclass(frozen=True)
class LiveServer:
    """A server as HAProxy has it."""

    backend: str
    name: str
    address: str
    port: int
    is_up: bool
    in_maintenance: bool
    draining: bool


class RuntimeApi:
    """The sockets of one HAProxy, in its folder."""

    def __init__(self, directory: Path) -> None:
        self._admin = directory / ADMIN_SOCKET
        self._master = directory / MASTER_SOCKET

    def ask(self, command: str) -> str:
        """Answer of the running worker. Raises Away."""
        return _exchange(self._admin, command)

    def reload(self) -> str:
        """Load the configuration file anew without dropping a request; returns what is wrong, empty if nothing."""
        answer = _exchange(self._master, "reload", seconds=30)
        return "" if answer.startswith("Success=1") else answer.strip()[:2000]

    def info(self) -> dict[str, str]:
        """`show info`: version, uptime, connections and so on."""
        lines = (line.partition(": ") for line in self.ask("show info").splitlines())
        return {name: value.strip() for name, _colon, value in lines if value}

    def map(self, path: Path) -> dict[str, str]:
        """What a map holds now."""
        found = {}
        for line in self.ask(f"show map {path}").splitlines():
            _address, _space, entry = line.partition(" ")
            key, _space, value = entry.partition(" ")
            if key:
                found[key] = value
        return found

    def replace_map(self, path: Path, entries: Mapping[str, str]) -> None:
        """Put new entries in the place of all old ones, in one step."""
        answer = self.ask(f"prepare map {path}")
        version = answer.rpartition(":")[2].strip()
        if not version.isdigit():
            raise Away(f"HAProxy did not prepare {path.name}: {answer.strip()}")
        lines = [f"{key} {value}" for key, value in sorted(entries.items())]
        # A command is read into one buffer, so a large map comes in pieces.
        for first in range(0, len(lines), 500):
            block = "\n".join(lines[first : first + 500])
            if said := self.ask(f"add map @{version} {path} <<\n{block}\n").strip():
                raise Away(f"HAProxy refused entries of {path.name}: {said}")
        self.ask(f"commit map @{version} {path}")

    def servers(self) -> dict[tuple[str, str], LiveServer]:
        """All servers of all backends, by backend and name."""
        found = {}
        for line in self.ask("show servers state").splitlines()[1:]:
            if line.startswith("#") or not line.strip():
                continue
            words = line.split()
            admin = int(words[6])
            one = LiveServer(
                backend=words[1],
                name=words[3],
                address=words[4],
                port=int(words[18]),
                is_up=words[5] in ("1", "2"),
                in_maintenance=bool(admin & _MAINTENANCE),
                draining=bool(admin & _DRAIN),
            )
            found[one.backend, one.name] = one
        return found

    def in_flight(self) -> dict[tuple[str, str], int]:
        """Requests that each server works on now, by backend and name."""
        lines = self.ask("show stat -1 4 -1").splitlines()
        columns = lines[0].removeprefix("# ").split(",") if lines else []
        rows = (dict(zip(columns, line.split(","), strict=False)) for line in lines[1:] if line.strip())
        return {(row["pxname"], row["svname"]): int(row["scur"] or 0) for row in rows if "scur" in row}

    def add(self, backend: str, server: Server, in_flight: int) -> str:
        """Add a server and let it take part; returns what is wrong, empty if nothing."""
        name = f"{backend}/{server.name}"
        options = f"{check_of(backend)} maxconn {in_flight} slowstart 10s"
        said = self.ask(f"add server {name} {server.address}:{server.port} {options}").strip()
        if said != "New server registered.":
            return said
        return self.ask(f"enable health {name};enable server {name}").strip()

    def set_state(self, backend: str, name: str, state: str) -> None:
        """`ready`, `drain` (finishes what it has begun) or `maint` (the same, and is not checked)."""
        self.ask(f"set server {backend}/{name} state {state}")

    def delete(self, backend: str, name: str) -> bool:
        """Forget a server; False while it still has requests."""
        self.set_state(backend, name, "maint")
        return "deleted" in self.ask(f"del server {backend}/{name}")


def _exchange(path: Path, command: str, *, seconds: float = SECONDS) -> str:
    try:
        return unix_sockets.exchange(path, command, seconds=seconds)
    except OSError as error:
        raise Away(f"HAProxy does not answer on {path.name}: {error}") from None

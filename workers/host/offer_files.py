"""What lies on disk of a copy that this host gives to another: the files to give, and where they are given.

`offers/<number>/files.json` is written by the step `serve_copy`, `open.json` by the server that the agent starts then.
"""

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workers.contracts import ManifestFile
from workers.host.files import read_json, write_json


@dataclass(frozen=True, slots=True)
class Opened:
    """Where the server of an offer listens."""

    address: str
    port: int
    pid: int

    @property
    def endpoint(self) -> str:
        """As the receiving host is told it."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"


class OfferFiles:
    """Typed access to one offer's directory below the host's state directory."""

    def __init__(self, state_dir: Path, number: int) -> None:
        self.directory = state_dir / "offers" / str(number)

    @classmethod
    def numbers(cls, state_dir: Path) -> list[int]:
        """Every offer of which something lies here."""
        parent = state_dir / "offers"
        return sorted(int(path.name) for path in parent.iterdir() if path.name.isdigit()) if parent.is_dir() else []

    @property
    def version(self) -> int:
        """Another number each time the step has written what may be given; 0: it has not yet."""
        with suppress(FileNotFoundError):
            return (self.directory / "files.json").stat().st_mtime_ns
        return 0

    def prepare(self, address: str, files: list[ManifestFile]) -> None:
        """Let these files be given under this address, by a server that is still to be started."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.directory / "open.json").unlink(missing_ok=True)
        content = {"address": address, "files": [file.model_dump() for file in files]}
        write_json(self.directory / "files.json", content)

    def read(self) -> tuple[str, list[ManifestFile]]:
        """The address, and the files that may be given."""
        raw = read_json(self.directory / "files.json") or {}
        return str(raw.get("address", "")), [ManifestFile.model_validate(one) for one in raw.get("files", [])]

    @property
    def opened(self) -> Opened | None:
        """Where it is given, as far as its server said so."""
        raw = read_json(self.directory / "open.json")
        return Opened(str(raw["address"]), int(raw["port"]), int(raw["pid"])) if raw and "pid" in raw else None

    @property
    def problem(self) -> str:
        """Why the server could not open, in its own words; empty if it did, or has not tried."""
        raw = read_json(self.directory / "open.json")
        return str(raw.get("problem", "")) if raw else ""

    def say_open(self, opened: Opened) -> None:
        """The server listens."""
        content = {"address": opened.address, "port": opened.port, "pid": opened.pid}
        write_json(self.directory / "open.json", content)

    def say_problem(self, text: str) -> None:
        """The server could not open."""
        write_json(self.directory / "open.json", {"problem": text})

    def remove(self) -> None:
        """Nothing of the offer is left."""
        shutil.rmtree(self.directory, ignore_errors=True)

"""What a download is asked to do, how far it is, and what came of it. Sizes are bytes, times are seconds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workers.weights.hub_types import HubFile, Source


class StoppedError(Exception):
    """The download has been told to end; its threads leave with this."""


@dataclass(frozen=True, slots=True)
class DownloadRequest:
    """What to fetch, from where, how. `repair` are the paths whose existing bytes are hashed before they are believed."""

    source: Source
    repository: str
    commit: str
    files: tuple[HubFile, ...]
    revision: str = ""
    repair: frozenset[str] = frozenset()
    connections: int = 8
    rate_limit: int = 0
    stall_seconds: float = 60.0
    patience_seconds: float = 3600.0
    direct: bool = False
    """True: another host of a private network, which is asked without a proxy."""


@dataclass(frozen=True, slots=True)
class FileProgress:
    """How far one file is. `done` counts what was there before, too; `trouble` says why it waits, if something is wrong."""

    path: str
    done: int
    size: int
    state: Literal["active", "waiting", "done"] = "active"
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far all of it is, in bytes; `running` are the files that are coming now; `waiting_for` is empty if bytes flow."""

    done: int
    total: int
    fetched: int
    running: tuple[FileProgress, ...]
    waiting_for: str


@dataclass(frozen=True, slots=True)
class Downloaded:
    """The outcome. `fetched` counts bytes that came over the network, also those that were fetched twice."""

    snapshot: Path
    files: int
    size: int
    fetched: int
    repaired: tuple[str, ...]

"""The files of one download, each with how far it is, what troubles it, and when it is tried again."""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workers.weights.download_cache import RepositoryCache, check_relative
from workers.weights.download_part import PartFile, new_hash
from workers.weights.download_types import DownloadRequest
from workers.weights.hub_types import HubFile

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 60.0
_LONGEST_ASKED_PAUSE_SECONDS = 3600.0
_READ_BYTES = 4 << 20


@dataclass(slots=True)
class Job:
    """One blob, whatever paths it has in the snapshot. `not_before` is on the monotonic clock."""

    file: HubFile
    paths: list[str]
    blob: Path
    part: PartFile | None = None
    blob_path: Path | None = None
    opening: bool = False
    finishing: bool = False
    answered: bool = False
    active: int = 0
    failures: int = 0
    short_answers: int = 0
    started_over: int = 0
    not_before: float = 0.0
    trouble_since: float = 0.0
    trouble: str = ""

    @property
    def done(self) -> bool:
        """True once the blob has its final name."""
        return self.blob_path is not None

    @property
    def phase(self) -> Literal["active", "waiting", "done"]:
        """`active`: a connection works on it."""
        if self.done:
            return "done"
        return "active" if self.active and self.part is not None else "waiting"

    @property
    def received(self) -> int:
        """Bytes that are there."""
        if self.done:
            return self.file.size
        return self.part.received if self.part is not None else 0


def jobs_of(request: DownloadRequest, store: RepositoryCache) -> list[Job]:
    """One job per blob: files with the same content are fetched once. Raises `UnsafePathError`."""
    found: dict[str, Job] = {}
    for file in request.files:
        check_relative(file.path)
        unnamed = hashlib.sha256(f"{request.repository}\n{request.commit}\n{file.path}".encode()).hexdigest()
        name = file.sha256 or file.git_oid or f"unnamed-{unnamed[:40]}"
        if name in found:
            found[name].paths.append(file.path)
        else:
            found[name] = Job(file, [file.path], store.blobs / name)
    return list(found.values())


def pause_after(failures: int, asked: float | None) -> float:
    """Seconds to wait: what the source asks for, else longer each time; spread, so that not all come back at once."""
    if asked is not None:
        return min(asked, _LONGEST_ASKED_PAUSE_SECONDS) + random.uniform(0, 0.5)  # noqa: S311 - no secret
    longest = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(failures, 16), _LONGEST_PAUSE_SECONDS)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


def digest_of(path: Path, file: HubFile, check: Callable[[], None]) -> str:
    """Hex digest of a file on disk, of the kind that its listing gives; `check` raises when this must not go on."""
    size = path.stat().st_size
    hashing = new_hash(sha256=file.sha256, git_oid=file.git_oid, size=size)
    with path.open("rb") as opened:
        while block := opened.read(_READ_BYTES):
            check()
            hashing.update(block)
    return str(hashing.hexdigest())

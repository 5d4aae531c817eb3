"""The hub cache on disk, in the layout that huggingface_hub and vLLM read: blobs by digest, snapshots of links, refs.

`models--ORGANISATION--NAME/{blobs,refs,snapshots}`; a snapshot holds a relative link to a blob for each of its files.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from workers.weights.download_part import PART_ENDING, PartBusyError, discard_part


class UnsafePathError(Exception):
    """A path that lies outside the places where models are kept, or leads out of them; nothing was done."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed; `bytes` is what the disk got back."""

    files: int
    bytes: int


def hub_cache_of(models_dir: Path) -> Path:
    """The hub cache of a host: what `HF_HUB_CACHE` or `HF_HOME` say, else `hub` in the models directory."""
    if named := os.environ.get("HF_HUB_CACHE"):
        return Path(named).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return models_dir / "hub"


class RepositoryCache:
    """The folder of one repository in a hub cache."""

    def __init__(self, cache: Path, repository: str) -> None:
        self.cache = cache
        self.folder = cache / f"models--{repository.replace('/', '--')}"
        if self.folder.parent != cache or repository.startswith(".") or ".." in repository:
            raise UnsafePathError(f"{repository!r} is no name of a repository")
        self.blobs = self.folder / "blobs"

    def make(self) -> None:
        """Make the folders."""
        self.blobs.mkdir(parents=True, exist_ok=True)

    def snapshot(self, commit: str) -> Path:
        """The directory of one commit, whether it exists or not."""
        return self.folder / "snapshots" / commit

    def link(self, commit: str, path: str, blob: Path) -> None:
        """Let `path` of a snapshot be the blob; replaces what was there in one step."""
        snapshot = self.snapshot(commit)
        target = snapshot / path
        check_relative(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        wanted = os.path.relpath(blob, target.parent)
        if target.is_symlink() and str(target.readlink()) == wanted:
            return
        temporary = target.with_name(f".{uuid4()}")
        temporary.symlink_to(wanted)
        temporary.replace(target)

    def point(self, revision: str, commit: str) -> None:
        """Let a branch or tag name mean a commit, as the hub said."""
        path = self.folder / "refs" / revision
        check_relative(revision)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{uuid4()}")
        temporary.write_text(commit, encoding="ascii")
        temporary.replace(path)

    def discard_parts(self) -> Removed:
        """Remove what abandoned downloads left; a part that is being fetched stays."""
        files = freed = 0
        for part in sorted(self.blobs.glob(f"*{PART_ENDING}")):
            try:
                freed += discard_part(part)
                files += 1
            except (PartBusyError, FileNotFoundError):
                continue
        return Removed(files, freed)


def check_relative(path: str) -> None:
    """Raise `UnsafePathError` if a file of a model would lie outside of the model's directory."""
    if not path or ".." in Path(path).parts or Path(path).is_absolute() or "\0" in path:
        raise UnsafePathError(f"{path!r} leads out of the model's directory")


def check_inside(path: Path, roots: list[Path]) -> Path:
    """The real path, if it lies properly below one of `roots`. Raises `UnsafePathError`; links are followed first."""
    real = path.resolve()
    for root in roots:
        real_root = root.resolve()
        if real_root in real.parents:
            return real
    places = " or ".join(str(root) for root in roots)
    raise UnsafePathError(f"{path} does not lie below {places}")


def remove_copy(path: Path, cache: Path) -> Removed:
    """Remove a model's directory; of a snapshot in the cache also the blobs that no other snapshot uses.

    `path` must have been checked with `check_inside`. What it links to outside of the cache's folder stays.
    """
    if path.parent.name == "snapshots" and path.parent.parent.parent == cache.resolve():
        return _remove_snapshot(path)
    files, freed = _measure(path)
    shutil.rmtree(path)
    return Removed(files, freed)


def _remove_snapshot(snapshot: Path) -> Removed:
    folder = snapshot.parent.parent
    blobs = _blobs_of(snapshot, folder)
    files = sum(1 for entry in snapshot.rglob("*") if entry.is_symlink() or entry.is_file())
    shutil.rmtree(snapshot)
    others = [other for other in snapshot.parent.iterdir() if other.is_dir()]
    used = {blob for other in others for blob in _blobs_of(other, folder)}
    freed = 0
    for blob in blobs - used:
        freed += blob.stat().st_blocks * 512
        blob.unlink()
    _forget_refs(folder, snapshot.name)
    if not others and not any((folder / "blobs").glob(f"*{PART_ENDING}")):
        freed += _measure(folder)[1]
        shutil.rmtree(folder)
    return Removed(files, freed)


def _blobs_of(snapshot: Path, folder: Path) -> set[Path]:
    blobs = folder / "blobs"
    found = set()
    for entry in snapshot.rglob("*"):
        if entry.is_symlink() and (target := entry.resolve()).parent == blobs and target.is_file():
            found.add(target)
    return found


def _forget_refs(folder: Path, commit: str) -> None:
    for ref in (folder / "refs").rglob("*"):
        if ref.is_file() and ref.read_text(encoding="utf-8", errors="replace").strip() == commit:
            ref.unlink()


def _measure(folder: Path) -> tuple[int, int]:
    files = freed = 0
    for entry in folder.rglob("*"):
        if entry.is_file() and not entry.is_symlink():
            files, freed = files + 1, freed + entry.stat().st_blocks * 512
    return files, freed

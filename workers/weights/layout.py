"""What lies in a model directory: a listing that follows no link out of it and opens nothing that isn't a plain file."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from workers.weights.findings import Findings, listed, printable

MOST_FILES = 50_000
_DEEPEST = 3
# Hidden folders hold a downloader's or git's own state; they are no part of the model.
_SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors$")
INDEX_SUFFIX = ".safetensors.index.json"
_PICKLE = re.compile(r"^(pytorch_model|model|adapter_model|consolidated|tf_model)[\w.-]*\.(bin|pt|pth|ckpt|pkl)$")
_FIX_LINK = "Copy the file into the directory, or give the directory in which it really lies."


@dataclass(frozen=True, slots=True)
class Entry:
    """One plain file: its name relative to the directory ('/' between parts), where it really lies, and its stamp."""

    name: str
    path: str
    size: int
    mtime_ns: int
    inode: int
    # File name of the hub cache's blob that a snapshot's link leads to; the hub names blobs by their digest.
    blob: str | None = None


@dataclass(slots=True)
class Layout:
    """The plain files of a model directory by name, and how its weights are stored."""

    root: Path
    entries: dict[str, Entry]
    # Names that exist but can't be used (links that lead out or nowhere, sockets, pipes), with the reason.
    unusable: dict[str, str] = field(default_factory=dict)

    def named(self, suffix: str) -> list[Entry]:
        """Files directly in the directory whose name ends with `suffix`, in order of name."""
        return [self.entries[name] for name in sorted(self.entries) if "/" not in name and name.endswith(suffix)]

    @property
    def safetensors(self) -> list[Entry]:
        """All `*.safetensors` files directly in the directory."""
        return self.named(".safetensors")

    @property
    def gguf(self) -> list[Entry]:
        """All `*.gguf` files directly in the directory."""
        return self.named(".gguf")

    @property
    def pickles(self) -> list[Entry]:
        """Weights that unpickling would execute code for: `pytorch_model*.bin` and the like."""
        return [entry for name, entry in sorted(self.entries.items()) if _PICKLE.match(name)]

    @property
    def indexes(self) -> list[Entry]:
        """Shard indexes directly in the directory."""
        return self.named(INDEX_SUFFIX)

    @property
    def is_adapter(self) -> bool:
        """Whether this is a LoRA adapter that needs a base model, not a model of its own."""
        return "adapter_config.json" in self.entries and "config.json" not in self.entries

    @property
    def is_mistral_format(self) -> bool:
        """Whether the model is described by Mistral's own params.json alone."""
        return "params.json" in self.entries and "config.json" not in self.entries


def shard_numbers(names: list[str]) -> dict[tuple[str, int], set[int]]:
    """Shard numbers by (stem, total) among file names like `model-00001-of-00004.safetensors`."""
    found: dict[tuple[str, int], set[int]] = {}
    for name in names:
        if match := _SHARD.match(name):
            found.setdefault((match["stem"], int(match["total"])), set()).add(int(match["number"]))
    return found


def read_layout(root: Path, findings: Findings) -> Layout:
    """List the directory `root` (up to 3 levels deep, hidden folders left out); reports what can't be used."""
    layout = Layout(root, {})
    real_root = root.resolve()
    allowed = [real_root, *_hub_blob_folders(root)]
    for count, (name, path) in enumerate(_walk(root, findings)):
        if count >= MOST_FILES:
            message = f"The directory holds more than {MOST_FILES:,} files; the rest was not looked at."
            findings.add("path.too_many_files", None, message, "Keep one model per directory.")
            break
        _add(layout, name, path, allowed)
    for name, reason in layout.unusable.items():
        code = "path.symlink_outside" if "link" in reason else "path.not_regular_file"
        findings.add(code, name, f"{printable(name)} {reason}; it was not opened.", _FIX_LINK)
    return layout


def _hub_blob_folders(root: Path) -> list[Path]:
    """The hub cache keeps `snapshots/<commit>/<file>` as links into `blobs/` beside `snapshots/`."""
    caches = [place.parent.parent for place in (root.absolute(), root.resolve()) if place.parent.name == "snapshots"]
    return [(cache / "blobs").resolve() for cache in caches if (cache / "blobs").is_dir()]


def _walk(root: Path, findings: Findings) -> Iterator[tuple[str, str]]:
    waiting = [("", str(root), 0)]
    while waiting:
        prefix, folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as scan:
                found = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            message = f"The folder {printable(prefix) or '.'} can't be listed: {error.strerror}."
            findings.add("path.unreadable", prefix.rstrip("/") or None, message, "Check the folder's permissions.")
            continue
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                if depth < _DEEPEST and not entry.name.startswith("."):
                    waiting.append((f"{prefix}{entry.name}/", entry.path, depth + 1))
            else:
                yield prefix + entry.name, entry.path


def _add(layout: Layout, name: str, path: str, allowed: list[Path]) -> None:
    blob = None
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            real = Path(path).resolve(strict=True)
            if not any(real.is_relative_to(place) for place in allowed):
                layout.unusable[name] = f"is a link that leads out of the directory, to {printable(str(real))}"
                return
            status = real.stat()
            if stat.S_ISDIR(status.st_mode):
                return
            path, blob = str(real), real.name if real.parent in allowed[1:] else None
    except (OSError, RuntimeError, ValueError):
        layout.unusable[name] = "is a link that leads nowhere"
        return
    if not stat.S_ISREG(status.st_mode):
        layout.unusable[name] = "is no plain file"
        return
    layout.entries[name] = Entry(name, path, status.st_size, status.st_mtime_ns, status.st_ino, blob)


def check_path(path: Path, findings: Findings) -> bool:
    """Whether `path` can be a model directory; otherwise reports which path was meant."""
    try:
        is_directory, exists = path.is_dir(), path.exists()
    except OSError as error:
        findings.add("path.unreadable", None, f"{path} can't be read: {error.strerror}.", "Check the permissions.")
        return False
    if not exists:
        message = f"{printable(str(path), most_letters=1000)} doesn't exist."
        findings.add("path.not_found", None, message, "Check the path; on a host it is the path on that host.")
        return False
    if not is_directory:
        parent = path.absolute().parent
        message = f"{path} is a file; a model is the directory around it."
        findings.add("path.not_model_directory", path.name, message, f"Give {parent} instead.")
        return False
    return not _is_parent(path, findings)


def looks_like_model(folder: Path) -> bool:
    """Whether a directory holds a model's description or weights directly."""
    try:
        with os.scandir(folder) as scan:
            names = {entry.name for _, entry in zip(range(MOST_FILES), scan, strict=False)}
    except OSError:
        return False
    if names & {"config.json", "adapter_config.json", "params.json"}:
        return True
    return any(name.endswith((".safetensors", INDEX_SUFFIX, ".gguf")) or _PICKLE.match(name) for name in names)


def _is_parent(path: Path, findings: Findings) -> bool:
    if looks_like_model(path):
        return False
    models = sorted(_models_below(path, depth=0))
    if not models:
        return False
    shown = listed([str(model) for model in models])
    which = "that is the model directory" if len(models) == 1 else f"{len(models)} model directories are below it"
    message = f"{path} holds no model itself; {which}: {shown}."
    best = _preferred(models)
    findings.add("path.not_model_directory", str(best.relative_to(path)), message, f"Give {best} instead.")
    return True


def _preferred(models: list[Path]) -> Path:
    """Of several model directories, the hub snapshot that `refs/main` names, else the first."""
    for model in models:
        if model.parent.name == "snapshots":
            try:
                main = (model.parent.parent / "refs" / "main").read_text(encoding="ascii").strip()
            except (OSError, ValueError):
                continue
            if main == model.name:
                return model
    return models[0]


def _models_below(path: Path, *, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(path) as scan:
            folders = [entry.path for _, entry in zip(range(1000), scan, strict=False) if entry.is_dir()]
    except OSError:
        return
    for folder in sorted(folders):
        child = Path(folder)
        if child.name.startswith("."):
            continue
        if looks_like_model(child):
            yield child
        elif depth + 1 < _DEEPEST and not child.is_symlink():
            yield from _models_below(child, depth=depth + 1)

"""What an engine compiles for a model, kept per engine and model so that the next start finds it and a person can clear it.

<state_dir>/compile-caches/<engine>/<model>/{vllm,inductor,triton}
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from workers.host.engine_environments import remove_tree, size_of

_DIRECTORIES = {"VLLM_CACHE_ROOT": "vllm", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
_SNAPSHOT = re.compile(r"models--(?P<repository>[^/]+)/snapshots/(?P<commit>[^/]+)/?$")


@dataclass(frozen=True)
class CompileCache:
    """What one engine has compiled for one model."""

    model: str
    """Readable and unique on this host: the directory's name and a digest of its path."""
    size_bytes: int
    used_at: float
    """Seconds since the epoch: when something was last written into it."""


def cache_environment(state_dir: Path, engine: str, model_path: str) -> dict[str, str]:
    """The variables that lead an engine's compilers to its cache for this model."""
    directory = cache_directory(state_dir, engine, model_path)
    return {name: str(directory / folder) for name, folder in _DIRECTORIES.items()}


def cache_directory(state_dir: Path, engine: str, model_path: str) -> Path:
    """Where `engine` keeps what it compiled for the model at `model_path`."""
    return _root(state_dir) / engine / model_name(model_path)


def model_name(model_path: str) -> str:
    """A directory name for a model: its own name, or repository and commit of a snapshot, and eight digits of its path."""
    path = model_path.rstrip("/")
    snapshot = _SNAPSHOT.search(path)
    name = f"{snapshot['repository']}@{snapshot['commit'][:12]}" if snapshot else Path(path).name
    readable = re.sub(r"[^A-Za-z0-9._@-]+", "-", name)[:80].lstrip(".-") or "model"
    return f"{readable}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def caches_of(state_dir: Path, engine: str) -> list[CompileCache]:
    """All caches of an engine that hold something, by model."""
    parent = _root(state_dir) / engine
    found = []
    for directory in sorted(parent.iterdir()) if parent.is_dir() else []:
        if size := size_of(directory):
            newest = max(path.stat().st_mtime for path in (directory, *directory.iterdir()))
            found.append(CompileCache(directory.name, size, newest))
    return found


def clear(state_dir: Path, engine: str, model: str = "") -> int:
    """Remove the cache of one model (its `CompileCache.model`), or all of the engine's; returns the bytes freed."""
    parent = _root(state_dir) / engine
    chosen = parent / model if model else parent
    if parent not in (chosen, *chosen.parents) or not chosen.exists():
        return 0
    return remove_tree(chosen)


def _root(state_dir: Path) -> Path:
    return state_dir / "compile-caches"

"""The register of engines on this host: `<engines_dir>/<key>/engine.json`, one vLLM version each.

Only what stands here is ever executed: the console names a key, never a path. The file is written last by an
installation, so an engine that is listed is complete.
"""

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workers.contracts import EngineFacts
from workers.host.failures import StepFailedError
from workers.host.files import read_json, write_json

ENGINE_FILE = "engine.json"


class Engine(BaseModel):
    """One installed engine."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")
    distribution: str
    version: str
    platform: str
    """What the engine computes on: `cpu`, `cuda`, `rocm`, …"""
    command: list[str] = Field(min_length=1)
    """First words of its command line, up to and without `serve`; the first is an absolute path."""
    python: str
    environment: dict[str, str] = {}
    """Defaults for every instance; an order may override them."""
    size_bytes: int = 0

    def facts(self, engines_dir: Path) -> EngineFacts:
        """What the console is told about it."""
        return EngineFacts(
            key=self.key,
            distribution=self.distribution,
            version=self.version,
            platform=self.platform,
            path=str(engines_dir / self.key),
            size_bytes=self.size_bytes,
        )


def all_engines(engines_dir: Path) -> list[Engine]:
    """Every complete engine in the register, by key. A file that is not understood is left out."""
    if not engines_dir.is_dir():
        return []
    found = (_read(directory) for directory in sorted(engines_dir.iterdir()) if not directory.name.startswith("."))
    return [engine for engine in found if engine is not None]


def find_engine(engines_dir: Path, key: str) -> Engine:
    """Return the engine called `key`; raises `StepFailedError` with `engine.not_installed` if it can't be run here."""
    known = {engine.key: engine for engine in all_engines(engines_dir)}
    engine = known.get(key)
    if engine is None:
        have = ", ".join(known) or "none"
        raise StepFailedError(
            "engine.not_installed",
            f"engine {key!r} is not installed on this host (installed: {have})",
            next_step=f"Install {key} on this host, or choose another engine.",
        )
    if not os.access(engine.command[0], os.X_OK):
        raise StepFailedError(
            "engine.not_installed",
            f"engine {key!r} is registered, but its command {engine.command[0]} is gone or not executable",
            next_step=f"Install {key} again.",
        )
    return engine


def register_engine(engines_dir: Path, engine: Engine) -> None:
    """Write the engine's file: from now on it may be run. Its directory must exist."""
    write_json(engines_dir / engine.key / ENGINE_FILE, engine.model_dump(mode="json"))


def register_signature(engines_dir: Path) -> tuple[tuple[str, int], ...]:
    """A value that changes when an engine is added, replaced or removed."""
    if not engines_dir.is_dir():
        return ()
    signature = []
    for directory in sorted(engines_dir.iterdir()):
        try:
            signature.append((directory.name, (directory / ENGINE_FILE).stat().st_mtime_ns))
        except OSError:
            continue
    return tuple(signature)


def _read(directory: Path) -> Engine | None:
    raw = read_json(directory / ENGINE_FILE)
    if raw is None:
        return None
    try:
        engine = Engine.model_validate(raw)
    except ValidationError:
        return None
    return engine if engine.key == directory.name else None

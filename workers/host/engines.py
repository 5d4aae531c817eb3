"""The register of engines on this host: `<engines_dir>/<key>/engine.json`, one vLLM version each.

Only what stands here is ever executed: the console names a key, never a path. The file is written last by an
installation, so an engine that is listed is complete; and it names the environment that it lies in, so that replacing
the file is what switches from an old environment to a new one.

<engines_dir>/<key>/engine.json      the engine
                    env-XXXXXXXX/    its virtual environment, with schema.json in it (older ones lie beside engine.json)
                    schema.json      the arguments of an adopted engine, whose own environment is never written to
                    names/           metadata that an adopted engine lacks, by PYTHONPATH
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workers.contracts import EngineFacts
from workers.host.failures import StepFailedError
from workers.host.files import read_json, write_json

ENGINE_FILE = "engine.json"
KEY_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$"


class Engine(BaseModel):
    """One engine that may be run here."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str = Field(pattern=KEY_PATTERN)
    distribution: str
    version: str
    platform: str
    """What the engine computes on: `cpu`, `cuda`, `rocm`, …; empty when it sees no device."""
    command: list[str] = Field(min_length=1)
    """First words of its command line, up to and without `serve`; the first is an absolute path."""
    python: str
    environment: dict[str, str] = {}
    """Defaults for every instance; an order may override them."""
    size_bytes: int = 0
    directory: str = ""
    """Its virtual environment; empty: the register's own directory (installed by an early Slipway)."""
    adopted: bool = False
    """True: someone else made the environment. It is never written to, and forgetting it deletes nothing of it."""
    schema_file: str = ""
    """The argument schema that the engine printed itself; empty: it could not be read, or nobody asked yet."""
    problem: str = ""
    """What its last self-test found; empty: it passed."""
    details: dict[str, Any] = {}
    """`python`, `torch`, `torch_build`, `attention`, `device`, `tested_at` (seconds since the epoch), `arguments`,
    `schema_sha256`, `plan` (how it was installed)."""

    def facts(self, engines_dir: Path) -> EngineFacts:
        """What the console is told about it."""
        return EngineFacts(
            key=self.key,
            distribution=self.distribution,
            version=self.version,
            platform=self.platform,
            path=self.directory or str(engines_dir / self.key),
            size_bytes=self.size_bytes,
            details={**self.details, "adopted": self.adopted, "problem": self.problem, "interpreter": self.python},
        )

    def arguments(self) -> dict[str, Any] | None:
        """The argument schema as `workers.vllm.dump_arguments` printed it, or `None`."""
        return read_json(Path(self.schema_file)) if self.schema_file else None


def all_engines(engines_dir: Path) -> list[Engine]:
    """Every complete engine in the register, by key. A file that is not understood is left out."""
    if not engines_dir.is_dir():
        return []
    found = (_read(directory) for directory in sorted(engines_dir.iterdir()) if not directory.name.startswith("."))
    return [engine for engine in found if engine is not None]


def registered_engine(engines_dir: Path, key: str) -> Engine | None:
    """The engine called `key`, whether it can be run or not; `None` if the register has no such engine."""
    return next((engine for engine in all_engines(engines_dir) if engine.key == key), None)


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
        again = "Adopt it again where it lies now" if engine.adopted else f"Repair {key} on its page"
        raise StepFailedError(
            "engine.not_installed",
            f"engine {key!r} is registered, but its command {engine.command[0]} is gone or not executable",
            next_step=f"{again}, or choose another engine.",
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


def examined(engine: Engine, facts: Mapping[str, Any], schema_file: Path | None, found_by: Mapping[str, Any]) -> Engine:
    """`engine` with what its self-test and its schema say."""
    details = {name: facts[name] for name in ("python", "torch", "torch_build", "attention", "device") if name in facts}
    platform = str(facts.get("platform", ""))
    return engine.model_copy(
        update={
            "platform": platform,
            "schema_file": str(schema_file) if schema_file else "",
            "problem": "" if platform else _NO_DEVICE,
            "details": {**engine.details, **details, **found_by},
        }
    )


_NO_DEVICE = "vLLM can be imported, but sees no device on this host that this build could compute on"


def _read(directory: Path) -> Engine | None:
    raw = read_json(directory / ENGINE_FILE)
    if raw is None:
        return None
    try:
        engine = Engine.model_validate(raw)
    except ValidationError:
        return None
    return engine if engine.key == directory.name else None

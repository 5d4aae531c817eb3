"""The register of llm-compressor on this host: `<engines_dir>/quantizers/<key>/quantizer.json`, one environment each.

As with engines, only what stands here is ever executed: the console names a key. The file is written last.
"""

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workers.host.engine_environments import environments_in, remove_tree, words_in_use
from workers.host.failures import StepFailedError
from workers.host.files import read_json, write_json
from workers.host_config import HostConfig
from workers.quantization_payloads import QUANTIZER_KEY

DISTRIBUTION = "llmcompressor"
_FILE = "quantizer.json"


class Quantizer(BaseModel):
    """One environment with llm-compressor in it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str = Field(pattern=QUANTIZER_KEY)
    version: str
    python: str
    directory: str = ""
    """Its virtual environment; empty: it was adopted."""
    size_bytes: int = 0
    details: dict[str, Any] = {}

    @property
    def adopted(self) -> bool:
        """True if someone else made it: it is never written to."""
        return not self.directory


def quantizers_dir(config: HostConfig) -> Path:
    """Where they lie: beside the engines, which is where there is room for environments."""
    return config.engines_dir / "quantizers"


def known_quantizer(config: HostConfig, key: str) -> Quantizer | None:
    """The one called `key`; None if the register has none, or one that is not understood."""
    raw = read_json(quantizers_dir(config) / key / _FILE)
    try:
        found = Quantizer.model_validate(raw) if raw else None
    except ValidationError:
        return None
    return found if found is not None and found.key == key else None


def find_quantizer(config: HostConfig, key: str) -> Quantizer:
    """The one called `key`; raises `StepFailedError` (`quantizer.not_installed`) if it can't be run here."""
    found = known_quantizer(config, key)
    if found is None or not os.access(found.python, os.X_OK):
        raise StepFailedError(
            "quantizer.not_installed",
            f"{key} is not on this host" if found is None else f"{found.python} is gone, or not executable",
            next_step="Install llm-compressor on this host again, or adopt it where it lies now.",
        )
    return found


def register_quantizer(config: HostConfig, quantizer: Quantizer) -> None:
    """Write its file: from now on it may be run."""
    directory = quantizers_dir(config) / quantizer.key
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / _FILE, quantizer.model_dump(mode="json"))


def sweep_quantizers(config: HostConfig) -> int:
    """Remove environments that a killed installation left, and return the bytes of that. Needs the lock of installations."""
    place = quantizers_dir(config)
    known = [known_quantizer(config, file.parent.name) for file in place.glob(f"*/{_FILE}")]
    if None in known:
        return 0  # of a newer Slipway, perhaps: nothing that is not understood is removed
    kept = {one.directory for one in known if one is not None}
    left = [path for path in environments_in(place, ".*") if str(path) not in kept]
    used = words_in_use(config.state_dir) if left else frozenset()
    return sum(remove_tree(path) for path in left if not any(word.startswith(f"{path}/") for word in used))

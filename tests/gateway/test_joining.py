"""What a machine that joins as a gateway writes down, and how it is started there."""

import json
from pathlib import Path
from typing import Any

import pytest

from workers.gateway_machine import joining, service
from workers.gateway_machine.joining import Wishes
from workers.host_config import GatewayConfig

CREDENTIALS = {"gateway": "edge", "redis_url": "redis://edge:pw@127.0.0.1:1/0", "console_url": "http://127.0.0.1:1"}


@pytest.fixture(autouse=True)
def console(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLIPWAY_HOME", str(tmp_path))
    monkeypatch.setattr(joining, "ask_to_join", lambda *_words: CREDENTIALS)


def joined(wishes: Wishes, **options: Any) -> GatewayConfig:
    config, path = joining.join("http://127.0.0.1:1", "token", wishes, **options)
    assert GatewayConfig.load(path) == config
    return config


def test_what_nobody_wished_is_the_default(tmp_path: Path) -> None:
    config = joined(Wishes())
    assert (config.bind, config.port, config.peer_port, config.certificate) == ("0.0.0.0", 8480, 8481, "")
    assert config.state_dir == tmp_path / "gateways" / "edge" / "state"


def test_one_that_joins_anew_serves_as_before_where_nothing_else_is_wished(tmp_path: Path) -> None:
    (tmp_path / "edge.pem").touch()
    before = joined(Wishes(port=9000, certificate=str(tmp_path / "edge.pem"), public_url="https://edge.example.com"))
    after = joined(Wishes(bind="10.0.0.7"))
    assert (after.bind, after.port, after.peer_port) == ("10.0.0.7", 9000, 9001)
    assert (after.certificate, after.public_url) == (before.certificate, before.public_url)
    assert after.private_key != before.private_key
    assert joined(Wishes(certificate="", port=9100)).certificate == ""


def test_a_file_that_can_t_be_read_is_kept_aside(tmp_path: Path) -> None:
    path = GatewayConfig.default_path("edge")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"name": "edge"}))
    assert joined(Wishes()).port == 8480
    assert json.loads(path.with_suffix(".json.before-join").read_text()) == {"name": "edge"}


def test_its_unit_leaves_haproxy_alone_and_survives_paths_with_spaces(tmp_path: Path) -> None:
    text = service.systemd_unit("edge", tmp_path / "a b" / "gateway.json")
    assert f'gateway run --config "{tmp_path}/a b/gateway.json"' in text
    assert "KillMode=process" in text
    assert "OOMPolicy=continue" in text
    assert "Restart=on-failure" in text
    assert "Description=Slipway gateway edge" in text
    assert f"Environment=SLIPWAY_HOME={tmp_path}" in text

"""The host's configuration file, and secrets sealed to it."""

import stat
from pathlib import Path

import pytest

from workers.host_config import HostConfig, HostConfigError, slipway_home
from workers.sealing import SealingError, generate_key_pair, public_key_of, seal, unseal


def make(tmp_path: Path) -> HostConfig:
    private, _public = generate_key_pair()
    return HostConfig(
        name="gpu-1",
        redis_url="redis://host_gpu-1:pw@127.0.0.1/0",
        private_key=private,
        state_dir=tmp_path / "state",
    )


def test_what_was_saved_is_loaded_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "host.json"
    config = make(tmp_path)
    config.save(path)
    assert HostConfig.load(path) == config
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_directories_lie_in_slipway_home_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPWAY_HOME", str(tmp_path))
    assert slipway_home() == tmp_path
    assert make(tmp_path).engines_dir == tmp_path / "engines"
    assert HostConfig.default_path("local") == tmp_path / "hosts" / "local" / "host.json"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "wrong"),
        ('{"name": "UPPER", "redis_url": "x", "private_key": "x", "state_dir": "/x"}', "name"),
        ('{"name": "a", "redis_url": "x", "private_key": "x", "state_dir": "/x", "port_range": [9, 8]}', "port_range"),
        ('{"name": "a", "redis_url": "x", "private_key": "sk-hidden", "state_dir": "/x", "colour": 1}', "colour"),
    ],
)
def test_a_wrong_file_is_refused_with_the_field_and_without_its_secrets(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "host.json"
    path.write_text(text)
    with pytest.raises(HostConfigError, match=words) as caught:
        HostConfig.load(path)
    assert "sk-hidden" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostConfigError, match=r"nowhere\.json"):
        HostConfig.load(tmp_path / "nowhere.json")


def test_a_sealed_secret_is_opened_by_its_host_only() -> None:
    private, public = generate_key_pair()
    other, _ = generate_key_pair()
    sealed = seal(public, "sk-geheim ✓")
    assert "geheim" not in sealed
    assert unseal(private, sealed) == "sk-geheim ✓"
    with pytest.raises(SealingError):
        unseal(other, sealed)
    with pytest.raises(SealingError):
        unseal(private, sealed[:-8] + "AAAAAAA=")
    with pytest.raises(SealingError):
        seal("no key", "x")
    assert public_key_of(private) == public
    assert seal(public, "x") != seal(public, "x")

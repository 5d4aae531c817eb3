"""How the host is now."""

import shutil
from pathlib import Path

import pytest

from tests.host.conftest import HostUnderTest
from tests.host.test_steps import lone_host
from workers.host.vitals import vitals

__all__ = ["lone_host"]


def test_the_disk_of_the_models_is_told_even_before_their_directory_is_there(
    lone_host: HostUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HF_HOME", raising=False)
    memory = Path("/dev/shm")
    told = vitals(lone_host.config.model_copy(update={"models_dir": memory / "not" / "yet"}))
    assert told["models_disk_total"] == shutil.disk_usage(memory).total
    assert told["disk_total"] == shutil.disk_usage(lone_host.config.state_dir).total

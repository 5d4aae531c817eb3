"""The watcher: what it says arrives, and one that hangs is said, ended and replaced without anybody waiting for it."""

import os
import signal
import stat
import time
from pathlib import Path

import pytest

from tests.host.conftest import wait_for
from workers.host.vitals import inventory, stored_facts
from workers.host.watcher_process import WatcherProcess
from workers.host_config import HostConfig
from workers.sealing import generate_key_pair


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostConfig:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    private, _public = generate_key_pair()
    config = HostConfig(name="a", redis_url="redis://x", private_key=private, state_dir=tmp_path / "state")
    config.state_dir.mkdir()
    config.save(tmp_path / "host.json")
    return config


@pytest.mark.long
async def test_what_it_sees_arrives_and_a_hang_is_said_ended_and_replaced(config: HostConfig, tmp_path: Path) -> None:
    watcher = WatcherProcess(tmp_path / "host.json", config.state_dir, hangs_seconds=12)
    try:
        watcher.keep_alive()
        wait_for(lambda: watcher.facts_number and watcher.live(), what="the first look")
        found = stored_facts(config)
        assert found is not None
        assert found[0].cpu.threads == os.cpu_count()
        assert inventory(config).devices_known
        first = watcher._process
        assert first is not None
        os.kill(first.pid, signal.SIGSTOP)
        wait_for(lambda: watcher.hangs, what="the silence is noticed")
        live = watcher.live()
        assert live is not None
        assert live.gpus.code == "hangs"
        assert "have not answered" in live.gpus.problem
        assert live.memory is not None
        began = time.monotonic()
        watcher.keep_alive()
        assert time.monotonic() - began < 1
        wait_for(lambda: first.poll() is not None, what="it is ended")
        watcher._pause = 0
        wait_for(lambda: (watcher.keep_alive(), watcher._process not in (None, first))[1], what="the next one")
        wait_for(lambda: not watcher.hangs, what="it is heard again")
    finally:
        await watcher.end()


def test_before_the_first_look_nothing_follows_from_missing_devices(config: HostConfig) -> None:
    told = inventory(config)
    assert not told.devices_known
    assert [device.kind for device in told.devices] == ["cpu"]


@pytest.mark.long
async def test_an_nvidia_smi_that_hangs_leaves_the_agent_its_answer(
    config: HostConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin/nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexec sleep 30\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    watcher = WatcherProcess(tmp_path / "host.json", config.state_dir, hangs_seconds=8)
    try:
        watcher.keep_alive()
        wait_for(lambda: watcher.hangs, what="the silence is noticed")
        began = time.monotonic()
        live = watcher.live()
        assert time.monotonic() - began < 0.1
        assert live is not None
        assert live.gpus.code == "hangs"
    finally:
        await watcher.end()

"""Faults around an engine: disk, port, files, network, clock, and crashes without an end. Each has a scene of its own."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Scene
from tests.host.conftest import wait_for
from tests.tools import libfaketime, missing_text

pytestmark = pytest.mark.timeout(900)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and network namespaces need root")


@contextmanager
def scene_in(directory: Path, engine: str, **more: Any) -> Iterator[Scene]:
    scene = Scene(directory, engine, **more)
    try:
        yield scene
    finally:
        scene.end()


@needs_root
def test_a_full_disk(tmp_path: Path, engine: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], check=True)
    try:
        with scene_in(disk, engine) as scene:
            before = scene.state
            full = disk / "full"
            with full.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"\0" * 65_536)
                except OSError:
                    pass
            time.sleep(1)
            assert scene.answers()
            assert scene.state == before
            scene.hit(scene.api_server())  # and now it even crashes, with no room to note that
            time.sleep(1)
            full.unlink()
            scene.assert_recovered(before.attempt)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.long
def test_a_stolen_port(tmp_path: Path, engine: str) -> None:
    with scene_in(tmp_path, engine, budget=1) as scene:
        before = scene.state
        scene.hit(before.shim_pid, signal.SIGSTOP)
        scene.hit(scene.api_server())
        for pid in scene.family():
            scene.hit(pid)
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            wait_for(lambda: _bound(thief, scene.order.port), 20, what="the port is stolen")
            scene.hit(before.shim_pid, signal.SIGCONT)
            crashed = scene.console.wait_phase(scene.order.instance, "crashed", 300)
        assert crashed["failure"]["code"] == "port.in_use", crashed["failure"]
        scene.assert_told_in_order_to_the_end()
        assert scene.family() == []


def _bound(thief: socket.socket, port: int) -> bool:
    try:
        thief.bind(("127.0.0.1", port))
        thief.listen()
    except OSError:
        return False
    return True


@pytest.mark.long
def test_a_file_removed_while_serving(tmp_path: Path, engine: str) -> None:
    with scene_in(tmp_path, engine, budget=1) as scene:
        model = Path(scene.order.model_path)
        if engine == "standin":
            shutil.rmtree(model)
        else:
            (model / "model.safetensors").unlink()
        assert scene.answers()
        since = scene.hit(scene.api_server())
        scene.assert_noticed(since, 1)
        crashed = scene.console.wait_phase(scene.order.instance, "crashed", 300)
        assert crashed["failure"]["code"] in ("path.not_found", "weights.missing"), crashed["failure"]
        assert "ready" not in [
            body["phase"]
            for body in scene.console.bodies("instance.observed", instance=str(scene.order.instance))
            if (body["attempt"] or 0) > 1
        ]
        scene.assert_told_in_order_to_the_end()
        assert scene.family() == []


def test_ten_crashes_in_a_row(tmp_path: Path, engine: str) -> None:
    with scene_in(tmp_path, engine, budget=9, backoff_seconds=0.02, backoff_max_seconds=0.1) as scene:
        for attempt in range(1, 11):
            state = wait_for(lambda n=attempt: _runs(scene, n), 30, what=f"attempt {attempt} runs")
            scene.hit(state.pid)
        crashed = scene.console.wait_phase(scene.order.instance, "crashed", 60)
        assert "restarted 9 times within 600 s; the budget is spent" in crashed["reason"]
        assert "SIGKILL" in crashed["failure"]["message"]
        assert scene.state.attempt == 10
        scene.assert_told_in_order_to_the_end()
        assert scene.family() == []


def _runs(scene: Scene, attempt: int) -> Any:
    state = scene.state
    return state if state.attempt == attempt and state.state == "running" and state.engine_alive else None


def test_a_restart_of_the_host(tmp_path: Path, engine: str) -> None:
    with scene_in(tmp_path, engine) as scene:
        scene.console.take()
        before, family = scene.state, scene.family()
        scene.agent.kill()
        scene.agent.wait()
        scene.broker.kill()
        for pid in (before.shim_pid, *family):
            scene.hit(pid)
        wait_for(lambda: not any(scene.alive(pid) for pid in (before.shim_pid, *family)), 10)
        file = scene.host.files(scene.order).directory / "state.json"
        written: dict[str, Any] = json.loads(file.read_text())
        file.write_text(json.dumps(written | {"boot_id": "of another boot"}))  # as the kernel's is after a boot
        scene.agent = scene.host.start_agent()
        files = scene.host.files(scene.order)
        wait_for(lambda: files.ready_attempt() == before.attempt + 1, 400, what="ready without the console")
        scene.broker.start()
        scene.broker.add_host(scene.host.config.name)
        scene.assert_recovered(before.attempt)
        first = files.attempt(1)
        assert first
        assert first.reason == "the host was restarted"


@pytest.mark.long
@needs_root
def test_a_cut_network(tmp_path: Path, engine: str) -> None:
    name = f"slw{os.getpid() % 100_000}"
    around = ("ip", "netns", "exec", name)
    with _namespace(name) as (address, cut, mend), scene_in(tmp_path, engine, around=around, address=address) as scene:
        attempt = scene.state.attempt
        cut()
        scene.hit(scene.api_server())
        time.sleep(3)
        assert not scene.console.bodies("attempt.ended")
        files = scene.host.files(scene.order)
        wait_for(lambda: files.ready_attempt() == attempt + 1, 400, what="restarted and ready without the network")
        assert scene.answers()
        mend()
        scene.assert_recovered(attempt)


@contextmanager
def _namespace(name: str) -> Iterator[tuple[str, Any, Any]]:
    """A network namespace with one cable to it; the address of our end, and how to pull and plug the cable."""
    outside, inside, net = f"{name}o"[:15], f"{name}i"[:15], f"10.213.{os.getpid() % 250}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    ip("netns", "add", name)
    try:
        ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name)
        ip("addr", "add", f"{net}.1/24", "dev", outside)
        ip("link", "set", outside, "up")
        ip("-n", name, "addr", "add", f"{net}.2/24", "dev", inside)
        ip("-n", name, "link", "set", inside, "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield f"{net}.1", lambda: ip("link", "set", outside, "down"), lambda: ip("link", "set", outside, "up")
    finally:
        subprocess.run(["ip", "link", "del", outside], check=False, capture_output=True)
        ip("netns", "del", name)


@pytest.mark.skipif(not libfaketime(), reason=missing_text("libfaketime"))
@pytest.mark.long
def test_a_clock_that_jumps(tmp_path: Path, engine: str) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0\n")
    fake = [
        "env", f"LD_PRELOAD={libfaketime()}", f"FAKETIME_TIMESTAMP_FILE={clock}", "FAKETIME_CACHE_DURATION=1",
        "DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
    ]  # fmt: skip
    with scene_in(tmp_path, engine, hang_seconds=60) as scene:
        before = scene.state
        scene.agent.terminate()
        scene.agent.wait(30)
        scene.agent = scene.host.start_agent(*fake)
        told = len(scene.console.heartbeats())
        wait_for(lambda: len(scene.console.heartbeats()) > told, 90, what="heartbeats of the agent with another clock")
        for jump in ("+1d", "-1d"):
            clock.write_text(f"{jump}\n")
            seen = len(scene.console.heartbeats())
            wait_for(lambda n=seen: len(scene.console.heartbeats()) > n, 90, what=f"a heartbeat after {jump}")
            skew = scene.console.heartbeats()[-1]["at"] - time.time()
            assert abs(abs(skew) - 86_400) < 120
            assert scene.answers()
            assert scene.state == before
        scene.hit(scene.api_server())
        scene.assert_recovered(before.attempt)
        assert scene.state.restarts == before.restarts + 1

"""Processes that are killed or stopped: of the engine, the shim, the agent, and the broker."""

import signal
import time

import pytest

from tests.faults.conftest import HANG_SECONDS, Scene
from tests.host.conftest import wait_for

pytestmark = pytest.mark.timeout(900)


def test_kill_9_of_the_api_server(scene: Scene) -> None:
    attempt, family = scene.state.attempt, scene.family()
    since = scene.hit(scene.api_server())
    scene.assert_noticed(since, attempt)
    spawned = wait_for(lambda: scene.host.files(scene.order).attempt(attempt + 1), what="the next attempt")
    assert spawned.started_at - since < 1.5  # a second from exit to spawn, and some patience
    scene.assert_recovered(attempt)
    ended = scene.ended(attempt)
    assert (ended["exit_code"], ended["asked"]) == (-9, False)
    restarting = scene.console.bodies("instance.observed", phase="restarting", attempt=attempt)[-1]
    assert "SIGKILL" in restarting["reason"]
    assert not any(scene.alive(pid) for pid in family)


def _death_of(scene: Scene, name: str) -> None:
    attempt, family = scene.state.attempt, scene.family()
    pid = scene.member(name)
    since = scene.hit(pid)
    scene.assert_noticed(since, attempt)
    news = scene.bad_news(attempt)["body"]
    assert f"{name}" in news.get("reason", "") or news["kind"] == "attempt.ended" or "/health" in news["reason"]
    scene.assert_recovered(attempt)
    assert not scene.ended(attempt)["asked"]
    assert not any(scene.alive(one) for one in family)


def test_kill_9_of_the_engine_core(scene: Scene) -> None:
    _death_of(scene, "EngineCore")


def test_kill_9_of_a_worker(scene: Scene) -> None:
    _death_of(scene, "Worker")


def _stop_of(scene: Scene, pid: int, *words: str) -> None:
    attempt, family = scene.state.attempt, scene.family()
    since = scene.hit(pid, signal.SIGSTOP)
    ended = scene.ended(attempt)
    hang = HANG_SECONDS[scene.engine]
    assert ended["ended_at"] - since > hang
    scene.assert_noticed(since, attempt, seconds=hang + 8)
    assert ended["diagnosis"]["code"] == "engine.hung"
    assert any(one in ended["diagnosis"]["message"] for one in words)
    assert f"(pid {pid}) is stopped by a signal" in ended["diagnosis"]["message"]
    scene.assert_recovered(attempt)
    assert not any(scene.alive(one) for one in family)


def test_stop_of_the_api_server(scene: Scene) -> None:
    # A token that was being asked for may be missed a moment before /health is.
    _stop_of(scene, scene.api_server(), "has not answered /health", "has not given one token")


def test_stop_of_the_engine_core(scene: Scene) -> None:
    _stop_of(scene, scene.member("EngineCore"), "token")


def test_stop_of_a_worker(scene: Scene) -> None:
    _stop_of(scene, scene.member("Worker"), "token")


def test_kill_9_of_the_agent(scene: Scene) -> None:
    before = scene.state
    scene.agent.kill()
    scene.agent.wait()
    assert scene.answers()
    scene.agent = scene.host.start_agent()
    told = len(scene.console.bodies("host.inventory"))
    wait_for(lambda: len(scene.console.bodies("host.inventory")) > told, what="the new agent reports")
    assert scene.answers()
    assert scene.state == before
    scene.assert_told_in_order(before.attempt)


def test_stop_of_the_agent(scene: Scene) -> None:
    before = scene.state
    scene.hit(scene.agent.pid, signal.SIGSTOP)
    heartbeats = len(scene.console.heartbeats())
    time.sleep(1)
    assert scene.answers()
    scene.hit(scene.agent.pid, signal.SIGCONT)
    wait_for(lambda: len(scene.console.heartbeats()) > heartbeats, what="heartbeats go on")
    assert scene.state == before
    scene.assert_told_in_order(before.attempt)


def test_kill_9_of_the_shim(scene: Scene) -> None:
    before = scene.state
    scene.hit(before.shim_pid)
    after = wait_for(lambda: scene.state if scene.state.shim_pid != before.shim_pid else None, 10, what="the next shim")
    assert (after.pid, after.attempt) == (before.pid, before.attempt)
    assert scene.answers()
    scene.assert_no_orphan()
    scene.assert_told_in_order(before.attempt)


def test_stop_of_the_shim(scene: Scene) -> None:
    before = scene.state
    scene.hit(before.shim_pid, signal.SIGSTOP)
    try:
        assert scene.answers()
        assert before.pid
        scene.hit(before.pid)
    finally:
        scene.hit(before.shim_pid, signal.SIGCONT)
    scene.assert_recovered(before.attempt)


def test_kill_9_of_shim_and_engine_together(scene: Scene) -> None:
    before, family = scene.state, scene.family()
    scene.hit(before.shim_pid)
    since = scene.hit(scene.api_server())
    scene.assert_noticed(since, before.attempt)
    scene.assert_recovered(before.attempt)
    assert not any(scene.alive(pid) for pid in family)


def test_kill_9_of_the_broker(scene: Scene) -> None:
    attempt = scene.state.attempt
    scene.console.take()
    scene.broker.kill()
    assert scene.answers()
    scene.hit(scene.api_server())
    files = scene.host.files(scene.order)
    wait_for(lambda: files.ready_attempt() == attempt + 1, 400, what="restarted and ready without a broker")
    scene.broker.start()
    scene.broker.add_host(scene.host.config.name)
    scene.assert_recovered(attempt)


def test_stop_of_the_broker(scene: Scene) -> None:
    attempt = scene.state.attempt
    scene.console.take()
    scene.broker.freeze()
    try:
        assert scene.answers()
        scene.hit(scene.api_server())
        files = scene.host.files(scene.order)
        wait_for(lambda: files.ready_attempt() == attempt + 1, 400, what="restarted and ready without a broker")
    finally:
        scene.broker.thaw()
    scene.assert_recovered(attempt)

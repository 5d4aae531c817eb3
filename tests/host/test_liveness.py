"""Hung engines, with a real agent, a real shim and the stand-in: noticed, explained, ended, restarted; busy ones not."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.host.conftest import API_KEY, Console, HostUnderTest, wait_for
from workers.contracts import InstanceOrder

POLICY = {"budget": 3, "backoff_seconds": 0.2, "hang_seconds": 2, "probe_seconds": 0}


def ready(host: HostUnderTest, console: Console, policy: dict[str, Any], **knobs: Any) -> InstanceOrder:
    order = host.order(model_path=str(host.model("watched", **knobs)), restart=POLICY | policy)
    host.start_agent()
    console.want(order)
    console.wait_phase(order.instance, "ready")
    return order


def ask(order: InstanceOrder) -> threading.Thread:
    def send() -> None:
        body = {"model": "demo", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 5}
        with httpx2.Client(trust_env=False, timeout=60) as client:
            try:
                client.post(
                    f"http://127.0.0.1:{order.port}/v1/chat/completions", json=body,
                    headers={"Authorization": f"Bearer {API_KEY}"},
                )  # fmt: skip
            except httpx2.HTTPError:
                return

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def process(host: HostUnderTest, order: InstanceOrder, title: bytes) -> int:
    return next(
        pid for pid in host.processes(order) if title in Path(f"/proc/{pid}/cmdline").read_bytes()
    )  # fmt: skip


def hung(console: Console, order: InstanceOrder) -> dict[str, Any]:
    return console.wait("attempt.ended", instance=str(order.instance), number=1)


def test_requests_without_a_token_are_a_hang_which_is_explained_and_ended(
    host: HostUnderTest, console: Console, tmp_path: Path
) -> None:
    trigger = tmp_path / "hang-now"
    order = ready(host, console, {}, hang_on_file=str(trigger))
    trigger.touch()
    began = time.monotonic()
    ask(order)
    ended = hung(console, order)
    assert 2 < time.monotonic() - began < 30
    assert ended["diagnosis"]["code"] == "engine.hung"
    assert "1 requests run" in ended["diagnosis"]["message"]
    assert not ended["asked"]
    trigger.unlink()
    console.wait("instance.observed", instance=str(order.instance), phase="ready", attempt=2)
    seen = console.bodies("instance.observed", instance=str(order.instance))
    unhealthy = next(body for body in seen if body["phase"] == "unhealthy")
    assert unhealthy["failure"]["code"] == "engine.hung"
    restarting = next(body for body in seen if body["phase"] == "restarting")
    assert "no token and no other progress" in restarting["reason"]
    text = host.files(order).log(1).read_text()
    assert "[slipway] the engine hangs" in text
    assert "EngineCore (pid" in text
    assert "run_child" in text  # a Python frame, by py-spy
    assert (host.files(order).attempt_directory(1) / "stacks.txt").read_text() in text.replace("[slipway] ", "")


@pytest.mark.long
def test_a_prompt_that_is_read_for_long_is_busy_not_hung(host: HostUnderTest, console: Console) -> None:
    order = ready(host, console, {}, busy_seconds=0)
    host.model("watched", busy_seconds=5)
    console.want(order.model_copy(update={"start": 2}))
    console.wait("instance.observed", instance=str(order.instance), phase="ready", attempt=2)
    ask(order).join(30)
    assert not console.bodies("attempt.ended", number=2)
    assert console.phases(order.instance)[-1] == "ready"


@pytest.mark.long
@pytest.mark.parametrize("title", [b"VLLM::EngineCore", b"VLLM::Worker"])
def test_an_idle_engine_with_a_stopped_process_is_found_by_asking_for_one_token(
    host: HostUnderTest, console: Console, title: bytes
) -> None:
    order = ready(host, console, {"probe_seconds": 1})
    pid = process(host, order, title)
    os.kill(pid, signal.SIGSTOP)
    ended = hung(console, order)
    name = title.decode().removeprefix("VLLM::")
    assert f"{name} (pid {pid}) is stopped by a signal" in ended["diagnosis"]["message"]
    console.wait("instance.observed", instance=str(order.instance), phase="ready", attempt=2)


def test_an_idle_engine_that_pools_is_asked_for_a_vector(host: HostUnderTest, console: Console, tmp_path: Path) -> None:
    trigger = tmp_path / "hang-now"
    order = ready(host, console, {"probe_seconds": 0.2}, pools="embed", hang_on_file=str(trigger))
    time.sleep(3)  # at least three times, which would be enough to call it hung
    assert console.phases(order.instance)[-1] == "ready"
    trigger.touch()
    assert "although idle" in hung(console, order)["diagnosis"]["message"]


@pytest.mark.long
def test_an_api_server_that_is_stopped_is_a_hang(host: HostUnderTest, console: Console) -> None:
    order = ready(host, console, {})
    state = host.files(order).state()
    assert state
    assert state.pid
    os.kill(state.pid, signal.SIGSTOP)
    assert "has not answered /health" in hung(console, order)["diagnosis"]["message"]
    console.wait("instance.observed", instance=str(order.instance), phase="ready", attempt=2)
    _nothing_of_attempt_1(host, order, state.pid)


def _nothing_of_attempt_1(host: HostUnderTest, order: InstanceOrder, pid: int) -> None:
    gone: Callable[[], bool] = lambda: not Path(f"/proc/{pid}").exists()  # noqa: E731
    wait_for(gone, 5)


@pytest.mark.long
def test_while_the_console_holds_its_hosts_a_hung_engine_is_shown_and_left_alone(
    host: HostUnderTest, console: Console, tmp_path: Path
) -> None:
    trigger = tmp_path / "hang-now"
    order = ready(host, console, {}, hang_on_file=str(trigger))
    console.hold = "half of the fleet turned bad at once"
    console.want(order)
    trigger.touch()
    ask(order)
    unhealthy = console.wait_phase(order.instance, "unhealthy")
    assert "It is not ended: half of the fleet" in unhealthy["reason"]
    time.sleep(1.5)
    assert not console.bodies("attempt.ended")
    console.hold = ""
    console.want(order)
    assert hung(console, order)["diagnosis"]["code"] == "engine.hung"

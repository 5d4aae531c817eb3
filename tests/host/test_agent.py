"""The whole agent: a real process, a real broker with the host's own user, the stand-in engine."""

import os
import signal
import time

from tests.host.conftest import Console, HostUnderTest, wait_for
from workers.contracts import StepKind


def test_a_desired_instance_is_started_brought_up_and_stopped(host: HostUnderTest, console: Console) -> None:
    host.start_agent()
    order = host.order()
    console.want(order)
    console.wait_phase(order.instance, "ready")
    phases = console.phases(order.instance)
    assert phases == sorted(phases, key=["starting", "loading", "listening", "validating", "warming", "ready"].index)
    started = console.wait("attempt.started", instance=str(order.instance))
    assert started["number"] == 1
    assert started["argv"][-6:] == ["--host", "127.0.0.1", "--port", str(order.port), "--served-model-name", "demo"]
    assert started["environment"]["VLLM_API_KEY"] == "***"

    console.want(order.model_copy(update={"run": False}))
    console.wait_phase(order.instance, "stopped")
    ended = console.wait("attempt.ended", instance=str(order.instance))
    assert (ended["exit_code"], ended["asked"]) == (0, True)
    assert host.processes(order) == []


def test_kill_9_of_the_agent_leaves_the_engine_and_a_new_agent_adopts_it(host: HostUnderTest, console: Console) -> None:
    agent = host.start_agent()
    order = host.order()
    console.want(order)
    console.wait_phase(order.instance, "ready")
    before = host.files(order).state()
    worker = _children(agent.pid)
    assert worker
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    wait_for(lambda: not any(_exists(pid) for pid in worker), 3, what="the worker ends with its agent")
    assert before is not None
    assert host.files(order).state() == before
    console.take()
    seen = len(console.reports)

    host.start_agent()
    wait_for(lambda: [r for r in console.reports[seen:] if r["body"].get("phase") == "ready"] or console.take())
    assert host.files(order).state() == before
    assert len(console.bodies("attempt.started")) == 1


def test_a_second_agent_refuses_to_start_and_names_the_first(host: HostUnderTest, console: Console) -> None:
    first = host.start_agent()
    wait_for(console.heartbeats, what="a heartbeat")
    second = host.start_agent()
    assert second.wait(10) == 1
    assert f"process {first.pid} holds" in host.log.read_text()
    assert first.poll() is None


def test_sigterm_ends_agent_and_worker_and_leaves_the_engine(host: HostUnderTest, console: Console) -> None:
    agent = host.start_agent()
    order = host.order()
    console.want(order)
    console.wait_phase(order.instance, "ready")
    worker = _children(agent.pid)
    began = time.monotonic()
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(10) == 0
    assert time.monotonic() - began < 5
    wait_for(lambda: not any(_exists(pid) for pid in worker), 3)
    state = host.files(order).state()
    assert state is not None
    assert state.engine_alive
    assert state.shim_alive


def test_a_deploy_job_runs_step_by_step(host: HostUnderTest, console: Console) -> None:
    host.start_agent()
    order = host.order(bring_up="job")
    console.dispatch(1, StepKind.PREFLIGHT, {"engine": "standin", "model_path": "model", "port": None})
    assert console.finished(1)["outcome"] == "succeeded"
    console.want(order)
    payload = {"instance": str(order.instance), "start": 1}
    for step, kind in enumerate((StepKind.LAUNCH, StepKind.LISTENING, StepKind.VALIDATE, StepKind.WARMUP), 2):
        console.dispatch(step, kind, payload)
        assert console.finished(step)["outcome"] == "succeeded", console.finished(step)
    assert "Paris" in console.finished(4)["result"]["answer"]
    assert console.finished(5)["result"]["completion_tokens"] > 50
    console.wait_phase(order.instance, "ready")
    console.want(order.model_copy(update={"run": False}))
    console.dispatch(6, StepKind.STOP, {"instance": str(order.instance)})
    assert console.finished(6)["outcome"] == "succeeded"
    assert host.processes(order) == []


def _children(pid: int) -> list[int]:
    from workers.host.processes import all_processes

    processes = list(all_processes())
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        for process in processes:
            if process.parent == parent:
                found.append(process.pid)
                waiting.append(process.pid)
    return found


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

"""The whole agent: a real process, a real broker with the host's own user, the stand-in engine."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.host.conftest import PATIENCE, Broker, Console, HostUnderTest, make_host, wait_for
from workers.contracts import StepKind
from workers.host.processes import all_processes, descendants_of

DATA = Path(__file__).parent / "data"


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
    wait_for(lambda: host.processes(order) == [])  # the shim itself is gone a moment after its last word


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
    assert second.wait(PATIENCE) == 1
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
    wait_for(lambda: host.processes(order) == [])  # the shim itself is gone a moment after its last word


def _children(pid: int) -> list[int]:
    return sorted(descendants_of(pid, all_processes()))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_everything_goes_on_without_a_broker_and_is_told_later_in_order(tmp_path: Path, own_broker: Broker) -> None:
    host = make_host(tmp_path, own_broker)
    try:
        console = Console(own_broker, host.config)
        host.start_agent()
        order = host.order()
        console.want(order)
        console.wait_phase(order.instance, "ready")
        console.take()
        own_broker.kill()
        state = host.files(order).state()
        assert state is not None
        assert state.pid
        os.kill(state.pid, signal.SIGKILL)
        wait_for(lambda: host.files(order).ready_attempt() == 2, what="restarted and brought up without a broker")
        own_broker.start()
        own_broker.add_host(host.config.name)
        console.wait("instance.observed", phase="ready", attempt=2)
        numbers = [report["number"] for report in console.reports]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert [body["number"] for body in console.bodies("attempt.started")] == [1, 2]
        (ended,) = console.bodies("attempt.ended")
        assert (ended["number"], ended["exit_code"], ended["asked"]) == (1, -9, False)
        seen = console.bodies("instance.observed")
        restarting = next(index for index, body in enumerate(seen) if body["phase"] == "restarting")
        assert "SIGKILL" in seen[restarting]["reason"]
    finally:
        host.end()


def test_a_start_that_fails_is_told_within_a_second_with_its_root_cause(host: HostUnderTest, console: Console) -> None:
    trigger = host.config.state_dir / "fail-now"
    host.engine(fail_exit=1, fail_on_file=trigger, fail_log=DATA / "context_too_long.log")
    host.start_agent()
    order = host.order(bring_up="job")
    console.want(order)
    console.dispatch(1, StepKind.LISTENING, {"instance": str(order.instance)})
    console.wait("step.progress", step=1)
    trigger.touch()
    finished = console.finished(1)
    reported_at = next(
        report["at"] for report in console.reports if report["body"].get("step") == 1 and report["body"].get("outcome")
    )
    attempt = host.files(order).attempt(1)
    assert attempt is not None
    assert attempt.ended_at is not None
    assert reported_at - attempt.ended_at < 1.5  # a second, and some patience with a busy machine
    assert finished["failure"]["code"] == "context.exceeds_model"
    assert "exit code 1" in finished["failure"]["message"]
    assert finished["failure"]["evidence"]
    crashed = console.wait_phase(order.instance, "crashed")
    assert crashed["failure"]["code"] == "context.exceeds_model"
    ended = console.wait("attempt.ended")
    assert ended["diagnosis"]["code"] == "context.exceeds_model"


def test_what_can_t_be_started_is_refused_and_the_launch_step_says_why(host: HostUnderTest, console: Console) -> None:
    host.start_agent()
    order = host.order(engine="vllm-0.99", bring_up="job")
    console.want(order)
    console.dispatch(1, StepKind.LAUNCH, {"instance": str(order.instance)})
    assert console.finished(1)["failure"]["code"] == "engine.not_installed"
    assert console.wait_phase(order.instance, "crashed")["failure"]["code"] == "engine.not_installed"

    host.engine("vllm-0.99")
    console.want(order.model_copy(update={"start": 2, "bring_up": "agent"}))
    console.wait_phase(order.instance, "ready")


def test_a_model_that_answers_nonsense_never_gets_ready(host: HostUnderTest, console: Console) -> None:
    host.model("broken", answer="garbage")
    host.start_agent()
    order = host.order(model_path=str(host.config.models_dir / "broken"))
    console.want(order)
    unhealthy = console.wait_phase(order.instance, "unhealthy")
    assert unhealthy["failure"]["code"].startswith("answer.")
    assert "ready" not in console.phases(order.instance)
    assert host.files(order).ready_attempt() is None


def test_a_higher_start_number_restarts_and_a_lost_worker_is_noticed(host: HostUnderTest, console: Console) -> None:
    host.start_agent()
    order = host.order()
    console.want(order)
    console.wait_phase(order.instance, "ready")
    console.want(order.model_copy(update={"start": 2}))
    console.wait("instance.observed", phase="ready", attempt=2)
    first = console.wait("attempt.ended", number=1)
    assert first["asked"]

    pids = host.processes(order)
    worker = next(pid for pid in pids if b"VLLM::Worker" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(worker, signal.SIGKILL)
    console.wait("instance.observed", phase="ready", attempt=3)
    second = console.wait("attempt.ended", number=2)
    assert (second["exit_code"], second["asked"]) == (0, False)
    assert "restarting" in console.phases(order.instance)


def test_a_restart_of_an_engine_that_takes_its_time_to_end_is_no_stop(host: HostUnderTest, console: Console) -> None:
    # The console takes an instance out of `stopping` only when it has stopped: a restart that said so would stay there.
    host.engine(ignore_term=True)
    host.start_agent()
    order = host.order(grace_seconds=1)
    console.want(order)
    console.wait_phase(order.instance, "ready")
    console.want(order.model_copy(update={"start": 2}))
    console.wait("instance.observed", phase="ready", attempt=2)
    assert not {"stopping", "stopped"} & set(console.phases(order.instance))
    console.want(order.model_copy(update={"start": 2, "run": False}))
    console.wait_phase(order.instance, "stopped")
    assert "stopping" in console.phases(order.instance)


def test_an_instance_that_nobody_desires_is_told_and_kept(host: HostUnderTest, console: Console) -> None:
    agent = host.start_agent()
    order = host.order()
    console.want(order)
    console.wait_phase(order.instance, "ready")
    console.want()
    console.wait("host.unknown_instances", instances=[str(order.instance)])
    state = host.files(order).state()
    assert state is not None
    agent.kill()
    agent.wait()
    host.start_agent()
    time.sleep(1)
    assert state.engine_alive
    console.want(order.model_copy(update={"run": False}))
    console.wait_phase(order.instance, "stopped")


@pytest.mark.long
def test_a_cancelled_step_ends_whether_it_runs_or_never_came(host: HostUnderTest, console: Console) -> None:
    host.engine(never_ready=True)
    host.start_agent()
    order = host.order(bring_up="job")
    console.want(order)
    console.dispatch(1, StepKind.LISTENING, {"instance": str(order.instance)}, fence=4)
    console.wait("step.progress", step=1)
    cancelled = [{"step": 1, "fence": 4}, {"step": 2, "fence": 1}]
    began = time.monotonic()
    console.want(order.model_copy(update={"run": False}), cancelled=cancelled)
    assert console.finished(1)["outcome"] == "cancelled"
    assert console.finished(2)["outcome"] == "cancelled"
    assert time.monotonic() - began < 3
    console.dispatch(2, StepKind.LISTENING, {"instance": str(order.instance)}, fence=1)
    console.dispatch(3, StepKind.STOP, {"instance": str(order.instance)})
    console.finished(3)
    assert len(console.bodies("step.finished", step=2)) == 1


def test_a_step_resumes_after_kill_9_of_the_agent(host: HostUnderTest, console: Console) -> None:
    host.model("slow", ready_seconds=4)
    agent = host.start_agent()
    order = host.order(bring_up="job", model_path=str(host.config.models_dir / "slow"))
    console.want(order)
    payload = {"instance": str(order.instance)}
    console.dispatch(1, StepKind.LISTENING, payload, fence=1)
    console.wait("step.started", step=1)
    worker = _children(agent.pid)
    agent.kill()
    agent.wait()
    # A message that is sent in this moment may be taken by the dying worker; the console would send it again.
    wait_for(lambda: not any(_exists(pid) for pid in worker))
    host.start_agent()
    console.dispatch(1, StepKind.LISTENING, payload, fence=2)
    finished = console.finished(1, fence=2)
    assert finished["outcome"] == "succeeded"
    assert finished["result"]["attempt"] == 1


def test_the_worker_loads_no_django_even_beside_a_console(
    host: HostUnderTest, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Celery would load these settings, and fail, if the variable reached it.
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "nowhere.settings")
    host.start_agent()
    console.dispatch(1, StepKind.PREFLIGHT, {"engine": "standin", "model_path": "model"})
    assert console.finished(1)["outcome"] == "succeeded"
    assert "nowhere" not in host.log.read_text()


def test_heartbeats_and_inventory_say_what_the_host_is(host: HostUnderTest, console: Console) -> None:
    agent = host.start_agent()
    (heartbeat, *_rest) = wait_for(console.heartbeats, what="a heartbeat")
    assert heartbeat["agent_pid"] == agent.pid
    assert heartbeat["vitals"]["memory_total"] > 0
    inventory = console.wait("host.inventory")
    assert [engine["key"] for engine in inventory["engines"]] == ["standin"]
    assert inventory["devices"][0]["kind"] == "cpu"
    assert inventory["facts"]["public_key"]
    host.engine("another")
    wait_for(lambda: len(console.bodies("host.inventory")[-1]["engines"]) == 2, what="the new engine is told")


def test_the_log_arrives_whole_and_without_the_key(host: HostUnderTest, console: Console) -> None:
    host.model("chatty", chatter_lines_per_second=300)
    host.start_agent()
    order = host.order(model_path=str(host.config.models_dir / "chatty"))
    console.want(order)
    console.wait_phase(order.instance, "ready")
    console.want(order.model_copy(update={"run": False}))
    console.wait_phase(order.instance, "stopped")
    key = (str(order.instance), 1)
    wait_for(lambda: (console.take(), key in console.final)[1], what="the end of the log")
    assert bytes(console.logs[key]) == host.files(order).log(1).read_bytes()
    assert b"chatter 100\n" in bytes(console.logs[key]).replace(b"] ", b"\n")


def test_host_stop_ends_what_an_agent_left_running(host: HostUnderTest, console: Console) -> None:
    agent = host.start_agent()
    order = host.order()
    console.want(order)
    console.wait_phase(order.instance, "ready")
    command = [sys.executable, "-m", "workers.cli", "host", "stop", "--config", str(host.path), "--json"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert f"process {agent.pid}" in refused.stderr
    agent.terminate()
    agent.wait(15)
    stopped = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(stopped.stdout) == {"host": host.config.name, "stopped": [str(order.instance)], "left": []}
    wait_for(lambda: host.processes(order) == [])  # the shim itself is gone a moment after its last word

"""The contract of an engine driver, with real processes: the same tests for the shim driver and the systemd driver.

The driver under test is named by SLIPWAY_TEST_DRIVER; tests/host/test_systemd_driver.py runs this file inside a real systemd.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import HostUnderTest, wait_for
from workers.contracts import Failure, InstanceOrder
from workers.host.drivers import DriverError
from workers.host.drivers.shim import ShimDriver
from workers.host.drivers.systemd import SystemdDriver
from workers.host.engines import find_engine
from workers.host.instance_files import InstanceFiles, ShimState
from workers.host.launching import Launch, prepare_launch
from workers.host.processes import family_of, is_alive

DRIVERS: dict[str, type[ShimDriver]] = {"shim": ShimDriver, "systemd": SystemdDriver}


class Driven:
    """One instance under a driver, without an agent."""

    def __init__(self, host: HostUnderTest, **changes: Any) -> None:
        self.host = host
        self.driver = DRIVERS[os.environ.get("SLIPWAY_TEST_DRIVER", "shim")]()
        self.order: InstanceOrder = host.order(**changes)
        self.files: InstanceFiles = host.files(self.order)

    def launch(self) -> Launch:
        config = self.host.config
        engine = find_engine(config.engines_dir, self.order.engine)
        return prepare_launch(self.order, engine, config.private_keys, os.environ, state_dir=config.state_dir)

    def start(self) -> ShimState:
        launch = self.launch()
        self.files.write_order(self.order, launch.spec)
        self.driver.start(self.files, launch)
        return self.running(1)

    def running(self, attempt: int) -> ShimState:
        """Wait until this attempt's whole process tree is there."""

        def complete() -> ShimState | None:
            state = self.state()
            if state.attempt != attempt or state.state != "running" or len(self.family()) < 3:
                return None
            return state

        result: ShimState = wait_for(complete, what=f"attempt {attempt} runs")
        return result

    def state(self) -> ShimState:
        return wait_for(self.files.state, what="a state")  # type: ignore[no-any-return]

    def family(self) -> list[int]:
        """Pids of engine, EngineCore and Worker (not the shim)."""
        state = self.state()
        family = family_of(str(self.order.instance), self.files.directory, state.pid)
        return [process.pid for process in family if process.pid != state.shim_pid]

    def finished(self, seconds: float = 10) -> ShimState:
        return wait_for(lambda: None if self.state().unfinished else self.state(), seconds, what="an end")  # type: ignore[no-any-return]

    def mark_ready(self) -> None:
        self.files.mark_ready(start=1, attempt=1)


def test_a_crash_is_answered_by_a_new_attempt_within_a_second(lone_host: HostUnderTest) -> None:
    driven = Driven(lone_host)
    state = driven.start()
    driven.mark_ready()
    began = time.monotonic()
    os.kill(state.pid or 0, signal.SIGKILL)
    wait_for(lambda: driven.state().attempt == 2)
    assert time.monotonic() - began < 1
    first = driven.files.attempt(1)
    assert first is not None
    assert (first.exit_code, first.asked) == (-9, False)
    assert first.log_bytes == driven.files.log(1).stat().st_size > 0


def test_kill_9_of_the_main_process_leaves_no_child(lone_host: HostUnderTest) -> None:
    driven = Driven(lone_host)
    state = driven.start()
    family = driven.family()
    assert len(family) == 3
    os.kill(state.pid or 0, signal.SIGKILL)
    driven.finished()
    assert not any(_exists(pid) for pid in family)


def test_a_process_that_was_never_ready_is_not_started_again(lone_host: HostUnderTest) -> None:
    lone_host.engine(fail_exit=1)
    driven = Driven(lone_host)
    launch = driven.launch()
    driven.files.write_order(driven.order, launch.spec)
    driven.driver.start(driven.files, launch)
    state = driven.finished()
    assert (state.state, state.exit_code, state.attempt) == ("crashed", 1, 1)
    assert "before it was ever ready" in state.reason


def test_exit_code_0_that_nobody_asked_for_is_a_crash(lone_host: HostUnderTest) -> None:
    driven = Driven(lone_host)
    state = driven.start()
    worker = _named(driven.family(), "VLLM::Worker")
    os.kill(worker, signal.SIGKILL)
    end = driven.finished()
    assert (end.state, end.exit_code) == ("crashed", 0)
    assert state.attempt == end.attempt


def test_the_budget_is_spent_after_so_many_restarts(lone_host: HostUnderTest) -> None:
    lone_host.engine(die_after_seconds=0, ready_seconds=0)
    driven = Driven(lone_host, restart={"budget": 2, "window_seconds": 600, "backoff_seconds": 0.01})
    driven.files.prepare()
    driven.mark_ready()
    launch = driven.launch()
    driven.files.write_order(driven.order, launch.spec)
    driven.driver.start(driven.files, launch)
    end = driven.finished(20)
    assert (end.state, end.attempt, end.restarts) == ("crashed", 3, 2)
    assert "budget" in end.reason
    assert [driven.files.attempt(number) is not None for number in (1, 2, 3)] == [True] * 3


def test_stop_ends_everything_in_order(lone_host: HostUnderTest) -> None:
    driven = Driven(lone_host)
    driven.start()
    wait_for(lambda: b"startup complete" in driven.files.log(1).read_bytes())
    family = driven.family()
    driven.driver.stop(driven.files, 5)
    end = driven.finished()
    attempt = driven.files.attempt(1)
    assert attempt is not None
    assert (end.state, end.exit_code, attempt.asked, attempt.killed) == ("stopped", 0, True, False)
    assert not any(_exists(pid) for pid in family)


def test_what_ignores_a_stop_is_killed_after_the_grace_time(lone_host: HostUnderTest) -> None:
    lone_host.engine(ignore_term=True)
    driven = Driven(lone_host)
    driven.start()
    family = driven.family()
    began = time.monotonic()
    driven.driver.stop(driven.files, 0.5)
    driven.finished()
    assert time.monotonic() - began >= 0.5
    attempt = driven.files.attempt(1)
    assert attempt is not None
    assert attempt.killed
    assert not any(_exists(pid) for pid in family)


def test_a_serving_engine_whose_shim_was_killed_is_taken_over(lone_host: HostUnderTest) -> None:
    driven = Driven(lone_host)
    before = driven.start()
    driven.mark_ready()
    os.kill(before.shim_pid, signal.SIGKILL)
    wait_for(lambda: not driven.state().shim_alive)
    driven.driver.adopt(driven.files, driven.launch())
    after = wait_for(lambda: driven.state() if driven.state().shim_pid != before.shim_pid else None)
    assert (after.pid, after.attempt, after.state) == (before.pid, 1, "running")
    assert after.engine_alive

    os.kill(after.pid, signal.SIGKILL)
    wait_for(lambda: driven.state().attempt == 2, what="the new shim restarts it")


def test_an_adoption_that_comes_too_late_starts_nothing(lone_host: HostUnderTest) -> None:
    """An agent may see a shim gone just after it has given up: that must not be a new life with a new budget."""
    lone_host.engine(fail_exit=1)
    driven = Driven(lone_host)
    launch = driven.launch()
    driven.files.write_order(driven.order, launch.spec)
    driven.driver.start(driven.files, launch)
    end = driven.finished()
    wait_for(lambda: not end.shim_alive)
    driven.driver.adopt(driven.files, launch)
    time.sleep(0.5)
    assert driven.state() == end


def test_what_a_killed_shim_and_engine_left_behind_is_ended_before_a_new_attempt(lone_host: HostUnderTest) -> None:
    driven = Driven(lone_host)
    before = driven.start()
    driven.mark_ready()
    family = driven.family()
    os.kill(before.shim_pid, signal.SIGKILL)
    os.kill(before.pid or 0, signal.SIGKILL)
    wait_for(lambda: not driven.state().shim_alive)
    orphans = [pid for pid in family if pid != before.pid]
    assert all(_exists(pid) for pid in orphans)
    driven.driver.adopt(driven.files, driven.launch())
    wait_for(lambda: driven.state().attempt == 2)
    assert not any(_exists(pid) for pid in orphans)


def test_stop_without_a_shim_ends_the_orphaned_engine(lone_host: HostUnderTest) -> None:
    driven = Driven(lone_host)
    before = driven.start()
    family = driven.family()
    os.kill(before.shim_pid, signal.SIGKILL)
    wait_for(lambda: not driven.state().shim_alive)
    driven.driver.stop(driven.files, 5)
    end = driven.finished()
    assert end.state == "stopped"
    assert not any(_exists(pid) for pid in family)


def test_a_second_shim_for_the_same_instance_refuses(lone_host: HostUnderTest) -> None:
    driven = Driven(lone_host)
    before = driven.start()
    with pytest.raises(DriverError):
        driven.driver.start(driven.files, driven.launch())
    assert driven.state() == before


def test_a_stranger_in_the_same_directory_is_left_alone(lone_host: HostUnderTest) -> None:
    driven = Driven(lone_host)
    driven.start()
    stranger = subprocess.Popen(["sleep", "30"], cwd=driven.files.attempt_directory(1))
    driven.driver.stop(driven.files, 5)
    driven.finished()
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_hung_attempt_that_the_agent_fails_is_restarted_by_policy(lone_host: HostUnderTest) -> None:
    driven = Driven(lone_host)
    driven.start()
    driven.mark_ready()
    driven.driver.fail(driven.files, Failure(code="engine.hung", message="the engine hangs: no token"))
    wait_for(lambda: driven.state().attempt == 2)
    attempt = driven.files.attempt(1)
    assert attempt is not None
    assert not attempt.asked


def test_secrets_reach_the_engine_but_no_file(lone_host: HostUnderTest) -> None:
    driven = Driven(lone_host)
    state = driven.start()
    environment = Path(f"/proc/{state.pid}/environ").read_bytes()
    assert b"VLLM_API_KEY=sk-secret-of-the-deployment" in environment
    for file in driven.files.directory.rglob("*"):
        if file.is_file():
            assert b"sk-secret" not in file.read_bytes()


def test_a_program_that_can_t_be_executed_is_a_crash_with_code_127(lone_host: HostUnderTest) -> None:
    driven = Driven(lone_host)
    launch = driven.launch()
    launch.spec["argv"][0] = str(lone_host.path)  # a file, but no program
    driven.files.write_order(driven.order, launch.spec)
    driven.driver.start(driven.files, launch)
    end = driven.finished()
    assert (end.state, end.exit_code) == ("crashed", 127)
    assert "cannot start" in driven.files.log(1).read_text()


def test_a_shim_is_small() -> None:
    code = "import workers.host.shim, sys; print(any(m.split('.')[0] in ('pydantic', 'psutil') for m in sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def _exists(pid: int) -> bool:
    from workers.host.processes import facts_of

    facts = facts_of(pid)
    return facts is not None and is_alive(pid, facts.start)


def _named(pids: list[int], title: str) -> int:
    """The process of that title, which it gives itself a moment after it is there."""

    def found() -> int | None:
        return next((pid for pid in pids if title.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()), None)

    return wait_for(found, what=title)  # type: ignore[no-any-return]


def test_a_new_start_right_after_a_stop_waits_for_the_old_shim_to_be_gone(lone_host: HostUnderTest) -> None:
    driven = Driven(lone_host)
    driven.start()
    for start in (2, 3):
        driven.driver.stop(driven.files, 5)
        driven.finished()
        driven.order = driven.order.model_copy(update={"start": start})
        launch = driven.launch()
        driven.files.write_order(driven.order, launch.spec)
        driven.driver.start(driven.files, launch)
        driven.running(start)

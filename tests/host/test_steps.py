"""Dispatches, fences, cancellations and outcomes of steps, with steps that the test writes."""

import importlib.machinery
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

from tests.host.conftest import HostUnderTest, make_host, wait_for
from tests.ports import free_port
from workers.contracts import StepKind, StepOrder
from workers.host.failures import StepFailedError
from workers.host.slots import SLOTS, parked_steps, run_in_slot, unpark
from workers.host.step_context import StepContext
from workers.host.step_files import StepFiles, running_steps
from workers.host.step_runner import answer_without_running, cancel_step, run_order
from workers.host.steps import preflight
from workers.step_payloads import PreflightPayload


class AnyPayload(BaseModel):
    value: int = 0


class AnyResult(BaseModel):
    runs: int


class Bench:
    """Runs orders whose step is a function of the test, and collects what is reported."""

    def __init__(self, host: HostUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config = host.config
        self.reports: list[Any] = []
        self.runs = 0
        self._monkeypatch = monkeypatch
        self.step(lambda _context: None)

    def step(self, work: Callable[[StepContext], None]) -> None:
        name = f"workers.host.steps.{StepKind.DOWNLOAD}"
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.Payload = AnyPayload  # type: ignore[attr-defined]

        def run(context: StepContext, _payload: AnyPayload) -> AnyResult:
            self.runs += 1
            work(context)
            return AnyResult(runs=self.runs)

        module.run = run  # type: ignore[attr-defined]
        self._monkeypatch.setitem(sys.modules, name, module)

    def order(self, fence: int = 1, *, step: int = 7, value: int = 0, deadline: float = 30) -> StepOrder:
        return StepOrder(
            step=step,
            job=1,
            fence=fence,
            kind=StepKind.DOWNLOAD,
            deadline_seconds=deadline,
            payload={"value": value},
        )

    def run(self, fence: int = 1, **changes: Any) -> None:
        run_order(self.order(fence, **changes), self.config, self.reports.append)

    def begin(self, fence: int = 1, **changes: Any) -> threading.Thread:
        thread = threading.Thread(target=self.run, args=[fence], kwargs=changes)
        thread.start()
        wait_for(lambda: self.files().fence == fence and self.kinds()[-1:] == ["step.started"])
        return thread

    def files(self, step: int = 7) -> StepFiles:
        return StepFiles(self.config.state_dir, step)

    def kinds(self) -> list[str]:
        return [report.kind for report in self.reports]

    @property
    def last(self) -> Any:
        return self.reports[-1]


@pytest.fixture
def lone_host(tmp_path: Path) -> Iterator[HostUnderTest]:
    class NoBroker:
        def add_host(self, name: str) -> str:
            return f"redis://{name}@127.0.0.1:1/0"

    host = make_host(tmp_path, NoBroker())  # type: ignore[arg-type]
    yield host
    host.end()


@pytest.fixture
def bench(lone_host: HostUnderTest, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(lone_host, monkeypatch)


def test_a_step_starts_and_ends_with_its_result(bench: Bench) -> None:
    bench.run()
    assert bench.kinds() == ["step.started", "step.finished"]
    assert (bench.last.outcome, bench.last.result, bench.last.fence) == ("succeeded", {"runs": 1}, 1)


def test_an_older_dispatch_is_refused_without_an_answer(bench: Bench) -> None:
    bench.run(fence=5)
    bench.reports.clear()
    bench.run(fence=4)
    assert (bench.reports, bench.runs) == ([], 1)


def test_a_success_that_is_asked_for_again_is_answered_and_not_repeated(bench: Bench) -> None:
    bench.run(fence=1)
    bench.run(fence=2)
    assert bench.runs == 1
    assert (bench.last.outcome, bench.last.fence, bench.last.result) == ("succeeded", 2, {"runs": 1})


def test_the_same_step_with_another_payload_is_another_question(bench: Bench) -> None:
    bench.run(fence=1, value=1)
    bench.run(fence=2, value=2)
    assert bench.last.result == {"runs": 2}


def test_a_failed_step_that_is_dispatched_again_runs_again(bench: Bench) -> None:
    def fail_once(_context: StepContext) -> None:
        if bench.runs == 1:
            raise StepFailedError("disk.full", "no space: 3 GiB missing", next_step="Free space.")

    bench.step(fail_once)
    bench.run(fence=1)
    assert (bench.last.outcome, bench.last.failure.code, bench.last.failure.next) == (
        "failed",
        "disk.full",
        "Free space.",
    )
    bench.run(fence=1)
    assert (bench.runs, bench.last.outcome) == (1, "failed")
    bench.run(fence=2)
    assert (bench.runs, bench.last.outcome) == (2, "succeeded")


def test_a_running_step_goes_on_under_the_newer_fence(bench: Bench) -> None:
    go_on = threading.Event()
    bench.step(lambda _context: wait_for(go_on.is_set) and None)
    thread = bench.begin(fence=1)
    bench.run(fence=2)
    assert (bench.last.kind, bench.last.fence) == ("step.still_running", 2)
    bench.run(fence=1)
    assert bench.kinds().count("step.still_running") == 1
    go_on.set()
    thread.join()
    assert (bench.last.outcome, bench.last.fence, bench.runs) == ("succeeded", 2, 1)


def test_a_step_that_was_cut_off_runs_again(bench: Bench) -> None:
    # What a killed process leaves behind: a fence, no outcome, a lock that the kernel has freed.
    bench.files().fence = 1
    bench.run(fence=2)
    assert (bench.last.outcome, bench.runs) == ("succeeded", 1)


def test_an_error_of_the_step_itself_is_told_without_a_traceback(bench: Bench) -> None:
    def crash(_context: StepContext) -> None:
        raise KeyError("sk-secret")

    bench.step(crash)
    bench.run()
    assert bench.last.failure.code == "step.crashed"
    assert "sk-secret" not in bench.last.model_dump_json()
    assert "Traceback" not in bench.last.model_dump_json()


def test_a_deadline_says_how_long_and_what_it_was_doing(bench: Bench) -> None:
    def wait(context: StepContext) -> None:
        context.progress(1, 10, unit="seconds", waiting_for="the weights to load")
        context.sleep(30)

    bench.step(wait)
    bench.run(deadline=0.2)
    assert bench.last.failure.code == "step.deadline"
    assert "the weights to load" in bench.last.failure.message


def test_a_running_step_is_cancelled_within_a_fifth_of_a_second(bench: Bench) -> None:
    bench.step(lambda context: context.sleep(30))
    thread = bench.begin()
    began = time.monotonic()
    cancel_step(bench.files(), 1, bench.reports.append)
    thread.join()
    assert time.monotonic() - began < 0.5
    assert [report.outcome for report in bench.reports if report.kind == "step.finished"] == ["cancelled"]


def test_a_cancellation_of_a_step_that_never_came_is_answered_and_its_late_message_refused(bench: Bench) -> None:
    cancel_step(bench.files(), 3, bench.reports.append)
    cancel_step(bench.files(), 3, bench.reports.append)
    assert [(report.outcome, report.fence) for report in bench.reports] == [("cancelled", 3)]
    bench.run(fence=3)
    bench.run(fence=2)
    assert (bench.runs, len(bench.reports)) == (0, 1)
    bench.run(fence=4)
    assert (bench.runs, bench.last.outcome) == (1, "succeeded")


def test_a_cancellation_that_comes_too_late_changes_nothing(bench: Bench) -> None:
    bench.run(fence=2)
    cancel_step(bench.files(), 2, bench.reports.append)
    assert [report.outcome for report in bench.reports if report.kind == "step.finished"] == ["succeeded"]


def test_many_dispatches_at_once_run_the_step_once(bench: Bench) -> None:
    bench.step(lambda context: context.sleep(0.3))
    threads = [threading.Thread(target=bench.run, args=[fence]) for fence in (1, 2, 3, 3, 2, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bench.runs == 1
    finished = [report.fence for report in bench.reports if report.kind == "step.finished"]
    assert finished
    assert max(finished) == 3


def test_a_step_that_this_agent_doesn_t_have_asks_for_an_upgrade(
    lone_host: HostUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    reports: list[Any] = []
    order = StepOrder(step=1, job=1, fence=1, kind=StepKind.DOWNLOAD, deadline_seconds=1)
    run_order(order, lone_host.config, reports.append)
    assert reports[-1].failure.code == "host.upgrade_needed"


def test_a_payload_that_is_not_understood_fails_the_step(bench: Bench) -> None:
    order = bench.order().model_copy(update={"payload": {"value": "x"}})
    run_order(order, bench.config, bench.reports.append)
    assert (bench.last.failure.code, bench.runs) == ("step.bad_payload", 0)


def test_running_steps_are_seen_from_outside(bench: Bench) -> None:
    seen: list[list[int]] = []
    bench.step(lambda context: seen.append(running_steps(context.config.state_dir)))
    bench.run()
    assert (seen, running_steps(bench.config.state_dir)) == ([[7]], [])


def test_progress_is_sent_once_a_second_at_most(bench: Bench) -> None:
    def busy(context: StepContext) -> None:
        for number in range(100):
            context.progress(number, 100, waiting_for="the same")
            time.sleep(0.002)

    bench.step(busy)
    bench.run()
    assert bench.kinds().count("step.progress") == 1


# -- slots -----------------------------------------------------------------------------------------------------------


def test_a_long_step_without_a_free_slot_is_parked_and_run_by_whoever_frees_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SLOTS, StepKind.DOWNLOAD, ("download", 1))
    go_on, done = threading.Event(), []
    state_dir = bench.config.state_dir

    def run(order: StepOrder) -> None:
        wait_for(go_on.is_set)
        done.append(order.step)

    holder = threading.Thread(target=run_in_slot, args=[bench.order(step=1), state_dir, run])
    holder.start()
    wait_for(lambda: (state_dir / "slots" / "download.0.lock").exists())
    time.sleep(0.05)
    for step in (2, 3, 4):
        assert not run_in_slot(bench.order(step=step), state_dir, run)
    assert parked_steps(state_dir) == [2, 3, 4]
    unpark(state_dir, 3, fence=1)
    go_on.set()
    holder.join()
    assert done == [1, 2, 4]
    assert parked_steps(state_dir) == []


def test_a_short_step_needs_no_slot(bench: Bench) -> None:
    order = bench.order().model_copy(update={"kind": StepKind.PREFLIGHT})
    ran: list[int] = []
    assert run_in_slot(order, bench.config.state_dir, lambda found: ran.append(found.step))
    assert ran == [7]


def test_a_dispatch_that_needs_no_run_takes_no_slot(bench: Bench) -> None:
    bench.run(fence=1)
    assert answer_without_running(bench.order(fence=2), bench.config, bench.reports.append)
    assert not answer_without_running(bench.order(fence=1, step=8), bench.config, bench.reports.append)


# -- preflight -------------------------------------------------------------------------------------------------------


def run_preflight(host: HostUnderTest, **payload: Any) -> preflight.PreflightResult:
    order = StepOrder(step=1, job=1, fence=1, kind=StepKind.PREFLIGHT, deadline_seconds=10)
    context = StepContext(
        order=order,
        config=host.config,
        files=StepFiles(host.config.state_dir, 1),
        report=lambda _body: None,
        began=time.monotonic(),
        deadline=time.monotonic() + 10,
    )
    fields = {"engine": "standin", "model_path": "model"} | payload
    return preflight.run(context, PreflightPayload.model_validate(fields))


def failure_of(host: HostUnderTest, **payload: Any) -> Any:
    with pytest.raises(StepFailedError) as caught:
        run_preflight(host, **payload)
    return caught.value.failure


def test_preflight_chooses_the_lowest_port_that_is_free_and_promised_to_nobody(lone_host: HostUnderTest) -> None:
    import socket

    first = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        result = run_preflight(lone_host, port_range=(first, first + 3), reserved_ports=[first + 1])
    assert result.port in (first + 2, first + 3)
    assert result.model_path == str(lone_host.config.models_dir / "model")


def test_preflight_names_who_holds_the_port(lone_host: HostUnderTest) -> None:
    import os
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        failure = failure_of(lone_host, port=port, port_range=(port, port))
    assert failure.code == "port.in_use"
    assert f"process {os.getpid()}" in failure.message


@pytest.mark.parametrize(
    ("payload", "code", "words"),
    [
        ({"engine": "vllm-9"}, "engine.not_installed", "installed: standin"),
        ({"model_path": "nowhere"}, "path.not_found", "holds: model"),
        ({"model_path": "model/standin.json"}, "path.not_a_directory", "is a file"),
        ({"port": 8123, "reserved_ports": [8123]}, "port.in_use", "promised"),
        ({"environment": {"LD_PRELOAD": "/x.so"}}, "environment.not_allowed", "LD_PRELOAD"),
        ({"environment": {"VLLM_PLUGINS": "x"}}, "environment.not_allowed", "VLLM_PLUGINS"),
        ({"environment": {"PYTHONPATH": "/x"}}, "environment.not_allowed", "PYTHONPATH"),
        ({"arguments": ["--port=1"]}, "arguments.reserved", "--port"),
        ({"arguments": ["--api-key", "x"]}, "arguments.reserved", "--api-key"),
        ({"memory_needed": 10**18}, "memory.not_enough", "GiB"),
    ],
)
def test_preflight_says_what_forbids_a_start(
    lone_host: HostUnderTest, payload: dict[str, Any], code: str, words: str
) -> None:
    failure = failure_of(lone_host, **payload)
    assert failure.code == code
    assert words in failure.message
    assert failure.next


def test_preflight_refuses_an_engine_whose_command_is_gone(lone_host: HostUnderTest) -> None:
    file = lone_host.config.engines_dir / "standin" / "engine.json"
    file.write_text(file.read_text().replace(sys.executable, "/nowhere/python"))
    assert failure_of(lone_host).code == "engine.not_installed"

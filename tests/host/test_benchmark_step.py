"""The benchmark step against a real process that speaks the engine's interface, measured by a real client process."""

import base64
import gzip
import json
import os
import signal
import threading
import time

from tests.host.conftest import API_KEY
from tests.host.measured import Measured
from workers.contracts import StepEvent, StepFinished, StepPart, StepProgress
from workers.host.step_files import StepFiles
from workers.host.step_runner import cancel_step
from workers.sealing import public_key_of, seal


def test_every_load_is_run_as_often_as_asked_and_each_run_is_reported_with_its_raw_result(measured: Measured) -> None:
    ended = measured.step(measured.payload())
    assert ended.outcome == "succeeded", ended.failure
    assert ended.result["loads"] == [1, 2]
    runs = measured.runs()
    assert [(run.load, run.repeat) for run in runs] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    numbers = runs[0].numbers
    assert numbers
    assert (numbers.completed, numbers.failed) == (4, 0)
    assert numbers.latencies["ttft"].p50 > 0
    assert len(runs[0].requests) == 4
    raw = json.loads(gzip.decompress(base64.b64decode(measured.parts()[0].raw)))
    assert raw["completed"] == 4
    assert "generated_texts" not in raw
    everything = "".join(one.model_dump_json() for one in measured.reports)
    assert API_KEY not in everything
    assert "OPENAI" not in everything


def test_repeats_ask_with_seeds_of_their_own(measured: Measured) -> None:
    measured.step(measured.payload(loads={"values": [2], "requests": 2, "repeats": 2, "seed": 40}))
    seeds = [run.argv[run.argv.index("--seed") + 1] for run in measured.runs()]
    assert seeds == ["40", "41"]


def test_a_sweep_finds_the_load_that_still_meets_the_target(measured: Measured) -> None:
    # All requests of a run share one slow reader, so beyond some concurrency the target can't be met.
    payload = measured.payload(
        loads={"sweep": {"first": 1, "most": 4}, "requests": 4, "repeats": 1, "warmups": 0}, targets={"e2e_ms": 60_000}
    )
    ended = measured.step(payload)
    assert ended.outcome == "succeeded", ended.failure
    assert ended.result["best_load"] in (2.0, 4.0)
    assert ended.result["ended_because"] in ("most", "saturated")


def test_targets_that_nothing_meets_leave_no_best_load(measured: Measured) -> None:
    payload = measured.payload(
        loads={"sweep": {"first": 2, "most": 4}, "requests": 2, "warmups": 0}, targets={"ttft_ms": 0.001}
    )
    ended = measured.step(payload)
    assert ended.outcome == "succeeded", ended.failure
    assert ended.result["best_load"] is None
    assert ended.result["ended_because"] == "first_too_much"


def test_a_time_instead_of_a_number_becomes_as_many_requests_as_fill_it(measured: Measured) -> None:
    ended = measured.step(measured.payload(loads={"values": [2], "seconds": 1.5, "warmups": 0}))
    assert ended.outcome == "succeeded", ended.failure
    run = measured.runs()[0]
    assert run.prompts > 4
    assert run.numbers
    assert run.numbers.completed == run.prompts
    assert [one.key for one in measured.runs()] == ["concurrency-2-1"], "the pilot is not reported"


def test_a_step_that_died_goes_on_behind_the_runs_it_had_made(measured: Measured) -> None:
    payload = measured.payload(loads={"values": [1, 2], "requests": 2, "warmups": 0})
    measured.step(payload)
    made = StepFiles(measured.host.config.state_dir, 7).directory / "runs"
    (made / "concurrency-2-1.json").unlink()
    (made.parent / "outcome.json").unlink()  # as if the process had been killed in the second run
    before = json.loads((made.parent / "benchmark.json").read_text())["seconds"]
    measured.reports.clear()
    measured.step(payload, fence=2)
    assert json.loads((made.parent / "benchmark.json").read_text())["seconds"] > before > 0
    said = [one.text for one in measured.reports if isinstance(one, StepEvent)]
    assert len(said) == 1, "only the second load was run again"
    assert [run.load for run in measured.runs()] == [1, 2], "the first one is told again, in case it was lost"


def test_a_sweep_that_died_has_the_time_that_it_took_behind_it(measured: Measured) -> None:
    loads = {"sweep": {"first": 1, "most": 4, "budget_seconds": 600}, "requests": 2, "repeats": 1, "warmups": 0}
    payload = measured.payload(loads=loads, targets={"e2e_ms": 60_000})
    measured.step(payload)
    directory = StepFiles(measured.host.config.state_dir, 7).directory
    kept = json.loads((directory / "benchmark.json").read_text())
    assert 0 < kept["seconds"] < 600
    for run in (directory / "runs").glob("*.json"):
        if not run.name.startswith("concurrency-1-1."):
            run.unlink()
    (directory / "outcome.json").unlink()  # as if it had been killed behind the first load, when its time was up
    (directory / "benchmark.json").write_text(json.dumps(kept | {"seconds": 600}))
    ended = measured.step(payload, fence=2)
    assert (ended.result["ended_because"], ended.result["loads"]) == ("time", [1])
    # Of another process of the engine no run counts, nor what they took.
    (directory / "outcome.json").unlink()
    (directory / "benchmark.json").write_text(json.dumps(kept | {"seconds": 600, "attempt": 0}))
    assert measured.step(payload, fence=3).result["loads"][:2] == [1, 2]


def test_another_question_under_the_same_step_is_measured_anew(measured: Measured) -> None:
    measured.step(measured.payload(loads={"values": [1], "requests": 2, "warmups": 0}))
    measured.reports.clear()
    measured.step(measured.payload(loads={"values": [1], "requests": 3, "warmups": 0}), fence=2)
    assert measured.runs()[0].prompts == 3


def test_an_engine_that_is_killed_meanwhile_fails_the_step_with_its_end_as_the_reason(measured: Measured) -> None:
    payload = measured.payload(loads={"values": [1], "requests": 3000, "warmups": 0})
    threading.Timer(1.5, lambda: os.kill(measured.files.attempt(1).pid, signal.SIGKILL)).start()  # type: ignore[union-attr]
    ended = measured.step(payload)
    assert ended.outcome == "failed"
    assert ended.failure
    assert ended.failure.code.startswith(("engine.", "process."))
    assert measured.parts() == []


def test_a_cancelled_step_ends_its_client_and_keeps_what_was_measured(measured: Measured) -> None:
    payload = measured.payload(
        loads={"values": [1, 2], "requests": 2, "warmups": 0} | {"values": [1], "requests": 5000}
    )
    files = StepFiles(measured.host.config.state_dir, 7)
    threading.Timer(1.0, lambda: cancel_step(files, 1, measured.reports.append)).start()
    began = time.monotonic()
    ended = measured.step(payload)
    assert ended.outcome == "cancelled"
    assert time.monotonic() - began < 15
    progress = [one for one in measured.reports if isinstance(one, StepProgress)]
    assert progress[-1].total == 5000


def test_a_run_past_its_limit_is_ended_and_said_to_be_too_much(measured: Measured) -> None:
    ended = measured.step(
        measured.payload(loads={"values": [1, 2], "requests": 4000, "warmups": 0, "run_limit_seconds": 1})
    )
    assert ended.outcome == "failed"
    assert ended.failure
    assert ended.failure.code == "benchmark.no_answers"
    assert "its limit" in ended.failure.message
    assert all(run.numbers is None and run.problem for run in measured.runs())


def test_a_client_that_does_not_know_an_option_says_so(measured: Measured) -> None:
    measured.host.engine(bench_fail=2)
    ended = measured.step(measured.payload())
    assert ended.failure
    assert ended.failure.code == "benchmark.client_failed"
    assert "unrecognized arguments" in ended.failure.message


def test_a_server_of_somebody_else_is_measured_with_a_sealed_key(measured: Measured) -> None:
    key = seal(public_key_of(measured.host.config.private_key), API_KEY)
    payload = measured.payload(
        instance=None, remote={"url": f"http://127.0.0.1:{measured.order.port}/", "model": "demo"},
        loads={"by": "rate", "values": [20], "requests": 4, "warmups": 0},
    )  # fmt: skip
    ended = measured.step(payload, sealed={"target_key": key})
    assert ended.outcome == "succeeded", ended.failure
    numbers = measured.runs()[0].numbers
    assert numbers
    assert (numbers.completed, numbers.errors) == (4, {})


def test_a_wrong_key_is_told_as_the_reason(measured: Measured) -> None:
    payload = measured.payload(
        instance=None, remote={"url": f"http://127.0.0.1:{measured.order.port}", "model": "demo"},
        loads={"values": [1], "requests": 2, "warmups": 0},
    )  # fmt: skip
    ended = measured.step(payload)
    assert ended.outcome == "failed"
    assert ended.failure
    assert ended.failure.code == "benchmark.no_answers"
    assert "401" in ended.failure.message


def test_two_benchmarks_of_one_device_are_made_one_after_the_other(measured: Measured) -> None:
    payload = measured.payload(loads={"values": [1], "requests": 60, "warmups": 0})
    first = threading.Thread(target=measured.step, args=(payload,), kwargs={"step": 7})
    second = threading.Thread(target=measured.step, args=(payload,), kwargs={"step": 8})
    first.start()
    time.sleep(0.3)
    second.start()
    first.join()
    second.join()
    waited = [
        one for one in measured.reports if isinstance(one, StepProgress) and "another benchmark" in one.waiting_for
    ]
    assert {one.step for one in waited} == {8}
    order = [one.step for one in measured.reports if isinstance(one, StepPart | StepFinished)]
    assert order == [7, 7, 8, 8]

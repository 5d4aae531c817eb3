"""A benchmark of a real engine is broken in the middle: it goes on behind its last run, or fails with its reason."""

import json
import os
import signal
from collections.abc import Callable

import pytest

from tests.live.benching import RUN_SECONDS, START_SECONDS, Bench, clients, deployed
from tests.live.harness import LiveConsole, wait_for

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def bench(live_console: LiveConsole, copy_of_the_model: int) -> Bench:
    live_console.sign_in("ada")
    return deployed(live_console, copy_of_the_model)


def begun(bench: Bench, *, title: str) -> int:
    """A benchmark of four runs of which the first is made, while the second goes on."""
    benchmark = bench.ask(title=title, values="2, 4", requests=24)
    wait_for("the first run is made", lambda: bench.runs(benchmark), seconds=2 * RUN_SECONDS, every=0.2)
    wait_for("the second goes on", lambda: clients(bench.console), seconds=60)
    page = bench.page(benchmark)
    assert "Measuring" in page
    assert bench.console.get(f"/benchmarks/{benchmark}/export.json").json()["whole"] is False
    return benchmark


def made(bench: Bench, benchmark: int) -> list[str]:
    """What the job said of each run that it made."""
    job = bench.console.one("select job_id from benchmarks_benchmark where id = ?", benchmark)
    rows = bench.console.rows("select text from jobs_event where job_id = ? and text like '%requests/s%'", job)
    return [row[0].partition(":")[0] for row in rows]


def kill(console: LiveConsole, *names: str) -> Callable[[], bool]:
    """Kill processes of the console by name; returns what tells that all are back."""
    before = console.children()
    for name in names:
        os.kill(before[name], signal.SIGKILL)
    return lambda: all(console.children().get(name) not in (None, before[name]) for name in names)


@pytest.mark.parametrize("names", [("agent",), ("worker", "web", "ingest")], ids=["agent", "console"])
def test_one_that_is_killed_in_the_middle_is_resumed_behind_the_last_run(bench: Bench, names: tuple[str, ...]) -> None:
    benchmark = begun(bench, title=f"Without {names[0]}")
    wait_for("they are back", kill(bench.console, *names), seconds=90)
    bench.wait(benchmark, runs=6)
    assert bench.state(benchmark) == "succeeded", bench.reason(benchmark)
    assert set(bench.runs(benchmark)) == {f"concurrency-{load}-{repeat}" for load in (2, 4) for repeat in (1, 2)}
    assert made(bench, benchmark).count("2 at once, repeat 1") == 1, "what was made is not made again"


def test_an_engine_that_is_killed_in_the_middle_fails_it_with_its_reason(bench: Bench) -> None:
    console = bench.console
    benchmark = begun(bench, title="Without the engine")
    engine = console.one(
        "select pid from deployments_attempt where instance_id = ? order by number desc", bench.instance
    )
    os.kill(engine, signal.SIGKILL)
    bench.wait(benchmark, runs=2)
    assert bench.state(benchmark) == "failed"
    reason, failure = bench.reason(benchmark)[0]
    assert "ended" in reason, reason
    assert json.loads(failure)["next"]
    page = bench.page(benchmark)
    assert "Not whole" in page
    assert "runs were made and are shown below" in page
    named = console.get(f"/benchmarks/{benchmark}/export.csv").headers["content-disposition"]
    assert "-incomplete" in named
    refused = console.post(f"/benchmarks/{benchmark}/baseline/", {"reason": "half of it"})
    assert console.one("select count(*) from benchmarks_baseline where benchmark_id = ?", benchmark) == 0, refused.url
    query = "select state from deployments_instance where deployment_id = ? order by id desc"
    wait_for("it is up again", lambda: console.one(query, bench.deployment) == "ready", seconds=START_SECONDS)

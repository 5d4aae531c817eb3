"""A real engine is measured: profile, search, comparison, gate, study.

Loads are short: on two cores the model answers with some dozens of tokens a second, and each run loads the engine's client.
"""

import csv
import io
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.live.benching import (
    ARGUMENTS,
    ENDED,
    LOAD,
    RUN_SECONDS,
    SLOTS,
    START_SECONDS,
    Bench,
    clients,
    dashed,
    deployed,
    engine_of,
)
from tests.live.harness import LiveConsole, wait_for
from workers.benchmark_payloads import RunNumbers, Targets
from workers.vllm.bench_results import read_numbers

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(1500)]

OTHERS_SHARE = 0.35
"""So much may the same run differ from itself on a machine on which others compute."""


@pytest.fixture(scope="module")
def bench(live_console: LiveConsole, copy_of_the_model: int) -> Bench:
    live_console.sign_in("ada")
    return deployed(live_console, copy_of_the_model)


@pytest.fixture(scope="module")
def chat(bench: Bench) -> int:
    """The profile chat, with lengths that a small context holds, at two loads, each twice."""
    return bench.whole(title="Chat")


def test_a_profile_is_measured_and_every_request_is_accounted_for(bench: Bench, chat: int) -> None:
    runs = bench.runs(chat)
    assert set(runs) == {f"concurrency-{load}-{repeat}" for load in (1, 4) for repeat in (1, 2)}
    for told in runs.values():
        assert (told.completed, told.failed, told.output_tokens) == (12, 0, 12 * 24)
        assert told.output_tokens_per_second == pytest.approx(told.output_tokens / told.seconds, rel=0.02)
        assert set(told.latencies) == {"ttft", "tpot", "itl", "e2e"}
        assert 0 < told.latencies["ttft"].p50 <= told.latencies["ttft"].p99 <= told.latencies["e2e"].p99
    page = bench.page(chat)
    assert "tokens/s, at 4 at once" in page
    assert "vLLM 0.32.0" in page
    subject = json.loads(bench.console.one("select subject from benchmarks_benchmark where id = ?", chat))
    assert {"arguments", "devices", "kernel"} <= {name for name, value in subject.items() if value}
    assert bench.console.get(f"/benchmarks/{chat}/runs/concurrency-4-1.json").json()["num_prompts"] == 12


def test_progress_and_numbers_are_shown_while_it_runs_and_it_can_be_cancelled(bench: Bench) -> None:
    console = bench.console
    benchmark = bench.ask(title="To be cancelled", values="2", requests=400)
    job = console.one("select job_id from benchmarks_benchmark where id = ?", benchmark)

    def numbers() -> Any:
        progress = json.loads(console.one("select progress from jobs_step where job_id = ?", job) or "{}")
        return progress.get("numbers", {}).get("tokens_per_second") and progress

    progress = wait_for("it tells of its throughput", numbers, seconds=RUN_SECONDS, every=0.5)
    assert 0 <= progress["done"] < progress["total"] == 400
    page = bench.page(benchmark)
    assert "Tokens/s so far" in page
    console.post(f"/jobs/{job}/cancel/", {"reason": "seen enough"})
    bench.wait(benchmark, runs=1)
    assert bench.state(benchmark) == "cancelled"
    wait_for("its client is gone", lambda: not clients(console), seconds=30)
    assert "Not whole" in bench.page(benchmark)


def test_it_agrees_with_the_engine_s_own_client_run_by_hand(bench: Bench, chat: int, tmp_path: Path) -> None:
    ours = bench.runs(chat)
    for repeat in (1, 2):
        key = f"concurrency-{SLOTS}-{repeat}"
        told = by_hand(bench.argv(chat, key), bench.key(), tmp_path / f"{key}.json")
        assert (told.completed, told.input_tokens, told.output_tokens) == (
            ours[key].completed, ours[key].input_tokens, ours[key].output_tokens,
        )  # fmt: skip
        by_us = sorted(ours[f"concurrency-{SLOTS}-{one}"].output_tokens_per_second for one in (1, 2))
        low, high = (1 - OTHERS_SHARE) * by_us[0], (1 + OTHERS_SHARE) * by_us[1]
        assert low <= told.output_tokens_per_second <= high, (by_us, told.output_tokens_per_second)


def by_hand(argv: list[str], key: str, result: Path) -> RunNumbers:
    """The same command, typed by a person: another folder for its result, the key in the environment."""
    words = list(argv)
    words[words.index("--result-dir") + 1] = str(result.parent)
    words[words.index("--result-filename") + 1] = result.name
    environment = os.environ | {"OPENAI_API_KEY": key, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=2 * RUN_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return read_numbers(json.loads(result.read_text()), targets=Targets())


def test_a_search_finds_the_knee(bench: Bench, chat: int) -> None:
    """Beyond the engine's slots requests queue: the first token comes after another request's whole answer."""
    answer_ms = min(told.latencies["e2e"].p50 for key, told in bench.runs(chat).items() if f"-{SLOTS}-" in key)
    benchmark = bench.whole(
        title="Search", search="sweep", values="", first=2, most=16, budget_minutes=15, repeats=1, requests=16,
        ttft_ms=round(answer_ms / 2),
    )  # fmt: skip
    result = json.loads(bench.console.one("select result from benchmarks_benchmark where id = ?", benchmark))
    measured = set(result["loads"])
    # One late answer of sixteen is more than the targets allow: a busy machine's knee lies before its last slot.
    assert SLOTS / 2 <= result["best_load"] < 2 * SLOTS, result
    assert result["ended_because"] == "found", result
    assert min(one for one in measured if one > result["best_load"]) <= result["best_load"] + 2, "bisected"
    runs = bench.runs(benchmark)
    assert (runs[f"concurrency-{result['best_load']:g}-1"].good_share or 0) >= 0.95
    assert (runs[f"concurrency-{2 * SLOTS}-1"].good_share or 0) < 0.95
    assert "The highest load that meets the targets" in bench.page(benchmark)


def test_two_are_compared_side_by_side_and_taken_along(bench: Bench, chat: int) -> None:
    console = bench.console
    again = bench.whole(title="One at a time", values="1", repeats=2, output_tokens=12)
    page = console.get(f"/benchmarks/compare/?id={chat}&id={again}").text
    assert "1 at once" in page
    assert re.search(r'class="state state-(green|red|grey)" title="', page), "a verdict on each difference"
    rows = list(csv.DictReader(io.StringIO(console.get(f"/benchmarks/{chat}/export.csv").text)))
    assert [(row["load"], row["repeat"], row["completed"]) for row in rows] == [
        ("1.0", "1", "12"), ("1.0", "2", "12"), ("4.0", "1", "12"), ("4.0", "2", "12"),
    ]  # fmt: skip
    told = console.get(f"/benchmarks/{chat}/export.json").json()
    assert told["whole"] is True
    assert all(run["raw"]["completed"] == 12 and "bench" in run["argv"] for run in told["runs"])
    html = console.get(f"/benchmarks/{chat}/export.html").text
    assert "<script" not in html
    assert "4 at once" in html


def finished(console: LiveConsole, job: int) -> str:
    """How a job ended."""
    state = "select state from jobs_job where id = ?"
    return str(wait_for(
        f"job {job} ends", lambda: (one := console.one(state, job)) in ENDED and one, seconds=2 * START_SECONDS, every=0.5
    ))  # fmt: skip


def change(bench: Bench, arguments: str) -> int:
    """Change the deployment's arguments by its form; returns the job."""
    console = bench.console
    spec = console.rows(
        "select s.engine_id, s.copy_id from deployments_spec s join deployments_deployment d on d.current_spec_id = s.id"
        " where d.id = ?", bench.deployment,
    )[0]  # fmt: skip
    form = {
        "engine": spec[0],
        "copy": spec[1],
        "arguments": arguments,
        "expected": "Paris",
        "reason": "try",
        "go": "apply",
    }
    answer = console.post(f"/deployments/{bench.deployment}/change/", form)
    job = re.search(r"/jobs/(\d+)/", str(answer.url))
    assert job, answer.text[:5000]
    return int(job[1])


@pytest.fixture(scope="module")
def gated(bench: Bench) -> Bench:
    """A gate that asks at the load that fills all slots; a benchmark that asked the same is its baseline."""
    asked = LOAD | {"values": str(SLOTS)}
    baseline = bench.whole(title="Baseline", values=str(SLOTS))
    bench.console.post(f"/benchmarks/{baseline}/baseline/", {"reason": "as it is today"})
    assert bench.console.one("select count(*) from benchmarks_baseline where benchmark_id = ?", baseline) == 1
    # Old and new engine share two cores while the new one is measured, so the limits are wide.
    limits = {"ttft_worse": 300, "throughput_worse": 80, "goodput_worse": 100, "failed_most": 2}
    answer = bench.console.post(
        f"/deployments/{bench.deployment}/gate/", asked | limits | {"reason": "as fast as today"}
    )
    assert str(answer.url).endswith(f"/deployments/{bench.deployment}/benchmarks/"), answer.text[:5000]
    return bench


def test_a_gate_admits_what_is_as_fast_as_before_and_blocks_what_was_slowed_on_purpose(gated: Bench) -> None:
    console = gated.console
    good = change(gated, f"{ARGUMENTS} --max-num-batched-tokens 1024")
    assert finished(console, good) == "succeeded", gate_notes(console, good)
    admitted = gated.instance
    assert "baseline" in gate_notes(console, good)
    bad = change(gated, ARGUMENTS.replace(f"--max-num-seqs {SLOTS}", "--max-num-seqs 1"))
    assert finished(console, bad) == "failed"
    failure = json.loads(console.one("select failure from jobs_job where id = ?", bad))
    assert failure["code"] == "gate.not_passed", failure
    assert "irst token p95" in failure["message"], failure
    assert gated.instance == admitted, "the one that was admitted before still serves"
    assert console.one("select state from deployments_deployment where id = ?", gated.deployment) == "serving"
    link = re.search(r"/benchmarks/compare/\S+", failure["next"])
    assert link
    assert "state-red" in console.get(link[0].rstrip(".")).text
    tab = console.get(f"/deployments/{gated.deployment}/benchmarks/").text
    assert "Gate of measured, spec 3" in tab


def gate_notes(console: LiveConsole, job: int) -> str:
    return "\n".join(row[0] for row in console.rows("select text from jobs_event where job_id = ? order by seq", job))


def test_a_study_of_two_arguments_is_measured_and_applied(live_console: LiveConsole, copy_of_the_model: int) -> None:
    console = live_console
    console.sign_in("ada")
    form = LOAD | {
        "source": "own", "copy": copy_of_the_model, "engine": engine_of(console), "arguments": ARGUMENTS,
        "changes": "--max-num-seqs 1\n--no-enable-prefix-caching", "together": "one", "neighbours": "beside",
        "values": str(SLOTS), "requests": 12, "quality": "on", "title": "Two arguments", "reason": "live",
    }  # fmt: skip
    answer = console.post("/studies/new/", form)
    found = re.search(r"/studies/(\d+)/", str(answer.url))
    assert found, answer.text[:5000]
    study = int(found[1])
    state = "select state from studies_study where id = ?"
    wait_for("the study ends", lambda: console.one(state, study) in ENDED, seconds=1300, every=1)
    trials = console.rows("select id, label, state, state_reason, start_seconds, quality from studies_trial where"
                          " study_id = ? order by position", study)  # fmt: skip
    assert [row[2] for row in trials] == ["succeeded"] * 3, trials
    assert all(row[4] > 0 and len(json.loads(row[5])["answers"]) == 24 for row in trials), "start and answers"
    page = console.get(f"/studies/{study}/").text
    assert "state-red" in page, "one slot for four at once is worse than noise"
    told = console.get(f"/studies/{study}/export.json").json()
    assert told["whole"] is True
    assert [len(one["benchmark"]["runs"]) for one in told["trials"]] == [2, 2, 2]
    assert len(list(csv.DictReader(io.StringIO(console.get(f"/studies/{study}/export.csv").text)))) == 3
    applied = console.post(f"/studies/trials/{trials[1][0]}/apply/", {})
    assert "draft=" in str(applied.url)
    assert re.search(r'name="arg_max_num_seqs"[^>]*value="1"|--max-num-seqs 1\b', applied.text)
    wait_for("no engine of it is left", lambda: not study_engines(console, study), seconds=60)


def study_engines(console: LiveConsole, study: int) -> list[int]:
    """Processes of engines that a study started."""
    rows = console.rows("select i.uuid from deployments_instance i join studies_study s on s.own_id = i.deployment_id"
                        " where s.id = ?", study)  # fmt: skip
    return [pid for (uuid,) in rows for pid in console.instance_processes(dashed(uuid))]

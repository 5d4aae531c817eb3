"""Benchmark: fixed loads or a sweep, each run by the engine's own `vllm bench serve`, each result reported as it comes.

A run that was made stays made: a step that is sent again after a crash of the agent goes on behind the last one. An engine
that ends, or is another process than at the beginning, fails the step; what was measured of it stays, marked incomplete.
"""

import hashlib
import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workers.benchmark_payloads import MOST_REQUESTS, BenchmarkResult, Run
from workers.benchmark_payloads import BenchmarkPayload as Payload
from workers.host.bench_runs import Runner, Wanted, at_load
from workers.host.bench_target import BenchTarget
from workers.host.device_locks import measured_alone
from workers.host.engines import Engine, find_engine
from workers.host.failures import StepFailedError
from workers.host.files import read_json, write_json
from workers.host.step_context import StepContext
from workers.vllm.load_search import Measured, next_load

__all__ = ["Payload", "run"]

_FEWEST_REQUESTS = 4
_PILOT_REQUESTS = 4
_SLOWER_SHARE = 0.9
"""Of the throughput that was seen, so that a run planned by time doesn't become much longer than asked."""


@dataclass
class _Sweep:
    """What is known so far, and how it ended. `before`: seconds that it took until it was interrupted."""

    marker: Path
    attempt: int | None
    before: float = 0.0
    began: float = field(default_factory=time.monotonic)
    runs: list[Run] = field(default_factory=list)
    best: float | None = None
    ended: str = ""

    @classmethod
    def go_on(cls, marker: Path, attempt: int | None) -> "_Sweep":
        """Where it was interrupted; from the beginning if another process of the engine answers, as no run counts then."""
        kept = read_json(marker) or {}
        return cls(marker, attempt, float(kept.get("seconds", 0)) if kept.get("attempt") == attempt else 0.0)

    def add(self, run: Run) -> None:
        """Take in a run, and keep how long it took to get here."""
        self.runs.append(run)
        kept = read_json(self.marker) or {}
        write_json(self.marker, kept | {"seconds": round(self.seconds, 3), "attempt": self.attempt})

    @property
    def seconds(self) -> float:
        """How long it has taken, without the time in which nobody measured."""
        return self.before + time.monotonic() - self.began

    def loads(self) -> list[float]:
        """Loads that were measured, in the order in which that happened."""
        return list(dict.fromkeys(run.load for run in self.runs))


def run(context: StepContext, payload: Payload) -> BenchmarkResult:
    """Measure, and return how it ended; the runs themselves were reported one by one."""
    engine = find_engine(context.config.engines_dir, payload.engine)
    _forget_other(context, payload)
    with measured_alone(context, payload.devices):
        target = BenchTarget.of(context, payload)
        runner = Runner(context, payload, engine, target)
        found = _Sweep.go_on(_marker(context), target.attempt)
        loads = _loads(payload, found)
        for number, load in enumerate(loads, start=1):
            _measure(context, payload, runner, found, load, number)
    return _result(context, engine, target, found)


def _forget_other(context: StepContext, payload: Payload) -> None:
    """Runs of another question (the step was sent anew with a changed payload) are not continued."""
    text = json.dumps(payload.model_dump(mode="json", exclude={"start"}), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    marker = _marker(context)
    if (read_json(marker) or {}).get("question") != digest:
        for path in (context.files.directory / "runs").glob("*.json"):
            path.unlink()
        write_json(marker, {"question": digest})


def _marker(context: StepContext) -> Path:
    return context.files.directory / "benchmark.json"


def _loads(payload: Payload, found: _Sweep) -> Iterator[float]:
    """The loads to measure: the fixed ones, or what the search asks for after each."""
    plan = payload.loads
    if plan.sweep is None:
        yield from plan.values
        return
    while True:
        step = next_load(plan.sweep, plan.by, _measured(found.runs), seconds=found.seconds)
        if step.load is None:
            found.best, found.ended = step.best, step.ended or ""
            return
        yield step.load


def _measure(context: StepContext, payload: Payload, runner: Runner, found: _Sweep, load: float, number: int) -> None:
    plan = payload.loads
    of = f" of {len(plan.values)}" if plan.values else ""
    prompts = _prompts(payload, runner, found, load)
    for repeat in range(1, plan.repeats + 1):
        context.check()
        wanted = Wanted(load, repeat, prompts)
        runner.position = f"load {number}{of}, repeat {repeat} of {plan.repeats}"
        made = runner.kept(wanted)
        if made is not None:
            runner.report(made)
        else:
            made = runner.make(wanted)
            context.event(_said(made))
        found.add(made)
        if made.problem:
            break  # it won't be faster the next time, and a sweep has its answer


def _prompts(payload: Payload, runner: Runner, found: _Sweep, load: float) -> int:
    """How many requests a run at `load` has: as asked, or as many as fill the time that was asked for."""
    plan = payload.loads
    if plan.requests is not None or plan.seconds is None:
        return plan.requests or 1
    per_second = load if plan.by == "rate" else _throughput(payload, runner, found, load)
    return max(_FEWEST_REQUESTS, min(MOST_REQUESTS, math.ceil(per_second * plan.seconds)))


def _throughput(payload: Payload, runner: Runner, found: _Sweep, load: float) -> float:
    """Requests per second to expect at a concurrency: what the highest load so far had; a short run tells if none has."""
    seen = [run for run in found.runs if run.numbers is not None and run.numbers.completed]
    if seen:
        last = max(seen, key=lambda run: run.load).numbers
        return last.requests_per_second if last is not None else 1.0
    kept = runner.kept(Wanted(load, 1, 0))
    if kept is not None and payload.loads.seconds:
        return kept.prompts / payload.loads.seconds
    pilot = runner.make(Wanted(load, 1, max(_PILOT_REQUESTS, round(load)), pilot=True))
    if pilot.numbers is None or not pilot.numbers.completed:
        raise StepFailedError(
            "benchmark.no_answers",
            f"none of {pilot.prompts} requests was answered{_first_error(pilot)}",
            next_step="Ask the model a question in the playground; look at its log for the reason.",
        )
    return pilot.numbers.requests_per_second * _SLOWER_SHARE


def _measured(runs: Sequence[Run]) -> list[Measured]:
    """Each load by the medians of its runs. One that had to be ended is too much, whatever its other runs said."""
    found = []
    for load in dict.fromkeys(run.load for run in runs):
        own = [run for run in runs if run.load == load]
        told = [run.numbers for run in own if run.numbers is not None]
        if not told or any(run.problem for run in own):
            found.append(Measured(load, 0.0, 0.0, 0.0))
            continue
        good = [one.good_share for one in told if one.good_share is not None]
        found.append(
            Measured(
                load,
                statistics.median(one.requests_per_second for one in told),
                statistics.median(good) if good else None,
                statistics.median(one.error_share for one in told),
            )
        )
    return found


def _said(run: Run) -> str:
    numbers = run.numbers
    at = at_load(run.by, run.load)
    if numbers is None:
        return f"{at}: {run.problem}"
    ttft = numbers.latencies.get("ttft")
    words = [f"{numbers.requests_per_second:.2f} requests/s", f"{numbers.output_tokens_per_second:.1f} tokens/s"]
    if ttft is not None:
        words.append(f"first token {ttft.p50:.0f} ms (p95 {ttft.p95:.0f})")
    if numbers.good_share is not None:
        words.append(f"{100 * numbers.good_share:.0f} % within the targets")
    if numbers.failed:
        words.append(f"{numbers.failed} of {numbers.completed + numbers.failed} failed{_first_error(run)}")
    return f"{at}, repeat {run.repeat}: {', '.join(words)}"


def _first_error(run: Run) -> str:
    errors = run.numbers.errors if run.numbers else {}
    return f": {next(iter(errors))}" if errors else ""


def _result(context: StepContext, engine: Engine, target: BenchTarget, found: _Sweep) -> BenchmarkResult:
    told = [run.numbers for run in found.runs if run.numbers is not None]
    if not any(one.completed for one in told):
        last = found.runs[-1] if found.runs else None
        why = (last.problem or _first_error(last).removeprefix(": ")) if last else ""
        raise StepFailedError(
            "benchmark.no_answers",
            f"no request was answered at any load{f': {why}' if why else ''}",
            next_step="Ask the model a question in the playground; look at its log for the reason.",
        )
    return BenchmarkResult(
        runs=len(found.runs),
        loads=found.loads(),
        best_load=found.best,
        ended_because=found.ended,
        attempt=target.attempt,
        engine=engine.key,
        engine_version=engine.version,
        seconds=round(context.seconds, 3),
    )

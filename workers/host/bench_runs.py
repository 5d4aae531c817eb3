"""One run of a benchmark: `vllm bench serve` in the engine's own environment, its result kept, read and reported.

<state_dir>/steps/<step>/runs/<key>.json       the run as it was read: an interrupted benchmark doesn't repeat it
                              <key>.raw.json   what the engine wrote, texts left out
"""

import base64
import gzip
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from workers.benchmark_payloads import BenchmarkPayload, HostLoad, LoadKind, Run, Workload
from workers.host.bench_target import BenchTarget, version_of
from workers.host.engines import Engine
from workers.host.failures import StepFailedError
from workers.host.files import read_json, write_json
from workers.host.helpers import Ended, clean_environment, run_helper
from workers.host.step_context import StepContext, Unit
from workers.vllm.bench_command import NUM_WARMUPS_SINCE, Client, One, bench_argv
from workers.vllm.bench_results import UnreadableResult, read_numbers, read_requests, without_texts

MOST_RAW_BYTES = 4 * 2**20
"""A larger raw result (gzipped) stays on the host only."""

_DONE = re.compile(r"(\d+)/(\d+) \[")
_TOO_LONG = "it was ended after {seconds:.0f} s, its limit: this load is too much, or the run too long"


class RunTooLong(Exception):
    """A run has passed its own limit."""


@dataclass(frozen=True)
class Wanted:
    """The run that is to be made: number `repeat` (from 1) at `load`, with so many requests."""

    load: float
    repeat: int
    prompts: int
    pilot: bool = False
    """True: it only finds out how fast the target is; it is neither kept nor reported."""

    def key(self, by: LoadKind) -> str:
        """Its name within the benchmark."""
        return f"{by}-{self.load:g}-{self.repeat}"


class Runner:
    """Makes the runs of one benchmark, one after the other."""

    def __init__(self, context: StepContext, payload: BenchmarkPayload, engine: Engine, target: BenchTarget) -> None:
        self._context, self._payload, self._engine, self._target = context, payload, engine, target
        self._folder = context.files.directory / "runs"
        self._folder.mkdir(exist_ok=True, mode=0o700)
        self.position = ""
        """Where this run stands among all, for people: "load 2, repeat 1 of 3"."""

    def kept(self, wanted: Wanted) -> Run | None:
        """The run, if it was made before an interruption, by the same process of the engine."""
        raw = read_json(self._folder / f"{wanted.key(self._payload.loads.by)}.json")
        run = Run.model_validate(raw) if raw else None
        return run if run is not None and run.attempt == self._target.attempt else None

    def make(self, wanted: Wanted) -> Run:
        """Run it, keep it, report it. Raises `StepFailedError` if the engine died or its client can't run at all."""
        key = "pilot" if wanted.pilot else wanted.key(self._payload.loads.by)
        result = self._folder / f"{key}.raw.json"
        result.unlink(missing_ok=True)
        began_at = time.time()
        psutil.cpu_percent()
        argv = self._argv(wanted, result, warmups=0 if wanted.pilot else self._payload.loads.warmups)
        problem = ""
        try:
            self._warm_up_apart(wanted, result)
            ended = self._bench(argv, wanted)
        except RunTooLong:
            problem = _TOO_LONG.format(seconds=self._payload.loads.run_limit_seconds)
        else:
            problem = self._problem_of(ended, result)
        run = self._read(wanted, key, result, problem)
        run = run.model_copy(update={"argv": argv, "began_at": began_at, "host": _host_load()})
        if not wanted.pilot:
            write_json(self._folder / f"{key}.json", run.model_dump(mode="json"))
            self.report(run)
        return run

    def report(self, run: Run) -> None:
        """Hand the run to the console, with what it was made from."""
        raw = read_json(self._folder / f"{run.key}.raw.json")
        self._context.part(run.key, run.model_dump(mode="json"), raw=_packed(raw) if raw else "")

    def _bench(self, argv: list[str], wanted: Wanted) -> Ended:
        done = 0
        end = time.monotonic() + self._payload.loads.run_limit_seconds
        waiting_for = f"{wanted.prompts} requests, {at_load(self._payload.loads.by, wanted.load)}"
        if self.position:
            waiting_for = f"{waiting_for} ({self.position})"

        def on_line(line: str) -> None:
            nonlocal done
            if found := _DONE.search(line):
                done = int(found[1]) if int(found[2]) == wanted.prompts else 0

        def measure(_written: int) -> tuple[float, float | None, Unit]:
            self._target.check()
            if time.monotonic() > end:
                raise RunTooLong
            return done, wanted.prompts, "items"

        self._target.begin()
        return run_helper(
            self._context, argv, environment=self._environment(), on_line=on_line,
            waiting_for=lambda: waiting_for, measure=measure, numbers=self._target.numbers,
        )  # fmt: skip

    def _warm_up_apart(self, wanted: Wanted, result: Path) -> None:
        """Where the engine's client has no warm-up of its own, a short run before this one is it."""
        warmups = self._payload.loads.warmups
        if wanted.pilot or not warmups or version_of(self._engine.version) >= NUM_WARMUPS_SINCE:
            return
        apart = Wanted(wanted.load, wanted.repeat, warmups, pilot=True)
        self._bench(self._argv(apart, result.with_name("warmup.raw.json"), warmups=0), apart)

    def _problem_of(self, ended: Ended, result: Path) -> str:
        """Why there is no result; empty if there is one. An engine that has died is a failure of its own."""
        if ended.code == 0 and result.exists():
            return ""
        self._target.check_dying(self._context)
        last = next((line for line in reversed(ended.lines) if "Error" in line or "error" in line), "")
        last = last or (ended.lines[-1] if ended.lines else f"exit code {ended.code}")
        raise StepFailedError(
            "benchmark.client_failed",
            f"the engine's benchmark client ended with exit code {ended.code}: {last[:300]}",
            next_step="Read the last lines; if an option is unknown, this vLLM is too old for the profile.",
            evidence=ended.evidence(),
        )

    def _read(self, wanted: Wanted, key: str, result: Path, problem: str) -> Run:
        loads = self._payload.loads
        run = Run(key=key, by=loads.by, load=wanted.load, repeat=wanted.repeat, prompts=wanted.prompts,
                  problem=problem, attempt=self._target.attempt)  # fmt: skip
        if problem:
            return run
        raw: dict[str, Any] = without_texts(read_json(result) or {})
        write_json(result, raw)
        try:
            numbers = read_numbers(raw, targets=self._payload.targets)
        except UnreadableResult as error:
            raise StepFailedError(
                "benchmark.unreadable", f"the result of {self._engine.key} is not understood: {error}",
                next_step="Report the engine's version; its raw result lies in this step's folder on the host.",
            ) from error  # fmt: skip
        if not numbers.completed:
            self._target.check_dying(self._context)
        requests, left_out = read_requests(raw)
        return run.model_copy(update={"numbers": numbers, "requests": requests, "requests_left_out": left_out})

    def _argv(self, wanted: Wanted, result: Path, *, warmups: int) -> list[str]:
        engine, payload = self._engine, self._payload
        tokenizer = self._context.config.models_dir / payload.tokenizer_path
        client = Client(
            engine.command, version_of(engine.version), self._target.url, self._target.model, str(tokenizer)
        )
        seed = payload.loads.seed + wanted.repeat - 1
        return bench_argv(client, payload, One(wanted.load, wanted.prompts, warmups, seed, result, self._upload()))

    def _upload(self) -> Path | None:
        workload = self._payload.workload
        if workload.kind not in ("prompts", "conversations"):
            return None
        path = self._folder / ("upload.jsonl" if workload.kind == "prompts" else "upload.json")
        path.write_text(_upload_text(workload), encoding="utf-8")
        return path

    def _environment(self) -> dict[str, str]:
        own = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONUNBUFFERED": "1",
            "OPENAI_API_KEY": self._target.key,
        }
        # What is between us and our own engine must not be a proxy of the environment.
        return clean_environment(**self._engine.environment, **own, NO_PROXY="*", no_proxy="*")


def at_load(by: LoadKind, load: float) -> str:
    """A load in words."""
    return f"{load:g} at once" if by == "concurrency" else f"{load:g} per second"


def _upload_text(workload: Workload) -> str:
    if workload.kind == "conversations":
        spoken = (
            [{"from": "human", "value": one.question}, {"from": "gpt", "value": one.answer}]
            for one in workload.conversations
        )
        return json.dumps([{"id": str(number), "conversations": turns} for number, turns in enumerate(spoken)])
    rows = (
        {"prompt": one.prompt, "output_tokens": one.output_tokens or workload.output_tokens} for one in workload.prompts
    )
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _packed(raw: dict[str, Any]) -> str:
    data = gzip.compress(json.dumps(raw).encode())
    return base64.b64encode(data).decode() if len(data) <= MOST_RAW_BYTES else ""


def _host_load() -> HostLoad:
    return HostLoad(
        cpu_share=round(psutil.cpu_percent() / 100, 3),
        load_average=round(psutil.getloadavg()[0], 2),
        memory_available=psutil.virtual_memory().available,
    )

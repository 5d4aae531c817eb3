"""One deployment of a real engine that is measured by the console's own forms, for the live tests of benchmarks."""

import json
import re
from pathlib import Path
from typing import Any

from tests.live.conftest import ENGINE
from tests.live.harness import LiveConsole, wait_for
from workers.benchmark_payloads import RunNumbers

NAME = "measured"
SLOTS = 4
ARGUMENTS = f"--enforce-eager --max-model-len 512 --max-num-seqs {SLOTS} --kv-cache-memory-bytes 134217728"
START_SECONDS = 600
RUN_SECONDS = 150
"""For one run, the engine's client included, which alone takes a minute to load where others compute, too."""
LOAD = {
    "profile": "chat", "input_tokens": 32, "output_tokens": 24, "spread": 0, "by": "concurrency", "search": "fixed",
    "values": "1, 4", "requests": 12, "repeats": 2, "warmups": 1, "seed": 7, "ignore_eos": "on",
}  # fmt: skip
ENDED = ("succeeded", "failed", "cancelled")


class Bench:
    """One deployment that is measured."""

    def __init__(self, console: LiveConsole) -> None:
        self.console = console
        self.deployment = int(console.one("select id from deployments_deployment where name = ?", NAME))

    @property
    def instance(self) -> int:
        """The one that serves now."""
        query = "select id from deployments_instance where deployment_id = ? and state = 'ready' order by id desc"
        return int(self.console.one(query, self.deployment))

    def ask(self, **changes: Any) -> int:
        """Ask for a benchmark by the form; returns it."""
        wait_for("the host is online", self.console.host_is_online, seconds=60)
        form = LOAD | {"target": "instance", "instance": self.instance, "despite_traffic": "on"} | changes
        answer = self.console.post("/benchmarks/new/", form)
        found = re.search(r"/benchmarks/(\d+)/", str(answer.url))
        assert found, answer.text[:5000]
        return int(found[1])

    def whole(self, **changes: Any) -> int:
        """Ask, and wait until all of it is measured."""
        benchmark = self.ask(**changes)
        self.wait(benchmark, runs=8)
        assert self.state(benchmark) == "succeeded", self.reason(benchmark)
        return benchmark

    def wait(self, benchmark: int, *, runs: int) -> None:
        """Until it has ended; it has so many runs."""
        wait_for("the benchmark ends", lambda: self.state(benchmark) in ENDED, seconds=runs * RUN_SECONDS, every=0.5)

    def state(self, benchmark: int) -> str:
        return str(self.console.one("select state from benchmarks_benchmark where id = ?", benchmark))

    def reason(self, benchmark: int) -> Any:
        return self.console.rows("select state_reason, failure from benchmarks_benchmark where id = ?", benchmark)

    def runs(self, benchmark: int) -> dict[str, RunNumbers]:
        rows = self.console.rows(
            "select key, numbers from benchmarks_run where benchmark_id = ? and numbers is not null", benchmark
        )
        return {key: RunNumbers.model_validate_json(numbers) for key, numbers in rows}

    def argv(self, benchmark: int, key: str) -> list[str]:
        query = "select argv from benchmarks_run where benchmark_id = ? and key = ?"
        return list(json.loads(self.console.one(query, benchmark, key)))

    def page(self, benchmark: int) -> str:
        return self.console.get(f"/benchmarks/{benchmark}/").text

    def key(self) -> str:
        """Of the engine itself."""
        code = (
            "from console.deployments import services; from console.deployments.models import Deployment;"
            f"print(services.endpoint(Deployment.objects.get(name={NAME!r})).key)"
        )
        return self.console.manage("shell", "-v", "0", "-c", code).strip()


def engine_of(console: LiveConsole) -> int:
    query = "select id from fleet_engine where key = ? and present"
    return int(wait_for("the engine is known", lambda: console.one(query, ENGINE), seconds=120))


def deployed(console: LiveConsole, copy: int) -> Bench:
    """Deploy it."""
    form = {"name": NAME, "copy": copy, "engine": engine_of(console), "expected": "Paris", "arguments": ARGUMENTS,
            "reason": "to be measured"}  # fmt: skip
    answer = console.post("/deployments/new/", form)
    job = re.search(r"/jobs/(\d+)/", str(answer.url))
    assert job, answer.text[:3000]
    console.wait_job(int(job[1]), seconds=START_SECONDS)
    return Bench(console)


def dashed(uuid: str) -> str:
    return "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))


def clients(console: LiveConsole) -> list[int]:
    """Processes of the engine's own benchmark client that this console's host started."""
    found = []
    for pid in console.processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"bench" in words and b"serve" in words:
            found.append(pid)
    return found

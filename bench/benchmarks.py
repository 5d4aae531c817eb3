"""What a benchmark costs the console: the time that its own processes compute more while a host measures than before."""

import re
import time

import psutil

from bench.console import Bench
from bench.rows import Row
from tests.live.harness import wait_for

PROCESSES = ("web", "worker", "ingest", "broker")
IDLE_SECONDS = 60.0
TARGET_PERCENT = 2.0
LOAD = {
    "target": "instance", "profile": "chat", "input_tokens": 64, "output_tokens": 64, "by": "concurrency", "search": "fixed",
    "values": "4", "requests": 100, "repeats": 1, "warmups": 2, "seed": 0, "ignore_eos": "on", "despite_traffic": "on",
}  # fmt: skip


def measure(bench: Bench) -> list[Row]:
    """Watch the console while nothing is asked of a serving engine, then while it is measured."""
    console = bench.console
    bench.deploy("measured")
    time.sleep(10)  # what the deploy left to do
    idle = _share(bench, IDLE_SECONDS)
    instance = console.one("select id from deployments_instance where state = 'ready' order by id desc")
    answer = console.post("/benchmarks/new/", LOAD | {"instance": instance})
    found = re.search(r"/benchmarks/(\d+)/", str(answer.url))
    if found is None:
        return [Row("console during a benchmark", None, "", TARGET_PERCENT, "lower", "the form was refused")]
    before, began = _seconds(bench), time.monotonic()
    state = "select state from benchmarks_benchmark where id = ?"
    ended = wait_for("the benchmark ends", lambda: (one := console.one(state, found[1])) in ("succeeded", "failed") and one,
                     seconds=900, every=1)  # fmt: skip
    seconds = time.monotonic() - began
    busy = 100 * (_seconds(bench) - before) / seconds
    bench.stop("measured")
    reference = f"{ended}; {', '.join(PROCESSES)} over {seconds:.0f} s: {busy:.1f} % of a core, {idle:.1f} % while idle"
    return [
        Row("console during a benchmark", round(busy - idle, 2), "% of a core more", TARGET_PERCENT, "lower", reference)
    ]


def _share(bench: Bench, seconds: float) -> float:
    before = _seconds(bench)
    time.sleep(seconds)
    return 100 * (_seconds(bench) - before) / seconds


def _seconds(bench: Bench) -> float:
    """CPU time of the console's processes and their children so far."""
    total = 0.0
    children = bench.console.children()
    for name in PROCESSES:
        parent = psutil.Process(children[name])
        for process in (parent, *parent.children(recursive=True)):
            times = process.cpu_times()
            total += times.user + times.system
    return total

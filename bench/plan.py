"""How long the answer to "will it fit" takes: the sum with its suggestions, warm, and the whole command."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.console import Bench
from bench.rows import Row
from tests.vllm.memory.models import HERE, public_shape
from workers.vllm.memory import PlanRequest, find_device, plan, read_model

RUNS = 15
TARGET_MS = 50.0


def measure(_bench: Bench) -> list[Row]:
    """Every public configuration of the tests on an H200, and a real model's directory read anew each time."""
    directory = Path(os.environ["SLIPWAY_TEST_MODEL"])
    device = find_device("H200")
    names = sorted(file.stem for file in (HERE / "public").glob("*.json"))
    shapes = {name: public_shape(name) for name in names}
    slowest = max(names, key=lambda name: _milliseconds(lambda: plan(shapes[name], PlanRequest(device=device)), runs=3))
    warm = _milliseconds(lambda: plan(shapes[slowest], PlanRequest(device=device)))
    read = _milliseconds(lambda: plan(read_model(directory), PlanRequest(device=device)))
    words = [sys.executable, "-m", "workers.cli", "plan", str(directory), "--device", "h200", "--json"]
    whole = _milliseconds(
        lambda: subprocess.run(words, check=True, capture_output=True), runs=5, clock=time.perf_counter
    )
    of = f"median of {RUNS}, sum and suggestions"
    return [
        Row("plan, warm", round(warm, 1), "ms", TARGET_MS, "lower", f"{of}; {slowest}, the slowest of {len(names)} models"),
        Row("plan of a directory, warm", round(read, 1), "ms", TARGET_MS, "lower", f"{of}, the files' headers read anew"),
        Row("slipway plan, from the shell", round(whole, 1), "ms", None, "lower", "median of 5, with Python's own start"),
    ]  # fmt: skip


def _milliseconds(
    act: Callable[[], object], *, runs: int = RUNS, clock: Callable[[], float] = time.process_time
) -> float:
    """Median time of a core, or of the given clock; the first run warms up and doesn't count."""
    act()
    taken = []
    for _number in range(runs):
        began = clock()
        act()
        taken.append(1000 * (clock() - began))
    return median(taken)

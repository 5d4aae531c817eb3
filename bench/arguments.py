"""How long it takes to check a command line against an engine's arguments, once those are read."""

import shlex
import time
from statistics import median

from bench.console import Bench
from bench.rows import Row
from workers.vllm.arguments import check_arguments, load_schema, schema_for, shipped_versions

TIMES = 25
TARGET_MS = 50.0
LINE = (
    "org/model --served-model-name chat --max-model-len 32k --tensor-parallel-size 2 --gpu-memory-utilization 0.92 "
    "--max-num-seqs 128 --max-num-batched-tokens 4096 --enable-prefix-caching --hf-overrides.rope_parameters.x 1 -O3 "
    "--dtype fp8 --rope-theta 1000000 --swap-space 16 --num-scheduler-steps 8 --enable-chunked-prefill=false "
    "--max-prefix-cache-length 100 --speculative-model a/b --model-name c --max-model-length 4k --unknown-thing 1 "
    "--seed 1 --seed 2 --enable-auto-tool-choic --tool-call-parser hermes"
)
"""What is right, what vLLM takes in its own way, and what guides get wrong."""


def measure(bench: Bench) -> list[Row]:
    """Check a long line, half of it wrong, against each shipped schema and against the one that the engine printed."""
    words = shlex.split(LINE)
    known = {version: schema_for(version) for version in shipped_versions()}
    known["the engine's own"] = load_schema(bench.engine / "schema.json")
    times = {}
    for name, schema in known.items():
        taken = []
        for _number in range(TIMES):
            began = time.perf_counter()
            found = check_arguments(schema, words).findings
            taken.append((time.perf_counter() - began) * 1000)
        assert found, f"{name}: nothing was found in a line that is wrong"
        times[name] = median(taken)
    slowest = max(times, key=lambda name: times[name])
    each = ", ".join(f"{name} {value:.1f}" for name, value in times.items())
    reference = f"the slowest is {slowest}; medians of {TIMES}, {len(words)} words, in ms: {each}"
    return [Row("argument check", round(times[slowest], 2), "ms", TARGET_MS, "lower", reference)]

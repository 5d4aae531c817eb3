"""Click to ready, against bare `vllm serve` to its first completed chat: alternating, on the same machine, in one run."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import httpx2

from bench.console import ARGUMENTS, Bench
from bench.rows import Row
from tests.live.harness import wait_for
from tests.ports import free_port

RUNS = 3
TARGET_SECONDS = 5.0
QUESTION = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 64,
    "temperature": 0,
}


def measure(bench: Bench) -> list[Row]:
    """Measure both ways three times each."""
    # The first start of all reads the files from disk; it is not counted for either side.
    with bare(bench.engine, bench.model):
        pass
    bare_seconds, console_seconds = [], []
    for number in range(RUNS):
        with bare(bench.engine, bench.model) as seconds:
            bare_seconds.append(seconds)
        console_seconds.append(bench.deploy(f"start-{number}"))
        bench.stop(f"start-{number}")
    added = median(console_seconds) - median(bare_seconds)
    ratio = median(console_seconds) / median(bare_seconds)
    reference = (
        f"bare vllm serve to its first completed chat: {listed(bare_seconds)} s; "
        f"click to ready: {listed(console_seconds)} s; medians of {RUNS}"
    )
    return [
        Row("click to ready, added to bare vllm serve", round(added, 2), "s", TARGET_SECONDS, "lower", reference),
        Row(
            "click to ready, ratio to bare vllm serve", round(ratio, 3), "×",
            round(1 + TARGET_SECONDS / median(bare_seconds), 3), "lower", reference,
        ),
    ]  # fmt: skip


def listed(values: list[float]) -> str:
    """Seconds, for the reference."""
    return ", ".join(f"{value:.1f}" for value in values)


@contextmanager
def bare(engine: Path, model: Path) -> Iterator[float]:
    """Run bare `vllm serve` with the arguments of the deployment; yields the seconds to its first completed chat."""
    port = free_port()
    command = [str(engine / "bin" / "vllm"), "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, "--served-model-name", "bare", *ARGUMENTS],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        wait_for("bare vllm serve answers", lambda: first_chat(port, process), seconds=300, every=0.05)
        yield time.monotonic() - began
    finally:
        process.terminate()
        process.wait(30)


def first_chat(port: int, process: "subprocess.Popen[bytes]") -> bool:
    """True once a chat was completed."""
    assert process.poll() is None, f"bare vllm serve ended with {process.returncode}"
    try:
        answer = httpx2.post(
            f"http://127.0.0.1:{port}/v1/chat/completions", json={"model": "bare", **QUESTION}, timeout=120
        )
    except httpx2.HTTPError:
        return False
    return answer.status_code == 200 and bool(answer.json()["choices"][0]["message"]["content"])

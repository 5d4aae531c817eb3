"""The command line of one `vllm bench serve`, for the engine version that runs it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.benchmark_payloads import BenchmarkPayload, Targets, Workload
from workers.vllm.bench_results import METRICS, PERCENTILES

NUM_WARMUPS_SINCE = (0, 12)
"""`--num-warmups`: before, warm-up requests are a run of their own."""


@dataclass(frozen=True)
class Client:
    """Who asks: the engine's own command up to `bench`, its version, and where the server listens."""

    command: Sequence[str]
    version: tuple[int, ...]
    base_url: str
    model: str
    tokenizer: str


@dataclass(frozen=True)
class One:
    """One run: how many requests at which load, where an upload lies and where the result goes."""

    load: float
    prompts: int
    warmups: int
    seed: int
    result: Path
    upload: Path | None = None


def bench_argv(client: Client, payload: BenchmarkPayload, one: One) -> list[str]:
    """Argv of the run, without any secret: the key is in the environment, as `OPENAI_API_KEY`."""
    loads, workload = payload.loads, payload.workload
    chat = workload.interface == "chat"
    argv = [
        *client.command, "bench", "serve",
        "--backend", "openai-chat" if chat else "openai",
        "--base-url", client.base_url,
        "--endpoint", "/v1/chat/completions" if chat else "/v1/completions",
        "--model", client.model,
        "--tokenizer", client.tokenizer,
        *_dataset(workload, one),
        "--num-prompts", str(one.prompts),
        *_load(payload, one.load),
        "--seed", str(one.seed),
        "--temperature", f"{workload.temperature:g}",
        "--percentile-metrics", ",".join(METRICS),
        "--metric-percentiles", ",".join(map(str, PERCENTILES)),
        *_goodput(payload.targets),
        "--save-result", "--save-detailed",
        "--result-dir", str(one.result.parent),
        "--result-filename", one.result.name,
    ]  # fmt: skip
    if loads.ignore_eos:
        argv.append("--ignore-eos")
    if one.warmups and client.version >= NUM_WARMUPS_SINCE:
        argv += ["--num-warmups", str(one.warmups)]
    return argv


def _load(payload: BenchmarkPayload, load: float) -> list[str]:
    if payload.loads.by == "concurrency":
        return ["--request-rate", "inf", "--max-concurrency", str(round(load))]
    return ["--request-rate", f"{load:g}", "--burstiness", f"{payload.loads.burstiness:g}"]


def _dataset(workload: Workload, one: One) -> list[str]:
    if workload.kind == "random":
        return [
            "--dataset-name", "random",
            "--random-input-len", str(workload.input_tokens),
            "--random-output-len", str(workload.output_tokens),
            "--random-range-ratio", _range_ratio(workload),
        ]  # fmt: skip
    if workload.kind == "shared_prefix":
        return [
            "--dataset-name", "prefix_repetition",
            "--prefix-repetition-prefix-len", str(workload.prefix_tokens),
            "--prefix-repetition-suffix-len", str(workload.input_tokens),
            "--prefix-repetition-num-prefixes", str(min(workload.prefixes, one.prompts)),
            "--prefix-repetition-output-len", str(workload.output_tokens),
        ]  # fmt: skip
    if workload.kind == "conversations":
        return ["--dataset-name", "sharegpt", "--dataset-path", str(one.upload)]
    # The file has an answer's length in every row, and the server applies the chat template if there is one.
    return [
        "--dataset-name", "custom", "--dataset-path", str(one.upload), "--custom-output-len", "-1", "--skip-chat-template",
    ]  # fmt: skip


def _range_ratio(workload: Workload) -> str:
    """One number for both lengths, or JSON where they differ (vLLM from 0.20 at the latest)."""
    if workload.output_spread in (None, workload.spread):
        return f"{workload.spread:g}"
    return json.dumps({"input": workload.spread, "output": workload.output_spread})


def _goodput(targets: Targets) -> list[str]:
    wanted = {"ttft": targets.ttft_ms, "tpot": targets.itl_ms, "e2el": targets.e2e_ms}
    given = [f"{name}:{value:g}" for name, value in wanted.items() if value is not None]
    return ["--goodput", *given] if given else []

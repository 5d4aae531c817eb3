"""A stand-in for `vllm bench serve`: real requests to a real server, and the result in the shape that vLLM writes.

It makes no text and counts no tokens of its own. Knobs: `STANDIN_BENCH_FAIL` ends it with that exit code and a message,
`STANDIN_BENCH_SHAPE=old` writes what versions before 0.11 write.
"""

import argparse
import json
import os
import random
import statistics
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


def bench(arguments: list[str]) -> None:
    options = _options(arguments)
    if code := int(os.environ.get("STANDIN_BENCH_FAIL", "0")):
        print("vllm: error: unrecognized arguments: --what-is-this", flush=True)
        raise SystemExit(code)
    if options.num_warmups:
        for _number in range(options.num_warmups):
            _ask(options)
    began = time.perf_counter()
    rows = _all(options)
    seconds = time.perf_counter() - began
    result = _result(options, rows, seconds)
    if os.environ.get("STANDIN_BENCH_SHAPE") == "old":
        result.pop("failed")
        result["request_goodput:"] = result.pop("request_goodput")
        for name in [name for name in result if name.startswith("p50_")]:
            result.pop(name)
    Path(options.result_dir, options.result_filename).write_text(json.dumps(result))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
    for name in ("backend", "base-url", "endpoint", "model", "tokenizer", "dataset-name", "dataset-path", "request-rate",
                 "percentile-metrics", "metric-percentiles", "result-dir", "result-filename", "random-range-ratio",
                 "temperature", "burstiness"):  # fmt: skip
        parser.add_argument(f"--{name}", default="")
    for name in ("num-prompts", "seed", "num-warmups", "max-concurrency", "random-input-len", "random-output-len",
                 "prefix-repetition-prefix-len", "prefix-repetition-suffix-len", "prefix-repetition-num-prefixes",
                 "prefix-repetition-output-len", "custom-output-len"):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=0)
    for name in ("ignore-eos", "save-result", "save-detailed", "skip-chat-template"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--goodput", nargs="*", default=[])
    return parser.parse_args(arguments)


def _all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """As many at once as allowed, or at random moments at the rate."""
    rows: list[dict[str, Any]] = []
    at_once = threading.Semaphore(options.max_concurrency or options.num_prompts)
    lock = threading.Lock()

    def one() -> None:
        with at_once:
            row = _ask(options)
        with lock:
            rows.append(row)
            done = len(rows)
            print(f"\r{100 * done // options.num_prompts:3}%|#| {done}/{options.num_prompts} [00:01<00:01, 3it/s]",
                  end="", file=sys.stderr, flush=True)  # fmt: skip

    dice = random.Random(options.seed)
    threads = []
    for _number in range(options.num_prompts):
        threads.append(threading.Thread(target=one))
        threads[-1].start()
        if options.request_rate not in ("", "inf"):
            time.sleep(dice.expovariate(float(options.request_rate)))
    for thread in threads:
        thread.join()
    return rows


def _ask(options: argparse.Namespace) -> dict[str, Any]:
    tokens = options.random_output_len or options.prefix_repetition_output_len or 8
    body: dict[str, Any] = {"model": options.model, "max_tokens": tokens, "stream": True, "temperature": 0,
                            "stream_options": {"include_usage": True}}  # fmt: skip
    if options.backend == "openai-chat":
        body["messages"] = [{"role": "user", "content": "hello"}]
    else:
        body["prompt"] = "hello " * (options.random_input_len or 8)
    request = urllib.request.Request(
        options.base_url + options.endpoint, json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"},
    )  # fmt: skip
    start = time.perf_counter()
    row: dict[str, Any] = {"start": start, "ttft": 0.0, "itl": [], "error": "", "tokens": 0}
    last = start
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            for line in answer:
                if line.startswith(b"data: {") and b'"choices": []' not in line and b'"choices":[]' not in line:
                    now = time.perf_counter()
                    if row["ttft"]:
                        row["itl"].append(now - last)
                    else:
                        row["ttft"] = now - start
                    last, row["tokens"] = now, row["tokens"] + 1
    except (urllib.error.URLError, OSError) as error:
        row["error"] = f"Traceback (most recent call last):\n  somewhere\n{type(error).__name__}: {error}"
    row["latency"] = last - start
    return row


def _result(options: argparse.Namespace, rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    good = [row for row in rows if not row["error"]]
    limits = {name: float(value) for name, value in (one.split(":") for one in options.goodput)}
    tokens = sum(row["tokens"] for row in good)
    times = {
        "ttft": [row["ttft"] for row in good],
        "tpot": [statistics.fmean(row["itl"]) if row["itl"] else 0.0 for row in good],
        "itl": [gap for row in good for gap in row["itl"]],
        "e2el": [row["latency"] for row in good],
    }
    met = sum(all(1000 * times[name][index] <= limit for name, limit in limits.items()) for index in range(len(good)))
    result: dict[str, Any] = {
        "date": "20261130-000000", "backend": options.backend, "model_id": options.model, "num_prompts": options.num_prompts,
        "request_rate": options.request_rate, "max_concurrency": options.max_concurrency or None, "duration": seconds,
        "completed": len(good), "failed": len(rows) - len(good), "total_input_tokens": 8 * len(good),
        "total_output_tokens": tokens, "request_throughput": len(good) / seconds,
        "request_goodput": met / seconds if limits else None, "output_throughput": tokens / seconds,
        "total_token_throughput": (tokens + 8 * len(good)) / seconds, "max_concurrent_requests": options.max_concurrency,
        "input_lens": [8] * len(rows), "output_lens": [row["tokens"] for row in rows],
        "ttfts": [row["ttft"] for row in rows], "itls": [row["itl"] for row in rows],
        "start_times": [row["start"] for row in rows], "generated_texts": ["secret text"] * len(rows),
        "errors": [row["error"] for row in rows],
    }  # fmt: skip
    for name, values in times.items():
        in_order = sorted(1000 * value for value in values) or [0.0]
        result[f"mean_{name}_ms"] = statistics.fmean(in_order)
        result[f"median_{name}_ms"] = statistics.median(in_order)
        for share in options.metric_percentiles.split(","):
            result[f"p{share}_{name}_ms"] = in_order[min(len(in_order) - 1, int(len(in_order) * float(share) / 100))]
    return result

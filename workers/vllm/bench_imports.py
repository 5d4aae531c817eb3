"""What other people's tools wrote: `vllm bench serve` and `sweep serve`, and GuideLLM, read into our shape.

`sweep serve` writes a file for each run (`run=N.json`, a result of `bench serve` with the number of the run) and all runs of
one combination together (`summary.json`, a list). GuideLLM writes a report with a list `benchmarks`, one for each strategy.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.benchmark_payloads import Latency, LoadKind, RunNumbers, Targets
from workers.vllm.bench_results import UnreadableResult, read_numbers

_GUIDELLM_TIMES = {
    "ttft": ("time_to_first_token_ms", 1.0),
    "tpot": ("time_per_output_token_ms", 1.0),
    "itl": ("inter_token_latency_ms", 1.0),
    "e2e": ("request_latency", 1000.0),
}
"""Our name of a time to GuideLLM's, and what makes milliseconds of it."""


@dataclass(frozen=True)
class Imported:
    """One run of a file. `tool` names who wrote it; `note` says what of it isn't what it seems."""

    tool: str
    model: str
    by: LoadKind
    load: float
    numbers: RunNumbers
    note: str = ""


def read_import(content: Any) -> list[Imported]:
    """The runs of a file's content. Raises `UnreadableResult` if it is none of the known forms, or holds no run."""
    if isinstance(content, Mapping) and isinstance(content.get("benchmarks"), Sequence):
        found = list(_guidellm(content))
    else:
        rows = content if isinstance(content, list) else [content]
        found = [_vllm(row) for row in rows if isinstance(row, Mapping) and "request_throughput" in row]
    if not found:
        raise UnreadableResult("it is neither a result of “vllm bench serve” or “sweep serve” nor a GuideLLM report")
    return found


def _vllm(row: Mapping[str, Any]) -> Imported:
    rate = _finite(row.get("request_rate"))
    at_once = _finite(row.get("max_concurrency"))
    by: LoadKind = "concurrency" if at_once and rate is None else "rate"
    # Without a limit and a rate everything was sent at once.
    load = at_once if by == "concurrency" else rate
    if load is None:
        by, load = "concurrency", _finite(row.get("num_prompts")) or 1.0
    note = "" if "p95_ttft_ms" in row else "the file has no p95: p99 stands for it"
    tool = "vllm bench sweep" if "run_number" in row else "vllm bench serve"
    return Imported(tool, str(row.get("model_id") or ""), by, load, read_numbers(row, targets=Targets()), note)


def _guidellm(report: Mapping[str, Any]) -> Iterator[Imported]:
    for one in report["benchmarks"]:
        metrics = one.get("metrics") if isinstance(one, Mapping) else None
        if not isinstance(metrics, Mapping):
            raise UnreadableResult("a benchmark of this GuideLLM report has no metrics")
        config = one.get("config") or one.get("args") or {}
        by, load = _strategy(config.get("strategy") or {}, metrics)
        yield Imported("GuideLLM", _model_of(report, config), by, load, _guidellm_numbers(one, metrics))


def _model_of(report: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    places = (config.get("backend"), report.get("args"), config)
    return next((str(one["model"]) for one in places if isinstance(one, Mapping) and one.get("model")), "")


def _strategy(strategy: Mapping[str, Any], metrics: Mapping[str, Any]) -> tuple[LoadKind, float]:
    kind, rate = str(strategy.get("type_") or ""), _finite(strategy.get("rate"))
    if kind == "synchronous":
        return "concurrency", 1.0
    if kind == "concurrent" and (streams := _finite(strategy.get("streams"))):
        return "concurrency", streams
    if rate:
        return "rate", rate
    # As fast as it goes: what was in flight on average is the load.
    return "concurrency", max(1.0, round(_mean(metrics, "request_concurrency") or 1.0))


def _guidellm_numbers(one: Mapping[str, Any], metrics: Mapping[str, Any]) -> RunNumbers:
    totals = metrics.get("request_totals") or {}
    requests = _mean(metrics, "requests_per_second")
    if requests is None or not isinstance(totals, Mapping):
        raise UnreadableResult("a benchmark of this GuideLLM report has no requests_per_second")
    output = _mean(metrics, "output_tokens_per_second") or 0.0
    return RunNumbers(
        seconds=_finite(one.get("duration")) or 0.0,
        completed=int(_finite(totals.get("successful")) or 0),
        failed=int(_finite(totals.get("errored")) or 0),
        requests_per_second=requests,
        output_tokens_per_second=output,
        total_tokens_per_second=_mean(metrics, "tokens_per_second") or output,
        input_tokens=int(_of(metrics, "prompt_token_count").get("total_sum") or 0),
        output_tokens=int(_of(metrics, "output_token_count").get("total_sum") or 0),
        most_concurrent=_finite(_of(metrics, "request_concurrency").get("max")),
        latencies={ours: found for ours, (name, scale) in _GUIDELLM_TIMES.items() if (found := _latency(metrics, name, scale))},
    )  # fmt: skip


def _latency(metrics: Mapping[str, Any], name: str, scale: float) -> Latency | None:
    told = _of(metrics, name)
    shares = told.get("percentiles") or {}
    mean, middle = _finite(told.get("mean")), _finite(told.get("median"))
    p95, p99 = _finite(shares.get("p95")), _finite(shares.get("p99"))
    if mean is None or middle is None or p95 is None or p99 is None:
        return None
    p75, p90 = _finite(shares.get("p75")), _finite(shares.get("p90"))
    return Latency(
        mean=scale * mean, p50=scale * middle, p75=None if p75 is None else scale * p75,
        p90=None if p90 is None else scale * p90, p95=scale * p95, p99=scale * p99,
    )  # fmt: skip


def _of(metrics: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = (metrics.get(name) or {}).get("successful")
    return found if isinstance(found, Mapping) else {}


def _mean(metrics: Mapping[str, Any], name: str) -> float | None:
    return _finite(_of(metrics, name).get("mean"))


def _finite(value: Any) -> float | None:
    """A number, also one that was written as text; None for “inf” and everything else."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None

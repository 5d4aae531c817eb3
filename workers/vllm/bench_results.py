"""What `vllm bench serve` writes, read into one shape whatever the version.

Versions differ in small things: before 0.11 failed requests aren't counted, goodput was called `request_goodput:` and is
absent or 0 without targets; a run that completes nothing has zeros where there is no latency. Percentiles that were asked
for come as `p50_ttft_ms`, and without them at least `median_…` and `p99_…` do.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from workers.benchmark_payloads import Latency, RequestTimes, RunNumbers, Targets

METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e"}
"""vLLM's name of a time to ours."""
PERCENTILES = (50, 75, 90, 95, 99)
MOST_REQUESTS_KEPT = 1_000
_ERROR_WORDS = 160


class UnreadableResult(Exception):
    """The file is not what `vllm bench serve` writes."""


def read_numbers(raw: Mapping[str, Any], *, targets: Targets) -> RunNumbers:
    """The numbers of one run. Raises `UnreadableResult` if the file says too little."""
    seconds, completed = _number(raw, "duration"), _number(raw, "completed")
    throughput = _number(raw, "request_throughput")
    if seconds is None or completed is None or throughput is None:
        raise UnreadableResult("it has no duration, completed or request_throughput")
    errors = _errors(raw.get("errors"))
    failed = _number(raw, "failed")
    if failed is None:
        asked = _number(raw, "num_prompts")
        failed = max(0.0, asked - completed) if asked is not None else float(sum(errors.values()))
    goodput = _number(raw, "request_goodput", "request_goodput:")
    return RunNumbers(
        seconds=seconds,
        completed=int(completed),
        failed=int(failed),
        requests_per_second=throughput,
        output_tokens_per_second=_number(raw, "output_throughput") or 0.0,
        total_tokens_per_second=_number(raw, "total_token_throughput") or 0.0,
        input_tokens=int(_number(raw, "total_input_tokens", "total_input") or 0),
        output_tokens=int(_number(raw, "total_output_tokens", "total_output") or 0),
        goodput_per_second=(goodput or 0.0) if targets.any else None,
        most_concurrent=_number(raw, "max_concurrent_requests"),
        latencies=_latencies(raw) if completed else {},
        errors=errors,
    )


def read_requests(raw: Mapping[str, Any]) -> tuple[list[RequestTimes], int]:
    """The requests in the order in which they began, at most `MOST_REQUESTS_KEPT`, and how many were left out."""
    starts, ttfts = raw.get("start_times") or [], raw.get("ttfts") or []
    tokens, errors = raw.get("output_lens") or [], raw.get("errors") or []
    ends = raw.get("latencies") or _ends(ttfts, raw.get("itls") or [])
    if not starts or not len(starts) == len(ttfts) == len(ends):
        return [], 0
    began = min(starts)
    rows = sorted(
        (
            RequestTimes(
                at=round(start - began, 4),
                ttft_ms=round(1000 * ttfts[index], 2),
                e2e_ms=round(1000 * ends[index], 2),
                output_tokens=int(tokens[index]) if index < len(tokens) else 0,
                ok=not (index < len(errors) and errors[index]),
            )
            for index, start in enumerate(starts)
        ),
        key=lambda one: one.at,
    )
    kept = _evenly(rows, MOST_REQUESTS_KEPT)
    return kept, len(rows) - len(kept)


def without_texts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The file without the generated texts: they are large, may quote an upload, and measure nothing."""
    return {name: value for name, value in raw.items() if name != "generated_texts"}


def _evenly(rows: Sequence[RequestTimes], most: int) -> list[RequestTimes]:
    if len(rows) <= most:
        return list(rows)
    return [rows[index * len(rows) // most] for index in range(most)]


def _ends(ttfts: Sequence[float], itls: Sequence[Sequence[float]]) -> list[float]:
    return [ttft + sum(gaps) for ttft, gaps in zip(ttfts, itls, strict=False)]


def _latencies(raw: Mapping[str, Any]) -> dict[str, Latency]:
    found = {}
    for theirs, ours in METRICS.items():
        middle = _number(raw, f"p50_{theirs}_ms", f"median_{theirs}_ms")
        mean, high = _number(raw, f"mean_{theirs}_ms"), _number(raw, f"p99_{theirs}_ms")
        if middle is None or mean is None or high is None:
            continue
        rest = {share: _number(raw, f"p{share}_{theirs}_ms") for share in (75, 90, 95)}
        found[ours] = Latency(
            mean=mean, p50=middle, p75=rest[75], p90=rest[90],
            p95=rest[95] if rest[95] is not None else high, p99=high,
        )  # fmt: skip
    return found


def _errors(raw: Any) -> dict[str, int]:
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        return {}
    # A traceback's last line is the error; the rest is the client's own stack.
    lines = (str(error).strip().splitlines()[-1][:_ERROR_WORDS] for error in raw if error and str(error).strip())
    return dict(Counter(lines).most_common(10))


def _number(raw: Mapping[str, Any], *names: str) -> float | None:
    for name in names:
        value = raw.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None

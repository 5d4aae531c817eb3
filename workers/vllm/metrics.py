"""vLLM's `/metrics` text as one typed sample, whatever the engine's version calls its metrics.

A plain reader of lines instead of a general Prometheus parser: an instance is sampled every second, and the text has
more than six hundred lines of which a sample needs about a hundred. What a line's series means is remembered between
scrapes, so that each line costs one dictionary look-up. Tests compare the result with prometheus_client's.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from workers.vllm.histograms import Histogram


@dataclass(frozen=True, slots=True)
class CachePool:
    """What `vllm:cache_config_info` says about the KV cache of one engine; None where the version doesn't say it."""

    num_gpu_blocks: int | None = None
    block_size: int | None = None
    size_tokens: int | None = None
    max_concurrency: float | None = None
    cache_dtype: str | None = None


_NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MetricsSample:
    """One reading of an instance's metrics; the engines of a data-parallel instance are taken together.

    None means that this engine version has no such metric (or, like speculation, doesn't use it); that is not zero.
    Counts and sums run from the start of the process. Shares are fractions from 0 to 1, latencies are in seconds.
    """

    taken_at: float  # seconds on any steady clock
    started_at: float | None = None  # of the process, seconds since the epoch
    # Now
    requests_running: float | None = None
    requests_waiting: float | None = None
    kv_cache_usage: float | None = None  # of the fullest engine
    kv_offload_usage: float | None = None
    asleep: bool | None = None
    resident_bytes: float | None = None
    # Since the start
    prompt_tokens: float | None = None
    cached_prompt_tokens: float | None = None
    generation_tokens: float | None = None
    preemptions: float | None = None
    prefix_cache_queries: float | None = None
    prefix_cache_hits: float | None = None
    spec_draft_tokens: float | None = None
    spec_accepted_tokens: float | None = None
    corrupted_requests: float | None = None
    finished: Mapping[str, float] = field(default_factory=lambda: _NOTHING)  # by reason: stop, length, abort, error, …
    admission_rejections: Mapping[str, float] = field(default_factory=lambda: _NOTHING)  # by reason
    time_to_first_token: Histogram | None = None
    inter_token_latency: Histogram | None = None
    e2e_latency: Histogram | None = None
    queue_wait: Histogram | None = None
    request_prompt_tokens: Histogram | None = None
    request_generation_tokens: Histogram | None = None
    # Set at the start
    cache: CachePool | None = None


COUNTERS = (
    "prompt_tokens",
    "cached_prompt_tokens",
    "generation_tokens",
    "preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "spec_draft_tokens",
    "spec_accepted_tokens",
    "corrupted_requests",
)
"""Fields that count from the start of the engine's process."""
HISTOGRAMS = (
    "time_to_first_token",
    "inter_token_latency",
    "e2e_latency",
    "queue_wait",
    "request_prompt_tokens",
    "request_generation_tokens",
)
"""Fields that are histograms: of seconds, and of tokens of finished requests."""
# Field -> the metric's names, the newest first: some versions export a metric under two names at once.
_ADDED = {
    "requests_running": ("vllm:num_requests_running",),
    "requests_waiting": ("vllm:num_requests_waiting",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "cached_prompt_tokens": ("vllm:prompt_tokens_cached_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "preemptions": ("vllm:num_preemptions_total",),
    "prefix_cache_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_cache_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "spec_draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "spec_accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
    "corrupted_requests": ("vllm:corrupted_requests_total",),
    "resident_bytes": ("process_resident_memory_bytes",),
}
_HIGHEST = {
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "kv_offload_usage": ("vllm:kv_offload_cpu_cache_usage_perc", "vllm:cpu_cache_usage_perc"),
    "started_at": ("process_start_time_seconds",),
}
_BY_REASON = {
    "finished": ("vllm:request_success_total", "finished_reason"),
    "admission_rejections": ("vllm:admission_rejections_total", "reason"),
}
_HISTOGRAMS = {
    "time_to_first_token": ("vllm:time_to_first_token_seconds",),
    "inter_token_latency": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "e2e_latency": ("vllm:e2e_request_latency_seconds",),
    "queue_wait": ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
    "request_prompt_tokens": ("vllm:request_prompt_tokens",),
    "request_generation_tokens": ("vllm:request_generation_tokens",),
}
_SLEEP = "vllm:engine_sleep_state"
_CACHE_INFO = "vllm:cache_config_info"

_ADDED_NAMES = frozenset(name for names in _ADDED.values() for name in names)
_HIGHEST_NAMES = frozenset(name for names in _HIGHEST.values() for name in names)
_REASON_LABELS = dict(_BY_REASON.values())
_HISTOGRAM_NAMES = frozenset(name for names in _HISTOGRAMS.values() for name in names)


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """Where the values of some series go: to a metric, and there to a label's value or a bucket's bound."""

    kind: str
    name: str
    key: str | float = ""


_IGNORED = _Slot("", "")
# One slot for all series that are added up, so that it can be compared by identity; and which series go there.
_slots: dict[tuple[str, str, str | float], _Slot] = {}
_slot_of: dict[str, _Slot] = {}
_REMEMBERED_SERIES = 50_000

_SERIES = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?")
_LINE = re.compile(r'([A-Za-z_:][\w:]*(?:\{(?:[^"}]|"(?:\\.|[^"\\])*")*\})?)\s+(\S+)(?:\s+-?\d+)?\s*')
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:\\.|[^"\\])*)"')
_ESCAPE = re.compile(r"\\(.)")


def parse_metrics(text: str, *, taken_at: float) -> MetricsSample:
    """Read the text of `/metrics`; `taken_at` is the moment of the scrape in seconds on a clock that only goes forward.

    Never raises: lines that can't be read, or that no field wants, are passed over. A text without any known metric
    gives a sample in which everything is None.
    """
    totals: dict[_Slot, float] = {}
    others: list[tuple[_Slot, str, float]] = []
    for line in text.split("\n"):
        series, _, number = line.rpartition(" ")
        slot = _slot_of.get(series)
        if slot is _IGNORED:
            continue
        if slot is None:
            slot, number = _slot_of_new_line(line, series)
        try:
            value = float(number)
        except ValueError:
            continue
        if slot.kind == "add":
            totals[slot] = totals.get(slot, 0.0) + value
        elif slot.kind:
            others.append((slot, series, value))
    return _sample(taken_at, totals, others)


def _slot_of_new_line(line: str, series: str) -> tuple[_Slot, str]:
    """The slot of a line that wasn't seen before, and its value; remembers the slot for the next scrape."""
    match = _LINE.fullmatch(line)
    slot = _slot_of_series(match[1]) if match else _IGNORED
    if not match or match[1] == series:
        # Series come and go with models and adapters; labels that never repeat must not fill the memory.
        if len(_slot_of) >= _REMEMBERED_SERIES:
            _slot_of.clear()
        if not match and not line.startswith("#"):
            return _IGNORED, ""
        _slot_of[series] = slot
    return slot, match[2] if match else ""


def _sample(taken_at: float, totals: dict[_Slot, float], others: list[tuple[_Slot, str, float]]) -> MetricsSample:
    by_name: dict[str, dict[str | float, float]] = {}
    for slot, value in totals.items():
        by_name.setdefault(slot.name, {})[slot.key] = value
    highest: dict[str, float] = {}
    for slot, _, value in others:
        if slot.kind == "highest":
            highest[slot.name] = max(highest.get(slot.name, -math.inf), value)
    awake = [value for slot, _, value in others if slot.kind == "awake"]
    caches = [series for slot, series, _ in others if slot.kind == "cache"]
    fields: dict[str, Any] = {name: _first(by_name, names) for name, names in _ADDED.items()}
    fields |= {
        name: next((highest[metric] for metric in names if metric in highest), None) for name, names in _HIGHEST.items()
    }
    fields |= {name: MappingProxyType(by_name.get(metric, {})) for name, (metric, _) in _BY_REASON.items()}
    fields |= {name: _histogram(names, by_name) for name, names in _HISTOGRAMS.items()}
    return MetricsSample(
        taken_at=taken_at,
        asleep=any(value == 0.0 for value in awake) if awake else None,
        cache=_cache_pool(caches[0]) if caches else None,
        **fields,
    )


def _slot_of_series(series: str) -> _Slot:
    match = _SERIES.fullmatch(series)
    name = match[1] if match else ""
    base, _, suffix = name.rpartition("_")
    where: tuple[str, str, str | float] | None = None
    if suffix == "bucket" and base in _HISTOGRAM_NAMES:
        try:
            where = ("add", base, float(_labels(series).get("le", "")))
        except ValueError:
            return _IGNORED
    elif name in _ADDED_NAMES or (suffix == "sum" and base in _HISTOGRAM_NAMES):
        where = ("add", name, "")
    elif name in _REASON_LABELS:
        where = ("add", name, _labels(series).get(_REASON_LABELS[name], ""))
    elif name in _HIGHEST_NAMES:
        where = ("highest", name, "")
    elif name == _CACHE_INFO:
        where = ("cache", name, "")
    elif name == _SLEEP and _labels(series).get("sleep_state") == "awake":
        where = ("awake", name, "")
    return _IGNORED if where is None else _slots.setdefault(where, _Slot(*where))


def _labels(series: str) -> dict[str, str]:
    return {name: _ESCAPE.sub(_unescaped, value) for name, value in _LABEL.findall(series)}


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _first(by_name: dict[str, dict[str | float, float]], names: tuple[str, ...]) -> float | None:
    return next((by_name[name][""] for name in names if name in by_name), None)


def _histogram(names: tuple[str, ...], by_name: dict[str, dict[str | float, float]]) -> Histogram | None:
    for name in names:
        found = {bound: count for bound, count in by_name.get(name, {}).items() if isinstance(bound, float)}
        if math.inf in found:
            bounds = tuple(sorted(found))
            return Histogram(
                bounds, tuple(found[bound] for bound in bounds), by_name.get(f"{name}_sum", {}).get("", 0.0)
            )
    return None


@lru_cache(maxsize=1024)
def _cache_pool(series: str) -> CachePool:
    labels = _labels(series)

    def number(name: str) -> float | None:
        try:
            value = float(labels.get(name, ""))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def whole(name: str) -> int | None:
        value = number(name)
        return None if value is None else int(value)

    return CachePool(
        num_gpu_blocks=whole("num_gpu_blocks"),
        block_size=whole("block_size"),
        size_tokens=whole("kv_cache_size_tokens"),
        max_concurrency=number("kv_cache_max_concurrency"),
        cache_dtype=labels.get("cache_dtype"),
    )

"""What the charts of engines show: every chart with its lines, and how a line follows from roll-ups.

Lines are computed from counts, for one instance or for several together: rates and gauges are added, shares are quotients
of sums, of KV caches the fullest counts, and percentiles are taken from added buckets, never averaged.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from console.telemetry.columns import MAX, NOW, SUM, Columns
from console.telemetry.frames import FINISHED, REJECTED
from workers.vllm.histograms import Histogram, added

QUANTILES = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))
PERCENTILE_WINDOW_SECONDS = 30
"""Percentiles are over at least so long: one second rarely has enough requests for a 95th percentile."""
REASONS = ("stop", "length", "abort", "error")

Values = list[float | None]


@dataclass(frozen=True)
class Line:
    """One line of a chart. `key` names its values; `role` its colour and dash."""

    key: str
    name: str | Promise
    role: str = "accent"


@dataclass(frozen=True)
class Chart:
    """A chart. `unit`: seconds, tokens, tokens/s, requests/s, share or requests. `needs`: columns that a version must tell."""

    id: str
    title: str | Promise
    unit: str
    lines: tuple[Line, ...]
    main: str
    """The line that is drawn for each instance when instances are shown apart."""
    needs: str
    hint: str | Promise = ""


def _latency(name: str, title: str | Promise, hint: str | Promise = "") -> Chart:
    roles = ("calm", "accent", "warn")
    lines = tuple(Line(f"{name}.{label}", label, role) for (label, _share), role in zip(QUANTILES, roles, strict=True))
    return Chart(name, title, "seconds", lines, f"{name}.p95", f"{name}.total", hint)


CHARTS: tuple[Chart, ...] = (
    _latency("time_to_first_token", _("Time to first token"), _("From a request's arrival to its first token.")),
    _latency("inter_token_latency", _("Time between tokens"), _("Between two tokens of one answer.")),
    _latency("e2e_latency", _("Whole request"), _("From a request's arrival to its last token.")),
    _latency("queue_wait", _("Wait in the queue"), _("Before the engine begins with a request.")),
    Chart(
        "tokens",
        _("Tokens"),
        "tokens/s",
        (Line("prompt_tokens", _("prompt"), "calm"), Line("generation_tokens", _("generated"))),
        "generation_tokens",
        f"{SUM}generation_tokens",
    ),
    Chart(
        "load",
        _("Requests in the engine"),
        "requests",
        (Line("requests_running", _("running")), Line("requests_waiting", _("waiting"), "warn")),
        "requests_running",
        f"{NOW}requests_running",
    ),
    Chart(
        "kv",
        _("KV cache in use"),
        "share",
        (Line("kv_cache_usage", _("GPU or CPU pool")), Line("kv_offload_usage", _("offloaded"), "calm")),
        "kv_cache_usage",
        f"{NOW}kv_cache_usage",
        _("The highest share of the slot; of several instances, the fullest."),
    ),
    Chart(
        "kv_plan",
        _("KV cache against plan"),
        "tokens",
        (
            Line("kv_used_tokens", _("in use")),
            Line("kv_pool_tokens", _("there is"), "calm"),
            Line("kv_planned_tokens", _("planned"), "warn"),
        ),
        "kv_used_tokens",
        f"{NOW}kv_pool_tokens",
        _("The most of the slot that was in use, what the engine has, and what had been planned for it."),
    ),
    Chart(
        "finished",
        _("Finished requests"),
        "requests/s",
        (
            Line("finished.stop", _("stop")),
            Line("finished.length", _("length"), "calm"),
            Line("finished.abort", _("aborted"), "warn"),
            Line("finished.error", _("error"), "bad"),
            Line("finished.other", _("other"), "dim"),
        ),
        "requests",
        f"{SUM}{FINISHED}stop",
        _("By the reason for which they ended."),
    ),
    Chart(
        "prefix",
        _("Prefix cache hits"),
        "share",
        (Line("prefix_cache_hit_share", _("of looked-up tokens")),),
        "prefix_cache_hit_share",
        f"{SUM}prefix_cache_queries",
    ),
    Chart(
        "preemptions",
        _("Preemptions"),
        "requests/s",
        (Line("preemptions", _("preempted"), "warn"),),
        "preemptions",
        f"{SUM}preemptions",
        _("Requests that lost their KV blocks and are computed again: the cache is too small."),
    ),
    Chart(
        "speculation",
        _("Speculative acceptance"),
        "share",
        (Line("spec_acceptance_share", _("of drafted tokens")),),
        "spec_acceptance_share",
        f"{SUM}spec_draft_tokens",
    ),
    Chart(
        "rejections",
        _("Refused at the door"),
        "requests/s",
        (Line("rejections", _("refused"), "bad"),),
        "rejections",
        f"{SUM}{REJECTED}max_num_queued_reqs",
        _("Over the engine's own limit of queued requests or tokens."),
    ),
)
HISTOGRAMS = ("time_to_first_token", "inter_token_latency", "e2e_latency", "queue_wait")


def lines_of(parts: Sequence[Columns], starts: Sequence[int], step: int) -> dict[str, Values]:
    """The values of all lines at `starts`, for several instances together; None: unknown, or nothing to divide by."""
    aligned = [_aligned(part, starts, step) for part in parts]
    found: dict[str, Values] = {}
    for name in ("prompt_tokens", "generation_tokens", "preemptions"):
        found[name] = _total(aligned, lambda part, at, name=name: part.rate(f"{SUM}{name}", at), starts)  # type: ignore[misc]
    for name in ("requests_running", "requests_waiting", "kv_used_tokens", "kv_pool_tokens", "kv_planned_tokens"):
        found[name] = _total(aligned, lambda part, at, name=name: part.at(f"{NOW}{name}", at), starts)  # type: ignore[misc]
    for name in ("kv_cache_usage", "kv_offload_usage"):
        found[name] = _highest(aligned, f"{MAX}{name}", starts)
    for key, part, whole in (
        ("prefix_cache_hit_share", "prefix_cache_hits", "prefix_cache_queries"),
        ("spec_acceptance_share", "spec_accepted_tokens", "spec_draft_tokens"),
    ):
        found[key] = _quotient(aligned, f"{SUM}{part}", f"{SUM}{whole}", starts)
    found |= _requests(aligned, starts)
    for name in HISTOGRAMS:
        found |= _percentiles(aligned, name, starts, step)
    return found


@dataclass
class _Aligned:
    """One instance's columns, looked up by the index of a moment; -1: it has no slot there."""

    columns: Columns
    index: list[int]

    def at(self, name: str, moment: int) -> float | None:
        """A column's value; None if unknown."""
        column, at = self.columns.values.get(name), self.index[moment]
        value = column[at] if column is not None and at >= 0 else math.nan
        return None if math.isnan(value) else value

    def rate(self, name: str, moment: int) -> float | None:
        """A sum per second of what the slot covers; None if unknown."""
        value, seconds = self.at(name, moment), self.at("seconds", moment)
        return value / seconds if value is not None and seconds else None


def _aligned(part: Columns, starts: Sequence[int], step: int) -> _Aligned:
    where = {start: at for at, start in enumerate(part.starts)}
    # A sample that crossed a second's edge on its way must not look like a second in which an instance did nothing.
    late = step == 1
    return _Aligned(part, [where.get(start, where.get(start - 1, -1) if late else -1) for start in starts])


def _total(parts: Sequence[_Aligned], value: Callable[[_Aligned, int], float | None], starts: Sequence[int]) -> Values:
    return [_sum([value(part, at) for part in parts]) for at in range(len(starts))]


def _highest(parts: Sequence[_Aligned], name: str, starts: Sequence[int]) -> Values:
    found: Values = []
    for at in range(len(starts)):
        known = [value for part in parts if (value := part.at(name, at)) is not None]
        found.append(max(known, default=None))
    return found


def _quotient(parts: Sequence[_Aligned], part_name: str, whole_name: str, starts: Sequence[int]) -> Values:
    found: Values = []
    for at in range(len(starts)):
        part, whole = (_sum([one.at(name, at) for one in parts]) for name in (part_name, whole_name))
        found.append(min(1.0, part / whole) if part is not None and whole else None)
    return found


def _requests(parts: Sequence[_Aligned], starts: Sequence[int]) -> dict[str, Values]:
    names = {name for part in parts for name in part.columns.values}
    finished = {name: name.removeprefix(f"{SUM}{FINISHED}") for name in names if name.startswith(f"{SUM}{FINISHED}")}
    rejected = [name for name in names if name.startswith(f"{SUM}{REJECTED}")]

    def added_up(chosen: Sequence[str]) -> Values:
        return [_sum([part.rate(name, at) for part in parts for name in chosen]) for at in range(len(starts))]

    found = {f"finished.{reason}": added_up([f"{SUM}{FINISHED}{reason}"]) for reason in REASONS}
    found["finished.other"] = added_up([name for name, reason in finished.items() if reason not in REASONS])
    found["requests"] = added_up(list(finished))
    found["rejections"] = added_up(rejected)
    errors = zip(found["finished.error"], found["requests"], strict=True)
    found["error_share"] = [error / whole if error is not None and whole else None for error, whole in errors]
    return found


def _percentiles(parts: Sequence[_Aligned], name: str, starts: Sequence[int], step: int) -> dict[str, Values]:
    window = PERCENTILE_WINDOW_SECONDS if step < PERCENTILE_WINDOW_SECONDS else 0
    each = [(part, part.columns.histograms(name, window=window)) for part in parts]
    found: dict[str, Values] = {f"{name}.{label}": [] for label, _share in QUANTILES}
    for at in range(len(starts)):
        present = [histograms[part.index[at]] for part, histograms in each if part.index[at] >= 0]
        whole = added(one for one in present if one is not None and one.count)
        for label, share in QUANTILES:
            found[f"{name}.{label}"].append(whole.quantile(share) if whole else None)
    return found


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@dataclass(frozen=True)
class Totals:
    """Sums over a whole range, of several instances together."""

    requests: float | None
    errors: float | None
    rejections: float | None
    prompt_tokens: float | None
    generation_tokens: float | None
    preemptions: float | None
    prefix_hit_share: float | None
    acceptance_share: float | None
    histograms: Mapping[str, Histogram | None]

    def quantile(self, name: str, share: float) -> float | None:
        """A percentile of a latency over the range, in seconds."""
        histogram = self.histograms.get(name)
        return histogram.quantile(share) if histogram else None


def totals(parts: Sequence[Columns]) -> Totals:
    """What was counted in all slots of `parts`."""

    def total(name: str) -> float | None:
        columns = [part.values[name] for part in parts if name in part.values]
        known = [value for column in columns for value in column if not math.isnan(value)]
        return math.fsum(known) if known else None

    def total_of(prefix: str) -> float | None:
        return _sum(
            [total(name) for name in {name for part in parts for name in part.values if name.startswith(prefix)}]
        )

    def share(part: str, whole: str) -> float | None:
        above, below = total(f"{SUM}{part}"), total(f"{SUM}{whole}")
        return above / below if above is not None and below else None

    return Totals(
        requests=total_of(f"{SUM}{FINISHED}"),
        errors=total(f"{SUM}{FINISHED}error"),
        rejections=total_of(f"{SUM}{REJECTED}"),
        prompt_tokens=total(f"{SUM}prompt_tokens"),
        generation_tokens=total(f"{SUM}generation_tokens"),
        preemptions=total(f"{SUM}preemptions"),
        prefix_hit_share=share("prefix_cache_hits", "prefix_cache_queries"),
        acceptance_share=share("spec_accepted_tokens", "spec_draft_tokens"),
        histograms={name: added(one for part in parts for one in part.histograms(name)) for name in HISTOGRAMS},
    )

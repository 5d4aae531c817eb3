"""A benchmark as its page, its exports and a shared link show it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console.benchmarks import answers, charts
from console.benchmarks.curves import MAIN, Measure, Point, Value, points
from console.benchmarks.models import Benchmark, Run
from console.benchmarks.profiles import PROFILES
from console.common.spans import readable_bytes, readable_duration
from console.jobs.models import Step
from workers.benchmark_payloads import LoadPlan, Workload

ENDED_BECAUSE = {
    "found": gettext_lazy("the next higher load missed the targets"),
    "most": gettext_lazy("no higher load was asked for"),
    "saturated": gettext_lazy("more load brought no more throughput"),
    "errors": gettext_lazy("requests failed beyond it"),
    "time": gettext_lazy("its time was over"),
    "first_too_much": gettext_lazy("even the lowest load missed the targets"),
}


@dataclass(frozen=True)
class Cell:
    """A measure at one load for people: the median, and how much the repeats differ."""

    measure: Measure
    text: str
    spread: str


@dataclass(frozen=True)
class Row:
    """One load of the table."""

    name: str
    point: Point
    cells: list[Cell]
    is_best: bool = False


def number(value: float | None, unit: str) -> str:
    """A measured number with as many digits as say something; a dash if it is unknown."""
    if value is None:
        return "–"
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    text = str(number_format(value, decimal_pos=decimals, force_grouping=True))
    return f"{text} {unit}" if unit in ("ms", "%") else f"{text}{unit}"


def cell(measure: Measure, value: Value | None) -> Cell:
    """One cell of the table."""
    if value is None:
        return Cell(measure, "–", "")
    share = value.share
    return Cell(measure, number(value.median, measure.unit), f"± {100 * share / 2:.0f} %" if share is not None else "")


def shown_measures(rows: Sequence[Point]) -> list[Measure]:
    """The main measures that at least one load has."""
    return [measure for measure in MAIN if any(measure.key in point.values for point in rows)]


def context(benchmark: Benchmark, chosen_load: str = "") -> dict[str, Any]:
    """Everything that the page of a benchmark shows, whoever looks."""
    runs = list(benchmark.runs.defer("raw"))
    found = points(runs)
    measures = shown_measures(found)
    best = benchmark.outcome.best_load if benchmark.outcome else None
    chosen = next((point for point in found if f"{point.load:g}" == chosen_load), _interesting(found, best))
    return {
        "benchmark": benchmark,
        "sentence": sentence(benchmark, found),
        "measures": measures,
        "rows": [
            Row(
                charts.load_name(point.by, point.load), point,
                [cell(measure, point.values.get(measure.key)) for measure in measures], point.load == best,
            )
            for point in found
        ],
        "chosen": chosen,
        "chosen_name": charts.load_name(chosen.by, chosen.load) if chosen else "",
        "charts": _charts(benchmark, found, chosen),
        "facts": facts(benchmark),
        "asked": asked(benchmark),
        "runs": runs,
        "answers": answers.lines(benchmark),
    }  # fmt: skip


def _interesting(found: Sequence[Point], best: float | None) -> Point | None:
    """The load whose single requests are shown first: the best, else the highest that has some."""
    with_times = [point for point in found if any(run.requests for run in point.runs)]
    return next((point for point in with_times if point.load == best), with_times[-1] if with_times else None)


def _charts(
    benchmark: Benchmark, found: Sequence[Point], chosen: Point | None
) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, title and figure of each chart that has something to show."""
    first = next((run for run in chosen.runs if run.requests), None) if chosen else None
    name = charts.load_name(chosen.by, chosen.load) if chosen else ""
    several = len(found) > 1
    drawn: list[tuple[str, str, dict[str, Any] | None]] = [
        ("curve", _("Throughput over latency"), charts.throughput_over_latency({benchmark.title: found})),
        ("ttft", _("Time to the first token"), charts.percentiles(found, "ttft") if several else None),
        ("itl", _("Time between tokens"), charts.percentiles(found, "itl") if several else None),
        ("e2e", _("Whole request"), charts.percentiles(found, "e2e") if several else None),
        ("distribution", _("Distribution, %s") % name, charts.distribution(chosen.runs if chosen else [])),
        ("timeline", _("Timeline, %s, first repeat") % name, charts.timeline(first)),
    ]
    return [(key, title, figure) for key, title, figure in drawn if figure is not None]


def sentence(benchmark: Benchmark, found: Sequence[Point]) -> str:
    """The truth about a benchmark in one sentence."""
    if benchmark.state == "queued":
        return _("Waiting to begin.")
    if benchmark.state == "running":
        return _("Measuring; %(count)d loads so far.") % {"count": len(found)}
    if benchmark.state in ("failed", "cancelled"):
        why = (benchmark.failure or {}).get("message") or benchmark.state_reason or "–"
        text = _("Not whole: it ended before everything was measured (%(why)s).") % {"why": why}
        made = sum(len(point.runs) for point in found)
        return f"{text} {_('%(count)d runs were made and are shown below.') % {'count': made}}" if made else text
    outcome = benchmark.outcome
    if outcome is not None and benchmark.load_plan.sweep is not None:
        why = str(ENDED_BECAUSE.get(outcome.ended_because, outcome.ended_because))
        if outcome.best_load is None:
            return _("No load met the targets: %(why)s.") % {"why": why}
        return _("The highest load that meets the targets is %(load)s: %(why)s.") % {
            "load": charts.load_name(benchmark.load_plan.by, outcome.best_load), "why": why,
        }  # fmt: skip
    top = max(found, key=lambda point: point.median("output_tokens_per_second") or 0, default=None)
    if top is None:
        return _("Done.")
    return _("Up to %(tokens)s tokens/s, at %(load)s, with the first token after %(ttft)s (p95).") % {
        "tokens": number(top.median("output_tokens_per_second"), ""),
        "load": charts.load_name(top.by, top.load),
        "ttft": number(top.median("ttft_p95"), "ms"),
    }


def asked(benchmark: Benchmark) -> list[tuple[str, str]]:
    """What was asked, as label and words."""
    if benchmark.origin == "import":
        return [(_("Loads"), _loads(benchmark.load_plan)), (_("Prompts"), _("not told by the file"))]
    workload, loads, goals = benchmark.asked, benchmark.load_plan, benchmark.goals
    profile = PROFILES.get(benchmark.profile)
    limits = (
        (_("first token"), goals.ttft_ms),
        (_("each further token"), goals.itl_ms),
        (_("whole request"), goals.e2e_ms),
    )
    given = [f"{name} ≤ {value:g} ms" for name, value in limits if value is not None]
    length = _("full length, the model's own end is ignored") if loads.ignore_eos else _("until the model ends them")
    return [
        (_("Profile"), str(profile.title) if profile else benchmark.profile),
        (_("Prompts"), _prompts(benchmark, workload)),
        (_("Loads"), _loads(loads)),
        (_("Each"), _("%(much)s, %(repeats)d repeats, %(warmups)d warm-up requests, seed %(seed)d") % {
            "much": readable_duration(loads.seconds) if loads.seconds else _("%d requests") % (loads.requests or 0),
            "repeats": loads.repeats, "warmups": loads.warmups, "seed": loads.seed,
        }),
        (_("Answers"), length),
        (_("Targets"), ", ".join(given) or _("none: nothing is judged")),
    ]  # fmt: skip


def _prompts(benchmark: Benchmark, workload: Workload) -> str:
    if benchmark.dataset is not None:
        return _("%(name)s, %(count)d rows") % {"name": benchmark.dataset, "count": len(benchmark.dataset.rows)}
    if workload.kind == "prompts":
        return _("%d own prompts") % len(workload.prompts)
    text = _("%(input)d tokens in, %(output)d out") % {"input": workload.input_tokens, "output": workload.output_tokens}
    if workload.output_spread is not None and workload.output_spread != workload.spread:
        text += " " + _("(± %(input).0f %%, ± %(output).0f %%)") % {
            "input": 100 * workload.spread, "output": 100 * workload.output_spread,
        }  # fmt: skip
    elif workload.spread:
        text += f" ± {100 * workload.spread:.0f} %"
    if workload.kind == "shared_prefix":
        text = _("%(prefix)d shared tokens, then %(rest)s") % {"prefix": workload.prefix_tokens, "rest": text}
    return text


def _loads(loads: LoadPlan) -> str:
    if loads.sweep is not None:
        ends = {
            "first": charts.load_name(loads.by, loads.sweep.first),
            "most": charts.load_name(loads.by, loads.sweep.most),
        }
        return _("searched from %(first)s to %(most)s") % ends
    return ", ".join(charts.load_name(loads.by, value) for value in loads.values)


def facts(benchmark: Benchmark) -> list[tuple[str, str]]:
    """What was measured, as it was then: label and value."""
    subject = benchmark.subject
    busy = subject.get("busy") or {}
    engine = f"vLLM {subject['engine_version']}" if subject.get("engine_version") else subject.get("engine", "")
    memory = busy.get("memory_available")
    known = [
        (_("Deployment"), _deployment(subject)),
        (_("Server"), subject.get("remote", "")),
        (_("Model"), " @ ".join(filter(None, (subject.get("model", ""), str(subject.get("commit", ""))[:12])))),
        (_("Engine"), engine),
        (_("Imported from"), subject.get("imported", "")),
        (_("Asked by"), subject.get("client_engine", "")),
        (_("Question set"), answers.summary(benchmark)),
        (_("Arguments"), " ".join(subject.get("arguments") or [])),
        (_("Devices"), ", ".join(subject.get("devices") or [])),
        (_("Host"), f"{subject.get('host', '')} · {subject.get('cpu', '')}".strip(" ·")),
        (_("Driver"), " · CUDA ".join(filter(None, (subject.get("driver"), subject.get("cuda"))))),
        (_("Kernel"), subject.get("kernel", "")),
        (_("Host's processors before"), f"{100 * busy['cpu_used']:.0f} %" if busy.get("cpu_used") is not None else ""),
        (_("Host's memory free before"), readable_bytes(memory) if memory else ""),
    ]
    return [(label, str(value)) for label, value in known if value]


def _deployment(subject: dict[str, Any]) -> str:
    if not subject.get("deployment"):
        return ""
    return _("%(name)s #%(instance)s, spec %(spec)s, attempt %(attempt)s") % {
        "name": subject["deployment"], "instance": subject.get("instance"), "spec": subject.get("spec"),
        "attempt": subject.get("attempt") or "–",
    }  # fmt: skip


def live_numbers(benchmark: Benchmark) -> dict[str, Any] | None:
    """How far it is, and what it measures right now; None when it doesn't run."""
    if not benchmark.is_live or benchmark.step is None:
        return None
    step = Step.objects.filter(pk=benchmark.step).first()
    if step is None:
        return None
    numbers = step.progress.get("numbers") or {}
    shown = (
        ("tokens_per_second", _("Tokens/s so far"), ""),
        ("requests_per_second", _("Requests/s so far"), ""),
        ("ttft_p50_ms", _("First token so far, p50"), "ms"),
        ("ttft_p95_ms", _("First token so far, p95"), "ms"),
    )
    return {"step": step, "numbers": [(label, number(numbers.get(key), unit)) for key, label, unit in shown]}


def runs_by_key(benchmark: Benchmark) -> dict[str, Run]:
    """Runs by their key."""
    return {run.key: run for run in benchmark.runs.all()}

"""A study as its page and its exports show it: every variant beside the base, and whether the difference is real."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.benchmarks import comparison
from console.benchmarks.charts import load_name
from console.benchmarks.comparison import Difference
from console.benchmarks.curves import MEASURES, Measure, Point, points
from console.benchmarks.presentation import number
from console.common.spans import readable_duration
from console.deployments.models import Deployment
from console.jobs import presentation as jobs
from console.jobs.models import Job
from console.studies import charts
from console.studies.models import Study, Trial
from console.studies.ready import READY, ReadyStudy
from workers.benchmark_payloads import QualityResult
from workers.vllm import quality

TABLE = ("output_tokens_per_second", "ttft_p95", "itl_p50", "e2e_p95")
"""What each variant's row shows, goodput beside it where there are targets."""


@dataclass(frozen=True)
class Answered:
    """How a variant answered the question set. `lost`, `won`: questions that turned against the base."""

    right: int
    asked: int
    verdict: str
    lost: tuple[str, ...] = ()
    won: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Right of all."""
        return f"{self.right}/{self.asked}"


@dataclass(frozen=True)
class Row:
    """One variant at the load that is looked at. `cells` follow the shown measures."""

    trial: Trial
    label: str
    point: Point | None
    cells: list[tuple[str, str, Difference | None]]
    """Number, spread, difference from the base; empty strings where it wasn't measured."""
    start: str
    kv_tokens: str
    answered: Answered | None

    def differs(self, key: str) -> Difference | None:
        """Its difference from the base in one measure."""
        return next((one for _text, _spread, one in self.cells if one is not None and one.measure.key == key), None)


@dataclass(frozen=True)
class Seen:
    """Everything that was measured, read once."""

    study: Study
    trials: list[Trial]
    curves: Mapping[int, list[Point]]
    by: str
    loads: list[float]
    load: float | None

    def at(self, trial: Trial) -> Point | None:
        """A variant at the load that is looked at, only of a whole measurement."""
        found = self.curves.get(trial.pk, [])
        return next((point for point in found if point.load == self.load and point.told), None)


def seen(study: Study, load: str = "") -> Seen:
    """Read a study's trials and runs. `load`: the one to look at, else the highest that the base completed."""
    rows = list(study.trials.select_related("benchmark", "instance", "job"))
    curves = {
        one.pk: points(one.benchmark.runs.defer("raw", "requests")) for one in rows if one.benchmark and one.benchmark.is_whole
    }  # fmt: skip
    found = sorted({point.load for own in curves.values() for point in own if point.told})
    base = [point.load for point in curves.get(rows[0].pk, []) if point.told] if rows else []
    chosen = next((one for one in found if f"{one:g}" == load), max(base or found, default=None))
    return Seen(study, rows, curves, study.question.loads.by, found, chosen)


def rows_of(found: Seen) -> tuple[list[Measure], list[Row]]:
    """The table: measures that anything tells, and a row for each variant."""
    told = [point for trial in found.trials if (point := found.at(trial)) is not None]
    shown = (*TABLE, *(("goodput_per_second",) if found.study.question.targets.any else ()))
    measures = [MEASURES[key] for key in shown if any(key in point.values for point in told)]
    base = found.at(found.trials[0]) if found.trials else None
    answers = _answers(found.trials[0]) if found.trials else {}
    return measures, [_row(found, trial, measures, base, answers) for trial in found.trials]


def _row(
    found: Seen, trial: Trial, measures: Sequence[Measure], base: Point | None, answers: Mapping[str, tuple[bool, str]]
) -> Row:
    point = found.at(trial)
    cells: list[tuple[str, str, Difference | None]] = []
    for measure in measures:
        value = point.values.get(measure.key) if point else None
        before = base.values.get(measure.key) if base else None
        share = value.share if value else None
        cells.append((
            number(value.median, measure.unit) if value else "",
            f"± {100 * share / 2:.0f} %" if share is not None else "",
            comparison.difference(measure.key, before, value) if value and before and not trial.is_base else None,
        ))  # fmt: skip
    tokens = trial.truth.get("kv_cache_tokens")
    start = readable_duration(trial.start_seconds) if trial.start_seconds is not None else ""
    return Row(trial, label_of(trial), point, cells, start, f"{tokens:,}" if tokens else "", _answered(trial, answers))


def label_of(trial: Trial) -> str:
    """A variant's name for people."""
    return _("base") if trial.is_base else trial.label


def _answers(trial: Trial) -> dict[str, tuple[bool, str]]:
    return quality.by_key(trial.quality.get("answers") or [])


def _answered(trial: Trial, base: Mapping[str, tuple[bool, str]]) -> Answered | None:
    if not trial.quality:
        return None
    result = QualityResult.model_validate(trial.quality)
    if trial.is_base or not base:
        return Answered(result.right, len(result.answers), "")
    apart = quality.compare(base, _answers(trial))
    return Answered(result.right, len(result.answers), apart.verdict, apart.lost, apart.won)


def winner(rows: Sequence[Row]) -> Row | None:
    """Of the variants that are really faster than the base and answer no worse, the one with the most tokens per second."""
    better = [
        row for row in rows
        if (apart := row.differs("output_tokens_per_second")) is not None and apart.verdict == "better"
        and not (row.answered and row.answered.verdict == "worse")
    ]  # fmt: skip
    return max(
        better, key=lambda row: row.point.median("output_tokens_per_second") or 0 if row.point else 0, default=None
    )


def sentence(study: Study, rows: Sequence[Row], found: Seen) -> str:
    """The truth about a study in one sentence."""
    done = sum(row.trial.state not in ("queued", "running") for row in rows)
    if study.state in ("queued", "clearing"):
        return _("Waiting for %(what)s.") % {"what": study.waits_for} if study.waits_for else _("Waiting to begin.")
    if study.state == "running":
        text = _("%(done)d of %(all)d engines are measured.") % {"done": done, "all": len(rows)}
        return f"{text} {_('Waiting for %s.') % study.waits_for}" if study.waits_for else text
    if study.state == "finishing":
        return _("Ending; waiting for %(what)s.") % {"what": study.waits_for} if study.waits_for else _("Ending.")
    if study.state in ("failed", "cancelled"):
        why = study.finding or study.state_reason or "–"
        return _("Not whole: it ended after %(done)d of %(all)d engines (%(why)s).") % {
            "done": sum(row.trial.state == "succeeded" for row in rows), "all": len(rows), "why": why,
        }  # fmt: skip
    return _result(rows, found)


def _result(rows: Sequence[Row], found: Seen) -> str:
    load = load_name(found.by, found.load) if found.load is not None else "–"
    best = winner(rows)
    if best is None:
        return _("At %(load)s no change gives more tokens per second than the base beyond the noise.") % {"load": load}
    apart = best.differs("output_tokens_per_second")
    first = best.differs("ttft_p95")
    text = _("At %(load)s, %(change)s gives %(share)+.0f %% tokens per second.") % {
        "load": load, "change": best.label, "share": 100 * (apart.share or 0) if apart else 0,
    }  # fmt: skip
    if first is not None and first.verdict in ("better", "worse"):
        text += " " + _("The first token's p95 changes by %(share)+.0f %%.") % {"share": 100 * (first.share or 0)}
    return text


def context(study: Study, load: str = "") -> dict[str, Any]:
    """Everything that a study's page shows, whoever looks."""
    found = seen(study, load)
    measures, rows = rows_of(found)
    marks = [
        mark
        for row in rows
        for mark in charts.marks(row.label, found.curves.get(row.trial.pk, []), is_base=row.trial.is_base)
    ]
    named = [(row.label, row.point) for row in rows]
    drawn = (
        ("pareto", _("Throughput over the first token"), charts.pareto(marks)),
        ("bars", _("Tokens per second"), charts.bars(named, "output_tokens_per_second", _("tokens/s"))),
    )
    return {
        "study": study,
        "sentence": sentence(study, rows, found),
        "measures": measures,
        "rows": rows,
        "winner": winner(rows) if study.state == "succeeded" else None,
        "loads": [(f"{one:g}", load_name(found.by, one), one == found.load) for one in found.loads],
        "load_name": load_name(found.by, found.load) if found.load is not None else "",
        "charts": [(key, title, figure) for key, title, figure in drawn if figure is not None],
        "claims": claims(study, rows),
        "facts": facts(study),
        "skipped": sum(row.trial.state == "skipped" for row in rows),
        "compared": [row.trial.benchmark_id for row in rows if row.trial.benchmark_id and row.point],
    }  # fmt: skip


def claims(study: Study, rows: Sequence[Row]) -> dict[str, Any] | None:
    """What guides say beside what was measured here; None for a study of one's own."""
    ready = READY.get(study.ready_made)
    if ready is None:
        return None
    return {
        "claims": ready.claims,
        "found": [_found(row, ready) for row in rows if row.point and not row.trial.is_base],
    }


def _found(row: Row, ready: ReadyStudy) -> tuple[str, list[tuple[str, Difference | None]]]:
    """A variant, and each measure that the rule is about: words, or a difference."""
    told: list[tuple[str, Difference | None]] = []
    for key in ready.watch:
        if key == "start_seconds":
            told.append((_("ready after %s") % (row.start or "–"), None))
        elif key == "quality":
            if row.answered:
                told.append((_("%s answers right") % row.answered.text, None))
        elif (apart := row.differs(key)) is not None:
            told.append((str(apart.measure.title), apart))
    return row.label, told


def facts(study: Study) -> list[tuple[str, str]]:
    """What all of its engines have in common."""
    loads = study.question.loads
    names = study.copy.revision.model if study.copy else "–"
    stopped = Deployment.objects.filter(pk__in=study.stopped).values_list("name", flat=True)
    known = [
        (_("Deployment"), str(study.deployment or "")),
        (_("Model"), str(names)),
        (_("Engine"), f"vLLM {study.engine.version}" if study.engine else "–"),
        (_("Host"), str(study.host or "–")),
        (_("Arguments of the base"), " ".join(study.arguments)),
        (_("Each load"), _each(loads.requests, loads.seconds, loads.repeats)),
        (_("What else runs there"), str(study.get_neighbours_display())),
        (_("Stopped meanwhile"), ", ".join(stopped)),
        (_("Asked for by"), str(study.requested_by or "")),
        (_("Why"), study.reason),
    ]
    return [(label, value) for label, value in known if value]


def _each(requests: int | None, seconds: float | None, repeats: int) -> str:
    much = ngettext("%d request", "%d requests", requests) % requests if requests else readable_duration(seconds or 0)
    return ngettext("%(much)s, %(count)d repeat", "%(much)s, %(count)d repeats", repeats) % {
        "much": much,
        "count": repeats,
    }


def now(study: Study) -> dict[str, Any] | None:
    """What the running trial does at this moment; None while none runs."""
    trial = study.trials.filter(state="running").select_related("job").first() if study.is_live else None
    job: Job | None = trial.job if trial is not None else None
    if trial is None or job is None:
        return None
    steps = list(job.steps.select_related("host"))
    return {
        "trial": trial, "label": label_of(trial), "job": job, "sentence": jobs.sentence(job, steps),
        "step": jobs.current(steps),
    }  # fmt: skip

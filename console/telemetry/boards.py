"""A deployment's board of charts as data: lines, totals of the range, marks of what happened, and why a chart is empty."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.common.models import StateChange
from console.deployments.models import Deployment, Instance
from console.telemetry import history
from console.telemetry.columns import Columns
from console.telemetry.history import Span
from console.telemetry.measures import CHARTS, Chart, Totals, Values, lines_of, totals

MOST_MARKS = 60
MOST_APART = 8
"""So many instances are drawn apart; colours beyond could not be told from each other."""
WEEK_SECONDS = 7 * 86_400
MARKED = {
    "deployments.deployment": ("deploying", "serving", "degraded", "failed", "stopped"),
    "deployments.instance": ("restarting", "crashed", "unhealthy"),
}
RANGES = (900, 3600, 6 * 3600, 86_400, WEEK_SECONDS, history.LONGEST_SECONDS)


@dataclass(frozen=True)
class Board:
    """What is asked for: which deployment, which range, its instances apart or together, compared with what."""

    deployment: Deployment
    span: Span
    apart: bool = False
    compared: Deployment | None = None
    """Another deployment, or the same one: a week earlier."""


def described(charts: Sequence[Chart]) -> list[dict[str, Any]]:
    """Charts as the page's script needs them, in the reader's language."""
    return [
        {
            "id": chart.id,
            "title": str(chart.title),
            "unit": chart.unit,
            "main": chart.main,
            "lines": [{"key": line.key, "name": str(line.name), "role": line.role} for line in chart.lines],
        }
        for chart in charts
    ]


def instances_of(deployment: Deployment) -> list[Instance]:
    """All of a deployment's instances, those that are gone as well: what they did stays in its history."""
    return list(deployment.instances.select_related("host", "spec__engine", "deployment").order_by("number"))


def board(asked: Board) -> dict[str, Any]:
    """Everything that the page draws."""
    instances = instances_of(asked.deployment)
    columns = history.read(instances, asked.span)
    parts = list(columns.values())
    moments = history.moments(parts, asked.span)
    groups = _groups(instances, columns, moments, asked)
    return {
        "span": {"first": asked.span.first, "end": asked.span.end, "step": asked.span.step},
        "t": [moment * 1000 for moment in moments],
        "groups": groups,
        "compared": _compared(asked),
        "totals": _figures(totals(parts), asked.span),
        "marks": marks(asked.deployment, instances, asked.span),
        "empty": _reasons(asked, instances, columns, groups),
    }


def _groups(
    instances: Sequence[Instance], columns: Mapping[int, Columns], moments: Sequence[int], asked: Board
) -> list[dict[str, Any]]:
    if not asked.apart:
        return [{"key": "all", "name": "", "values": _values([*columns.values()], moments, asked.span)}]
    present = [instance for instance in instances if instance.pk in columns][-MOST_APART:]
    return [
        {
            "key": str(instance.number),
            "name": f"#{instance.number} {instance.host.name}",
            "values": _values([columns[instance.pk]], moments, asked.span),
        }
        for instance in present
    ]


def _values(parts: Sequence[Columns], moments: Sequence[int], span: Span) -> dict[str, Values]:
    return {key: [_short(value) for value in values] for key, values in lines_of(parts, moments, span.step).items()}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _compared(asked: Board) -> dict[str, Any] | None:
    """The main lines of what is compared with, moved onto this range."""
    if asked.compared is None:
        return None
    earlier = asked.compared == asked.deployment
    shift = WEEK_SECONDS if earlier else 0
    step = max(asked.span.step, 60) if earlier else asked.span.step
    span = replace(asked.span, first=(asked.span.first - shift) // step * step, end=asked.span.end - shift, step=step)
    parts = list(history.read(instances_of(asked.compared), span).values())
    moments = history.moments(parts, span)
    values = _values(parts, moments, span)
    mains = {chart.main for chart in CHARTS}
    return {
        "name": _("a week earlier") if earlier else asked.compared.name,
        "t": [(moment + shift) * 1000 for moment in moments],
        "values": {key: line for key, line in values.items() if key in mains},
    }


def _figures(whole: Totals, span: Span) -> list[dict[str, Any]]:
    """The numbers above the charts: as text for people, and as `number` for programs."""
    rejected = whole.rejections or 0
    failed = whole.errors or 0
    return [
        _count("requests", _("Requests"), whole.requests, _trouble(failed, rejected)),
        _count("prompt_tokens", _("Prompt tokens"), whole.prompt_tokens, _per(whole.prompt_tokens, span)),
        _count(
            "generation_tokens", _("Generated tokens"), whole.generation_tokens, _per(whole.generation_tokens, span)
        ),
        _latency(_("First token, p95"), whole, "time_to_first_token"),
        _latency(_("Between tokens, p95"), whole, "inter_token_latency"),
        _latency(_("Whole request, p95"), whole, "e2e_latency"),
    ]


def _trouble(failed: float, rejected: float) -> str:
    if failed or rejected:
        return _("%(failed)s failed, %(refused)s refused") % {"failed": count(failed), "refused": count(rejected)}
    return _("none failed")


def _per(value: float | None, span: Span) -> str:
    if value is None:
        return ""
    return _("%s/s on average") % number_format(value / max(1, span.end - span.first), decimal_pos=1)


def _count(key: str, name: str, number: float | None, note: str) -> dict[str, Any]:
    return {"key": key, "name": name, "value": count(number), "note": note, "number": number}


def _latency(name: str, whole: Totals, histogram: str) -> dict[str, Any]:
    middle, high = whole.quantile(histogram, 0.5), whole.quantile(histogram, 0.95)
    return {
        "key": f"{histogram}.p95",
        "name": name,
        "value": seconds(high),
        "number": high,
        "note": _("p50 %s") % seconds(middle) if middle is not None else "",
    }


def count(value: float | None) -> str:
    """A whole number with separators; a dash if unknown."""
    return "–" if value is None else str(number_format(round(value), use_l10n=True, force_grouping=True))


def seconds(value: float | None) -> str:
    """A latency as `84 ms` or `1.32 s`; a dash if unknown."""
    if value is None:
        return "–"
    if value < 0.01:
        return _("%s ms") % number_format(value * 1000, decimal_pos=1)
    if value < 1:
        return _("%s ms") % number_format(value * 1000, decimal_pos=0)
    return _("%s s") % number_format(value, decimal_pos=2)


def marks(deployment: Deployment, instances: Sequence[Instance], span: Span) -> list[dict[str, Any]]:
    """Deploys, restarts and failures in the range."""
    numbers = {instance.pk: instance.number for instance in instances}
    began, ended = (datetime.fromtimestamp(moment, tz=UTC) for moment in (span.first, span.end + 1))
    rows: list[StateChange] = []
    for kind, states in MARKED.items():
        keys = [deployment.pk] if kind == "deployments.deployment" else list(numbers)
        changes = StateChange.objects.filter(kind=kind, object_id__in=keys, after__in=states)
        rows += changes.filter(at__gte=began, at__lte=ended).order_by("-at")[:MOST_MARKS]
    rows.sort(key=lambda row: row.at)
    return [
        {
            "t": int(row.at.timestamp() * 1000),
            "kind": row.after,
            "text": _mark_text(row, numbers),
        }
        for row in rows[-MOST_MARKS:]
    ]


def _mark_text(row: StateChange, numbers: Mapping[int, int]) -> str:
    from console.common.states import LOOKS

    word = str(LOOKS[row.after].word)
    who = f"#{numbers[row.object_id]} " if row.kind == "deployments.instance" else ""
    return f"{who}{word}" + (f": {row.reason[:120]}" if row.reason else "")


def _reasons(
    asked: Board,
    instances: Sequence[Instance],
    columns: Mapping[int, Columns],
    groups: Sequence[Mapping[str, Any]],
) -> dict[str, str]:
    """For each chart that has nothing to draw: why."""
    found = {}
    for chart in CHARTS:
        drawn = (value for group in groups for line in chart.lines for value in group["values"].get(line.key, ()))
        if not any(value is not None for value in drawn):
            found[chart.id] = _reason(chart, asked, instances, columns)
    return found


def _reason(chart: Chart, asked: Board, instances: Sequence[Instance], columns: Mapping[int, Columns]) -> str:
    if not instances:
        return _("Nothing of this deployment has run yet.")
    if not columns:
        return _no_samples(asked.deployment, instances)
    if not any(chart.needs in part.values for part in columns.values()):
        if chart.id == "speculation":
            return _("Speculative decoding is not in use.")
        engines = sorted({instance.spec.engine.version for instance in instances if instance.pk in columns})
        return _("vLLM %(version)s has no such metric.") % {"version": ", ".join(engines)}
    return _("No requests in this range yet.")


def _no_samples(deployment: Deployment, instances: Sequence[Instance]) -> str:
    silent = sorted({instance.host.name for instance in instances if instance.is_unknown})
    if silent:
        seen = max(i.host.last_seen_at for i in instances if i.is_unknown and i.host.last_seen_at)
        local = timezone.localtime(seen)
        return ngettext(
            "Host %(hosts)s offline since %(time)s.", "Hosts %(hosts)s offline since %(time)s.", len(silent)
        ) % {"hosts": ", ".join(silent), "time": f"{local:%H:%M} {local.tzname()}"}
    if deployment.state in ("stopped", "draft", "failed"):
        local = timezone.localtime(deployment.state_since)
        return _("Nothing ran in this range: %(state)s since %(time)s.") % {
            "state": deployment.look.word,
            "time": f"{local:%Y-%m-%d %H:%M} {local.tzname()}",
        }
    return _("No samples in this range: engines are sampled from the moment they listen.")

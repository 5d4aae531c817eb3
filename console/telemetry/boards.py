"""A deployment's board of charts as data: lines, totals of the range, marks of what happened, and why a chart is empty."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.utils import timezone
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.deployments.models import Deployment, Instance
from console.telemetry import history, kv_pools, marks
from console.telemetry.columns import MAX, Columns
from console.telemetry.history import Span
from console.telemetry.marks import MARKED, About
from console.telemetry.measures import CHARTS, Chart, Totals, Values, lines_of, totals

MOST_APART = 8
"""So many instances are drawn apart; colours beyond could not be told from each other."""
WEEK_SECONDS = 7 * 86_400
RANGES = (900, 3600, 6 * 3600, 86_400, WEEK_SECONDS, history.LONGEST_SECONDS)


@dataclass(frozen=True)
class Board:
    """What is asked for: which deployment, which range, its instances apart or together, compared with what."""

    deployment: Deployment
    span: Span
    apart: bool = False
    compared: Deployment | None = None
    """Another deployment, or the same one: a week earlier."""
    shared: bool = False
    """Looked at by someone without an account: what is about hosts is left out, and nothing links further."""


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
    columns = read(instances, asked.span)
    parts = list(columns.values())
    moments = history.moments(parts, asked.span)
    groups = _groups(instances, columns, moments, asked)
    return {
        "span": {"first": asked.span.first, "end": asked.span.end, "step": asked.span.step},
        "t": [moment * 1000 for moment in moments],
        "groups": groups,
        "compared": _compared(asked),
        "totals": [*_figures(totals(parts), asked.span), _kv_figure(parts)],
        "marks": marks_of(asked.deployment, instances, asked.span, shared=asked.shared),
        "empty": _reasons(asked, instances, columns, groups),
    }


def read(instances: Sequence[Instance], span: Span) -> dict[int, Columns]:
    """What is kept of a range, with the KV cache's size beside it; by the instances' primary keys."""
    columns = history.read(instances, span)
    pools = kv_pools.pools_of(instances)
    for key, part in columns.items():
        kv_pools.lay_beside(part, pools.get(key, ()))
    return columns


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
    parts = list(read(instances_of(asked.compared), span).values())
    moments = history.moments(parts, span)
    values = _values(parts, moments, span)
    mains = {chart.main for chart in CHARTS}
    lines = {key: line for key, line in values.items() if key in mains}
    name = _("a week earlier") if earlier else asked.compared.name
    nothing = _("Nothing is stored of a week earlier.") if earlier else _("%(name)s told nothing in this range.")
    is_empty = all(value is None for line in lines.values() for value in line)
    return {
        "name": name,
        "t": [(moment + shift) * 1000 for moment in moments],
        "values": lines,
        "empty": nothing % {"name": name} if is_empty else "",
    }


def _figures(whole: Totals, span: Span) -> list[dict[str, Any]]:
    """The numbers above the charts: as text for people, and as `number` for programs."""
    rejected = whole.rejections or 0
    failed = whole.errors or 0
    return [
        _count("requests", _("Requests"), whole.requests, "" if whole.requests is None else _trouble(failed, rejected)),
        _count("prompt_tokens", _("Prompt tokens"), whole.prompt_tokens, _per(whole.prompt_tokens, span)),
        _count(
            "generation_tokens", _("Generated tokens"), whole.generation_tokens, _per(whole.generation_tokens, span)
        ),
        _latency(_("First token, p95"), whole, "time_to_first_token"),
        _latency(_("Between tokens, p95"), whole, "inter_token_latency"),
        _latency(_("Whole request, p95"), whole, "e2e_latency"),
    ]


def _kv_figure(parts: Sequence[Columns]) -> dict[str, Any]:
    """How full the fullest KV cache has been, of what it has and of what had been planned for it."""
    used = [(share, part, at) for part in parts for at, share in enumerate(part.column(f"{MAX}kv_cache_usage"))]
    highest, part, at = max((one for one in used if one[0] == one[0]), key=lambda one: one[0], default=(None, None, 0))
    pool, planned = (_known(part, at, name) for name in (kv_pools.POOL, kv_pools.PLANNED))
    note = ""
    if highest is not None and pool is not None:
        note = _("of %s tokens") % count(pool)
        note += _("; planned %s") % count(planned) if planned is not None else ""
    value = "–" if highest is None else f"{number_format(highest * 100, decimal_pos=0 if highest >= 0.1 else 1)} %"
    return {
        "key": "kv_cache_usage.max",
        "name": _("KV cache, fullest"),
        "value": value,
        "note": note,
        "number": highest,
    }


def _known(part: Columns | None, at: int, name: str) -> float | None:
    value = part.column(name)[at] if part is not None else math.nan
    return None if math.isnan(value) else value


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


def marks_of(
    deployment: Deployment, instances: Sequence[Instance], span: Span, *, shared: bool
) -> list[dict[str, Any]]:
    """Deploys, restarts, failures and alerts in the range; on a shared board without what is about whole hosts."""
    numbers = {instance.pk: f"#{instance.number}" for instance in instances}
    names = {"deployments.deployment": {deployment.pk: ""}, "deployments.instance": numbers}
    found = [mark for kind, of in names.items() for mark in marks.moves(kind, of, MARKED[kind], span.first, span.end)]
    hosts = () if shared else {instance.host_id for instance in instances if instance.state != "stopped"}
    alerts = marks.contributed(About((deployment.pk,), hosts), span.first, span.end)
    return marks.drawn([*found, *(replace(one, url="") if shared else one for one in alerts)])


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
        if chart.id == "kv_plan":
            return _("No start has told the size of its KV cache yet.")
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

"""Usage: sums by key, team, route, deployment and day; for pages, charts and export."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, timedelta
from typing import Any

from django.db.models import F, QuerySet, Sum
from django.utils import timezone
from django.utils.translation import gettext as _

from console.gateway.models import UsageDay

GROUPS = {"key": "key__name", "route": "route", "deployment": "deployment", "team": "team__name"}
SPANS = (1, 7, 30, 90)
MOST_SERIES = 5
COLOURS = ("accent", "ok", "warn", "bad", "calm", "line")
COUNTS = ("requests", "refused", "errors", "prompt_tokens", "output_tokens")


@dataclass(frozen=True)
class Totals:
    """Sums of one group. `tokens` is both kinds together."""

    name: str
    requests: int
    refused: int
    errors: int
    prompt_tokens: int
    output_tokens: int
    pk: int | None = None

    @property
    def tokens(self) -> int:
        """Prompt and output tokens."""
        return self.prompt_tokens + self.output_tokens


def today() -> date:
    """The day that counts now: UTC's."""
    return timezone.now().astimezone(UTC).date()


def within(rows: QuerySet[UsageDay], days: int) -> QuerySet[UsageDay]:
    """Rows of the last `days` days, today among them."""
    return rows.filter(day__gt=today() - timedelta(days=days))


def totals(rows: QuerySet[UsageDay], group: str) -> list[Totals]:
    """Sums by key, route, deployment or team, the largest first."""
    column = GROUPS[group]
    names = [column, "key"] if group == "key" else [column]
    summed = rows.values(*names).annotate(**{f"sum_{name}": Sum(name) for name in COUNTS})
    found = [
        Totals(
            name=str(row[column] or _("(none)")),
            pk=row.get("key"),
            **{name: row[f"sum_{name}"] or 0 for name in COUNTS},
        )
        for row in summed
    ]
    return sorted(found, key=lambda one: (-one.tokens, -one.requests, one.name))


def whole(rows: QuerySet[UsageDay]) -> Totals:
    """Sums over everything."""
    summed = rows.aggregate(**{f"sum_{name}": Sum(name) for name in COUNTS})
    return Totals(name="", **{name: summed[f"sum_{name}"] or 0 for name in COUNTS})


def used_today(keys: Sequence[int]) -> dict[int, int]:
    """Tokens that each key took today."""
    rows = UsageDay.objects.filter(day=today(), key__in=keys).values("key")
    return dict(rows.annotate(used=Sum(F("prompt_tokens") + F("output_tokens"))).values_list("key", "used"))


def figure(rows: QuerySet[UsageDay], group: str, days: int) -> dict[str, Any]:
    """Tokens a day, stacked by the largest groups; the rest together."""
    column = GROUPS[group]
    by_name: dict[str, dict[date, int]] = defaultdict(lambda: defaultdict(int))
    tokens = Sum(F("prompt_tokens") + F("output_tokens"))
    for day, name, count in rows.values("day", column).annotate(tokens=tokens).values_list("day", column, "tokens"):
        by_name[str(name or _("(none)"))][day] += count or 0
    ordered = sorted(by_name.items(), key=lambda pair: -sum(pair[1].values()))
    series = ordered[:MOST_SERIES]
    if len(ordered) > MOST_SERIES:
        series.append((_("others"), _together(counts for _name, counts in ordered[MOST_SERIES:])))
    axis = [today() - timedelta(days=back) for back in reversed(range(days))]
    return {
        "data": [
            {
                "type": "bar",
                "name": name,
                "x": [day.isoformat() for day in axis],
                "y": [counts.get(day, 0) for day in axis],
                "marker": {"color": COLOURS[at]},
                "hovertemplate": "%{x}: %{y:,} tokens<extra>%{fullData.name}</extra>",
            }
            for at, (name, counts) in enumerate(series)
        ],
        "layout": {
            "barmode": "stack",
            "height": 300,
            "showlegend": len(series) > 1,
            "legend": {"orientation": "h", "y": -0.2},
            "xaxis": {"type": "date", "tickformat": "%-d %b", "dtick": 86_400_000 * max(1, days // 15)},
            "yaxis": {"title": {"text": _("tokens a day")}, "automargin": True, "rangemode": "tozero"},
        },
    }


def _together(counts: Iterable[dict[date, int]]) -> dict[date, int]:
    found: dict[date, int] = defaultdict(int)
    for one in counts:
        for day, count in one.items():
            found[day] += count
    return found

"""Figures of studies, as plain data: the browser adds the theme's colours."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from console.benchmarks.charts import load_name
from console.benchmarks.curves import Point


@dataclass(frozen=True)
class Mark:
    """One variant at one load. Times in milliseconds."""

    label: str
    load: str
    is_base: bool
    ttft: float
    tokens: float


def marks(label: str, points: Sequence[Point], *, is_base: bool) -> list[Mark]:
    """A variant's loads that completed something."""
    return [
        Mark(label, load_name(point.by, point.load), is_base, ttft, tokens)
        for point in points
        if (ttft := point.median("ttft_p95")) is not None
        and (tokens := point.median("output_tokens_per_second")) is not None
    ]


def frontier(found: Sequence[Mark]) -> list[Mark]:
    """Marks that no other beats in both, fewest milliseconds first: any of them may be the right choice."""
    best: list[Mark] = []
    for mark in sorted(found, key=lambda one: (one.ttft, -one.tokens)):
        if not best or mark.tokens > best[-1].tokens:
            best.append(mark)
    return best


def pareto(found: Sequence[Mark]) -> dict[str, Any] | None:
    """Tokens per second over the first token, all variants at all loads, the best of them joined; None without any."""
    if not found:
        return None
    best = frontier(found)
    groups = (
        (_("base"), "calm", "diamond", [one for one in found if one.is_base]),
        (_("variants"), "accent", "circle", [one for one in found if not one.is_base]),
    )
    line = {
        "type": "scatter", "mode": "lines", "name": _("none is better in both"), "hoverinfo": "skip",
        "x": [round(one.ttft, 1) for one in best], "y": [round(one.tokens, 2) for one in best],
        "line": {"color": "ok", "width": 2, "dash": "dot"},
    }  # fmt: skip
    return {
        "data": [line, *(_scatter(name, colour, symbol, own, best) for name, colour, symbol, own in groups if own)],
        "layout": {
            "height": 380, "legend": {"orientation": "h", "y": 1.12},
            "xaxis": {"title": {"text": _("first token p95 (ms)")}, "automargin": True, "rangemode": "tozero"},
            "yaxis": {"title": {"text": _("tokens/s")}, "automargin": True, "rangemode": "tozero"},
            "margin": {"t": 24},
        },
    }  # fmt: skip


def _scatter(name: str, colour: str, symbol: str, own: Sequence[Mark], best: Sequence[Mark]) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers+text", "name": name, "cliponaxis": False,
        "x": [round(one.ttft, 1) for one in own], "y": [round(one.tokens, 2) for one in own],
        # Only what may be chosen is named in the drawing; the others say it when pointed at.
        "text": [_short(one.label) if one in best and not one.is_base else "" for one in own],
        "customdata": [f"{one.label}, {one.load}" for one in own], "textposition": "top center",
        "marker": {"color": colour, "size": 9, "symbol": symbol},
        "hovertemplate": _("%{customdata}: %{y:.1f} tokens/s, first token %{x:.0f} ms<extra></extra>"),
    }  # fmt: skip


def _short(label: str) -> str:
    text = label.replace("--", "")
    return text if len(text) <= 34 else f"{text[:33]}…"


def bars(rows: Sequence[tuple[str, Point | None]], key: str, title: str) -> dict[str, Any] | None:
    """One measure of each variant at one load, with the spread of the repeats; None without any."""
    told = [(label, point.values[key]) for label, point in rows if point is not None and key in point.values]
    if not told:
        return None
    return {
        "data": [
            {
                "type": "bar", "orientation": "h", "marker": {"color": "accent"},
                "y": [_short(label) for label, _value in told][::-1],
                "x": [round(value.median, 2) for _label, value in told][::-1],
                "error_x": {
                    "type": "data", "thickness": 1, "visible": any(value.count > 1 for _label, value in told),
                    "array": [round(value.spread / 2, 3) for _label, value in told][::-1],
                },
                "hovertemplate": "%{y}: %{x:.1f}<extra></extra>",
            }
        ],
        "layout": {
            "height": 90 + 34 * len(told), "showlegend": False, "bargap": 0.4,
            "xaxis": {"title": {"text": title}, "automargin": True, "rangemode": "tozero"},
            "yaxis": {"automargin": True, "type": "category"}, "margin": {"t": 12},
        },
    }  # fmt: skip

"""Figures for Plotly, as plain data: the browser adds the theme's colours."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _

from console.benchmarks.curves import TIME_TITLES, Point
from console.benchmarks.models import Benchmark, Run

COLOURS = ("accent", "warn", "ok", "bad", "calm")
MOST_CURVES = len(COLOURS)
MOST_BINS = 40


def load_name(by: str, load: float) -> str:
    """A load for people: `4 at once`, `2.5/s`."""
    return _("%s at once") % f"{load:g}" if by == "concurrency" else _("%s/s") % f"{load:g}"


def throughput_over_latency(curves: Mapping[str, Sequence[Point]], *, share: str = "p95") -> dict[str, Any] | None:
    """Tokens per second over the time to the first token, a line for each benchmark; None if nothing was completed."""
    data = []
    for colour, (name, points) in zip(COLOURS, curves.items(), strict=False):
        told = [
            (x, y, point)
            for point in points
            if (x := point.median(f"ttft_{share}")) is not None
            and (y := point.median("output_tokens_per_second")) is not None
        ]
        if not told:
            continue
        data.append(
            {
                "type": "scatter", "mode": "lines+markers+text", "name": name,
                "x": [round(x, 1) for x, _y, _point in told], "y": [round(y, 2) for _x, y, _point in told],
                "text": [load_name(point.by, point.load) for _x, _y, point in told],
                "textposition": "top center", "cliponaxis": False,
                "error_y": _spread([point for _x, _y, point in told], "output_tokens_per_second"),
                "marker": {"color": colour, "size": 8}, "line": {"color": colour, "width": 2},
                "hovertemplate": _("%{text}: %{y:.1f} tokens/s, first token %{x:.0f} ms<extra></extra>"),
            }
        )  # fmt: skip
    if not data:
        return None
    return {
        "data": data,
        "layout": {
            "height": 320, "showlegend": len(data) > 1, "legend": {"orientation": "h", "y": 1.15},
            "xaxis": {"title": {"text": _("first token %s (ms)") % share}, "automargin": True, "rangemode": "tozero"},
            "yaxis": {"title": {"text": _("tokens/s")}, "automargin": True, "rangemode": "tozero"},
            "margin": {"t": 24},
        },
    }  # fmt: skip


def _spread(points: Sequence[Point], key: str) -> dict[str, Any]:
    return {
        "type": "data", "visible": any(point.values[key].count > 1 for point in points), "thickness": 1,
        "array": [round(point.values[key].spread / 2, 3) for point in points],
    }  # fmt: skip


def percentiles(points: Sequence[Point], name: str) -> dict[str, Any] | None:
    """Percentiles of one time over the loads; None if no run tells it."""
    data = []
    for share, colour in (("p50", "calm"), ("p90", "ok"), ("p95", "accent"), ("p99", "warn")):
        told = [(point, value) for point in points if (value := point.median(f"{name}_{share}")) is not None]
        if told:
            data.append(
                {
                    "type": "scatter", "mode": "lines+markers", "name": share,
                    "x": [load_name(point.by, point.load) for point, _value in told],
                    "y": [round(value, 2) for _point, value in told],
                    "marker": {"color": colour, "size": 6}, "line": {"color": colour, "width": 2},
                    "hovertemplate": f"%{{x}}: {share} %{{y:.1f}} ms<extra></extra>",
                }
            )  # fmt: skip
    if not data:
        return None
    return {
        "data": data,
        "layout": {
            "height": 240, "legend": {"orientation": "h", "y": 1.2},
            "xaxis": {"type": "category", "automargin": True},
            "yaxis": {"title": {"text": _("%s (ms)") % TIME_TITLES[name]}, "automargin": True, "rangemode": "tozero"},
        },
    }  # fmt: skip


def distribution(runs: Sequence[Run]) -> dict[str, Any] | None:
    """How the times of single requests are spread, at one load; None without single times."""
    times = [one for run in runs for one in run.times if one.ok]
    if not times:
        return None
    return {
        "data": [
            {
                "type": "bar", "name": title, "opacity": 0.75, "marker": {"color": colour}, **_bars(values),
                "hovertemplate": _("%{customdata}: %{y} requests<extra></extra>"),
            }
            for title, colour, values in (
                (_("first token"), "accent", [one.ttft_ms for one in times]),
                (_("whole request"), "calm", [one.e2e_ms for one in times]),
            )
        ],
        "layout": {
            "height": 240, "barmode": "overlay", "bargap": 0.05, "legend": {"orientation": "h", "y": 1.2},
            "xaxis": {"title": {"text": _("milliseconds")}, "automargin": True, "rangemode": "tozero"},
            "yaxis": {"title": {"text": _("requests")}, "automargin": True},
        },
    }  # fmt: skip


def _bars(values: Sequence[float]) -> dict[str, Any]:
    """Values counted in bins of equal width (the drawing library that is shipped has no histogram of its own)."""
    low, high = min(values), max(values)
    count = max(1, min(MOST_BINS, round(len(values) ** 0.5) * 2))
    width = (high - low) / count or 1.0
    counts = [0] * count
    for value in values:
        counts[min(count - 1, int((value - low) / width))] += 1
    edges = [low + index * width for index in range(count)]
    return {
        "x": [round(edge + width / 2, 2) for edge in edges], "y": counts, "width": [round(width, 3)] * count,
        "customdata": [f"{edge:.0f}–{edge + width:.0f} ms" for edge in edges],
    }  # fmt: skip


def timeline(run: Run | None) -> dict[str, Any] | None:
    """Every request of one run at the moment it began; None without single times."""
    times = run.times if run is not None else []
    if not times:
        return None
    good, bad = [one for one in times if one.ok], [one for one in times if not one.ok]
    traces = (
        (_("first token"), "accent", good, [one.ttft_ms for one in good]),
        (_("whole request"), "calm", good, [one.e2e_ms for one in good]),
        (_("failed"), "bad", bad, [one.e2e_ms for one in bad]),
    )
    return {
        "data": [
            {
                "type": "scatter", "mode": "markers", "name": title, "x": [one.at for one in shown], "y": values,
                "marker": {"color": colour, "size": 6, "opacity": 0.8},
                "hovertemplate": _("after %{x:.1f} s: %{y:.0f} ms<extra></extra>"),
            }
            for title, colour, shown, values in traces
            if shown
        ],
        "layout": {
            "height": 240, "legend": {"orientation": "h", "y": 1.2},
            "xaxis": {"title": {"text": _("seconds from the first request")}, "automargin": True},
            "yaxis": {"title": {"text": _("milliseconds")}, "automargin": True, "rangemode": "tozero"},
        },
    }  # fmt: skip


def history(rows: Sequence[Benchmark], curves: Mapping[int, Sequence[Point]]) -> dict[str, Any] | None:
    """First token and throughput over a deployment's measurements; a vertical line where its spec changed."""
    told = [
        (one, point)
        for one in rows
        if (point := _middle(curves[one.pk])) is not None
    ]  # fmt: skip
    if not told:
        return None
    moments = [one.created_at.isoformat() for one, _point in told]
    names = [
        _("spec %(number)s, vLLM %(engine)s, %(load)s") % {
            "number": one.subject.get("spec", "–"), "engine": one.subject.get("engine_version", "–"),
            "load": load_name(point.by, point.load),
        }
        for one, point in told
    ]  # fmt: skip
    changed = [
        moment for (before, _p), (after, _q), moment in zip(told, told[1:], moments[1:], strict=False)
        if before.subject.get("spec") != after.subject.get("spec")
    ]  # fmt: skip
    lines = (
        ("ttft_p95", _("first token p95 (ms)"), "accent", "y"),
        ("output_tokens_per_second", _("tokens/s"), "calm", "y2"),
    )
    return {
        "data": [
            {
                "type": "scatter", "mode": "lines+markers", "name": title, "x": moments, "yaxis": axis, "text": names,
                "y": [point.median(key) for _one, point in told], "line": {"color": colour, "width": 2},
                "marker": {"color": colour, "size": 8}, "hovertemplate": "%{text}: %{y:.1f}<extra></extra>",
            }
            for key, title, colour, axis in lines
        ],
        "layout": {
            "height": 280, "legend": {"orientation": "h", "y": 1.15}, "xaxis": {"type": "date", "automargin": True},
            "yaxis": {"title": {"text": lines[0][1]}, "automargin": True, "rangemode": "tozero"},
            "yaxis2": {"title": {"text": lines[1][1]}, "automargin": True, "rangemode": "tozero", "overlaying": "y",
                       "side": "right", "showgrid": False},
            "shapes": [
                {"type": "line", "x0": moment, "x1": moment, "yref": "paper", "y0": 0, "y1": 1,
                 "line": {"width": 1, "dash": "dot", "color": "#8b93a7"}}
                for moment in changed
            ],
        },
    }  # fmt: skip


def _middle(found: Sequence[Point]) -> Point | None:
    """The load that stands for a benchmark in its history: the middle one that completed something."""
    told = [point for point in found if point.median("ttft_p95") is not None]
    return told[len(told) // 2] if told else None

"""Figures for Plotly, as plain data: the browser adds the theme's colours."""

from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext as _

from console.deployments.launches import error_of, overhead_of
from console.deployments.models import Launch


def prediction_errors(launches: Sequence[Launch]) -> dict[str, Any] | None:
    """Error of the predicted KV tokens and overhead for each launch, oldest first; None without one that has both."""
    ordered = list(reversed(launches))
    series = [
        (_("KV cache tokens"), "accent", [error_of(one.prediction, one.truth, "kv_cache_tokens") for one in ordered]),
        (_("overhead"), "warn", [_overhead_error(one) for one in ordered]),
    ]
    if not any(value is not None for _name, _colour, values in series for value in values):
        return None
    names = [f"{one.deployment_name} · {one.spec_number} · {one.at:%m-%d %H:%M}" for one in ordered]
    return {
        "data": [
            {
                "type": "scatter", "mode": "markers", "name": name, "x": list(range(1, len(ordered) + 1)),
                "y": [None if value is None else round(100 * value, 3) for value in values], "text": names,
                "marker": {"color": colour, "size": 8}, "hovertemplate": "%{text}: %{y:.2f} %<extra></extra>",
            }
            for name, colour, values in series
        ],
        "layout": {
            "height": 240, "legend": {"orientation": "h", "y": 1.15},
            "xaxis": {"title": {"text": _("launches, oldest first")}, "automargin": True, "rangemode": "tozero"},
            "yaxis": {"title": {"text": _("prediction off by (%)")}, "automargin": True, "zeroline": True},
        },
    }  # fmt: skip


def _overhead_error(launch: Launch) -> float | None:
    return error_of(launch.prediction, {"overhead_bytes": overhead_of(launch)}, "overhead_bytes")

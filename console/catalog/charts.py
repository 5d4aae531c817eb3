"""Figures for Plotly, as plain data: the browser adds the theme's colours."""

from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext as _

from console.catalog.models import Copy
from console.common.spans import readable_bytes

_GIB = 1 << 30
_ROLES = {"verified": "accent", "damaged": "bad", "incomplete": "warn"}
MOST_BARS = 20


def disk_use(copies: Sequence[Copy], *, total: int | None, free: int | None) -> dict[str, Any]:
    """What lies on a host's disk: one bar for each copy, the largest first, then everything else and what is free.

    `total` and `free` are bytes; None: unknown. Colours are roles (`accent`, `bad`, …) that the page resolves.
    """
    sized = sorted((copy for copy in copies if copy.size_bytes), key=lambda copy: -copy.size_bytes)
    bars = [(f"{copy.revision.model.name}", copy.size_bytes, _ROLES.get(copy.state, "calm")) for copy in sized]
    if len(bars) > MOST_BARS:
        rest = sum(size for _name, size, _role in bars[MOST_BARS:])
        bars = [*bars[:MOST_BARS], (_("%d more") % (len(sized) - MOST_BARS), rest, "calm")]
    if total and free is not None:
        others = max(0, total - free - sum(copy.size_bytes for copy in sized))
        bars += [(_("other files"), others, "calm"), (_("free"), free, "line")]
    names = _told_apart([name for name, _size, _role in bars])
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "x": [round(size / _GIB, 2) for _name, size, _role in bars],
                "y": names,
                "text": [readable_bytes(size) for _name, size, _role in bars],
                "textposition": "outside",
                "cliponaxis": False,
                "hovertemplate": "%{y}: %{text}<extra></extra>",
                "marker": {"color": [role for _name, _size, role in bars]},
            }
        ],
        "layout": {
            "height": 90 + 30 * len(bars),
            "xaxis": {"title": {"text": "GiB"}, "automargin": True},
            "yaxis": {"autorange": "reversed", "automargin": True, "showgrid": False},
            "margin": {"r": 70},
        },
    }


def _told_apart(names: Sequence[str]) -> list[str]:
    """Names with a number where they stand more than once: Plotly would put bars of one name into one place."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found

"""The fit card: a plan in words, bars and a curve."""

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.common.spans import readable_bytes
from console.deployments.fitting import Fit, Used
from console.deployments.place_presentation import Places
from workers.vllm.memory import Plan

WIDE = 1000
"""Width of a bar in its own units."""


@dataclass(frozen=True)
class Segment:
    """A part of a device's memory. `left` and `width` are thousandths of the bar."""

    role: str
    label: str
    nbytes: int
    left: str
    width: str

    @property
    def size(self) -> str:
        """Readable size."""
        return readable_bytes(self.nbytes)


@dataclass(frozen=True)
class Bar:
    """One device's memory as it would be. `over` is what is missing, in bytes."""

    title: str
    total: str
    segments: tuple[Segment, ...]
    over: int

    @property
    def summary(self) -> str:
        """The bar in words, for those who don't see it."""
        return ", ".join(f"{one.label} {one.size}" for one in self.segments)


@dataclass(frozen=True)
class Row:
    """A number of the sum, and what it is."""

    role: str
    label: str
    amount: str
    what: str


def verdict(fit: Fit) -> dict[str, str]:
    """The truth in one sentence, with its look."""
    plan = fit.plan
    if plan is None:
        return {"colour": "grey", "icon": "help", "word": _("unknown"), "text": fit.trouble}
    if plan.fits is False:
        text = next(iter(fit.refusals.values()), "")
        return {"colour": "red", "icon": "alert-circle", "word": _("doesn't fit"), "text": text}
    if plan.fits is None:
        return {"colour": "grey", "icon": "help", "word": _("unknown"), "text": _("No device's memory is known.")}
    return {"colour": "green", "icon": "circle-check", "word": _("fits"), "text": _fits_text(plan)}


_MANY = 100
"""From here on nobody reads tenths of a request."""


def _fits_text(plan: Plan) -> str:
    if plan.max_concurrency is None:
        return _("An encoder: it keeps no KV cache, so only its weights count.")
    return _("%(concurrency)s requests of %(context)s tokens at once; %(tokens)s tokens of KV cache.") % {
        "concurrency": f"{plan.max_concurrency:,.{0 if plan.max_concurrency >= _MANY else 1}f}",
        "context": f"{plan.max_model_len:,}",
        "tokens": f"{plan.kv_cache_tokens or 0:,}",
    }


def bars(fit: Fit) -> list[Bar]:
    """A bar for each device: weights, overhead, KV cache, what other deployments claim, others, free."""
    return [_bar(fit, one) for one in fit.devices] if fit.plan is not None else []


def _bar(fit: Fit, used: Used) -> Bar:
    plan = fit.plan
    assert plan is not None  # noqa: S101 - `bars` has looked
    others = max(0, used.total - used.free - used.claimed)
    parts = [
        ("weights", _("weights"), plan.weights_bytes_per_device * fit.ranks),
        ("overhead", _("overhead"), plan.overhead_bytes * fit.ranks),
        ("kv", _("KV cache"), (plan.kv_cache_bytes or 0) * fit.ranks),
        ("claimed", _("claimed by deployments"), used.claimed),
        ("others", _("others"), others),
    ]
    wanted = sum(nbytes for _role, _label, nbytes in parts)
    free = max(0, used.total - wanted)
    parts.append(("free", _("free"), free))
    whole = max(used.total, wanted) or 1
    segments, left = [], 0.0
    for role, label, nbytes in parts:
        width = round(WIDE * nbytes / whole, 1)
        if nbytes:
            segments.append(Segment(role, label, nbytes, f"{left:.1f}", f"{width:.1f}"))
        left += width
    title = used.row.name if used.row.kind == "cpu" else str(used.row)
    if fit.host:
        title = f"{fit.host} · {title}"
    return Bar(title, readable_bytes(used.total), tuple(segments), max(0, wanted - used.total))


def rows(fit: Fit) -> list[Row]:
    """The sum as numbers, each with what it is."""
    plan = fit.plan
    if plan is None:
        return []
    sources = {
        "headers": _("from the files' headers"),
        "index": _("from the index's total"),
        "estimated": _("estimated from config.json"),
    }
    found = [
        Row("weights", _("Weights"), readable_bytes(plan.weights_bytes_per_device), sources[plan.weights_source]),
        Row("overhead", _("Overhead"), readable_bytes(plan.overhead_bytes), _overhead_words(plan)),
    ]
    if plan.kv_cache_bytes is not None:
        found.append(Row("kv", _("KV cache"), readable_bytes(plan.kv_cache_bytes), _pool_words(plan)))
    if plan.kv_bytes_per_token:
        least = readable_bytes(plan.min_kv_bytes_for_one_request)
        words = _("one request of full length needs %(size)s") % {"size": least}
        found.append(Row("", _("Per token"), readable_bytes(plan.kv_bytes_per_token), words))
    if plan.budget_bytes is not None and plan.platform == "cuda":
        share = _("%(share)s of the device") % {"share": f"{plan.gpu_memory_utilization:g}"}
        found.append(Row("", _("May be used"), readable_bytes(plan.budget_bytes), share))
    return found


def _overhead_words(plan: Plan) -> str:
    spread = readable_bytes(plan.overhead.spread_bytes)
    if plan.overhead.source == "learned":
        return _("learned from launches here, ± %(spread)s") % {"spread": spread}
    parts = ", ".join(f"{part.name} {readable_bytes(part.nbytes)}" for part in plan.overhead.parts)
    return _("first guess, ± %(spread)s: %(parts)s") % {"spread": spread, "parts": parts}


def _pool_words(plan: Plan) -> str:
    blocks = plan.num_blocks or 0
    return ngettext(
        "%(count)s block of %(tokens)d tokens", "%(count)s blocks of %(tokens)d tokens", blocks
    ) % {"count": f"{blocks:,}", "tokens": plan.block_size}  # fmt: skip


def curve(fit: Fit) -> dict[str, Any] | None:
    """Concurrency over context, for Plotly, with the chosen context marked."""
    if not fit.curve or fit.plan is None:
        return None
    here = (fit.plan.max_model_len, round(fit.plan.max_concurrency or 0, 2))
    ticks = [tick for tick in (2**power for power in range(10, 21, 2)) if tick <= fit.max_context]
    hover = _("%{x:,} tokens: %{y:.1f} at once")
    return {
        "data": [
            {
                "type": "scatter", "mode": "lines", "x": [x for x, _y in fit.curve], "y": [y for _x, y in fit.curve],
                "line": {"color": "accent", "width": 2}, "hovertemplate": f"{hover}<extra></extra>",
            },
            {
                "type": "scatter", "mode": "markers", "x": [here[0]], "y": [here[1]], "cliponaxis": False,
                "marker": {"color": "accent" if fit.plan.fits else "bad", "size": 10},
                "hovertemplate": f"{hover}<extra></extra>",
            },
        ],
        "layout": {
            "height": 190, "showlegend": False, "hovermode": "closest",
            "xaxis": {"type": "log", "title": {"text": _("context (tokens)")}, "automargin": True, "tickvals": ticks,
                      "ticktext": [f"{tick // 1024}k" for tick in ticks]},
            "yaxis": {"type": "log", "title": {"text": _("at once")}, "automargin": True, "dtick": 1},
            "margin": {"l": 4, "r": 10, "t": 8, "b": 36},
        },
    }  # fmt: skip


def _with_places(said: dict[str, str], places: Places | None) -> dict[str, str]:
    """A plan that fits is no use where there is no room left for it."""
    if places is None or places.decision.holds or said["colour"] != "green":
        return said
    return {"colour": "red", "icon": "alert-circle", "word": _("no room"), "text": places.sentence}


def card(fit: Fit | None, places: Places | None = None) -> dict[str, Any]:
    """Everything the card's template needs; `fit` None: model or engine isn't chosen yet."""
    if fit is None:
        return {"fit": None}
    return {
        "fit": fit,
        "places": places,
        "plan": fit.plan,
        "verdict": _with_places(verdict(fit), places),
        "bars": bars(fit),
        "rows": rows(fit),
        "curve": curve(fit),
        "warnings": [one for one in fit.plan.reasons if one.severity == "warning"] if fit.plan else [],
    }

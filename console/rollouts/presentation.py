"""What the pages of rollouts show: the truth in a sentence, the steps, the measures with both sides' numbers, the chart."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from console.common.spans import readable_duration
from console.common.states import Look
from console.rollouts.inference import LEAST_REQUESTS
from console.rollouts.models import MOVING_STATES, VERDICT_LOOKS, Rollout, RolloutStep, title_of
from console.rollouts.plans import Plan


@dataclass(frozen=True)
class ShownMeasure:
    """One measure of both sides."""

    title: str
    old: str
    new: str
    counts: str
    margin: str
    look: Look


@dataclass(frozen=True)
class ShownStep:
    """A step that was reached."""

    step: RolloutStep
    measures: list[ShownMeasure]
    copies: list[tuple[str, str]]
    """Of a shadow: what became of the copies, in words."""


@dataclass(frozen=True)
class ShownStage:
    """A step of the plan: `past`, `worse`, `now` or `ahead`."""

    title: str
    place: str
    holds: str
    """For how long at least, in words."""


def sentence(rollout: Rollout) -> str:
    """The truth about a rollout."""
    steps = list(rollout.steps.all())
    share, copied = (steps[-1].weight, steps[-1].shadow_percent) if steps else (0, 0)
    words = {
        "preparing": _("The new engines are being brought up beside the old ones; no request goes there yet."),
        "shadowing": _(
            "%(copied)d %% of the requests are also sent to spec %(new)d, whose answers nobody gets; %(verdict)s."
        ),
        "shifting": _("%(share)d %% of the requests go to spec %(new)d; %(verdict)s."),
        "held": _("On hold while %(copied)d %% are copied: %(why)s")
        if copied
        else _("On hold at %(share)d %%: %(why)s"),
        "draining": _("All requests go to spec %(new)d; the old engines finish what they have begun."),
        "succeeded": _("Done: spec %(new)d took over from spec %(old)d."),
        "rolling_back": _("All requests go to spec %(old)d again: %(why)s"),
        "rolled_back": _("Rolled back to spec %(old)d: %(why)s"),
        "aborted": _("Aborted; spec %(old)d serves on. %(why)s"),
        "failed": _("Spec %(new)d never got a request; spec %(old)d serves on. %(why)s"),
    }[rollout.state]
    return words % {
        "share": share, "copied": copied, "new": rollout.new_spec.number, "old": rollout.old_spec.number,
        "why": rollout.finding.get("text") or rollout.state_reason,
        "verdict": VERDICT_LOOKS[steps[-1].verdict].word if steps else "",
    }  # fmt: skip


def stages(rollout: Rollout, steps: Sequence[RolloutStep]) -> list[ShownStage]:
    """The plan's steps, and where it is."""
    living = rollout.state in (*MOVING_STATES, "held")

    def place(at: int) -> str:
        if at > len(steps):
            return "ahead"
        if living and at == len(steps):
            return "now"
        return "worse" if steps[at - 1].verdict == "worse" else "past"

    return [
        ShownStage(title_of(stage.weight, stage.shadow_percent), place(at), readable_duration(stage.hold_seconds))
        for at, stage in enumerate(rollout.chosen.stages, start=1)
    ]


def shown(step: RolloutStep) -> ShownStep:
    """A step with its measures in words."""
    facts = step.figure.get("shadow")
    return ShownStep(step, [_measure(one) for one in step.measures], list(_copies(facts)) if facts else [])


def _copies(facts: dict[str, Any]) -> Iterable[tuple[str, str]]:
    yield _("Requests copied"), str(number_format(facts["copied"]))
    yield _("Copies answered"), str(number_format(facts["ended"] - facts["failed"]))
    yield _("Copies failed"), str(number_format(facts["failed"]))
    if facts["busy"]:
        yield _("Not copied: too many under way"), str(number_format(facts["busy"]))
    if facts["large"]:
        yield _("Not copied: larger than 256 KiB"), str(number_format(facts["large"]))
    old, new = (_figure(facts[name], is_time=True) for name in ("whole_old", "whole_new"))
    yield _("Whole answer, p95"), _("old %(old)s, new %(new)s") % {"old": old, "new": new}


def _measure(one: dict[str, Any]) -> ShownMeasure:
    title = {
        "ttft": _("First token, p95"), "pace": _("Between tokens, p95"), "errors": _("Failed requests"),
        "finish": _("Answers that don't end by themselves"),
    }[one["name"]]  # fmt: skip
    is_time = one["name"] in ("ttft", "pace")
    margin = f"+{one['margin'] * 100:.3g} %" if is_time else _("+%s points") % f"{one['margin'] * 100:.3g}"
    return ShownMeasure(
        title=title,
        old=_figure(one["old"], is_time=is_time),
        new=_figure(one["new"], is_time=is_time),
        counts=f"{one['old_count']} / {one['new_count']}",
        margin=margin,
        look=VERDICT_LOOKS[one["verdict"] or "undecided"],
    )


def _figure(value: float | None, *, is_time: bool) -> str:
    if value is None:
        return "–"
    return (
        f"{value:.3g} ms"
        if is_time and value < 1000
        else f"{value / 1000:.2f} s"
        if is_time
        else f"{value * 100:.2f} %"
    )


def margins(plan: Plan) -> list[tuple[str, str]]:
    """What was agreed."""
    agreed = plan.margins
    return [
        (_("First token, p95"), f"+{agreed.ttft * 100:.3g} %"),
        (_("Between tokens, p95"), f"+{agreed.pace * 100:.3g} %"),
        (_("Failed requests"), _("+%s points") % f"{agreed.errors * 100:.3g}"),
        (_("Answers that don't end by themselves"), _("+%s points") % f"{agreed.finish * 100:.3g}"),
        (_("Certainty"), _("99 %% from %(least)d requests a side on") % {"least": LEAST_REQUESTS}),
        (_("Asks after"), readable_duration(plan.patience_seconds)),
    ]


def figure(steps: Sequence[RolloutStep]) -> dict[str, Any] | None:
    """Times to the first token of both sides over the whole rollout; None while there are none."""
    if not any(step.figure for step in steps):
        return None
    lines: dict[tuple[str, int], list[tuple[float, float]]] = {
        (side, at): [] for side in ("old", "new") for at in (1, 2)
    }
    begin = steps[0].began_at
    for step in steps:
        offset = (step.began_at - begin).total_seconds()
        for (side, at), line in lines.items():
            line += [((offset + one[0]) / 60, one[at]) for one in step.figure.get(side, []) if one[at] is not None]
    names = {
        ("old", 1): _("old, median"),
        ("old", 2): _("old, p95"),
        ("new", 1): _("new, median"),
        ("new", 2): _("new, p95"),
    }
    data = [
        {
            "type": "scatter", "mode": "lines+markers" if at == 2 else "lines", "name": names[side, at],
            "x": [round(x, 2) for x, _y in line], "y": [round(y, 2) for _x, y in line],
            "line": {"color": "calm" if side == "old" else "accent", "width": 2 if at == 2 else 1,
                     "dash": "solid" if at == 2 else "dot"},
            "marker": {"color": "calm" if side == "old" else "accent", "size": 4},
            "hovertemplate": "%{y:.0f} ms<extra>%{fullData.name}</extra>",
        }
        for (side, at), line in lines.items()
    ]  # fmt: skip
    marks = [
        {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 1, "dash": "dot"}}
        for at in ((step.began_at - begin).total_seconds() / 60 for step in steps)
    ]
    notes = [
        {"x": (step.began_at - begin).total_seconds() / 60, "y": 1.04, "yref": "paper", "showarrow": False,
         "text": step.title, "xanchor": "left"}
        for step in steps
    ]  # fmt: skip
    return {
        "data": data,
        "layout": {
            "height": 300, "shapes": marks, "annotations": notes, "hovermode": "x unified",
            "legend": {"orientation": "h", "y": -0.4},
            "xaxis": {"title": {"text": _("minutes since the first step")}, "automargin": True},
            "yaxis": {"title": {"text": _("first token (ms)")}, "automargin": True, "rangemode": "tozero"},
            "margin": {"t": 24},
        },
    }  # fmt: skip

"""From what was seen to a verdict: the four measures of a step, and the fast path for what needs no statistics."""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from console.rollouts import inference
from console.rollouts.inference import Comparison, Verdict
from console.rollouts.models import Probe, Rollout, RolloutStep
from console.rollouts.plans import Plan
from console.rollouts.samples import Samples, Side
from console.rollouts.services import instances_of

OF_TEXT = ("pace", "finish")
FIRST_REQUESTS = 10
FIRST_ERRORS = 3
USUAL_ERROR_SHARE = 0.02
"""Where the old side fails more often than that, three errors in ten are no sign."""
BIN_SECONDS = 10


def compare(samples: Samples, step: RolloutStep, plan: Plan, look: int) -> dict[str, Comparison]:
    """All measures of a step at one look. Where nothing is generated, there is no pace and no end of an answer to compare."""
    allowed = inference.allowance(max(1, look), steps=len(plan.stages))
    old, new, margins = samples.old(step), samples.new(step), plan.margins
    every_old, every_new = samples.whole("old"), samples.whole("new")
    found = {
        "ttft": inference.compare_times(old.ttft(), new.ttft(), margin=margins.ttft, allowed=allowed),
        "pace": inference.compare_times(old.pace(), new.pace(), margin=margins.pace, allowed=allowed),
        # Failures are rare: those of all steps count together.
        "errors": inference.compare_shares(
            every_old.errors(), every_new.errors(), margin=margins.errors, allowed=allowed
        ),
        "finish": inference.compare_shares(every_old.cut(), every_new.cut(), margin=margins.finish, allowed=allowed),
    }
    is_text = every_old.generates or every_new.generates
    return {name: one for name, one in found.items() if is_text or name not in OF_TEXT}


def smaller_side(samples: Samples, step: RolloutStep) -> int:
    """Requests of the side with fewer."""
    return min(len(samples.old(step).samples), len(samples.new(step).samples))


def stored(found: Mapping[str, Comparison], plan: Plan, *, looked: bool) -> list[dict[str, Any]]:
    """As a step keeps it. Between looks only figures change: a verdict is taken at looks alone."""
    return [
        {
            "name": name,
            "verdict": str(one.verdict) if looked else "",
            "old": one.old,
            "new": one.new,
            "old_count": one.old_count,
            "new_count": one.new_count,
            "margin": getattr(plan.margins, name),
        }
        for name, one in found.items()
    ]


def sentence(name: str, one: Comparison) -> str:
    """Why a measure is called worse."""
    if name in ("ttft", "pace"):
        text = {
            "ttft": _("The first token takes %(new).0f ms (p95), the old engines need %(old).0f ms."),
            "pace": _("A token takes %(new).1f ms (p95), the old engines need %(old).1f ms."),
        }[name]
        return text % {"new": one.new or 0, "old": one.old or 0}
    text = {
        "errors": _("%(new).1f %% of its requests fail, %(old).1f %% of the old engines' do."),
        "finish": _("%(new).1f %% of its answers don't end by themselves, %(old).1f %% of the old engines' don't."),
    }[name]
    return text % {"new": 100 * (one.new or 0), "old": 100 * (one.old or 0)}


def emergency(rollout: Rollout, step: RolloutStep | None, samples: Samples, dead: str) -> tuple[str, str] | None:
    """What needs no statistics: `code` and a sentence; None if there is nothing of the kind."""
    if dead:
        return "died", dead
    bad = next((one for one in instances_of(rollout, "new") if one.state != "ready" and not one.is_unknown), None)
    if bad is not None:
        return "died", _("%(name)s is %(state)s: %(why)s") % {
            "name": bad, "state": bad.look.word, "why": bad.state_reason or _("its host gave no reason"),
        }  # fmt: skip
    if found := _troubled_probe(rollout):
        return found
    return _first_errors(samples.new(step), samples.whole("old")) if step is not None else None


def _troubled_probe(rollout: Rollout) -> tuple[str, str] | None:
    last = Probe.objects.filter(rollout=rollout, side="new", is_validation=True).last()
    if last is None or last.trouble not in ("garbage", "silent"):
        return None
    other = Probe.objects.filter(rollout=rollout, side="old", is_validation=True).last()
    # Where the old side can't do it either, the question or the machine is at fault.
    if other is not None and other.trouble:
        return None
    text = {
        "garbage": _("%(name)s answers nonsense: %(detail)s"),
        "silent": _("%(name)s hangs: %(detail)s"),
    }[last.trouble]
    return {"garbage": "garbage", "silent": "hung"}[last.trouble], text % {
        "name": last.instance, "detail": last.detail,
    }  # fmt: skip


def _first_errors(new: Side, old: Side) -> tuple[str, str] | None:
    first = sorted(new.samples, key=lambda one: one.at)[:FIRST_REQUESTS]
    failed = sum(one.failed for one in first)
    usual = sum(one.failed for one in old.samples) / len(old.samples) if old.samples else 0.0
    if failed < FIRST_ERRORS or usual > USUAL_ERROR_SHARE:
        return None
    return "errors", _("%(failed)d of the first %(count)d requests failed.") % {"failed": failed, "count": len(first)}


def worst(found: Mapping[str, Comparison]) -> tuple[str, str]:
    """The measure that was called worse: its name and why."""
    name = next(name for name, one in found.items() if one.verdict is Verdict.WORSE)
    return name, sentence(name, found[name])


def shadow_facts(step: RolloutStep, samples: Samples) -> dict[str, Any]:
    """How many requests were copied, and how long whole answers of both sides took (95th percentile, milliseconds)."""
    counts = samples.copied(step)
    whole = {
        side: inference.quantile(
            [one.latency_ms for one in samples.here(step, side).samples if one.latency_ms is not None and not one.failed],
            inference.QUANTILE,
        )
        for side in ("old", "new")
    }  # fmt: skip
    return {
        "copied": counts["original"], "ended": counts["copy"], "failed": counts["failed"], "busy": counts["busy"],
        "large": counts["large"], "whole_old": whole["old"], "whole_new": whole["new"],
    }  # fmt: skip


def figure(step: RolloutStep, samples: Samples) -> dict[str, Any]:
    """Times to the first token and failures by ten seconds and side, for the chart: it outlives the gateway's rows."""
    found: dict[str, Any] = {}
    for name in ("old", "new"):
        bins: dict[int, list[float]] = {}
        failed: dict[int, int] = {}
        for one in samples.here(step, name).samples:
            at = int((one.at - step.began_at).total_seconds() // BIN_SECONDS) * BIN_SECONDS
            bins.setdefault(at, [])
            if one.failed:
                failed[at] = failed.get(at, 0) + 1
            elif one.ttft_ms is not None:
                bins[at].append(one.ttft_ms)
        found[name] = [
            [at, inference.quantile(some, 0.5), inference.quantile(some, 0.95), len(some), failed.get(at, 0)]
            for at, some in sorted(bins.items())
        ]
    if step.shadow_percent:
        found["shadow"] = shadow_facts(step, samples)
    return found

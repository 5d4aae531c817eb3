"""Which deployments are broken, and why, read off the rows: the same for the on-call page and for incidents."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Prefetch, Q, QuerySet
from django.utils.translation import gettext as _

from console.deployments import fixing
from console.deployments.models import Attempt, Deployment, Instance

BAD_INSTANCES = ("crashed", "unhealthy", "restarting")
LINES_OF_EVIDENCE = 6


@dataclass(frozen=True)
class Cause:
    """Why something is broken, as far as it is known."""

    text: str
    title: str = ""
    code: str = ""
    evidence: list[dict[str, Any]] = field(default_factory=list)
    failure: dict[str, Any] | None = None
    since: datetime | None = None
    is_serving: bool = False
    """True while some of its instances still serve."""


def broken(rows: QuerySet[Deployment]) -> list[Deployment]:
    """Those of these deployments that are broken, with their instances.

    Of what a silent host had nothing is known: it is the host that is broken.
    """
    instances = Prefetch("instances", Instance.objects.select_related("host").order_by("number"))
    bad = Q(state__in=("failed", "degraded")) | Q(instances__state__in=("crashed", "unhealthy"), instances__run=True)
    # A restart that somebody asked for is none of these: a job brings that one up.
    bad |= Q(instances__state="restarting", instances__run=True, instances__bring_up="agent")
    found = rows.filter(bad).exclude(state__in=("stopped", "draft")).distinct()
    related = found.select_related("current_spec__engine", "current_spec__host", "current_spec__copy__revision__model")
    return [one for one in related.prefetch_related(instances) if not _is_unknown(one)]


def _is_unknown(deployment: Deployment) -> bool:
    living = [one for one in deployment.instances.all() if one.run or one.ordered]
    return bool(living) and all(one.is_unknown for one in living)


def cause_of(deployment: Deployment) -> Cause:
    """Why a broken deployment is broken."""
    instances = list(deployment.instances.all())
    bad = first_bad(instances)
    failure = fixing.failure_of(deployment, instances) or (dict(bad.failure) if bad and bad.failure else None)
    last = _last_diagnosis(bad)
    known = failure or last or {}
    text = str(known.get("message") or (bad.state_reason if bad else "") or deployment.state_reason)
    return Cause(
        text=text or _("No reason is known yet."),
        title=str((last or {}).get("title", "")),
        code=str(known.get("code", "")),
        evidence=list(known.get("evidence") or [])[:LINES_OF_EVIDENCE],
        failure=failure,
        since=bad.state_since if bad and deployment.state == "serving" else deployment.state_since,
        is_serving=any(one.state == "ready" and one.run and not one.is_unknown for one in instances),
    )


def first_bad(instances: Sequence[Instance]) -> Instance | None:
    """The first instance that is not as it should be."""
    return next((one for one in instances if one.state in BAD_INSTANCES and (one.run or one.failure)), None)


def cause_of_end(attempt: Attempt) -> Cause:
    """Why a process ended that Slipway has replaced meanwhile."""
    said = attempt.diagnosis if attempt.diagnosis.get("code") != "healthy" else {}
    exit_words = _("its process ended with exit code %(code)s") % {"code": attempt.exit_code}
    return Cause(
        text=str(said.get("message") or exit_words),
        title=str(said.get("title", "")),
        code=str(said.get("code", "")) or "engine.died",
        evidence=list(said.get("evidence") or [])[:LINES_OF_EVIDENCE],
        since=attempt.ended_at,
        is_serving=True,
    )


def _last_diagnosis(bad: Instance | None) -> dict[str, Any] | None:
    if bad is None:
        return None
    last = bad.attempts.exclude(diagnosis={}).order_by("-number").first()
    return dict(last.diagnosis) if last and last.diagnosis.get("code") != "healthy" else None

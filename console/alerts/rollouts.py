"""What alert rules see of rollouts: one that was rolled back, and one that waits for a person."""

from collections.abc import Iterable
from datetime import timedelta

from django.db.models import Max
from django.urls import reverse
from django.utils.translation import gettext as _

from console.alerts.readings import Reading, Scene
from console.rollouts.models import Rollout

TOLD_FOR = timedelta(hours=24)
"""A rolled-back one is news for so long, unless another rollout of the deployment comes before."""


def _newest(scene: Scene) -> Iterable[Rollout]:
    rows = Rollout.objects.filter(team_id=scene.team).order_by().values("deployment")
    newest = rows.annotate(newest=Max("pk")).values_list("newest", flat=True)
    return Rollout.objects.filter(pk__in=newest).select_related("deployment", "old_spec", "new_spec")


def rolled_back(scene: Scene) -> Iterable[Reading]:
    """1 for a rollout that ended by itself because the new side was bad."""
    for rollout in _newest(scene):
        is_bad = rollout.state in ("rolling_back", "rolled_back") and not rollout.ended_by_person
        is_news = scene.now - rollout.state_since < TOLD_FOR
        text = _("Spec %(new)d was rolled back to spec %(old)d.") % _numbers(rollout)
        yield _reading(rollout, float(is_bad and is_news), text, str(rollout.finding.get("text", "")))


def waiting(scene: Scene) -> Iterable[Reading]:
    """1 for a rollout that is on hold."""
    for rollout in _newest(scene):
        text = _("The rollout of spec %(new)d is on hold: go on, skip the step or abort.") % _numbers(rollout)
        yield _reading(rollout, float(rollout.state == "held"), text, rollout.state_reason)


def _numbers(rollout: Rollout) -> dict[str, int]:
    return {"new": rollout.new_spec.number, "old": rollout.old_spec.number}


def _reading(rollout: Rollout, value: float, text: str, cause: str) -> Reading:
    return Reading(
        subject=f"rollout:{rollout.pk}",
        name=str(rollout),
        value=value,
        summary=text if value else "",
        cause=cause if value else "",
        url=reverse("rollout_detail", args=[rollout.pk]),
        deployment=rollout.deployment_id,
    )

"""How often a rule would have fired: the rule, played over the stored minutes of the last week."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from console.alerts.conditions import CONDITIONS
from console.alerts.evaluation import BACK_SHARE
from console.alerts.readings import Condition
from console.common.models import StateChange
from console.deployments.models import Deployment, Instance
from console.telemetry import history
from console.telemetry.history import Span
from console.telemetry.measures import lines_of

DAYS = 7
STEP_SECONDS = 60
SHOWN = 20


@dataclass(frozen=True)
class Firing:
    """One time that the rule would have fired."""

    name: str
    began: datetime
    seconds: int
    worst: float


@dataclass(frozen=True)
class Preview:
    """All of them, the newest first. None for `firings`: this condition has no history."""

    firings: list[Firing] | None
    of_state: bool = False
    """True where each was in a state or not: there is no worst value then."""
    days: int = DAYS

    @property
    def shown(self) -> list[Firing]:
        """The newest ones."""
        return (self.firings or [])[:SHOWN]


def preview(
    team: int, *, condition: str, threshold: float, for_seconds: int, clear: float | None, deployment: Deployment | None
) -> Preview:
    """Play a rule over the last week."""
    about = CONDITIONS[condition]
    if about.state_of:
        return Preview(_in_state(team, *about.state_of, deployment, for_seconds), of_state=True)
    if not about.measure:
        return Preview(None)
    rows = Instance.objects.filter(deployment__team_id=team, deployment__for_study=False).select_related("deployment")
    if deployment is not None:
        rows = rows.filter(deployment=deployment)
    instances = list(rows)
    now = int(time.time())
    span = Span((now - DAYS * 86_400) // STEP_SECONDS * STEP_SECONDS, now, STEP_SECONDS)
    columns = history.read(instances, span)
    back = clear if clear is not None else threshold * (1 + BACK_SHARE if about.below else 1 - BACK_SHARE)
    found: list[Firing] = []
    for instance in instances:
        if instance.pk in columns:
            part = columns[instance.pk]
            values = lines_of([part], part.starts, STEP_SECONDS)[about.measure]
            found += firings(str(instance), about, part.starts, values, (threshold, back, for_seconds))
    return Preview(sorted(found, key=lambda firing: firing.began, reverse=True))


def _in_state(
    team: int, model: type[Instance | Deployment], state: str, deployment: Deployment | None, for_seconds: int
) -> list[Firing]:
    """Each time that something was in a state for long enough, read off its moves."""
    owner, own = ("deployment__", "deployment") if model is Instance else ("", "pk")
    rows = model._default_manager.filter(**{f"{owner}team_id": team, f"{owner}for_study": False})
    if deployment is not None:
        rows = rows.filter(**{own: deployment.pk})
    objects = {row.pk: row for row in rows}
    now = timezone.now()
    begin = now - timedelta(days=DAYS)
    moves = StateChange.objects.filter(kind=model._meta.label_lower, object_id__in=objects, at__gte=begin).order_by(
        "at"
    )
    since: dict[int, datetime] = {}
    spans: list[tuple[int, datetime, datetime]] = []
    moved = set()
    for move in moves:
        key = move.object_id
        if move.before == state and (key in since or key not in moved):
            spans.append((key, since.pop(key, begin), move.at))
        if move.after == state:
            since.setdefault(key, move.at)
        moved.add(key)
    still = {key: begin for key, row in objects.items() if key not in moved and row.state == state}
    spans += [(key, at, now) for key, at in (since | still).items()]
    found = [Firing(str(objects[key]), at, int((end - at).total_seconds()), 1.0) for key, at, end in spans]
    lasting = [one for one in found if one.seconds >= for_seconds]
    return sorted(lasting, key=lambda firing: firing.began, reverse=True)


def firings(
    name: str,
    condition: Condition,
    starts: Sequence[int],
    values: Sequence[float | None],
    rule: tuple[float, float, int],
) -> list[Firing]:
    """When a series of minutes would have fired. `rule`: threshold, the level at which it is over, and for how long."""
    threshold, back, for_seconds = rule
    found: list[Firing] = []
    since: int | None = None
    worst = 0.0
    last = 0
    for start, value in zip(starts, values, strict=True):
        if value is None:
            continue
        if since is None:
            if condition.is_over(value, threshold):
                since, worst = start, value
        elif not condition.is_over(value, back):
            _note(found, name, since, start, worst, for_seconds)
            since = None
        else:
            worst = min(worst, value) if condition.below else max(worst, value)
        last = start
    if since is not None:
        _note(found, name, since, last + STEP_SECONDS, worst, for_seconds)
    return found


def _note(found: list[Firing], name: str, since: int, end: int, worst: float, for_seconds: int) -> None:
    if end - since >= max(for_seconds, 1):
        found.append(Firing(name, datetime.fromtimestamp(since, tz=UTC), end - since, worst))

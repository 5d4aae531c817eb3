"""One round over all rules: what is over its threshold for long enough opens an alert, what is back for long enough closes it.

What is pending lies in the database, so a restart neither forgets how long something lasts nor says it again. Alerts and
the messages that announce them are written in one transaction.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache

import structlog
from django.db import transaction
from django.utils import timezone

from console.access.models import Team, User
from console.alerts.conditions import CONDITIONS, DEFAULTS
from console.alerts.models import Alert, Breach, Channel, Delivery, Rule, Silence
from console.alerts.readings import Condition, Reading, Scene
from console.common import live
from console.common.states import move
from console.telemetry.baselines import Baselines

log = structlog.get_logger(__name__)

BACK_SHARE = 0.1
"""Without a threshold of its own, an alert is over once its value is so far back from the threshold: it doesn't flutter."""
SEVERITY_RANK = {"info": 0, "warning": 1, "critical": 2}


@dataclass
class _Standing:
    """What is over one rule's threshold, and what it has alerted about; both by subject."""

    breaches: dict[str, Breach] = field(default_factory=dict)
    living: dict[str, Alert] = field(default_factory=dict)


@cache
def _baselines() -> Baselines:
    return Baselines()


def evaluate_all() -> None:
    """One round for every team. A fault in one team's round doesn't stop the others."""
    for team in Team.objects.all():
        try:
            ensure_defaults(team)
            evaluate(Scene.of(team.pk, _baselines()))
        except Exception:
            log.exception("alerts not evaluated", team=team.name)


def ensure_defaults(team: Team) -> None:
    """Make the rules that Slipway brings, once; what people changed of them stays."""
    present = set(Rule.objects.filter(team=team).exclude(key="").values_list("key", flat=True))
    for default in DEFAULTS:
        if default.key not in present:
            Rule.objects.create(
                team=team,
                key=default.key,
                name=default.name,
                condition=default.condition,
                threshold=default.threshold,
                for_seconds=default.for_seconds,
                severity=default.severity,
            )


def evaluate(scene: Scene) -> None:
    """One round for one team."""
    rules = list(Rule.objects.filter(team_id=scene.team, enabled=True, condition__in=CONDITIONS))
    readings: dict[str, list[Reading]] = {}
    for rule in rules:
        condition = CONDITIONS[rule.condition]
        if rule.condition not in readings:
            readings[rule.condition] = _worst_of_each(condition.read(scene), condition)
    opened: list[Alert] = []
    closed: list[Alert] = []
    with transaction.atomic():
        standing = _standing(rules)
        for rule in rules:
            about = [one for one in readings[rule.condition] if _is_meant(rule, one, rules)]
            _evaluate_rule(rule, standing[rule.pk], about, scene, (opened, closed))
        escalated = _escalate(scene, rules, standing)
        heard = _heard_again(scene, standing)
        announce(scene.team, [alert for alert in (*opened, *heard) if not alert.silenced], "opened")
        announce(scene.team, _missed_by_somebody(closed), "closed")
        announce(scene.team, escalated, "escalated")
    for alert in (*opened, *closed, *escalated, *heard):
        live.changed("alert", alert.pk)


def _worst_of_each(readings: Iterable[Reading], condition: Condition) -> list[Reading]:
    """One reading of each subject: of two, one would open in the same round what the other closes."""
    worst: dict[str, Reading] = {}
    for reading in readings:
        known = worst.get(reading.subject)
        if known is None or (reading.value < known.value if condition.below else reading.value > known.value):
            worst[reading.subject] = reading
    return list(worst.values())


def _is_meant(rule: Rule, reading: Reading, rules: Sequence[Rule]) -> bool:
    """True if the rule is about this subject: a deployment's own rule replaces the one for all."""
    if rule.deployment_id is not None:
        return reading.deployment == rule.deployment_id
    return not any(
        other.deployment_id == reading.deployment and other.deployment_id is not None
        for other in rules
        if other.condition == rule.condition and other.severity == rule.severity
    )


def _standing(rules: Sequence[Rule]) -> dict[int, _Standing]:
    """How it stands with every rule, in two queries: this runs every ten seconds, also where nothing ever happens."""
    found = {rule.pk: _Standing() for rule in rules}
    for breach in Breach.objects.filter(rule__in=found):
        found[breach.rule_id].breaches[breach.subject] = breach
    for alert in Alert.objects.filter(rule__in=found).exclude(state="closed").select_related("rule"):
        found[alert.rule_id].living[alert.subject] = alert
    return found


def _evaluate_rule(
    rule: Rule,
    standing: _Standing,
    readings: Iterable[Reading],
    scene: Scene,
    changes: tuple[list[Alert], list[Alert]],
) -> None:
    condition = CONDITIONS[rule.condition]
    breaches, living = standing.breaches, standing.living
    opened, closed = changes
    seen = set()
    for reading in readings:
        seen.add(reading.subject)
        breach, alert = breaches.get(reading.subject), living.get(reading.subject)
        if condition.is_over(reading.value, rule.threshold):
            breach = _over(rule, reading, breach, scene)
            if alert is not None:
                _worsen(alert, reading, condition)
            elif scene.now - breach.since >= timedelta(seconds=rule.for_seconds):
                opened.append(_open(rule, reading, scene))
        elif breach is not None and _is_back(rule, condition, reading.value, breach, scene):
            breach.delete()
            if alert is not None:
                closed.append(_close(alert))
    # What is gone altogether (a deleted instance, an engine that tells nothing any more) is over as well, after a while.
    for subject, breach in breaches.items():
        if subject not in seen and _has_been_back(rule, breach, scene):
            breach.delete()
            if subject in living:
                closed.append(_close(living[subject]))


def _over(rule: Rule, reading: Reading, breach: Breach | None, scene: Scene) -> Breach:
    if breach is None:
        return Breach.objects.create(rule=rule, subject=reading.subject, since=scene.now)
    if breach.back_since is not None:
        breach.back_since = None
        breach.save(update_fields=["back_since"])
    return breach


def back_level(rule: Rule, condition: Condition) -> float:
    """The value at which an alert of this rule counts as over."""
    if rule.clear_threshold is not None:
        return rule.clear_threshold
    return rule.threshold * (1 + BACK_SHARE if condition.below else 1 - BACK_SHARE)


def _is_back(rule: Rule, condition: Condition, value: float, breach: Breach, scene: Scene) -> bool:
    if condition.is_over(value, back_level(rule, condition)):
        if breach.back_since is not None:
            breach.back_since = None
            breach.save(update_fields=["back_since"])
        return False
    return _has_been_back(rule, breach, scene)


def _has_been_back(rule: Rule, breach: Breach, scene: Scene) -> bool:
    """True once it has been back for as long as the rule wants; one that never became an alert needs no waiting."""
    if breach.back_since is None:
        breach.back_since = scene.now
        breach.save(update_fields=["back_since"])
    waited = scene.now - breach.back_since >= timedelta(seconds=rule.clear_seconds)
    return waited or scene.now - breach.since < timedelta(seconds=rule.for_seconds)


def _open(rule: Rule, reading: Reading, scene: Scene) -> Alert:
    alert = Alert(
        team_id=scene.team,
        rule=rule,
        subject=reading.subject,
        name=reading.name,
        summary=reading.summary,
        cause=reading.cause,
        severity=rule.severity,
        value=reading.value,
        worst=reading.value,
        labels=rule.labels,
        url=reading.url,
        deployment_id=reading.deployment,
        host_id=reading.host,
        opened_at=scene.now,
    )
    alert.silenced = any(silence.covers(alert) for silence in _silences(scene))
    alert.save()
    return alert


def _worsen(alert: Alert, reading: Reading, condition: Condition) -> None:
    worst = min(alert.worst, reading.value) if condition.below else max(alert.worst, reading.value)
    if (alert.value, alert.worst, alert.summary) != (reading.value, worst, reading.summary):
        alert.value, alert.worst, alert.summary = reading.value, worst, reading.summary
        alert.save(update_fields=["value", "worst", "summary"])


def _silences(scene: Scene) -> list[Silence]:
    return list(Silence.objects.filter(team_id=scene.team, begins_at__lte=scene.now, ends_at__gt=scene.now))


def _close(alert: Alert, *, reason: str = "it is over", actor: User | None = None) -> Alert:
    move(alert, to="closed", reason=reason, actor=actor)
    alert.closed_at = timezone.now()
    alert.save(update_fields=["closed_at"])
    return alert


def _heard_again(scene: Scene, standing: Mapping[int, _Standing]) -> list[Alert]:
    """Alerts that outlive what kept them quiet; they are told now, if nobody was told of them before."""
    quiet = [
        alert
        for one in standing.values()
        for alert in one.living.values()
        if alert.silenced and alert.state != "closed"
    ]
    if not quiet:
        return []
    silences = _silences(scene)
    awake = [alert for alert in quiet if not any(silence.covers(alert) for silence in silences)]
    for alert in awake:
        alert.silenced = False
        alert.save(update_fields=["silenced"])
    told = _told(awake)
    return [alert for alert in awake if alert.state == "open" and alert.pk not in told]


def _told(alerts: Iterable[Alert]) -> set[int]:
    """Those that somebody was told of."""
    return set(Delivery.objects.filter(alerts__in=list(alerts)).values_list("alerts", flat=True))


def _missed_by_somebody(closed: Sequence[Alert]) -> list[Alert]:
    """Of what is over, that of which somebody waits to hear: silence or not, whoever was told of it once."""
    told = _told(alert for alert in closed if alert.silenced)
    return [alert for alert in closed if not alert.silenced or alert.pk in told]


def close_all(rule: Rule, *, reason: str, actor: User) -> None:
    """End what a rule has raised and what is pending, since it is watched no more."""
    living = list(rule.alerts.exclude(state="closed").select_related("rule"))
    closed = [_close(alert, reason=reason, actor=actor) for alert in living]
    rule.breaches.all().delete()
    announce(rule.team_id, _missed_by_somebody(closed), "closed")
    for alert in closed:
        live.changed("alert", alert.pk)


def _escalate(scene: Scene, rules: Sequence[Rule], standing: Mapping[int, _Standing]) -> list[Alert]:
    """Alerts that nobody has acknowledged in time; the time in which a silence kept one quiet doesn't count."""
    found = []
    for rule in rules:
        if not rule.escalate_seconds:
            continue
        limit = scene.now - timedelta(seconds=rule.escalate_seconds)
        for alert in standing[rule.pk].living.values():
            is_due = alert.state == "open" and alert.opened_at <= limit and not alert.escalated and not alert.silenced
            if is_due and not _was_quiet(alert, limit, scene.now):
                alert.escalated = True
                alert.save(update_fields=["escalated"])
                found.append(alert)
    return found


def _was_quiet(alert: Alert, since: datetime, until: datetime) -> bool:
    silences = Silence.objects.filter(team=alert.team, begins_at__lte=until, ends_at__gt=since)
    return any(silence.covers(alert) for silence in silences)


def announce(team: int | None, alerts: Iterable[Alert], event: str) -> None:
    """One message for each channel and group: alerts of one rule about one deployment or host belong together."""
    groups: Mapping[tuple[int, int | None, int | None], list[Alert]] = defaultdict(list)
    for alert in alerts:
        groups[alert.rule_id, alert.deployment_id, None if alert.deployment_id else alert.host_id].append(alert)
    if not groups:
        return
    channels = Channel.objects.filter(team=team, enabled=True)
    for group in groups.values():
        for channel in channels:
            if not _wants(channel, group[0], event):
                continue
            # An incident there is one alert: it can be over while others of its group go on.
            parts = [[alert] for alert in group] if channel.kind == "pagerduty" else [group]
            for part in parts:
                Delivery.objects.create(channel=channel, event=event).alerts.set(part)


def _wants(channel: Channel, alert: Alert, event: str) -> bool:
    if SEVERITY_RANK[alert.severity] < SEVERITY_RANK[channel.severity]:
        return False
    # That a channel is dead is told by the others.
    if alert.subject == f"channel:{channel.pk}":
        return False
    if channel.for_escalations:
        return event == "escalated" or (event == "closed" and alert.escalated)
    return True

"""A fleet whose numbers a test sets, and rounds at moments that it chooses."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone

from console.access.models import DEFAULT_TEAM_ID, Team
from console.alerts import evaluation
from console.alerts.models import Alert, Rule
from console.alerts.readings import Scene
from console.deployments import current
from console.deployments.current import Current
from console.deployments.models import Deployment, Instance
from console.jobs.reconcile import INGEST_PULSE
from console.telemetry.baselines import Baselines
from tests.factories import Fleet


class Stage:
    """One deployment with one instance; `at` is the moment of the next round."""

    def __init__(self, fleet: Fleet, broker: redis.Redis) -> None:
        fleet.deploy()
        self.fleet, self.broker = fleet, broker
        self.instance = Instance.objects.select_related("deployment", "host").get(host=fleet.host)
        Instance.objects.filter(pk=self.instance.pk).update(state="ready", ordered=True)
        Deployment.objects.update(state="serving")
        self.at: datetime = timezone.now()
        self.baselines = Baselines()
        evaluation.ensure_defaults(Team.objects.get(pk=DEFAULT_TEAM_ID))

    def tell(self, **numbers: Any) -> None:
        """What the instance does right now."""
        text = current.dump(Current(at=timezone.now().timestamp(), **numbers))
        self.broker.hset(current.KEY, str(self.instance.uuid), text)

    def be_silent(self) -> None:
        self.broker.delete(current.KEY)

    def round(self, after: float = 10) -> None:
        """A round, so many seconds after the one before."""
        self.at += timedelta(seconds=after)
        scene = Scene.of(DEFAULT_TEAM_ID, self.baselines)
        scene.now = self.at
        evaluation.evaluate(scene)

    def rounds(self, seconds: float) -> None:
        for _ in range(int(seconds / 10)):
            self.round()

    def only(self, key: str) -> Rule:
        """Switch all other rules off."""
        Rule.objects.exclude(key=key).update(enabled=False)
        return Rule.objects.get(key=key)

    def living(self, key: str) -> list[Alert]:
        return list(Alert.objects.filter(rule__key=key).exclude(state="closed"))


@pytest.fixture
def stage(db: None, fleet: Fleet, broker: redis.Redis) -> Iterator[Stage]:
    broker.delete(current.KEY, INGEST_PULSE)
    yield Stage(fleet, broker)
    broker.delete(current.KEY)

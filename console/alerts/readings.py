"""The fleet of one moment as alert rules see it, and what a condition says about each subject in it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.urls import reverse
from django.utils import timezone
from django.utils.functional import Promise

from console.common.broker import connection
from console.deployments import current
from console.deployments.current import Current
from console.deployments.models import Deployment, Instance
from console.fleet.models import Host
from console.jobs.reconcile import INGEST_PULSE
from console.telemetry.baselines import Baselines


@dataclass(frozen=True)
class Reading:
    """What a condition says about one subject."""

    subject: str
    name: str
    value: float
    summary: str
    cause: str = ""
    url: str = ""
    deployment: int | None = None
    host: int | None = None


@dataclass
class Scene:
    """One team's fleet at one moment, read once for all rules."""

    team: int
    now: datetime
    instances: list[Instance]
    hosts: list[Host]
    currents: Mapping[Any, Current]
    baselines: Baselines
    reading_since: datetime | None = None
    """Since when reports have been read without a break: nobody is silent for longer than someone listens."""

    @classmethod
    def of(cls, team: int, baselines: Baselines) -> "Scene":
        """Read it."""
        instances = list(
            Instance.objects.filter(deployment__team_id=team, deployment__for_study=False)
            .exclude(state="stopped")
            # One that crashed and was replaced is nobody's trouble any more.
            .exclude(state="crashed", ordered=False)
            .select_related("deployment", "host", "spec__engine")
        )
        hosts = [host for host in Host.objects.filter(team_id=team) if host.last_seen_at is not None]
        found = current.of_instances([instance.uuid for instance in instances])
        started = connection().hget(INGEST_PULSE, "started_at")
        since = datetime.fromtimestamp(float(str(started)), tz=UTC) if started else None
        return cls(team, timezone.now(), instances, hosts, found, baselines, since)

    def deployments(self) -> dict[Deployment, list[Current]]:
        """Deployments with the numbers of their instances that tell some."""
        found: dict[Deployment, list[Current]] = {}
        for instance in self.instances:
            if instance.uuid in self.currents:
                found.setdefault(instance.deployment, []).append(self.currents[instance.uuid])
        return found


@dataclass(frozen=True)
class Condition:
    """One thing that rules can be about."""

    key: str
    title: str | Promise
    unit: str | Promise
    """share, requests, seconds, /s, times, °C, restarts or state."""
    read: Callable[[Scene], Iterable[Reading]]
    help: str | Promise = ""
    below: bool = False
    """True where less is worse."""
    measure: str = ""
    """The line of `console.telemetry.measures` that has its history, for the preview; empty: it has none."""
    state_of: tuple[type[Instance | Deployment], str] | None = None
    """Whose being in which state it is, where it is that: moves between states are the history then."""

    def is_over(self, value: float, threshold: float) -> bool:
        """True if the value is on the wrong side of the threshold."""
        return value < threshold if self.below else value > threshold


def about_instance(instance: Instance, value: float, summary: str, cause: str = "") -> Reading:
    """A reading about an instance."""
    return Reading(
        subject=f"instance:{instance.pk}",
        name=str(instance),
        value=value,
        summary=summary,
        cause=cause,
        url=reverse("instance_detail", args=[instance.pk]),
        deployment=instance.deployment_id,
        host=instance.host_id,
    )


def about_host(host: Host, value: float, summary: str, *, part: str = "", cause: str = "") -> Reading:
    """A reading about a host, or about a `part` of it, such as `gpu0`."""
    subject = f"host:{host.pk}" + (f":{part}" if part else "")
    return Reading(subject, host.name, value, summary, cause, reverse("host_detail", args=[host.pk]), None, host.pk)


def about_deployment(deployment: Deployment, value: float, summary: str, cause: str = "") -> Reading:
    """A reading about a deployment, with its metrics as the place to look."""
    url = reverse("deployment_metrics", args=[deployment.pk])
    return Reading(f"deployment:{deployment.pk}", deployment.name, value, summary, cause, url, deployment.pk)

"""What the overview says: the truth in words, what is broken, numbers, running jobs, hosts, and the last changes."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Prefetch, QuerySet
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.access.presentation import deed, entries_for
from console.catalog.models import Copy
from console.common.models import StateChange
from console.common.states import LOOKS, Look
from console.deployments import current
from console.deployments.current import Current
from console.deployments.models import Deployment, Instance
from console.fleet.models import Engine, Host
from console.fleet.presentation import DeviceGroup, device_groups
from console.jobs import presentation
from console.jobs.models import LIVE_STATES, Job, Step

HOST_COLUMNS = (
    "name", "public_key", "join_token_sha256", "redis_password_sha256", "last_seen_at", "gpu_count", "device_groups",
)  # fmt: skip
SHOWN_DEPLOYMENTS, SHOWN_JOBS, SHOWN_HOSTS, SHOWN_CHANGES, SHOWN_TROUBLES = 12, 6, 8, 12, 3
WORST_FIRST = ("failed", "degraded", "deploying", "stopping", "serving", "draft", "stopped")
TELLING = {
    "deployments.deployment": ("deploying", "serving", "degraded", "failed", "stopped"),
    "deployments.instance": ("ready", "unhealthy", "restarting", "crashed"),
}
"""Which moves are worth a line; the steps of a start in between are the job page's matter."""


@dataclass(frozen=True)
class Trouble:
    """Something that a person should look at first: what, since when, why, and its page."""

    name: str
    url: str
    what: str
    since: datetime | None
    why: str
    colour: str


@dataclass(frozen=True)
class ShownJob:
    """A running job with the step that it is at."""

    job: Job
    step: Step | None
    number: int
    of: int
    waits_for: str


@dataclass(frozen=True)
class ShownDeployment:
    """A deployment with its instances counted."""

    deployment: Deployment
    look: Look
    ready: int
    wanted: int
    now: Current | None = None
    """What it does right now, if its engines say so."""


@dataclass(frozen=True)
class Change:
    """One line of the last changes: a state that moved, or what a person did."""

    at: datetime
    name: str
    url: str
    look: Look | None
    text: str
    who: str = ""


@dataclass(frozen=True)
class Milestone:
    """One step from an empty console to a first answer."""

    title: str
    text: str
    done: bool
    url: str
    button: str


def context(user: User) -> dict[str, Any]:
    """Everything that the page shows, in a constant number of queries."""
    deployments = _deployments(user)
    hosts = [host for host in _hosts(user) if not host.is_removed]
    jobs = _jobs(user)
    broken, silent = _broken(deployments), [host for host in hosts if host.presence == "offline"]
    # Only what is shown is put into words: a whole fleet may be silent.
    troubles = [*broken, *_silent(silent[:SHOWN_TROUBLES])]
    groups = {host.pk: device_groups(host) for host in hosts}
    return {
        "lead": _lead(deployments),
        "troubles": troubles[:SHOWN_TROUBLES],
        "more_troubles": max(0, len(broken) + len(silent) - SHOWN_TROUBLES),
        "numbers": _numbers(deployments, hosts, groups, user),
        "deployments": deployments[:SHOWN_DEPLOYMENTS],
        "more_deployments": max(0, len(deployments) - SHOWN_DEPLOYMENTS),
        "jobs": jobs[:SHOWN_JOBS],
        "more_jobs": max(0, len(jobs) - SHOWN_JOBS),
        "hosts": [(host, groups[host.pk]) for host in hosts[:SHOWN_HOSTS]],
        "more_hosts": max(0, len(hosts) - SHOWN_HOSTS),
        "changes": _changes(user),
        **_onboarding(user, hosts, deployments),
    }


def _deployments(user: User) -> list[ShownDeployment]:
    instances = Prefetch("instances", Instance.objects.exclude(state="stopped").select_related("host"))
    rows = policies.visible(user, Deployment.objects.lasting().select_related("current_spec__copy__revision__model"))
    shown = []
    found = list(rows.select_related("current_spec__host").prefetch_related(instances))
    numbers = current.by_deployment({one.uuid: row.pk for row in found for one in row.instances.all()})
    for deployment in found:
        living = [one for one in deployment.instances.all() if one.run or one.ordered]
        ready = [one for one in living if one.state == "ready" and not one.is_unknown]
        unknown = bool(living) and all(one.is_unknown for one in living)
        look = LOOKS["unknown"] if unknown else deployment.look
        shown.append(ShownDeployment(deployment, look, len(ready), len(living), numbers.get(deployment.pk)))
    shown.sort(key=lambda one: (WORST_FIRST.index(one.deployment.state), one.deployment.name))
    return shown


def _hosts(user: User) -> QuerySet[Host]:
    # All of them are counted, so only what is counted or shown is fetched: a host's row holds a lot.
    return policies.visible(user, Host.objects.only(*HOST_COLUMNS))


def _jobs(user: User) -> list[ShownJob]:
    steps = Prefetch("steps", Step.objects.select_related("host"))
    shown = []
    rows = policies.visible(user, Job.objects.filter(state__in=LIVE_STATES).prefetch_related(steps))
    for job in rows.order_by("-pk")[: SHOWN_JOBS + 1]:
        own = list(job.steps.all())
        step = presentation.current(own)
        number, of = presentation.position(own)
        shown.append(ShownJob(job, step, number, of, presentation.waits_for(step) if step else ""))
    return shown


def _lead(deployments: list[ShownDeployment]) -> str:
    if not deployments:
        return _("Nothing is deployed yet.")
    states = [one.deployment.state for one in deployments if one.look is not LOOKS["unknown"]]
    serving = sum(state in ("serving", "degraded") for state in states)
    parts = [
        ngettext("%d deployment serves", "%d deployments serve", serving) % serving if serving else _("Nothing serves")
    ]
    if coming := states.count("deploying"):
        parts.append(ngettext("%d is on its way", "%d are on their way", coming) % coming)
    if unknown := len(deployments) - len(states):
        parts.append(ngettext("%d is unknown", "%d are unknown", unknown) % unknown)
    return _("%s.") % _("; ").join(parts)


def _broken(deployments: list[ShownDeployment]) -> list[Trouble]:
    return [
        Trouble(
            one.deployment.name,
            reverse("deployment_detail", args=[one.deployment.pk]),
            str(one.deployment.look.word),
            one.deployment.state_since,
            one.deployment.state_reason,
            one.deployment.look.colour,
        )
        for one in deployments
        if one.deployment.state in ("failed", "degraded") and one.look is not LOOKS["unknown"]
    ]


def _silent(hosts: list[Host]) -> list[Trouble]:
    return [
        Trouble(
            host.name,
            reverse("host_detail", args=[host.pk]),
            _("silent"),
            host.last_seen_at,
            _("what runs there is unknown, and not touched."),
            "amber",
        )
        for host in hosts
    ]


def _numbers(
    deployments: list[ShownDeployment],
    hosts: list[Host],
    groups: dict[int, list[DeviceGroup]],
    user: User,
) -> dict[str, Any]:
    # RAM counts only where a host has nothing else to serve from.
    every = [
        one for host in hosts if host.is_online for one in groups[host.pk] if one.kind == "gpu" or not host.gpu_count
    ]
    day_ago = timezone.now() - timedelta(hours=24)
    failed = policies.visible(
        user, Job.objects.filter(state="failed", finished_at__gte=day_ago).exclude(kind="trial")
    ).count()
    return {
        "serving": sum(
            one.deployment.state in ("serving", "degraded") and one.look is not LOOKS["unknown"] for one in deployments
        ),
        "deployments": sum(one.deployment.state not in ("stopped", "draft") for one in deployments),
        "ready": sum(one.ready for one in deployments),
        "instances": sum(one.wanted for one in deployments),
        "online": sum(host.is_online for host in hosts),
        "hosts": len(hosts),
        "devices": sum(one.count for one in every),
        "memory_free": sum(one.free for one in every),
        "memory_total": sum(one.total for one in every),
        "failed_jobs": failed,
        "now": current.together(one.now for one in deployments if one.now is not None),
    }


def _changes(user: User) -> list[Change]:
    lines = _moves(user)
    if policies.can(user, Action.OPERATE):
        lines += _deeds(user)
    lines.sort(key=lambda line: line.at, reverse=True)
    return lines[:SHOWN_CHANGES]


def _moves(user: User) -> list[Change]:
    rows: list[StateChange] = []
    for kind, states in TELLING.items():
        rows += StateChange.objects.filter(kind=kind, after__in=states).order_by("-at")[: 2 * SHOWN_CHANGES]
    deployments = _names(user, Deployment.objects.lasting(), rows, "deployments.deployment", "team")
    instances = _names(
        user,
        Instance.objects.filter(deployment__for_study=False).select_related("deployment"),
        rows,
        "deployments.instance",
        "deployment__team",
    )
    lines = []
    for row in rows:
        is_instance = row.kind == "deployments.instance"
        thing = (instances if is_instance else deployments).get(row.object_id)
        if thing is None:
            continue
        page = reverse("instance_detail" if is_instance else "deployment_detail", args=[thing.pk])
        lines.append(Change(row.at, str(thing), page, LOOKS[row.after], row.reason))
    return lines


def _names(
    user: User, rows: QuerySet[Any], changes: Iterable[StateChange], kind: str, team_path: str
) -> dict[int, Any]:
    wanted = {change.object_id for change in changes if change.kind == kind}
    return {row.pk: row for row in policies.visible(user, rows, team_path=team_path).filter(pk__in=wanted)}


def _deeds(user: User) -> list[Change]:
    entries = entries_for(user).filter(actor__isnull=False).exclude(action__startswith="person.")
    return [
        Change(entry.at, entry.target, entry.target_url, None, entry.reason, f"{entry.actor_name} {deed(entry)}")
        for entry in entries[:SHOWN_CHANGES]
    ]


def _onboarding(user: User, hosts: list[Host], deployments: list[ShownDeployment]) -> dict[str, Any]:
    if deployments:
        return {"milestones": []}
    steps = milestones(user, hosts)
    return {"milestones": steps, "next_step": next(step for step in steps if not step.done)}


def milestones(user: User, hosts: list[Host]) -> list[Milestone]:
    """The way from an empty console to a first answer, with what is done already."""
    joined = any(host.last_seen_at for host in hosts)
    engines = policies.visible(user, Engine.objects.filter(present=True), team_path="host__team").exists()
    copies = policies.visible(user, Copy.objects.exclude(state="removed"), team_path="revision__model__team").exists()
    return [
        Milestone(
            _("Add a host"),
            _("A machine with GPUs, or this one's CPU. It joins with one command."),
            joined,
            reverse("host_add"),
            _("Add a host"),
        ),
        Milestone(
            _("Install an engine"),
            _("A vLLM version in an environment of its own."),
            engines,
            reverse("engine_install"),
            _("Install an engine"),
        ),
        Milestone(
            _("Add a model"),
            _("A directory on a host; its files are checked before anything starts."),
            copies,
            reverse("model_add"),
            _("Add a model"),
        ),
        Milestone(
            _("Deploy it"),
            _("One form. You watch it start, and talk to it when it is ready."),
            False,  # noqa: FBT003 - the list is shown only while nothing is deployed
            reverse("deployment_add"),
            _("Deploy"),
        ),
    ]

"""The beat that makes sure: steps that nobody answered are sent again, lost leases end, lost keys are published again."""

import time
from datetime import datetime, timedelta

import structlog
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _
from redis.exceptions import RedisError

from console.common import broker
from console.common.errors import LostRace
from console.fleet import broker_users, desired
from console.fleet.models import Host
from console.jobs import dispatch, services
from console.jobs.models import LIVE_STATES, Job, Step
from workers.contracts import Failure, Level, StepFinished

log = structlog.get_logger(__name__)

ANSWER_SECONDS = 15
"""A step that was sent and not answered for this long is sent again."""
LEASE_SECONDS = 30
"""A running step that was silent for this long, while its host was heard of, is interrupted."""
DEADLINE_GRACE_SECONDS = 60
"""The host ends a step at its deadline; this much later the console does."""
INGEST_PULSE = "console:ingest"
INGEST_LAG_SECONDS = 10


def reconcile() -> None:
    """One round. Each part stands alone, so that a fault in one doesn't stop the others."""
    for part in (_broker, _steps, _jobs):
        try:
            part()
        except RedisError as error:
            log.warning("reconcile: broker away", part=part.__name__, error=str(error))
        except Exception:
            log.exception("reconcile failed", part=part.__name__)


def _broker() -> None:
    hosts = list(Host.objects.all())
    for host in broker_users.unsettled(hosts):
        log.warning("the broker's user of a host is not what it should be; made so", host=host.name)
        broker_users.settle(host)
    for host in hosts:
        if not host.redis_password_sha256:
            continue
        stands = desired.published_generation(host)
        if stands is None or (stands.epoch, stands.number) != (host.epoch, host.generation):
            desired.publish(host.pk)


def _jobs() -> None:
    for pk in Job.objects.filter(state__in=("queued", "running")).values_list("pk", flat=True):
        services.advance(pk)


def _steps() -> None:
    ingest_since = _ingest_started_at()
    now = timezone.now()
    waiting = Step.objects.filter(state__in=LIVE_STATES).exclude(sent_at=None).select_related("host", "job")
    for step in waiting.filter(Q(job__state__in=("queued", "running", "cancelling"))):
        if not step.host.is_online:
            _note_silence(step)
        elif ingest_since is not None:
            try:
                _tend(step, now, ingest_since)
            except LostRace:
                continue  # it moved on while we looked


def _tend(step: Step, now: datetime, ingest_since: datetime) -> None:
    """`step`'s host is online and its reports are being read: has it been silent for too long?"""
    marks = [step.sent_at, step.heard_at, step.host.online_since, ingest_since]
    silent = now - max(mark for mark in marks if mark)
    if step.state in ("queued", "interrupted"):
        if silent > timedelta(seconds=ANSWER_SECONDS):
            dispatch.send(step.pk)
    elif step.state == "running":
        if step.started_at and now - step.started_at > timedelta(
            seconds=step.deadline_seconds + DEADLINE_GRACE_SECONDS
        ):
            _overdue(step)
        elif silent > timedelta(seconds=LEASE_SECONDS):
            services.interrupt(
                step,
                reason=_("%(host)s has not reported this step for %(seconds)d s; it is sent again and resumes.")
                % {"host": step.host, "seconds": silent.total_seconds()},
            )


def _overdue(step: Step) -> None:
    failure = Failure(
        code="step.deadline",
        message=_("%(step)s did not end within %(seconds)d s.")
        % {"step": step.title, "seconds": step.deadline_seconds},
        next=_("Look at the log for what it was waiting for, then retry, with a longer deadline if it was working."),
    )
    services.finished(step, StepFinished(step=step.pk, fence=step.fence, outcome="failed", failure=failure))


def _note_silence(step: Step) -> None:
    since = step.host.last_seen_at
    text = (
        _("%(host)s has been silent since %(time)s. The job waits for it; what runs there is not touched.")
        % {"host": step.host, "time": f"{since:%H:%M:%S} UTC"}
        if since
        else _("%(host)s has not joined yet. The job waits for it.") % {"host": step.host}
    )
    latest = step.job.events.filter(step=step).order_by("-seq").first()
    if latest is None or latest.text != text:
        services.note(step.job, text, step=step, level=Level.WARNING)


def ingest_is_current() -> bool:
    """True while hosts' reports are being read. Without them nothing is concluded: what is late is not gone."""
    try:
        return pulse_is_fresh()
    except RedisError as error:
        log.warning("broker away: nothing is concluded", error=str(error))
        return False


def pulse_is_fresh() -> bool:
    """True if ingest said a moment ago that it reads. Raises RedisError while the broker is away."""
    at = broker.connection().hget(INGEST_PULSE, "at")
    return at is not None and time.time() - float(str(at)) < INGEST_LAG_SECONDS


def _ingest_started_at() -> datetime | None:
    """When ingest began to read without a break; None while it lags or is away: leases don't run then."""
    pulse = broker.connection().hgetall(INGEST_PULSE)
    if not pulse or timezone.now().timestamp() - float(pulse["at"]) > INGEST_LAG_SECONDS:
        return None
    return datetime.fromtimestamp(float(pulse["started_at"]), tz=timezone.get_current_timezone())

"""Ingest: reads what hosts report, stores it, then tells the browsers and acknowledges to the host.

The host is taken from the stream's key, never from a message, and a report is believed only for steps and instances that
are assigned to that host; anything else is refused and audited. Reports of one outbox are taken strictly in order: a
number that was seen is a double, a number that is ahead waits until the host sends the missing ones again.
"""

import base64
import binascii
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, cast
from uuid import UUID

import structlog
from django.db import close_old_connections, transaction
from django.utils import timezone
from pydantic import Field, TypeAdapter, ValidationError
from redis import Redis
from redis.exceptions import RedisError

from console.common import live
from console.common.broker import connection
from console.common.databases import DATABASE_AWAY
from console.deployments import adapters, measurements, observations
from console.deployments.models import Instance
from console.fleet import schemas
from console.fleet import services as fleet
from console.fleet.models import Host, ReportCursor
from console.jobs import services as jobs
from console.jobs.models import Job, Step
from console.jobs.reconcile import INGEST_PULSE
from console.telemetry import host_board, rollups
from console.telemetry.intake import Intake
from console.telemetry.rings import Rings
from workers.contracts import (
    AdaptersObserved,
    AttemptEnded,
    AttemptMeasured,
    AttemptStarted,
    EngineSchema,
    Heartbeat,
    HostInventory,
    InstanceChecked,
    InstanceObserved,
    Level,
    LogChunk,
    MetricsBatch,
    Report,
    StepEvent,
    StepFinished,
    StepPart,
    StepProgress,
    StepStarted,
    StepStillRunning,
    UnknownInstances,
    acknowledged_key,
    doorbell_channel,
    log_cursor_key,
    logs_stream,
    reports_stream,
    samples_stream,
)

log = structlog.get_logger(__name__)

BATCH = 200
BLOCK_MILLISECONDS = 1000
HOSTS_REFRESH_SECONDS = 2.0
PRUNE_EVERY_SECONDS = 600.0

StepBody = StepStarted | StepStillRunning | StepProgress | StepEvent | StepPart | StepFinished
_SAMPLE: TypeAdapter[Heartbeat | MetricsBatch] = TypeAdapter(
    Annotated[Heartbeat | MetricsBatch, Field(discriminator="kind")]
)
InstanceBody = InstanceObserved | AttemptStarted | AttemptEnded | InstanceChecked | AdaptersObserved | AttemptMeasured


class Forged(Exception):
    """A host reported about something that is not its own."""


@dataclass
class Ingest:
    """One reader of all hosts' streams."""

    stopping: bool = False
    _started_at: float = 0.0
    _hosts: dict[str, int] = field(default_factory=dict)
    _hosts_read_at: float = 0.0
    _pulse_at: float = 0.0
    _pruned_at: float = field(default_factory=time.monotonic)
    _intake: Intake | None = None
    _read_to: dict[str, str] = field(default_factory=dict)
    """Up to which entry a lane is read whose last entry stays in it."""
    _kept: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Read until `stopping`. A broker or database that is away is waited for; nothing is lost meanwhile."""
        pause = 0.5
        while not self.stopping:
            try:
                self._started_at = self._started_at or time.time()
                self._round()
                pause = 0.5
            except (RedisError, *DATABASE_AWAY) as error:
                log.warning("ingest waits", error=str(error), seconds=pause)
                self._started_at = 0.0
                self._forget_metrics()
                close_old_connections()
                time.sleep(pause)
                pause = min(5.0, pause * 2)

    def _round(self) -> None:
        redis = connection()
        self._beat(redis)
        self._refresh_hosts()
        if not self._hosts:
            time.sleep(0.2)
            return
        streams = {name: self._read_to.get(name, "0") for host in self._hosts for name in _streams(host)}
        answer: Any = redis.xread(cast(Any, streams), count=BATCH, block=BLOCK_MILLISECONDS)
        for stream, entries in answer or []:
            self._take(redis, stream, entries)
        self._metrics(redis)

    def _metrics(self, redis: "Redis") -> None:
        """What comes round with metrics: the numbers of right now, roll-ups that are due, rows that are too old."""
        if self._intake is not None:
            self._intake.tell_current(redis)
            rollups.store_due(redis, self._intake.rings)
        if time.monotonic() - self._pruned_at > PRUNE_EVERY_SECONDS:
            self._pruned_at = time.monotonic()
            rollups.prune()

    def _forget_metrics(self) -> None:
        """Samples that may not have reached the rings are read from the lanes again; a ring takes none twice."""
        self._intake = None
        self._read_to.clear()

    def _beat(self, redis: "Redis") -> None:
        if time.time() - self._pulse_at > 1:
            self._pulse_at = time.time()
            redis.hset(INGEST_PULSE, mapping={"at": self._pulse_at, "started_at": self._started_at})

    def _refresh_hosts(self) -> None:
        if time.monotonic() - self._hosts_read_at > HOSTS_REFRESH_SECONDS:
            self._hosts = dict(Host.objects.exclude(redis_password_sha256="").values_list("name", "pk"))
            self._hosts_read_at = time.monotonic()

    def _take(self, redis: "Redis", stream: str, entries: list[tuple[str, dict[str, str]]]) -> None:
        host_name, lane = stream.split(":")[1:3]
        host = Host.objects.filter(pk=self._hosts[host_name]).first()
        if host is None:
            self._hosts_read_at = 0.0
            return
        contents = [fields.get("json", "") for _entry, fields in entries]
        if lane == "reports":
            take_reports(redis, host, contents)
        elif lane == "logs":
            take_logs(redis, host, contents)
        else:
            self._take_samples(redis, host, stream, entries)
            return
        redis.xdel(stream, *[entry for entry, _fields in entries])

    def _take_samples(self, redis: "Redis", host: Host, stream: str, entries: list[tuple[str, dict[str, str]]]) -> None:
        """Signs of life and metrics. The newest batch stays in the lane: whoever reads it next, after a restart of this
        process, compares the following one with it, so that nothing that was counted in between is lost.
        """
        if self._intake is None:
            self._intake = Intake(Rings(redis))
        before = host.vitals
        batches = take_samples(host, [(entry, fields.get("json", "")) for entry, fields in entries])
        if host.vitals is not before:  # a sign of life was among them
            host_board.record(redis, host.pk, host.vitals)
        self._intake.take(host, batches)
        done = [entry for entry, _fields in entries]
        if batches:
            kept, self._kept[stream] = self._kept.get(stream), batches[-1][0]
            done = [entry for entry in [*done, kept] if entry and entry != batches[-1][0]]
        self._read_to[stream] = entries[-1][0]
        if done:
            redis.xdel(stream, *done)


def _streams(host: str) -> tuple[str, str, str]:
    return reports_stream(host), logs_stream(host), samples_stream(host)


def take_reports(redis: "Redis", host: Host, contents: Iterable[str]) -> None:
    """Apply a batch of reports in one transaction, then acknowledge them."""
    acknowledge: dict[str, int] = {}
    with transaction.atomic():
        cursors = {cursor.outbox: cursor for cursor in ReportCursor.objects.select_for_update().filter(host=host)}
        for content in contents:
            report = _read_report(host, content, cursors)
            if report is None:
                continue
            cursor = cursors.get(report.outbox) or ReportCursor.objects.create(host=host, outbox=report.outbox)
            cursors[report.outbox] = cursor
            if report.number == cursor.number + 1 or (cursor.number == 0 and report.number > 0):
                _apply(host, report)
                cursor.number = report.number
                cursor.save(update_fields=["number", "updated_at"])
            acknowledge[str(report.outbox)] = cursor.number
    if acknowledge:
        pipe = redis.pipeline()
        pipe.hset(acknowledged_key(host.name), mapping=cast(Any, acknowledge))
        pipe.publish(doorbell_channel(host.name), "acknowledged")
        pipe.execute()


def _read_report(host: Host, content: str, cursors: dict[UUID, ReportCursor]) -> Report | None:
    try:
        return Report.model_validate_json(content)
    except ValidationError as error:
        fleet.keep_unread(host, content=content, problem=str(error))
        _skip_unread(host, content, cursors)
        return None


def _skip_unread(host: Host, content: str, cursors: dict[UUID, ReportCursor]) -> None:
    """An unread report is stored; its number counts as taken, so that the ones behind it are not held up."""
    try:
        raw = json.loads(content)
        outbox, number = UUID(raw["outbox"]), int(raw["number"])
    except (ValueError, KeyError, TypeError):
        return
    cursor = cursors.get(outbox) or ReportCursor.objects.create(host=host, outbox=outbox)
    cursors[outbox] = cursor
    if number == cursor.number + 1:
        cursor.number = number
        cursor.save(update_fields=["number", "updated_at"])


def _apply(host: Host, report: Report) -> None:
    try:
        with transaction.atomic():
            _dispatch(host, report)
    except DATABASE_AWAY:
        raise  # the database is away or busy: nothing of this batch is acknowledged, and it is read again
    except Forged as error:
        log.warning("report refused", host=host.name, what=str(error))
        fleet.refuse_forged(host, what=str(error), details={"report": report.model_dump(mode="json")})
    except Exception as error:
        # One report that can't be applied must not hold up all that follow it; it is kept for examination.
        log.exception("report not applied", host=host.name, number=report.number)
        fleet.keep_unread(host, content=report.model_dump_json(), problem=repr(error))


def _dispatch(host: Host, report: Report) -> None:
    body = report.body
    if isinstance(body, HostInventory):
        fleet.take_inventory(host, body)
    elif isinstance(body, EngineSchema):
        schemas.take(host, body)
    elif isinstance(body, UnknownInstances):
        _unknown(host, body)
    elif isinstance(body, StepBody):
        _step(host, body)
    else:
        _instance(host, body)


def _step(host: Host, body: StepBody) -> None:
    job_id = Step.objects.filter(pk=body.step).values_list("job_id", flat=True).first()
    if job_id is None:
        return  # of a ledger that is no more (a restored database)
    # The job's row is locked first, as people's actions do it, so that the two never wait for each other.
    Job.objects.select_for_update().get(pk=job_id)
    step = Step.objects.select_related("job", "host").get(pk=body.step)
    if step.host_id != host.pk:
        raise Forged(f"{body.kind} for step {body.step} of {step.host.name}")
    if body.fence != step.fence:
        late = f"{body.kind} came with fence {body.fence}, but {step.fence} counts now: recorded, not applied"
        jobs.note(step.job, late, step=step, level=Level.DEBUG)
        return
    if isinstance(body, StepProgress):
        jobs.progressed(step, body)
    elif isinstance(body, StepEvent):
        jobs.note(step.job, body.text, step=step, level=body.level)
    elif isinstance(body, StepPart):
        jobs.took_part(step, body)
    elif isinstance(body, StepFinished):
        jobs.finished(step, body)
    else:
        jobs.started(step)


def _instance(host: Host, body: InstanceBody) -> None:
    instance = Instance.objects.select_related("host", "deployment", "spec__copy").filter(uuid=body.instance).first()
    if instance is None:
        return  # deleted meanwhile
    if instance.host_id != host.pk:
        raise Forged(f"{body.kind} for {instance}, which runs on {instance.host.name}")
    if isinstance(body, InstanceObserved):
        observations.observed(instance, body)
    elif isinstance(body, AttemptStarted):
        observations.attempt_started(instance, body)
    elif isinstance(body, InstanceChecked):
        observations.checked(instance, body)
    elif isinstance(body, AdaptersObserved):
        adapters.observed(instance, body)
    elif isinstance(body, AttemptMeasured):
        measurements.record(instance, body)
    else:
        observations.attempt_ended(instance, body)


def _unknown(host: Host, body: UnknownInstances) -> None:
    host.unknown_instances = [str(one) for one in body.instances]
    host.save(update_fields=["unknown_instances"])
    live.changed("host", host.pk)


def take_logs(redis: "Redis", host: Host, contents: Iterable[str]) -> None:
    """Store pieces of logs and tell the host how far each attempt's log is stored."""
    cursors: dict[str, int] = {}
    with transaction.atomic():
        for content in contents:
            try:
                chunk = LogChunk.model_validate_json(content)
                data = base64.b64decode(chunk.data, validate=True)
            except (ValidationError, binascii.Error) as error:
                fleet.keep_unread(host, content=content, problem=str(error))
                continue
            instance = Instance.objects.filter(uuid=chunk.instance, host=host).first()
            if instance is None:
                if Instance.objects.filter(uuid=chunk.instance).exists():
                    fleet.refuse_forged(host, what=f"log of instance {chunk.instance}", details={})
                # Nobody keeps this log any more; say "stored", so that the host stops sending it.
                cursors[f"{chunk.instance}:{chunk.attempt}"] = chunk.offset + len(data)
                continue
            attempt = observations.store_log(instance, chunk, data)
            cursors[f"{chunk.instance}:{chunk.attempt}"] = attempt.log_host_offset
    if cursors:
        pipe = redis.pipeline()
        pipe.hset(log_cursor_key(host.name), mapping=cast(Any, cursors))
        pipe.publish(doorbell_channel(host.name), "logs")
        pipe.execute()


def take_samples(host: Host, entries: Iterable[tuple[str, str]]) -> list[tuple[str, MetricsBatch]]:
    """Note signs of life, of which only the newest counts, and return the metrics with the ids of their entries."""
    newest: Heartbeat | None = None
    batches: list[tuple[str, MetricsBatch]] = []
    for entry, content in entries:
        try:
            sample = _SAMPLE.validate_json(content)
        except ValidationError as error:
            log.warning("sample not understood", host=host.name, error=str(error))
            continue
        if isinstance(sample, MetricsBatch):
            batches.append((entry, sample))
        else:
            newest = sample
    if newest is not None:
        new_agent = newest.agent_boot != host.agent_boot
        with transaction.atomic():
            fleet.heard(host, newest)
            _renew_leases(host, newest, new_agent=new_agent)
    return batches


def _renew_leases(host: Host, heartbeat: Heartbeat, *, new_agent: bool) -> None:
    """Steps that the host says are running keep their lease; a new agent has lost the ones that it doesn't name."""
    running = Step.objects.filter(host=host, state="running")
    running.filter(pk__in=heartbeat.running_steps).update(heard_at=timezone.now())
    if new_agent:
        for step in running.exclude(pk__in=heartbeat.running_steps).select_related("job", "host"):
            jobs.interrupt(step, reason=f"The agent of {host.name} was restarted; the step is sent again and resumes.")

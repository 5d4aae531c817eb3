"""The job ledger's verbs: create, advance, cancel, retry, and what reports from hosts do to steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.catalog.presentation import short_sums
from console.common import live
from console.common.commits import after_commit
from console.common.errors import LostRace, Refused
from console.common.spans import readable_duration
from console.common.states import move
from console.fleet import desired, intake
from console.fleet.models import Host
from console.jobs import dispatch
from console.jobs.kinds import NotGoodEnough, RunAgain, handler_of
from console.jobs.models import LIVE_STATES, Event, Job, Step
from workers.contracts import Failure, Level, StepFinished, StepKind, StepPart, StepProgress

ENDED = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class PlannedStep:
    """A step of a job that is about to be created."""

    kind: StepKind
    payload: dict[str, Any] = field(default_factory=dict)
    deadline_seconds: float = 600
    host: Host | None = None
    """Where it runs, if not where the others of its job do."""


def create(
    *,
    kind: str,
    title: str,
    host: Host,
    steps: Sequence[PlannedStep],
    actor: User | None,
    subject: tuple[str, int] | None = None,
    reason: str = "",
    payload: dict[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Job:
    """Write a job with its steps into the ledger and set it going once the transaction has committed.

    A second call with the same `idempotency_key` returns the first one's job. Refused if the host takes no such work now.
    """
    if idempotency_key and (known := Job.objects.filter(idempotency_key=idempotency_key).first()):
        return known
    intake.refuse_new_work(host, kind)
    try:
        with transaction.atomic():
            job = Job.objects.create(
                kind=kind,
                title=title,
                team_id=host.team_id,
                subject_kind=subject[0] if subject else "",
                subject_id=subject[1] if subject else None,
                requested_by=actor,
                reason=reason,
                payload=payload or {},
                idempotency_key=idempotency_key or None,
            )
            Step.objects.bulk_create(
                Step(
                    job=job,
                    position=position,
                    kind=planned.kind,
                    host=planned.host or host,
                    payload=planned.payload,
                    deadline_seconds=planned.deadline_seconds,
                )
                for position, planned in enumerate(steps, start=1)
            )
            live.changed("job", job.pk)
            advance(job.pk)
    except IntegrityError:
        if idempotency_key and (known := Job.objects.filter(idempotency_key=idempotency_key).first()):
            return known
        raise
    return job


def note(job: Job, text: str, *, step: Step | None = None, level: Level = Level.INFO) -> Event:
    """Write one event into a job's log and tell those who watch it."""
    with transaction.atomic():
        Job.objects.filter(pk=job.pk).update(last_event=F("last_event") + 1)
        seq = Job.objects.values_list("last_event", flat=True).get(pk=job.pk)
        event = Event.objects.create(job=job, step=step, seq=seq, level=level, text=text)
        live.announce(live.job_group(job.pk), event=seq)
    return event


def advance(job_id: int) -> None:
    """Move a job on as far as its steps allow. Idempotent: called by every report and by the reconcile beat."""
    with transaction.atomic():
        job = Job.objects.select_for_update().get(pk=job_id)
        if job.state not in ("queued", "running"):
            return
        current = job.steps.exclude(state="succeeded").order_by("position").first()
        if current is None:
            _finish(job, "succeeded")
            handler_of(job).job_succeeded(job)
        elif current.state == "failed":
            job.failure = current.failure
            _finish(job, "failed", reason=(current.failure or {}).get("message", ""))
            handler_of(job).job_failed(job, current)
        elif current.state == "cancelled":
            move(job, to="cancelling", reason=current.state_reason)
            _finish(job, "cancelled")
            handler_of(job).job_cancelled(job)
        else:
            _begin(job)
            if current.state == "queued" and current.sent_at is None:
                _send_first(current)


def _begin(job: Job) -> None:
    if job.state == "queued":
        move(job, to="running")
        job.started_at = job.started_at or timezone.now()
        job.save(update_fields=["started_at"])


def _send_first(step: Step) -> None:
    handler_of(step.job).before_step(step)
    # Marked as sent inside the transaction, so that a second advance doesn't prepare the step twice.
    step.sent_at = timezone.now()
    step.save(update_fields=["sent_at"])
    after_commit(dispatch.send, step.pk)
    _step_changed(step)


def _finish(job: Job, to: str, *, reason: str = "") -> None:
    # What a job was cancelled for was said when it was asked to stop.
    move(job, to=to, reason=reason or (job.state_reason if to == "cancelled" else ""))
    job.finished_at = timezone.now()
    job.save(update_fields=["finished_at", "failure"])
    level = {"failed": Level.ERROR, "cancelled": Level.WARNING}.get(to, Level.INFO)
    note(job, {"succeeded": _("Done."), "failed": _("Failed."), "cancelled": _("Cancelled.")}[to], level=level)
    live.changed("job", job.pk)


def _step_changed(step: Step) -> None:
    live.announce(live.job_group(step.job_id), step=step.pk)


def started(step: Step) -> None:
    """The host began or resumed the step."""
    step.heard_at = timezone.now()
    step.started_at = step.started_at or step.heard_at
    step.save(update_fields=["heard_at", "started_at"])
    if step.state in ("queued", "interrupted"):
        move(step, to="running")
        note(step.job, _("%(step)s started on %(host)s.") % {"step": step.title, "host": step.host}, step=step)
        live.changed("job", step.job_id)
    _step_changed(step)


def progressed(step: Step, progress: StepProgress) -> None:
    """Store how far the step is; its lease counts anew."""
    step.heard_at = timezone.now()
    step.progress = progress.model_dump(exclude={"kind", "step", "fence"}, exclude_defaults=True) | {
        "done": progress.done, "total": progress.total, "unit": progress.unit, "rate": progress.rate,
        "waiting_for": progress.waiting_for,
    }  # fmt: skip
    step.save(update_fields=["heard_at", "progress"])
    _step_changed(step)


def took_part(step: Step, part: StepPart) -> None:
    """Keep a part of the step's result, by its job's handler; the lease counts anew."""
    step.heard_at = timezone.now()
    step.save(update_fields=["heard_at"])
    handler_of(step.job).step_part(step, part)
    _step_changed(step)


def finished(step: Step, outcome: StepFinished) -> None:
    """Store a step's outcome and move its job on."""
    if step.state in ENDED:
        return
    with transaction.atomic():
        step.heard_at = step.finished_at = timezone.now()
        step.result = outcome.result
        step.failure = outcome.failure.model_dump() if outcome.failure else None
        to = "cancelled" if step.state == "cancelling" and outcome.outcome == "failed" else outcome.outcome
        if to == "cancelled" and step.state != "cancelling":
            move(step, to="cancelling")
        failure = outcome.failure
        if to == "succeeded":
            try:
                if not _accepted(step):
                    return
            except NotGoodEnough as refusal:
                to, failure = "failed", refusal.failure
                step.failure = failure.model_dump()
        move(step, to=to, reason=failure.message if failure else "")
        step.save(update_fields=["heard_at", "finished_at", "result", "failure"])
        _note_outcome(step, to, failure)
        _step_changed(step)
        live.changed("job", step.job_id)
        _after_end(step)


def _accepted(step: Step) -> bool:
    try:
        with transaction.atomic():
            handler_of(step.job).step_succeeded(step)
    except RunAgain as again:
        note(step.job, str(again), step=step, level=Level.WARNING)
        _interrupt(step, reason=str(again))
        return False
    return True


def _after_end(step: Step) -> None:
    job = step.job
    job.refresh_from_db()
    if job.state == "cancelling" and not job.steps.filter(state="cancelling").exists():
        _finish(job, "cancelled")
        handler_of(job).job_cancelled(job)
        desired.change(step.host)
        return
    advance(job.pk)


def _note_outcome(step: Step, to: str, failure: Failure | None) -> None:
    seconds = (step.finished_at - step.started_at).total_seconds() if step.finished_at and step.started_at else 0
    if to == "succeeded":
        text, level = _("%(step)s succeeded after %(took)s."), Level.INFO
    elif to == "cancelled":
        text, level = _("%(step)s was cancelled."), Level.WARNING
    else:
        text, level = _("%(step)s failed after %(took)s: %(why)s"), Level.ERROR
    why = short_sums(" ".join(filter(None, [failure.message, failure.next]))) if failure else ""
    took = readable_duration(seconds)
    note(step.job, text % {"step": step.title, "took": took, "why": why}, step=step, level=level)


def _interrupt(step: Step, *, reason: str) -> None:
    if step.state == "running":
        move(step, to="interrupted", reason=reason)
    if step.state == "interrupted":
        move(step, to="queued", reason=reason)
    step.sent_at = timezone.now()
    step.save(update_fields=["sent_at"])
    after_commit(dispatch.send, step.pk)
    _step_changed(step)


def interrupt(step: Step, *, reason: str) -> None:
    """The step's lease is lost: queue it again, under a new fence. It resumes where it left off."""
    with transaction.atomic():
        note(step.job, reason, step=step, level=Level.WARNING)
        _interrupt(step, reason=reason)


def cancel(job: Job, *, actor: User | None, reason: str = "") -> None:
    """Stop a job: at once where nothing runs, otherwise as soon as its host has abandoned the running step."""
    with transaction.atomic():
        job = Job.objects.select_for_update().get(pk=job.pk)
        if job.state == "cancelling":
            return
        if not job.is_live:
            raise Refused(_("This job has already ended: %(state)s.") % {"state": job.look.word})
        move(job, to="cancelling", reason=reason, actor=actor)
        access.record(actor=actor, action="job.cancel", target=job.title, target_url=f"/jobs/{job.pk}/", reason=reason)
        note(job, _("Cancelling: %(reason)s") % {"reason": reason or "–"}, level=Level.WARNING)
        running = [step for step in job.steps.all() if step.sent_at and step.state in LIVE_STATES]
        for step in running:
            move(step, to="cancelling", reason=reason, actor=actor)
            desired.change(step.host)
            _step_changed(step)
        for step in job.steps.filter(state="queued"):
            move(step, to="cancelled", reason=reason, actor=actor)
        if not running:
            _finish(job, "cancelled")
            handler_of(job).job_cancelled(job)
        live.changed("job", job.pk)


def retry(job: Job, *, actor: User | None, reason: str = "") -> None:
    """Go on with a failed job where it failed (or where its kind says that it must begin again)."""
    with transaction.atomic():
        job = Job.objects.select_for_update().get(pk=job.pk)
        failed = job.steps.filter(state="failed").order_by("position").first()
        if job.state != "failed" or failed is None:
            raise Refused(_("Only a failed job can be retried; this one is %(state)s.") % {"state": job.look.word})
        handler = handler_of(job)
        handler.before_retry(job, failed)
        for step in job.steps.filter(position__gte=handler.resume_from(failed)):
            _reset(step, actor=actor, reason=reason)
        job.failure, job.finished_at = None, None
        move(job, to="running", reason=reason, actor=actor)
        job.save(update_fields=["failure", "finished_at"])
        access.record(actor=actor, action="job.retry", target=job.title, target_url=f"/jobs/{job.pk}/", reason=reason)
        note(job, _("Retried by %(who)s.") % {"who": actor or "system"})
        live.changed("job", job.pk)
        advance(job.pk)


def _reset(step: Step, *, actor: User | None, reason: str) -> None:
    move(step, to="queued", reason=reason, actor=actor)
    Step.objects.filter(pk=step.pk).update(
        sent_at=None, heard_at=None, started_at=None, finished_at=None, progress={}, result={}, failure=None
    )


def live_jobs(*, subject_kind: str, subject_id: int) -> list[Job]:
    """Jobs about an object that may still change, oldest first."""
    return list(
        Job.objects.filter(subject_kind=subject_kind, subject_id=subject_id, state__in=LIVE_STATES).order_by("pk")
    )


def refuse_while_busy(*, subject_kind: str, subject_id: int) -> None:
    """Raise Refused while another job about an object may still change."""
    if busy := live_jobs(subject_kind=subject_kind, subject_id=subject_id):
        raise Refused(_("“%(job)s” still runs. Wait for it or cancel it.") % {"job": busy[0]})


__all__ = [
    "LostRace", "PlannedStep", "advance", "cancel", "create", "finished", "interrupt", "live_jobs", "note",
    "progressed", "refuse_while_busy", "retry", "started", "took_part",
]  # fmt: skip

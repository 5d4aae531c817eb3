"""What hosts report about instances and attempts, applied to the rows."""

from datetime import UTC, datetime

import structlog
from django.utils import timezone
from django.utils.translation import gettext as _

from console.common import live
from console.common.secrets import decrypt
from console.common.states import move
from console.deployments import adapters, claims, golden, handlers, public, services, what_changed
from console.deployments.models import Attempt, Instance, Spec
from console.fleet.models import Host
from workers.contracts import (
    AttemptEnded,
    AttemptStarted,
    InstanceChecked,
    InstanceObserved,
    InstanceOrder,
    InstancePhase,
    LogChunk,
    Probe,
    RestartPolicy,
)
from workers.sealing import seal

log = structlog.get_logger(__name__)

STATE_OF = {
    InstancePhase.STARTING: "starting",
    InstancePhase.LOADING: "loading",
    InstancePhase.LISTENING: "validating",
    InstancePhase.VALIDATING: "validating",
    InstancePhase.WARMING: "warming",
    InstancePhase.READY: "ready",
    InstancePhase.UNHEALTHY: "unhealthy",
    InstancePhase.RESTARTING: "restarting",
    InstancePhase.STOPPING: "stopping",
    InstancePhase.STOPPED: "stopped",
    InstancePhase.CRASHED: "crashed",
}


def order(instance: Instance) -> InstanceOrder:
    """An instance as its host shall run it; the engine's key is sealed to the host."""
    spec: Spec = instance.spec
    return InstanceOrder(
        instance=instance.uuid,
        deployment=instance.deployment.name,
        spec=spec.number,
        engine=instance.engine.key,
        model_path=instance.copy.path,
        served_model_names=public.served_names(instance.deployment),
        arguments=claims.arguments_of(instance),
        environment=spec.environment | claims.environment_of(instance),
        sealed_environment={"VLLM_API_KEY": seal(instance.host.public_key, decrypt(instance.deployment.api_key))},
        port=instance.port or 0,
        run=instance.run,
        start=instance.start,
        bring_up="agent" if instance.bring_up == "agent" else "job",
        grace_seconds=services.GRACE_SECONDS,
        start_deadline_seconds=spec.start_deadline_seconds,
        restart=RestartPolicy.model_validate(spec.restart),
        probe=Probe.model_validate({**spec.probe, "golden": golden.of_spec(spec)}),
        adapters=adapters.orders(instance),
    )


def orders(host: Host) -> dict[str, list[InstanceOrder]]:
    """Contribution to a host's desired state."""
    related = ("deployment", "spec__engine", "spec__copy", "own_engine", "own_copy", "host")
    ordered = (
        Instance.objects.filter(host=host, ordered=True).select_related(*related).prefetch_related("claims__device")
    )
    return {"instances": [order(instance) for instance in ordered if instance.port]}


def observed(instance: Instance, seen: InstanceObserved) -> None:
    """An instance's phase changed on its host."""
    to = STATE_OF[seen.phase]
    instance.restarts, instance.observed_at = seen.restarts, timezone.now()
    if seen.failure:
        instance.failure = seen.failure.model_dump()
    elif to == "ready":
        instance.failure = None
    instance.save(update_fields=["restarts", "observed_at", "failure"])
    if to == "ready" and instance.bring_up == "job":
        return  # readiness of a start that a job makes is said by the job's warm-up step
    if to == "ready" and instance.state != "ready":
        adapters.attend(instance)
    if instance.STATES.allows(instance.state, to):
        move(instance, to=to, reason=(seen.failure.message if seen.failure else seen.reason))
    elif instance.state != to:
        log.info("observation not applied", instance=str(instance), state=instance.state, seen=to)
    if not instance.run and to in ("stopped", "crashed"):
        handlers.forget(instance, reason=seen.reason)
    services.settle(instance.deployment_id)
    live.changed("instance", instance.pk)


def attempt_started(instance: Instance, started: AttemptStarted) -> None:
    """An engine process was spawned. Attempts are never overwritten."""
    attempt, _created = Attempt.objects.get_or_create(instance=instance, number=started.number)
    is_news = attempt.started_at is None  # an agent that adopts an engine may say it again
    attempt.pid, attempt.argv, attempt.environment = started.pid, started.argv, started.environment
    attempt.started_at = datetime.fromtimestamp(started.started_at, tz=UTC)
    if is_news:
        attempt.surroundings = what_changed.surroundings(instance)
        adapters.process_started(instance)
    attempt.save(update_fields=["pid", "argv", "environment", "started_at", "surroundings"])
    if is_news and instance.state in ("ready", "unhealthy") and attempt.number > 1:
        move(instance, to="restarting", reason=_("a new process was started"))
        services.settle(instance.deployment_id)
    live.changed("attempt", attempt.pk)
    live.changed("instance", instance.pk)


def checked(instance: Instance, report: InstanceChecked) -> None:
    """A process was validated. The rows stay with its attempt; the answers of a sound one become golden."""
    attempt, _created = Attempt.objects.get_or_create(instance=instance, number=report.attempt)
    attempt.validation = report.model_dump(mode="json", include={"engine", "sound", "checks", "warnings", "golden"})
    attempt.save(update_fields=["validation"])
    if report.sound:
        golden.keep(instance, report.golden)
    live.changed("attempt", attempt.pk)
    live.changed("instance", instance.pk)


def attempt_ended(instance: Instance, ended: AttemptEnded) -> None:
    """An engine process ended."""
    attempt, _created = Attempt.objects.get_or_create(instance=instance, number=ended.number)
    is_news = attempt.ended_at is None
    attempt.exit_code, attempt.asked, attempt.diagnosis = ended.exit_code, ended.asked, ended.diagnosis
    attempt.ended_at = datetime.fromtimestamp(ended.ended_at, tz=UTC)
    attempt.save(update_fields=["exit_code", "asked", "diagnosis", "ended_at"])
    if is_news:
        _no_longer_answers(instance, attempt)
    live.changed("attempt", attempt.pk)
    live.changed("instance", instance.pk)


def _no_longer_answers(instance: Instance, attempt: Attempt) -> None:
    """A ready instance whose process has ended is not ready from this moment on, whatever the host says of it next."""
    newer = instance.attempts.filter(number__gt=attempt.number).exists()
    if instance.state in ("ready", "unhealthy") and not newer:
        title = attempt.diagnosis.get("title") or _("its process ended with exit code %(code)s") % {
            "code": attempt.exit_code
        }
        move(instance, to="restarting", reason=str(title))
        services.settle(instance.deployment_id)


def store_log(instance: Instance, chunk: LogChunk, data: bytes) -> Attempt:
    """Append a piece of log where it belongs and return the attempt, whose `log_host_offset` says where to go on.

    A piece that was sent twice is cut to what is new; a piece that leaves an unmarked hole is not stored, so that the
    host sends again from where we are. The row is the truth: what a crash left in the file beyond it is cut off.
    """
    attempt, _created = Attempt.objects.get_or_create(instance=instance, number=chunk.attempt)
    gap = chunk.offset - attempt.log_host_offset
    if gap > 0 and chunk.gap < gap:
        return attempt
    text = data[-gap:] if gap < 0 else data
    if gap > 0:
        text = f"\n[… {gap:,} bytes were dropped on the host: the log passed its cap …]\n".encode() + text
    # Of a log that retention has removed the rest is taken as well, so that the host stops sending, and not kept.
    if attempt.log_removed_at is None:
        path = attempt.log_path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.truncate(attempt.log_bytes)
            file.write(text)
        attempt.log_bytes += len(text)
    attempt.log_host_offset = max(attempt.log_host_offset, chunk.offset + len(data))
    attempt.log_complete = attempt.log_complete or chunk.final
    attempt.save(update_fields=["log_bytes", "log_host_offset", "log_complete"])
    live.announce(live.log_group(attempt.pk), up_to=attempt.log_bytes, complete=attempt.log_complete)
    return attempt

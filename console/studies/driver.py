"""What moves studies on: a beat looks at each that lives, inside a transaction that holds its row.

All that counts lies in the database, so whoever looks next goes on where the last one stopped. What happens on the host is
a job's business, which survives the console, the broker and the agent by itself.
"""

from collections.abc import Iterable
from datetime import timedelta

import structlog
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from console.benchmarks import subjects
from console.benchmarks.models import Benchmark
from console.common.errors import LostRace, Refused
from console.common.states import move
from console.deployments import arguments_check, engine_schema, fitting
from console.deployments import services as deployments
from console.deployments.models import RUNNING_STATES, Deployment
from console.fleet.models import Device
from console.studies import services, trials
from console.studies.models import LIVE_STATES, Study, Trial

log = structlog.get_logger(__name__)

PATIENCE = timedelta(seconds=60)
"""Memory that an engine gave back is in its host's next reports: what finds no room is looked at again for so long."""
STUCK = timedelta(minutes=15)
"""An engine that has not ended by then needs a person."""


def drive_all() -> None:
    """Look at every study that lives, oldest first: the first of a device goes first."""
    for pk in Study.objects.filter(state__in=LIVE_STATES).order_by("pk").values_list("pk", flat=True):
        try:
            with transaction.atomic():
                _drive(Study.objects.select_for_update().get(pk=pk))
        except (Refused, LostRace) as why:
            # A person, or another process, was faster; or a host takes nothing now. The next look sees.
            log.info("study not moved", study=pk, why=str(why))
            _wait(Study.objects.get(pk=pk), str(why))
        except Exception:
            log.exception("study not driven", study=pk)


def _drive(study: Study) -> None:
    if study.state != "finishing" and (study.host is None or study.engine is None or study.copy is None):
        services.end(study, "failed", finding=_("Its model, engine or host is gone."))
        return
    work = {"queued": _begin, "clearing": _clear, "running": _advance, "finishing": _finish}
    work[study.state](study)


def _wait(study: Study, text: str) -> None:
    text = text.rstrip(".。")  # it goes into sentences, and some reasons are sentences themselves
    if study.waits_for != text:
        Study.objects.filter(pk=study.pk).update(waits_for=text)
        services.tell(study)


def _begin(study: Study) -> None:
    if why := _taken(study):
        _wait(study, why)
        return
    assert study.host is not None  # noqa: S101 - `_drive` has looked
    assert study.engine is not None  # noqa: S101
    there = services.neighbours(study.host, study.engine, study.devices)
    if there and study.neighbours == "leave":
        names = ", ".join(map(str, there))
        _wait(study, _("%(names)s to end: nobody said that it may be stopped, or measured beside.") % {"names": names})
        return
    study.started_at, study.waits_for = study.started_at or timezone.now(), ""
    study.save(update_fields=["started_at", "waits_for"])
    if there and study.neighbours == "stop":
        _stop(study, {one.deployment_id: one.deployment for one in there}.values())
        move(study, to="clearing", reason=_("stops what serves there"))
    else:
        move(study, to="running")
    services.tell(study)


def _taken(study: Study) -> str:
    """Who measures on the device now; empty if nobody does."""
    for other in Study.objects.filter(state__in=("clearing", "running", "finishing"), host=study.host).exclude(
        pk=study.pk
    ):
        if not study.devices or not other.devices or set(study.devices) & set(other.devices):
            return _("the study “%(title)s” to end") % {"title": other.title}
    for benchmark in Benchmark.objects.filter(state="running", host=study.host, instance__isnull=False):
        devices = {one.uuid for one in subjects.devices_of(benchmark.instance)} if benchmark.instance else set()
        if not study.devices or devices & set(study.devices):
            return _("the benchmark “%(title)s” to end") % {"title": benchmark.title}
    return ""


def _stop(study: Study, there: Iterable[Deployment]) -> None:
    for deployment in there:
        if deployment.state in ("serving", "degraded", "deploying", "failed"):
            why = _("the study “%(title)s” needs its device") % {"title": study.title}
            deployments.stop(deployment, actor=study.requested_by, reason=why)
            study.stopped = [*study.stopped, deployment.pk]
    study.save(update_fields=["stopped"])


def _clear(study: Study) -> None:
    """Wait until what was stopped has given its memory back."""
    rows = list(Deployment.objects.filter(pk__in=study.stopped))
    if failed := [one for one in rows if one.state == "failed"]:
        services.end(study, "failed", finding=_("%(name)s could not be stopped.") % {"name": failed[0]})
    elif waiting := [one for one in rows if one.state != "stopped"]:
        _wait(study, _("%(name)s to stop") % {"name": waiting[0]})
    else:
        _wait(study, "")
        move(study, to="running")
        services.tell(study)


def _advance(study: Study) -> None:
    running = study.trials.filter(state="running").select_related("job").first()
    if running is not None:
        if running.job is None:
            trials.ended(running, "failed", reason=_("its job is gone"))
        return
    cancelled = study.trials.filter(state="cancelled").first()
    if cancelled is not None:
        services.end(study, "cancelled", reason=_("The job of %(label)s was cancelled.") % {"label": cancelled.label})
        return
    base = study.trials.get(position=0)
    if base.state in ("failed", "skipped"):
        services.end(
            study, "failed", finding=_("The base itself can't be measured: %(why)s") % {"why": base.state_reason}
        )
        return
    if not _device_is_free(study):
        return
    trial = study.trials.filter(state="queued").order_by("position").first()
    if trial is None:
        ending, finding = _verdict(study)
        services.end(study, ending, finding=finding)
    else:
        _try(study, trial)


def _device_is_free(study: Study) -> bool:
    """True once nothing of the engine before is left. One that doesn't end, ends the study."""
    left = study.own.instances.filter(state__in=RUNNING_STATES).first() if study.own else None
    if left is None:
        return True
    if timezone.now() - left.state_since > STUCK:
        services.end(study, "failed", finding=_("%(name)s does not end. Look at its host.") % {"name": left})
    else:
        _wait(study, _("the engine before to give its memory back"))
    return False


def _verdict(study: Study) -> tuple[str, str]:
    others = study.trials.exclude(position=0)
    if others.filter(state="succeeded").exists():
        return "succeeded", ""
    return "failed", _("None of the changes could be measured; each says why.")


def _try(study: Study, trial: Trial) -> None:
    """Start a trial's job, or skip it where the plan says that its engine would not come up."""
    if why := _will_not_start(study, trial):
        move(trial, to="skipped", reason=why)
        services.tell(study)
        return
    try:
        with transaction.atomic():
            trials.start(study, trial)
    except Refused as refusal:
        if refusal.field not in ("devices", "placement", "replicas"):
            raise
        _skip_without_room(study, trial, str(refusal))
    else:
        _wait(study, "")


def _will_not_start(study: Study, trial: Trial) -> str:
    """What the engine's own arguments and the memory plan have against it; empty if nothing."""
    assert study.engine is not None  # noqa: S101 - `_drive` has looked
    if (copy := trial.files) is None:
        return _("Its model is gone.")
    schema = engine_schema.schema_of(study.engine)
    found = arguments_check.findings(trial.arguments, schema=schema, environment=study.environment, copy=copy)
    if (bad := next((one for one in found if one.severity == "error"), None)) is not None:
        return " ".join(filter(None, (bad.flag, bad.message)))
    values = arguments_check.values_of(schema, trial.arguments) if schema else {}
    rows = list(Device.objects.usable().filter(host=study.host, uuid__in=study.devices))
    world = fitting.world(values)
    there = len(rows) or Device.objects.usable().filter(host=study.host, kind="gpu").count()
    if study.engine.platform != "cpu" and there < world:
        return _("it needs %(wanted)d devices; there are %(there)d.") % {"wanted": world, "there": there}
    plan = fitting.sum_of(
        copy, study.engine, values=values, environment=study.environment, devices=rows[:world], started=True
    )
    reason = next((one for one in plan.reasons if one.severity == "error"), None) if plan is not None else None
    return f"{reason.text[:1].upper()}{reason.text[1:]}." if reason is not None else ""


def _skip_without_room(study: Study, trial: Trial, why: str) -> None:
    now = timezone.now()
    if trial.refused_at is None:
        Trial.objects.filter(pk=trial.pk).update(refused_at=now)
    elif now - trial.refused_at > PATIENCE:
        move(trial, to="skipped", reason=why)
        services.tell(study)
        return
    _wait(study, _("room: %(why)s") % {"why": why})


def _finish(study: Study) -> None:
    """Give the device back: wait for the last engine's end, then start again what was stopped."""
    if study.trials.filter(state="running").exists():
        _wait(study, _("the running measurement to end"))
        return
    left = study.own.instances.filter(state__in=RUNNING_STATES).first() if study.own else None
    if left is not None and timezone.now() - left.state_since <= STUCK:
        _wait(study, _("the last engine to give its memory back"))
        return
    for deployment in Deployment.objects.filter(pk__in=study.stopped):
        if deployment.state == "stopping":
            _wait(study, _("%(name)s to stop, before it is started again") % {"name": deployment})
            return
        _bring_back(study, deployment)
    if study.own is not None:
        _put_away(study.own)
    services.finish(study)


def _bring_back(study: Study, deployment: Deployment) -> None:
    if deployment.state in ("stopped", "failed"):
        why = _("the study “%(title)s” has ended") % {"title": study.title}
        deployments.start(deployment, actor=study.requested_by, reason=why)
    study.stopped = [pk for pk in study.stopped if pk != deployment.pk]
    study.save(update_fields=["stopped"])


def _put_away(own: Deployment) -> None:
    for to in ("stopping", "stopped"):
        if own.STATES.allows(own.state, to):
            move(own, to=to, reason=_("its study has ended"))

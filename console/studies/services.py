"""Studies' verbs: ask for one, cancel it, let it go on, delete it, and take over what it found."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.benchmarks import subjects
from console.benchmarks.services import Question
from console.catalog import consents
from console.catalog.models import Copy
from console.common import live
from console.common.errors import Refused
from console.common.secrets import encrypt
from console.common.states import move
from console.deployments import arguments_check, drafts, engine_schema, form_texts, services
from console.deployments.models import RUNNING_STATES, Deployment, Draft, Instance, Spec
from console.fleet.models import Engine, Host
from console.jobs import services as jobs
from console.studies import variants
from console.studies.models import LIVE_STATES, Study, Trial
from console.studies.variants import Variant
from workers.contracts import Probe, RestartPolicy

BASE_LABEL = "–"


@dataclass(frozen=True)
class Base:
    """What all trials start from. `devices` empty: those with the most room."""

    copy: Copy
    engine: Engine
    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    devices: Sequence[str] = ()
    probe: Probe = field(default_factory=Probe)
    start_deadline_seconds: float = 1800
    deployment: Deployment | None = None

    @classmethod
    def of_deployment(cls, deployment: Deployment) -> "Base":
        """A deployment's current spec. Refused when it has none."""
        spec = deployment.current_spec
        if spec is None:
            raise Refused(_("%(name)s has no spec yet.") % {"name": deployment}, field="deployment")
        return cls(
            copy=spec.copy, engine=spec.engine, arguments=list(spec.arguments), environment=dict(spec.environment),
            devices=list(spec.devices), probe=Probe.model_validate(spec.probe),
            start_deadline_seconds=spec.start_deadline_seconds, deployment=deployment,
        )  # fmt: skip

    @property
    def host(self) -> Host:
        """Where all of it happens."""
        return self.copy.host


@dataclass(frozen=True)
class Order:
    """What is tried, asked, and agreed to."""

    title: str
    variants: Sequence[Variant]
    question: Question
    with_quality: bool = True
    neighbours: str = "leave"
    ready_made: str = ""
    others: Sequence[Copy] = ()
    """Models to try with the base's arguments: a quantised one beside its original."""


def start(base: Base, order: Order, *, actor: User | None, reason: str) -> Study:
    """Write a study down; it begins by itself as soon as its device is free for it.

    Refused when the base can't start at all, an argument is refused by the engine, nothing differs from the base, or
    engines serve on the device and nobody said what shall become of them.
    """
    _check_base(base)
    schema = engine_schema.schema_of(base.engine)
    trials = [(one, variants.applied(base.arguments, one.words, schema)) for one in order.variants]
    trials = [(one, argv) for one, argv in trials if not variants.same(argv, base.arguments, schema)]
    if not trials and not order.others:
        raise Refused(_("None of the changes differs from the base."), field="changes")
    for other in order.others:
        _check_other(base, other)
    for one, argv in trials:
        arguments_check.refuse_guarded(argv, engine=base.engine, actor=actor)
        if arguments_check.forbids(found := arguments_check.findings(argv, schema=schema)):
            raise Refused(_("%(change)s: %(why)s") % {"change": one.label, "why": found[0].message}, field="changes")
    if order.neighbours == "leave" and (there := neighbours(base.host, base.engine, base.devices)):
        raise Refused(
            _("%(names)s runs on this device. Say whether it is measured beside it, or stopped for the study.")
            % {"names": ", ".join(map(str, there))},
            field="neighbours",
        )
    with transaction.atomic():
        study = _store(base, order, actor=actor, reason=reason)
        rows = [Trial(study=study, position=0, label=BASE_LABEL, arguments=base.arguments)]
        rows += [
            Trial(study=study, position=number, label=one.label[:300], changes=list(one.words), arguments=argv)
            for number, (one, argv) in enumerate(trials, start=1)
        ]
        rows += [
            Trial(study=study, position=number, label=_model_label(one), arguments=base.arguments, copy=one)
            for number, one in enumerate(order.others, start=len(rows))
        ]
        Trial.objects.bulk_create(rows)
        _record(study, "study.start", actor=actor, reason=reason, trials=len(rows))
        tell(study)
    return study


def _store(base: Base, order: Order, *, actor: User | None, reason: str) -> Study:
    return Study.objects.create(
        team_id=base.host.team_id, title=order.title[:120], ready_made=order.ready_made, deployment=base.deployment,
        host=base.host, engine=base.engine, copy=base.copy, devices=list(base.devices), arguments=base.arguments,
        environment=base.environment, probe=base.probe.model_dump(mode="json"),
        start_deadline_seconds=base.start_deadline_seconds, profile=order.question.profile,
        dataset=order.question.dataset, with_quality=order.with_quality, neighbours=order.neighbours,
        requested_by=actor, reason=reason, **order.question.stored(),
    )  # fmt: skip


def _check_base(base: Base) -> None:
    services.check_fits_together(base.copy, base.engine, None)
    if base.copy.state != "verified":
        raise Refused(
            _("The files of %(copy)s are %(state)s. Verify them first: each of many starts relies on them.")
            % {"copy": base.copy, "state": base.copy.look.word},
            field="copy",
        )
    consents.refuse_unallowed(base.copy, base.arguments)
    services.check_placement(base.host, devices=base.devices, replicas=1)


def _check_other(base: Base, other: Copy) -> None:
    """Another model must lie on the same host, sound, and may be served as the base is."""
    if other.host_id != base.host.pk:
        raise Refused(
            _("%(copy)s lies on another host than the base, and only the same device can be compared.")
            % {"copy": other},
            field="others",
        )
    if other.pk == base.copy.pk:
        raise Refused(_("%(model)s is the base itself.") % {"model": other.revision.model}, field="others")
    if other.state != "verified":
        raise Refused(
            _("The files of %(copy)s are %(state)s. Verify them first.") % {"copy": other, "state": other.look.word},
            field="others",
        )
    services.check_fits_together(other, base.engine, None)
    consents.refuse_unallowed(other, base.arguments)


def _model_label(copy: Copy) -> str:
    return str(copy.revision.model)[:300]


def neighbours(host: Host, engine: Engine, devices: Sequence[str]) -> list[Instance]:
    """Engines of people that run on these devices (none given, on GPUs: placement finds others), in their order."""
    running = Instance.objects.filter(host=host, state__in=RUNNING_STATES, deployment__for_study=False)
    rows = running.select_related("deployment", "spec__engine", "own_engine", "host").order_by("pk")
    if engine.platform == "cpu":
        return [one for one in rows if one.engine.platform == "cpu"]
    wanted = set(devices)
    return [one for one in rows if wanted & {device.uuid for device in subjects.devices_of(one)}]


def cancel(study: Study, *, actor: User | None, reason: str) -> None:
    """End a study: the engine that is being measured is stopped, what was measured stays, what was stopped comes back."""
    with transaction.atomic():
        study = Study.objects.select_for_update().get(pk=study.pk)
        if not study.is_live:
            raise Refused(_("It has ended already: %(state)s.") % {"state": study.look.word})
        if study.state == "finishing":
            raise Refused(_("It is ending already."))
        _record(study, "study.cancel", actor=actor, reason=reason)
        end(study, "cancelled", reason=reason)
        for trial in study.trials.filter(state="running").select_related("job"):
            if trial.job is not None and trial.job.is_live:
                jobs.cancel(trial.job, actor=actor, reason=reason)


def end(study: Study, ending: str, *, finding: str = "", reason: str = "") -> None:
    """Nothing more is tried. The study ends once its device is free again."""
    for trial in study.trials.filter(state="queued"):
        move(trial, to="cancelled", reason=finding or reason)
    study.ending, study.finding, study.waits_for = ending, finding, ""
    study.save(update_fields=["ending", "finding", "waits_for"])
    move(study, to="finishing", reason=finding or reason)
    tell(study)


def go_on(study: Study, *, actor: User, reason: str) -> None:
    """Try once more what was not measured. What was measured stays."""
    with transaction.atomic():
        study = Study.objects.select_for_update().get(pk=study.pk)
        if study.is_live:
            raise Refused(_("It still runs."))
        if study.copy is None or study.engine is None or study.host is None:
            raise Refused(_("Its model, engine or host is gone."))
        again = list(study.trials.exclude(state="succeeded"))
        if not again:
            raise Refused(_("Everything is measured already."))
        for trial in again:
            Trial.objects.filter(pk=trial.pk).update(
                refused_at=None, benchmark=None, job=None, instance=None, finished_at=None
            )
            move(trial, to="queued", reason=reason, actor=actor)
        study.ending, study.finding, study.finished_at = "", "", None
        study.save(update_fields=["ending", "finding", "finished_at"])
        move(study, to="queued", reason=reason, actor=actor)
        _record(study, "study.go_on", actor=actor, reason=reason)
        tell(study)


def delete(study: Study, *, actor: User) -> None:
    """Delete a study that has ended, with its engines' specs and logs. Its benchmarks stay in their list."""
    if study.is_live:
        raise Refused(_("It still runs. Cancel it first."))
    with transaction.atomic():
        own = study.own
        _record(study, "study.delete", actor=actor)
        study.delete()
        if own is not None:
            services.delete(own, actor=actor, reason=_("its study was deleted"))
        live.changed("study")


def own_deployment(study: Study) -> Deployment:
    """What holds the engines that are measured, made when it is first needed."""
    if study.own is None:
        study.own = Deployment.objects.create(
            name=f"study-{study.pk}-{secrets.token_hex(3)}", team_id=study.team_id, for_study=True,
            api_key=encrypt(f"sk-slipway-{secrets.token_urlsafe(32)}"), created_by=study.requested_by,
            notes=_("Engines of the study “%(title)s”.") % {"title": study.title},
        )  # fmt: skip
        study.save(update_fields=["own"])
    return study.own


def spec_for(study: Study, trial: Trial) -> Spec:
    """The spec that a trial's engine runs by, unsaved. It isn't restarted when it ends: that is a result."""
    return Spec(
        deployment=study.own, copy=trial.files, engine=study.engine, host=study.host, devices=list(study.devices),
        arguments=trial.arguments, environment=study.environment, probe=study.probe, author=study.requested_by,
        restart=RestartPolicy(budget=0).model_dump(), start_deadline_seconds=study.start_deadline_seconds,
        reason=trial.label,
    )  # fmt: skip


def filled_form(trial: Trial, *, actor: User) -> Draft:
    """A draft of the deploy form with a trial's arguments: a change of its deployment, or a new one."""
    study = trial.study
    deployment = study.deployment
    if deployment is not None and deployment.current_spec is not None:
        spec = deployment.current_spec
        words = variants.applied(spec.arguments, trial.changes, engine_schema.schema_of(spec.engine))
        spec.copy = trial.copy or spec.copy
        fields = _fields(spec, words)
    else:
        spec = spec_for(study, trial)
        spec.deployment, spec.replicas = Deployment(name="", notes=""), 1
        spec.restart = RestartPolicy().model_dump()
        fields = {name: value for name, value in _fields(spec, trial.arguments).items() if value not in ("", [])}
    draft = drafts.save(uuid4(), person=actor, fields=fields, deployment=deployment)
    if draft is None:
        raise Refused(_("There is nothing to take over."))
    return draft


def _fields(spec: Spec, words: list[str]) -> dict[str, Any]:
    spec.arguments = words
    return form_texts.of_spec(spec, schema=engine_schema.schema_of(spec.engine)).fields


def holds(deployment: Deployment) -> str:
    """Why a deployment must not be changed now: a study stopped it for a while. Empty if none did."""
    for study in Study.objects.filter(state__in=LIVE_STATES).exclude(stopped=[]):
        if deployment.pk in study.stopped and study.state != "finishing":
            return _("The study “%(title)s” stopped it for a while and starts it again. Cancel that, or wait.") % {
                "title": study.title
            }
    return ""


def tell(study: Study) -> None:
    """What one sees of it may have changed."""
    live.changed("study", study.pk)


def _record(study: Study, action: str, *, actor: User | None, reason: str = "", **more: Any) -> None:
    details: Mapping[str, Any] = more
    access.record(
        actor=actor, action=action, target=study.title, target_url=f"/studies/{study.pk}/", reason=reason, **details
    )


def finish(study: Study) -> None:
    """Its device is free: it has ended."""
    study.finished_at, study.waits_for = timezone.now(), ""
    study.save(update_fields=["finished_at", "waits_for"])
    move(study, to=study.ending or "failed", reason=study.finding)
    tell(study)

"""Quantisation's verbs: bring llm-compressor to a host, take it away, make a quantised model."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.benchmarks.models import Dataset
from console.catalog.models import LOCAL_COMMIT, Copy, Model, Revision
from console.common import live
from console.common.errors import Refused
from console.fleet.models import Host
from console.jobs import copy_checks
from console.jobs import services as jobs
from console.jobs.engine_jobs import check_path
from console.jobs.models import LIVE_STATES, Job, Step
from console.jobs.services import PlannedStep
from console.quantization.models import Quantization, Quantizer
from workers.contracts import StepKind
from workers.quantization_payloads import (
    SCHEMES,
    InstallQuantizerPayload,
    QuantizePayload,
    RemoveQuantizerPayload,
    SchemeName,
)

INSTALL_SECONDS = 2 * 3600
REMOVE_SECONDS = 3600
QUANTIZE_SECONDS = 24 * 3600
"""Calibration of a large model on processors takes a night."""
FEWEST_PROMPTS = 4


@dataclass(frozen=True)
class Order:
    """What to make, and with what."""

    control: Copy
    quantizer: Quantizer
    scheme: SchemeName
    name: str
    ignore: Sequence[str] = ("lm_head",)
    device: str = ""
    dataset: Dataset | None = None
    prompts: Sequence[str] = field(default_factory=list)
    max_tokens: int = 2048


def install(host: Host, *, path: str = "", version: str = "", actor: User | None) -> Job:
    """Install llm-compressor on a host, the newest unless `version` says which; or adopt the environment at `path`."""
    if path:
        check_path(path, field="path")
    payload = InstallQuantizerPayload(path=path, version=version)
    title = _("Adopt llm-compressor on %(host)s") if path else _("Install llm-compressor on %(host)s")
    step = PlannedStep(StepKind.INSTALL_QUANTIZER, payload.model_dump(mode="json"), INSTALL_SECONDS)
    return _on_host(host, "install_quantizer", title, step, actor, path=path, version=version)


def remove(quantizer: Quantizer, *, actor: User, reason: str) -> Job:
    """Take llm-compressor from its host. Models that were made with it stay."""
    busy = Quantization.objects.filter(quantizer=quantizer, job__state__in=LIVE_STATES).first()
    if busy is not None:
        raise Refused(_("It makes %(name)s now. Wait for that job, or cancel it.") % {"name": busy})
    payload = RemoveQuantizerPayload(key=quantizer.key)
    step = PlannedStep(StepKind.REMOVE_QUANTIZER, payload.model_dump(mode="json"), REMOVE_SECONDS)
    title = _("Remove llm-compressor from %(host)s")
    return _on_host(quantizer.host, "remove_quantizer", title, step, actor, reason=reason, key=quantizer.key)


def _on_host(
    host: Host, kind: str, title: str, step: PlannedStep, actor: User | None, *, reason: str = "", **more: Any
) -> Job:
    running = Job.objects.filter(
        kind__in=("install_quantizer", "remove_quantizer"), subject_id=host.pk, state__in=LIVE_STATES
    ).first()
    if running is not None:
        raise Refused(_("“%(job)s” still runs. Wait for it or cancel it.") % {"job": running})
    with transaction.atomic():
        access.record(
            actor=actor, action=f"quantizer.{kind.partition('_')[0]}", target=host.name, target_url=f"/hosts/{host.pk}/",
            reason=reason, **more,
        )  # fmt: skip
        return jobs.create(
            kind=kind, title=title % {"host": host}, host=host, steps=[step], actor=actor, subject=("host", host.pk),
            reason=reason,
        )  # fmt: skip


def installed(step: Step) -> None:
    """Its host has it now."""
    told = step.result
    Quantizer.objects.update_or_create(
        host=step.host, key=told["key"],
        defaults={
            "version": told["version"], "python": told["python"], "adopted": told.get("adopted", False),
            "size_bytes": told.get("size_bytes", 0), "details": told.get("details") or {}, "present": True,
            "seen_at": timezone.now(),
        },
    )  # fmt: skip
    live.changed("host", step.host_id)


def removed(step: Step) -> None:
    """Its host has it no longer."""
    Quantizer.objects.filter(host=step.host, key=step.result.get("key")).update(present=False)
    live.changed("host", step.host_id)


def quantize(order: Order, *, actor: User, reason: str) -> Quantization:
    """Make a quantised model of a verified copy, on its host; it is verified at the end of the job.

    Refused where that can't come to anything: other host, files not sound, quantised already, name taken, no texts.
    """
    copy = order.control
    refuse(copy, order.quantizer)
    _check(order)
    directory = _directory(order)
    payload = QuantizePayload(
        quantizer=order.quantizer.key, model_path=copy.path, name=directory, scheme=order.scheme, device=order.device,
        ignore=list(order.ignore), max_tokens=order.max_tokens,
    )  # fmt: skip
    with transaction.atomic():
        row = Quantization.objects.create(
            team_id=copy.host.team_id, control=copy, quantizer=order.quantizer, model_name=order.name, directory=directory,
            scheme=order.scheme, ignore=list(order.ignore), device=order.device, dataset=order.dataset,
            prompts=list(order.prompts), max_tokens=order.max_tokens, source_bytes=copy.size_bytes, requested_by=actor,
        )  # fmt: skip
        access.record(
            actor=actor, action="model.quantize", target=order.name, target_url=f"/copies/{copy.pk}/", reason=reason,
            scheme=order.scheme, source=str(copy), prompts=len(order.prompts),
        )  # fmt: skip
        row.job = jobs.create(
            kind="quantize",
            title=_("Quantise %(model)s to %(scheme)s on %(host)s")
            % {"model": copy.revision.model, "scheme": order.scheme, "host": copy.host},
            host=copy.host,
            steps=[
                PlannedStep(StepKind.QUANTIZE, payload.model_dump(mode="json"), QUANTIZE_SECONDS),
                PlannedStep(StepKind.VERIFY, {}, copy_checks.VERIFY_SECONDS),
            ],
            actor=actor,
            subject=("copy", copy.pk),
            reason=reason,
            payload={"quantization": row.pk},
        )
        row.save(update_fields=["job"])
        live.changed("model", copy.revision.model_id)
    return row


def refuse(copy: Copy, quantizer: Quantizer | None = None) -> None:
    """Raise Refused if a copy can't be quantised (with this quantiser), with the reason."""
    copy_checks.refuse_busy(copy)
    if copy.state != "verified":
        raise Refused(
            _("The files of %(copy)s are %(state)s. Verify them first.") % {"copy": copy, "state": copy.look.word}
        )
    if method := quantized_as(copy.revision):
        raise Refused(_("Its weights are quantised already (%(method)s). Take the original.") % {"method": method})
    if quantizer is not None and (not quantizer.present or quantizer.host_id != copy.host_id):
        raise Refused(_("llm-compressor is not on %(host)s.") % {"host": copy.host}, field="quantizer")


def quantized_as(revision: Revision) -> str:
    """The method by which a revision's weights are quantised; empty: they are not."""
    facts = revision.facts if isinstance(revision.facts, Mapping) else {}
    return str(facts.get("quantization") or "")


def _check(order: Order) -> None:
    if SCHEMES[order.scheme].calibrated and 0 < len(order.prompts) < FEWEST_PROMPTS:
        raise Refused(
            _("%(few)d texts at least say something of how people ask, some hundreds are usual. Give more, or none.")
            % {"few": FEWEST_PROMPTS}, field="prompts",
        )  # fmt: skip
    if Model.objects.filter(team=order.control.host.team_id, name=order.name).exists():
        raise Refused(_("There is a model with this name already."), field="name")


def _directory(order: Order) -> str:
    """A folder's name for a model's, that no other copy on the host and no job under way has."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", order.name)[:80].strip("-._") or "quantised"
    taken = set(Quantization.objects.filter(job__state__in=LIVE_STATES).values_list("directory", flat=True))
    there = Copy.objects.filter(host=order.control.host).values_list("path", flat=True)
    taken |= {PurePosixPath(path).name for path in there}
    names = (base if number == 1 else f"{base}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def of_job(job: Job) -> Quantization:
    """What a job makes."""
    rows = Quantization.objects.select_related(
        "made__revision__model__origin", "made__host", "control__revision__model", "control__host", "quantizer"
    )
    return rows.get(pk=job.payload["quantization"])


def took_files(row: Quantization, step: Step) -> None:
    """The files are there: they become a copy of a model of its own, which remembers what it comes from."""
    row.size_bytes, row.source_bytes = step.result.get("size_bytes", 0), step.result.get("source_bytes", 0)
    if row.made is None:
        row.made = _copy_of(row, step)
        Job.objects.filter(pk=step.job_id).update(subject_id=row.made.pk)
    row.save(update_fields=["size_bytes", "source_bytes", "made"])
    live.changed("model", row.made.revision.model_id)


def _copy_of(row: Quantization, step: Step) -> Copy:
    path = str(step.result["model_path"])
    if (known := Copy.objects.filter(host=step.host, path=path).first()) is not None:
        return known  # someone added the directory by hand meanwhile
    control = row.control.revision if row.control else None
    model = _model(row, license=control.model.license if control else "")
    origin = {
        "scheme": row.scheme, "from": str(control or ""), "quantizer": str(row.quantizer or ""),
        "prompts": len(row.prompts),
    }  # fmt: skip
    revision = Revision.objects.create(model=model, commit=LOCAL_COMMIT, facts={"quantized_from": origin})
    return Copy.objects.create(revision=revision, host=step.host, path=path, size_bytes=row.size_bytes)


def _model(row: Quantization, *, license: str) -> Model:
    for number in range(1, 100):
        name = row.model_name if number == 1 else f"{row.model_name[:110]} ({number})"
        try:
            with transaction.atomic():
                return Model.objects.create(team_id=row.team_id, name=name, license=license)
        except IntegrityError:
            continue  # it was free when the job was asked for
    raise Refused(_("There are too many models called %s. Rename one.") % row.model_name)

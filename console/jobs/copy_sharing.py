"""Copying a model from a host that has it: one job whose first step opens the copy there and whose others run here.

The giving host gets an offer in its desired state for as long as the receiving host fetches, and both get the job's own
token, sealed. What a file must be is taken from the console's manifest and the source's list, never from the giving host.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.catalog.models import Copy, Revision
from console.common import live
from console.common.errors import Refused
from console.common.secrets import decrypt, encrypt
from console.common.states import move
from console.fleet import desired
from console.fleet.models import Host
from console.jobs import copy_jobs, services
from console.jobs.copy_checks import verify_payload, verify_step
from console.jobs.kinds import register
from console.jobs.models import Job, Step
from console.jobs.services import PlannedStep
from workers.contracts import CopyOffer, StepKind
from workers.sealing import seal
from workers.step_payloads import DownloadPayload, ServeCopyPayload

KIND = "copy"
OPEN_SECONDS = 120
PATIENCE_SECONDS = 120
"""Hosts of one network reach each other at once or not at all; a giving host that restarts is back sooner."""
_GIVER_AT_FAULT = ("copy.source_changed", "copy.checksum_mismatch")


def givers(revision: Revision) -> list[Copy]:
    """Copies that can be given to another host: verified, every byte of them hashed. Online hosts come first."""
    rows = Copy.objects.filter(revision=revision, state="verified").select_related("revision__model__origin", "host")
    return _sorted_givers(rows)


def givers_by_revision() -> dict[int, list[Copy]]:
    """`givers` of all revisions, in a number of queries that doesn't grow with them."""
    rows = Copy.objects.filter(state="verified").select_related("revision__model__origin", "host")
    found: dict[int, list[Copy]] = {}
    for copy in _sorted_givers(rows.prefetch_related("revision__files")):
        found.setdefault(copy.revision_id, []).append(copy)
    return found


def _sorted_givers(rows: Iterable[Copy]) -> list[Copy]:
    found = [copy for copy in rows if (files := _files_of(copy)) and all(file.get("sha256") for file in files)]
    return sorted(found, key=lambda copy: (not copy.host.is_online, copy.host.name))


def paths_of(giver: Copy) -> list[str]:
    """What a giving copy holds."""
    return [str(file["path"]) for file in _files_of(giver)]


def folder_of(giver: Copy) -> str:
    """Folder of the receiving copy until its host says where it lies: unique on that host."""
    return f"hub/{_repository(giver.revision)}/{_commit(giver)}"


def fetch_steps(
    giver: Copy, *, rate_limit: int = 0, repair: Sequence[str] = ()
) -> tuple[list[PlannedStep], dict[str, Any]]:
    """Steps with which a host fetches from `giver`'s host, and what their job's payload must say for them."""
    steps = [
        PlannedStep(StepKind.SERVE_COPY, {}, OPEN_SECONDS, host=giver.host),
        PlannedStep(StepKind.DOWNLOAD, {"rate_limit": rate_limit, "repair": list(repair)}, copy_jobs.DOWNLOAD_SECONDS),
    ]
    return steps, {"giver": giver.pk, "token": encrypt(secrets.token_urlsafe(32))}


def share(giver: Copy, *, hosts: Sequence[Host], actor: User, idempotency_key: str, rate_limit: int = 0) -> list[Job]:
    """Copy `giver`'s files to each host and verify them there. One job per host.

    The same `idempotency_key` again returns the jobs of the first call.
    """
    if known := list(Job.objects.filter(idempotency_key__startswith=f"{idempotency_key}-").order_by("pk")):
        return known
    _refuse_giver(giver)
    try:
        with transaction.atomic():
            jobs = [_share_with(host, giver, actor, f"{idempotency_key}-{host.pk}", rate_limit) for host in hosts]
            access.record(
                actor=actor, action="copy.share", target=str(giver), target_url=f"/copies/{giver.pk}/",
                hosts=", ".join(host.name for host in hosts), source=giver.host.name,
            )  # fmt: skip
            live.changed("model", giver.revision.model_id)
    except IntegrityError:
        raise Refused(_("Someone else has just started the same copy. Look at the jobs."), field="hosts") from None
    return jobs


def repair(copy: Copy, *, actor: User, reason: str = "") -> Job:
    """Fetch the bad files of a copy again, and verify it: from its source, else from another host that has the same files."""
    giver = giver_for_repair(copy)
    if giver is None:
        return copy_jobs.repair(copy, actor=actor, reason=reason)
    with transaction.atomic():
        bad = copy_jobs.begin_repair(copy, actor=actor, reason=reason)
        steps, payload = fetch_steps(giver, repair=bad)
        return services.create(
            kind=KIND,
            title=_("Repair %(model)s on %(host)s from %(giver)s")
            % {"model": copy.revision.model, "host": copy.host, "giver": giver.host},
            host=copy.host,
            steps=[*steps, verify_step(copy)],
            actor=actor,
            subject=("copy", copy.pk),
            reason=reason,
            payload=payload,
        )


def giver_for_repair(copy: Copy) -> Copy | None:
    """The copy that repairs one whose model has no source; None if it has one, or lies where nothing is fetched to."""
    if copy.revision.is_pinned and copy.revision.model.origin is not None:
        return None
    found = (one for one in givers(copy.revision) if one.host_id != copy.host_id and one.host.is_online)
    giver = next(found, None)
    if giver is None:
        return None
    folder = f"models--{_repository(giver.revision).replace('/', '--')}/snapshots/{_commit(giver)}"
    return giver if copy.path.endswith(folder) else None


def _refuse_giver(giver: Copy) -> None:
    if giver.pk not in {copy.pk for copy in givers(giver.revision)}:
        raise Refused(
            _("The copy on %(host)s is not verified byte by byte. Verify it first.") % {"host": giver.host},
            field="source",
        )
    if not giver.host.is_online:
        raise Refused(
            _("%(host)s is offline, so nothing can be copied from it. Choose another source.") % {"host": giver.host},
            field="source",
        )


def _share_with(host: Host, giver: Copy, actor: User, key: str, rate_limit: int) -> Job:
    if host.pk == giver.host_id:
        raise Refused(_("%(host)s has it already.") % {"host": host}, field="hosts")
    copy = copy_jobs.receiving_copy(host, giver.revision, paths_of(giver), actor, path=folder_of(giver))
    steps, payload = fetch_steps(giver, rate_limit=rate_limit)
    return services.create(
        kind=KIND,
        title=_("Copy %(model)s from %(giver)s to %(host)s")
        % {"model": giver.revision.model, "giver": giver.host, "host": host},
        host=host,
        steps=[*steps, verify_step(copy)],
        actor=actor,
        subject=("copy", copy.pk),
        payload=payload,
        idempotency_key=key,
    )


def _files_of(copy: Copy) -> list[Mapping[str, Any]]:
    """The manifest's files; of a published revision only those that its source lists."""
    found = copy.manifest.get("files") if isinstance(copy.manifest, Mapping) else None
    if not copy.revision.is_pinned:
        return list(found or [])
    listed = {file.path for file in copy.revision.files.all()}
    return [file for file in found or [] if file["path"] in listed]


def _repository(revision: Revision) -> str:
    """Under which name the files lie in a hub cache; a directory's model has no repository of its own."""
    if revision.model.repository:
        return revision.model.repository
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", revision.model.name).strip("-")
    return f"slipway/{name or 'model'}-{revision.model_id}"


def _commit(giver: Copy) -> str:
    """The commit, or for a directory a digest of what was verified: other files get another directory."""
    if giver.revision.is_pinned:
        return giver.revision.commit
    lines = sorted(f"{file['path']}\0{file['sha256']}\n" for file in _files_of(giver))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:40]


class CopyHandler(copy_jobs.FetchHandler):
    """Copy: the giving host opens, the receiving one fetches and verifies."""

    def payload(self, step: Step) -> dict[str, Any]:
        """What the giving host may give, where the receiving one fetches, what the verification compares with."""
        giver = giver_of(step.job)
        if step.kind == StepKind.SERVE_COPY:
            return self._serve(step, giver)
        if step.kind == StepKind.DOWNLOAD:
            return self._download(step, giver)
        payload = verify_payload(copy_jobs.copy_of(step.job), launch=False)
        payload["checksums"] += sums_of(giver)
        return payload

    def _serve(self, step: Step, giver: Copy) -> dict[str, Any]:
        machines = {step.host.facts.get("boot_id"), copy_jobs.copy_of(step.job).host.facts.get("boot_id")}
        return ServeCopyPayload.model_validate(
            {
                "offer": step.job_id,
                "model_path": giver.path,
                "files": _files_of(giver),
                "same_machine": len(machines) == 1 and None not in machines,
            }
        ).model_dump(mode="json")

    def _download(self, step: Step, giver: Copy) -> dict[str, Any]:
        opened = step.job.steps.get(kind=StepKind.SERVE_COPY)
        listed = {file.path: file for file in giver.revision.files.all()}
        files = []
        for file in _files_of(giver):
            known = listed.get(file["path"])
            # Blobs are named by the digest that the source gives, so that a later repair from there finds them.
            oid = known.git_oid if known and giver.revision.is_pinned and not known.sha256 else ""
            digest = {"git_oid": oid} if oid else {"sha256": (known.sha256 if known else "") or file["sha256"]}
            files.append({"path": file["path"], "size": file["size"], **digest})
        return DownloadPayload.model_validate(
            {
                "source": "mirror",
                "endpoint": opened.result.get("endpoint", ""),
                "repository": _repository(giver.revision),
                "commit": _commit(giver),
                "revision": giver.revision.ref,
                "files": files,
                "rate_limit": step.payload.get("rate_limit", 0),
                "repair": step.payload.get("repair", []),
                "patience_seconds": PATIENCE_SECONDS,
                "giver": giver.host.name,
            }
        ).model_dump(mode="json")

    def secrets(self, step: Step) -> dict[str, str]:
        """The job's token, for the receiving host; the giving one has it in its offer."""
        return {"hub_token": decrypt(step.job.payload["token"])} if step.kind == StepKind.DOWNLOAD else {}

    def before_step(self, step: Step) -> None:
        """The giving host opens for what its desired state offers: offer it now."""
        if step.kind == StepKind.SERVE_COPY:
            desired.change(step.host)

    def step_succeeded(self, step: Step) -> None:
        """What was fetched is kept; then nobody needs the giving host any more."""
        if step.kind == StepKind.SERVE_COPY:
            return
        super().step_succeeded(step)
        if step.kind == StepKind.DOWNLOAD:
            desired.change(giver_of(step.job).host)

    def job_failed(self, job: Job, step: Step) -> None:
        """Close the giving host's copy; if its files are not what they were, it has to be verified anew."""
        super().job_failed(job, step)
        giver, failure = giver_of(job), step.failure or {}
        desired.change(giver.host)
        if failure.get("code") in _GIVER_AT_FAULT and giver.state == "verified":
            move(giver, to="unverified", reason=failure.get("message", ""))
            live.changed("model", giver.revision.model_id)

    def job_cancelled(self, job: Job) -> None:
        """Close the giving host's copy; parts stay for the next try."""
        super().job_cancelled(job)
        desired.change(giver_of(job).host)

    def resume_from(self, step: Step) -> int:
        """A copy that was closed has to be opened again before anything is fetched."""
        return step.position if step.kind == StepKind.VERIFY else 1

    def before_retry(self, job: Job, step: Step) -> None:
        """The giving host must still have it."""
        if step.kind != StepKind.VERIFY:
            _refuse_giver(giver_of(job))
        super().before_retry(job, step)


def sums_of(giver: Copy) -> list[dict[str, str]]:
    """What a verification of files that came from `giver` compares them with."""
    source = _("the copy on %(host)s") % {"host": giver.host}
    return [
        {"path": file["path"], "algorithm": "sha256", "digest": file["sha256"], "source": source}
        for file in _files_of(giver)
    ]


def giver_of(job: Job) -> Copy:
    """The copy that a job copies from."""
    return Copy.objects.select_related("revision__model__origin", "host").get(pk=job.payload["giver"])


def offers(host: Host) -> dict[str, Any]:
    """What a host gives to others now: part of its desired state."""
    steps = host.steps.filter(
        kind=StepKind.SERVE_COPY, job__state__in=("queued", "running"), sent_at__isnull=False
    ).select_related("job")
    done = Step.objects.filter(job__in=[step.job_id for step in steps], kind=StepKind.DOWNLOAD, state="succeeded")
    over = set(done.values_list("job_id", flat=True))
    return {"copy_offers": [_offer(host, step.job) for step in steps if step.job_id not in over]}


def _offer(host: Host, job: Job) -> CopyOffer:
    giver = giver_of(job)
    return CopyOffer(
        number=job.pk,
        model_path=giver.path,
        repository=_repository(giver.revision),
        commit=_commit(giver),
        sealed_token=seal(host.public_key, decrypt(job.payload["token"])),
    )


def register_handlers() -> None:
    """Called once, when the app is ready."""
    register(KIND, CopyHandler())

"""Jobs about copies of models: download, repair, delete; and forgetting a copy without touching its files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.access import services as access
from console.access.models import User
from console.catalog import lookups
from console.catalog.models import Copy, File, Model, Revision, Source
from console.common import live
from console.common.errors import Refused
from console.common.spans import readable_bytes
from console.common.states import move
from console.fleet.models import Host
from console.fleet.usage import usage_of
from console.jobs import services
from console.jobs.copy_checks import (
    bad_files,
    refuse_busy,
    store_damage,
    store_verification,
    store_wrong_source,
    trim_result,
    verify_payload,
    verify_step,
)
from console.jobs.kinds import JobHandler, register
from console.jobs.models import Job, Step
from console.jobs.services import PlannedStep
from workers.contracts import StepKind
from workers.step_payloads import DeleteCopyPayload, DownloadPayload
from workers.weights.hub_types import RepositoryFacts

DOWNLOAD_SECONDS = 7 * 24 * 3600
"""A download is slow, not stuck: the step itself fails when the source gives nothing for an hour."""
DELETE_SECONDS = 3600
WRONG_BYTES = "hub.checksum_mismatch"
"""Code with which a download ends when its source sent a file twice, and twice not as its listing says."""
NOTHING_REMOVED = ("path.outside", "path.not_a_copy", "copy.in_use")
"""Codes with which a host refuses a deletion before it touches a file."""


@dataclass(frozen=True)
class Wish:
    """A repository at a commit, the files to fetch, and under which name the model is known here."""

    source: Source
    facts: RepositoryFacts
    files: Sequence[str]
    name: str
    license: str = ""
    notes: str = ""
    rate_limit: int = 0
    """Bytes per second on each host; 0: no limit."""


def download(wish: Wish, *, hosts: Sequence[Host], actor: User, idempotency_key: str) -> list[Job]:
    """Fetch the chosen files of a pinned revision to each host, and verify them there. One job per host.

    The same `idempotency_key` again returns the jobs of the first call.
    """
    if known := list(Job.objects.filter(idempotency_key__startswith=f"{idempotency_key}-").order_by("pk")):
        return known
    lookups.refuse_gated(wish.facts)
    chosen = set(wish.files) & {file.path for file in wish.facts.files}
    if not chosen:
        raise Refused(_("Choose at least one file."), field="files")
    try:
        with transaction.atomic():
            revision = _revision(wish, actor)
            jobs = [
                _download_to(host, revision, sorted(chosen), actor, idempotency_key, wish.rate_limit) for host in hosts
            ]
            access.record(
                actor=actor, action="model.download", target=wish.name, target_url=f"/models/{revision.model_id}/",
                repository=wish.facts.repository, commit=wish.facts.commit, files=len(chosen),
                hosts=", ".join(host.name for host in hosts), source=wish.source.name,
            )  # fmt: skip
            live.changed("model", revision.model_id)
    except IntegrityError:
        raise Refused(_("Someone else has just started the same download. Look at the jobs."), field="hosts") from None
    return jobs


def _revision(wish: Wish, actor: User) -> Revision:
    """The pinned revision with the files that the source lists; the model is made or found."""
    facts = wish.facts
    model = Model.objects.filter(team=actor.team, origin=wish.source, repository=facts.repository).first()
    if model is None:
        try:
            with transaction.atomic():
                model = Model.objects.create(
                    team=actor.team, name=wish.name, source=wish.source.kind, origin=wish.source,
                    repository=facts.repository, license=wish.license[:60], notes=wish.notes,
                )  # fmt: skip
        except IntegrityError:
            raise Refused(_("There is a model with this name already."), field="name") from None
    config = facts.config
    known = {
        "parameters": facts.parameters,
        "torch_dtype": config.dtype,
        "quantization": config.quantization,
        "max_position_embeddings": config.context_length,
    }
    revision, fresh = Revision.objects.get_or_create(
        model=model,
        commit=facts.commit,
        defaults={
            "ref": facts.revision[:120],
            "gated": facts.gated,
            "architecture": config.architecture[:80],
            "facts": {name: value for name, value in known.items() if value},
            "size_bytes": sum(file.size for file in facts.files if file.path in set(wish.files)),
        },
    )
    if fresh:
        File.objects.bulk_create(
            File(revision=revision, path=one.path, size_bytes=one.size, sha256=one.sha256, git_oid=one.git_oid)
            for one in facts.files
        )
    return revision


def _download_to(host: Host, revision: Revision, files: list[str], actor: User, key: str, rate_limit: int) -> Job:
    copy = receiving_copy(host, revision, files, actor, path=f"hub/{revision.model.repository}/{revision.commit}")
    payload = download_payload(copy, rate_limit=rate_limit)
    title = _("Download %(model)s to %(host)s")
    return _fetch(copy, kind="download", title=title, actor=actor, key=f"{key}-{host.pk}", payload=payload)


def receiving_copy(host: Host, revision: Revision, files: list[str], actor: User | None, *, path: str) -> Copy:
    """The copy that a revision's files on a host will be, made or taken up again. Raises Refused if it is there.

    Where it will lie is said by the host; until then `path`, the name of its folder, keeps it unique.
    """
    _refuse_adopted(host, revision)
    copy = Copy.objects.filter(revision=revision, host=host).select_related("revision__model__origin", "host").first()
    if copy is None:
        return Copy.objects.create(revision=revision, host=host, path=path, state="downloading", selection=files)
    if copy.state in ("verified", "unverified"):
        raise Refused(
            _("%(host)s has this revision already, in %(path)s.") % {"host": host, "path": copy.path}, field="hosts"
        )
    if copy.state != "removed":
        refuse_busy(copy)
    copy.selection = files
    copy.save(update_fields=["selection"])
    move(copy, to="downloading", reason=_("asked for"), actor=actor)
    return copy


def fetch_to(
    revision: Revision,
    files: Sequence[str],
    *,
    hosts: Sequence[Host],
    actor: User,
    idempotency_key: str,
    rate_limit: int,
) -> list[Job]:
    """Fetch a revision that is known here from its source to more hosts. One job per host."""
    if known := list(Job.objects.filter(idempotency_key__startswith=f"{idempotency_key}-").order_by("pk")):
        return known
    with transaction.atomic():
        jobs = [_download_to(host, revision, sorted(files), actor, idempotency_key, rate_limit) for host in hosts]
        access.record(
            actor=actor, action="model.download", target=str(revision.model), target_url=f"/models/{revision.model_id}/",
            repository=revision.model.repository, commit=revision.commit, files=len(files),
            hosts=", ".join(host.name for host in hosts), source=str(revision.model.origin),
        )  # fmt: skip
        live.changed("model", revision.model_id)
    return jobs


def _refuse_adopted(host: Host, revision: Revision) -> None:
    """The hub cache's directory of this revision may have been added as a plain directory before."""
    folder = f"models--{revision.model.repository.replace('/', '--')}/snapshots/{revision.commit}"
    adopted = Copy.objects.filter(host=host, path__endswith=folder).exclude(revision=revision).exclude(state="removed")
    if known := adopted.select_related("revision__model").first():
        raise Refused(
            _("%(host)s has these files already, known as %(model)s.") % {"host": host, "model": known.revision.model},
            field="hosts",
        )


def repair(copy: Copy, *, actor: User, reason: str = "") -> Job:
    """Fetch the bad files of a copy from its source again, and verify it; files that are sound stay as they are."""
    refuse_busy(copy)
    if not copy.revision.is_pinned or copy.revision.model.origin is None:
        raise Refused(
            _("Nobody knows where this copy came from, so its files can't be fetched again. Put them right by hand.")
        )
    title = _("Download %(model)s to %(host)s") if copy.is_partial else _("Repair %(model)s on %(host)s")
    with transaction.atomic():
        bad = begin_repair(copy, actor=actor, reason=reason)
        return _fetch(copy, kind="repair", title=title, actor=actor, payload=download_payload(copy, repair=bad))


def begin_repair(copy: Copy, *, actor: User, reason: str) -> list[str]:
    """Mark a copy as being repaired; returns the files to fetch again. Refused while something serves from it."""
    refuse_busy(copy)
    usage = usage_of([copy])[copy.pk]
    if usage.live:
        raise Refused(_("In use by %(names)s. Stop them first.") % {"names": usage.live_names})
    bad = bad_files(copy) or list(copy.selection) or [file.path for file in copy.revision.files.all()]
    move(copy, to="downloading", reason=_("repair"), actor=actor)
    access.record(
        actor=actor, action="copy.repair", target=str(copy), target_url=f"/copies/{copy.pk}/", reason=reason,
        files=len(bad),
    )  # fmt: skip
    live.changed("model", copy.revision.model_id)
    return bad


def _fetch(copy: Copy, *, kind: str, title: str, actor: User, payload: dict[str, Any], key: str | None = None) -> Job:
    return services.create(
        kind=kind,
        title=title % {"model": copy.revision.model, "host": copy.host},
        host=copy.host,
        steps=[
            PlannedStep(StepKind.DOWNLOAD, payload, DOWNLOAD_SECONDS),
            verify_step(copy),
        ],
        actor=actor,
        subject=("copy", copy.pk),
        idempotency_key=key,
    )


def download_payload(copy: Copy, *, repair: Sequence[str] = (), rate_limit: int = 0) -> dict[str, Any]:
    """Payload of a step that fetches a copy's chosen files from its model's source."""
    revision = copy.revision
    origin = revision.model.origin
    if origin is None:
        raise Refused(_("The source of %(model)s was removed.") % {"model": revision.model})
    chosen = set(copy.selection)
    return DownloadPayload.model_validate(
        {
            "source": origin.kind,
            "endpoint": origin.endpoint,
            "repository": revision.model.repository,
            "commit": revision.commit,
            "revision": revision.ref,
            "files": [
                {"path": file.path, "size": file.size_bytes, "sha256": file.sha256, "git_oid": file.git_oid}
                for file in revision.files.all()
                if not chosen or file.path in chosen
            ],
            "repair": list(repair),
            "rate_limit": rate_limit,
        }
    ).model_dump(mode="json")


def delete(copy: Copy, *, actor: User, reason: str) -> Job:
    """Remove a copy's files from its host. Refused while something serves from it."""
    refuse_busy(copy)
    refuse_in_use(copy)
    steps, before = _delete_steps(copy), copy.state
    with transaction.atomic():
        move(copy, to="deleting", reason=reason, actor=actor)
        access.record(
            actor=actor, action="copy.delete", target=str(copy), target_url=f"/copies/{copy.pk}/", reason=reason,
            path=copy.path,
        )  # fmt: skip
        live.changed("model", copy.revision.model_id)
        return services.create(
            kind="delete_copy",
            title=_("Delete %(model)s from %(host)s") % {"model": copy.revision.model, "host": copy.host},
            host=copy.host,
            steps=steps,
            actor=actor,
            subject=("copy", copy.pk),
            reason=reason,
            payload={"before": before},
        )


def _delete_steps(copy: Copy) -> list[PlannedStep]:
    """The files, as far as a download got to a directory; and the parts, if one stopped half-way."""
    payloads = []
    if copy.path.startswith("/"):
        payloads.append(DeleteCopyPayload(model_path=copy.path))
    if copy.state == "incomplete" and copy.revision.model.repository:
        payloads.append(DeleteCopyPayload(repository=copy.revision.model.repository, parts_only=True))
    return [PlannedStep(StepKind.DELETE_COPY, payload.model_dump(mode="json"), DELETE_SECONDS) for payload in payloads]


def forget(copy: Copy, *, actor: User, reason: str) -> None:
    """Take a copy out of the catalogue; its files stay where they are."""
    refuse_busy(copy)
    refuse_in_use(copy)
    with transaction.atomic():
        move(copy, to="removed", reason=reason, actor=actor)
        access.record(
            actor=actor, action="copy.forget", target=str(copy), reason=reason, path=copy.path,
            target_url=f"/models/{copy.revision.model_id}/",
        )  # fmt: skip
        live.changed("model", copy.revision.model_id)


def refuse_in_use(copy: Copy) -> None:
    """Raise Refused, with names, while deployments serve from a copy."""
    usage = usage_of([copy])[copy.pk]
    if usage.live:
        raise Refused(
            ngettext(
                "%(names)s serves from this copy. Stop it first.",
                "%(names)s serve from this copy. Stop them first.",
                len(usage.live),
            )
            % {"names": usage.live_names}
        )


class FetchHandler(JobHandler):
    """Download and repair: both end with a verified copy."""

    def payload(self, step: Step) -> dict[str, Any]:
        """The verification compares with what the source published."""
        if step.kind == StepKind.VERIFY:
            return verify_payload(copy_of(step.job), launch=False)
        payload = dict(step.payload)
        if origin := copy_of(step.job).revision.model.origin:
            # The token that goes along is the source's of today: it must not reach an address of yesterday.
            payload |= {"source": origin.kind, "endpoint": origin.endpoint}
        return payload

    def secrets(self, step: Step) -> dict[str, str]:
        """The source's token, for the download alone."""
        origin = copy_of(step.job).revision.model.origin
        if step.kind != StepKind.DOWNLOAD or origin is None or not origin.token:
            return {}
        return {"hub_token": lookups.token_of(origin)}

    def step_succeeded(self, step: Step) -> None:
        """Take over where the files lie, then what their verification said."""
        copy = copy_of(step.job)
        if step.kind == StepKind.VERIFY:
            store_verification(copy, step.result, job=step.job_id)
            trim_result(step)
            return
        copy.path = str(step.result["model_path"])
        copy.size_bytes = int(step.result.get("size_bytes") or 0)
        Copy.objects.filter(host=copy.host, path=copy.path, state="removed").exclude(pk=copy.pk).update(
            path=f"removed-{copy.pk}:{copy.path}"[:500]
        )
        copy.save(update_fields=["path", "size_bytes"])
        if copy.state == "downloading":
            fetched = readable_bytes(step.result.get("fetched_bytes") or 0)
            move(copy, to="unverified", reason=_("%(size)s fetched") % {"size": fetched})
        live.changed("model", copy.revision.model_id)

    def job_failed(self, job: Job, step: Step) -> None:
        """Parts stay for a retry; a copy that failed its verification is damaged."""
        if step.kind == StepKind.VERIFY:
            store_damage(copy_of(job), step.failure or {}, job=job.pk, fetched=True)
        else:
            failure = step.failure or {}
            if failure.get("code") == WRONG_BYTES:
                store_wrong_source(copy_of(job), failure, job=job.pk)
            self._stop_half_way(job, failure.get("message", ""))

    def job_cancelled(self, job: Job) -> None:
        """Parts stay for the next try."""
        self._stop_half_way(job, _why_cancelled(job))

    def _stop_half_way(self, job: Job, reason: str) -> None:
        copy = copy_of(job)
        if copy.state == "downloading":
            move(copy, to="incomplete", reason=reason)
            live.changed("model", copy.revision.model_id)

    def before_retry(self, job: Job, step: Step) -> None:
        """The download goes on where it stopped."""
        copy = copy_of(job)
        if copy.state == "removed":
            raise Refused(_("This copy was removed meanwhile. Download it anew."))
        if step.kind != StepKind.VERIFY and copy.state != "downloading":
            move(copy, to="downloading", reason=_("retried"))
            live.changed("model", copy.revision.model_id)


class DeleteHandler(JobHandler):
    """Delete: a copy is only said to be removed once its host has removed it."""

    def job_succeeded(self, job: Job) -> None:
        """The files are gone."""
        self._end(job, "removed", job.reason)

    def job_failed(self, job: Job, step: Step) -> None:
        """Some files may be gone, unless the host says that it refused to remove any."""
        failure = step.failure or {}
        untouched = failure.get("code") in NOTHING_REMOVED and step.position == 1
        self._end(job, job.payload.get("before") if untouched else "incomplete", failure.get("message", ""))

    def job_cancelled(self, job: Job) -> None:
        """Some files may be gone: the next launch looks."""
        self._end(job, "unverified", _why_cancelled(job))

    def before_retry(self, job: Job, step: Step) -> None:  # noqa: ARG002
        """Deleting again, if nobody uses it by now."""
        copy = copy_of(job)
        refuse_in_use(copy)
        if copy.state != "deleting":
            move(copy, to="deleting", reason=_("retried"))

    def _end(self, job: Job, state: str | None, reason: str) -> None:
        copy = copy_of(job)
        if copy.state == "deleting":
            move(copy, to=state or "unverified", reason=reason)
        live.changed("model", copy.revision.model_id)


def _why_cancelled(job: Job) -> str:
    return _("cancelled: “%(reason)s”") % {"reason": job.state_reason} if job.state_reason else _("cancelled")


def copy_of(job: Job) -> Copy:
    """The copy that a job is about, or that it fetches on its way."""
    pk = job.payload.get("fetch") or job.about
    return Copy.objects.select_related("revision__model__origin", "host").get(pk=pk)


def register_handlers() -> None:
    """Called once, when the app is ready."""
    register("download", FetchHandler())
    register("repair", FetchHandler())
    register("delete_copy", DeleteHandler())

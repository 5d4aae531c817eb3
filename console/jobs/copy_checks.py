"""What a verification is told and what comes of it: the manifest, the sources' checksums, and what an admin allowed."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from console.catalog import consents
from console.catalog.models import Copy, File
from console.common import live
from console.common.errors import Refused
from console.common.states import move
from console.jobs.models import LIVE_STATES, Job, Step
from console.jobs.services import PlannedStep, refuse_while_busy
from workers.contracts import StepKind
from workers.step_payloads import VerifyPayload

VERIFY_SECONDS = 6 * 3600
_STORED_ELSEWHERE = frozenset({"manifest", "shape"})
HELD_CODE = "consent.required"
"""Code of a verify step that found nothing wrong, but code that nobody has allowed."""


_on_judgement: list[Callable[[Copy], None]] = []


def on_judgement(callback: Callable[[Copy], None]) -> None:
    """Register what an app does when a copy was found sound or damaged. Called once, from an app's `ready`."""
    if callback not in _on_judgement:
        _on_judgement.append(callback)


def verify_step(copy: Copy) -> PlannedStep:
    """The step that checks a copy's files; what it is told in detail is put together when it is sent."""
    payload = VerifyPayload(model_path=copy.path, mode="full").model_dump(mode="json", exclude_defaults=True)
    return PlannedStep(StepKind.VERIFY, payload, VERIFY_SECONDS)


def verify_payload(copy: Copy, *, launch: bool) -> dict[str, Any]:
    """Everything a host needs to verify a copy now.

    A launch trusts files that were not touched since the last sound verification, and takes no code that no admin
    allowed; a verification by itself reads every byte and only reports such code.
    """
    allowed = consents.allowed_codes(copy)
    needed = [code for code in consents.CODES.values() if code not in allowed] if launch else []
    manifest = copy.manifest.get("files", []) if isinstance(copy.manifest, Mapping) else []
    held = consents.codes_of(copy) & set(needed)
    return VerifyPayload.model_validate(
        {
            "model_path": copy.path,
            "mode": "full",
            "manifest": manifest,
            "trust_unchanged": launch and copy.state == "verified" and not held,
            "pinned": copy.revision.is_pinned,
            "checksums": _published(copy),
            "allowed": allowed if launch else list(consents.CODES.values()),
            "consent_needed": needed,
        }
    ).model_dump(mode="json")


def _published(copy: Copy) -> list[dict[str, str]]:
    """Sums that the copy's source gives for the files that were fetched."""
    if not copy.revision.is_pinned:
        return []
    chosen = set(copy.selection or [])
    model = copy.revision.model
    source = str(model.origin) if model.origin else str(model.get_source_display())
    found = []
    for file in copy.revision.files.all():
        if (chosen and file.path not in chosen) or not (file.sha256 or file.git_oid):
            continue
        algorithm, digest = ("sha256", file.sha256) if file.sha256 else ("git", file.git_oid)
        found.append({"path": file.path, "algorithm": algorithm, "digest": digest, "source": source})
    return found


def store_verification(copy: Copy, result: Mapping[str, Any], *, job: int | None = None) -> None:
    """Take over what a verify step found in a copy whose files are sound."""
    copy.checked_at = timezone.now()
    _store_shape(copy, result)
    if result.get("unchanged"):
        copy.save(update_fields=["checked_at"])
        live.changed("model", copy.revision.model_id)
        return
    files = list(result.get("manifest") or [])
    copy.size_bytes = result.get("size_bytes", 0)
    copy.verified_at = copy.checked_at
    copy.verification = {name: value for name, value in result.items() if name not in _STORED_ELSEWHERE} | {"job": job}
    if files:
        copy.manifest = {"files": files}
    with transaction.atomic():
        copy.save(update_fields=["size_bytes", "verified_at", "checked_at", "verification", "manifest"])
        move(copy, to="verified", reason=_("files are complete"))
        _store_facts(copy, result.get("details") or {}, files)
        _tell_judgement(copy)
    live.changed("model", copy.revision.model_id)


def trim_result(step: Step) -> None:
    """Manifest and shape stand with copy and revision; a second one in the ledger would only make it heavy."""
    if not _STORED_ELSEWHERE.isdisjoint(step.result):
        step.result = {name: value for name, value in step.result.items() if name not in _STORED_ELSEWHERE}
        step.save(update_fields=["result"])


def _store_shape(copy: Copy, result: Mapping[str, Any]) -> None:
    """Keep what memory is planned with: files that were read tell more than a hub's list of them."""
    if result.get("shape"):
        copy.revision.shape = result["shape"]
        copy.revision.save(update_fields=["shape"])


def _store_facts(copy: Copy, details: Mapping[str, Any], files: list[Mapping[str, Any]]) -> None:
    revision = copy.revision
    if not revision.is_pinned:
        revision.size_bytes = copy.size_bytes
        # A directory's files are what they are; for a published revision the source's own list stays.
        revision.files.all().delete()
        File.objects.bulk_create(
            File(revision=revision, path=one["path"], size_bytes=one["size"], sha256=one.get("sha256") or "")
            for one in files
        )
    revision.facts = {**revision.facts, **details}
    revision.architecture = str(details.get("architecture") or revision.architecture)
    revision.save(update_fields=["size_bytes", "facts", "architecture"])


def store_damage(copy: Copy, failure: Mapping[str, Any], *, job: int | None = None, fetched: bool = False) -> None:
    """Note that a copy failed its verification. The manifest of the last sound one stays, to compare with.

    `fetched`: the same job had just fetched the files from where they come from.
    """
    code = str(failure.get("code", ""))
    if code.split(".")[0] in ("step", "host"):
        return  # the host could not look: that says nothing about the files
    if code == HELD_CODE and copy.state == "verified":
        return  # nothing is wrong with the files, and what was found stands with the last verification
    evidence = [entry for entry in failure.get("evidence") or [] if isinstance(entry, Mapping) and entry.get("code")]
    before = copy.verification if isinstance(copy.verification, Mapping) else {}
    copy.verification = {
        "failure": dict(failure),
        "findings": [dict(entry) for entry in evidence],
        "job": job,
        "as_published": (fetched or bool(before.get("as_published"))) and _as_published(evidence, before),
    }
    with transaction.atomic():
        copy.save(update_fields=["verification"])
        if code != HELD_CODE:
            move(copy, to="damaged", reason=failure.get("message", ""))
            _tell_judgement(copy)
    live.changed("model", copy.revision.model_id)


def _tell_judgement(copy: Copy) -> None:
    for callback in _on_judgement:
        callback(copy)


def store_wrong_source(copy: Copy, failure: Mapping[str, Any], *, job: int) -> None:
    """Note that a download ended because wrong bytes came, more than once. What was found before stays."""
    before = copy.verification if isinstance(copy.verification, Mapping) else {}
    copy.verification = {
        "findings": before.get("findings") or [], "failure": dict(failure), "job": job, "as_published": True,
    }  # fmt: skip
    copy.save(update_fields=["verification"])


def _as_published(findings: Iterable[Mapping[str, Any]], before: Mapping[str, Any]) -> bool:
    """True if fetching the files once more would bring the same ones: what is wrong with them came along.

    A checksum that is wrong may be the disk's doing, unless it was the same wrong one before.
    """
    told = {str(entry.get("message")) for entry in before.get("findings") or [] if isinstance(entry, Mapping)}
    errors = [entry for entry in findings if entry.get("severity") == "error"]
    return bool(errors) and all(
        entry.get("code") != "checksum.mismatch" or str(entry.get("message")) in told for entry in errors
    )


def refuse_busy(copy: Copy) -> None:
    """Raise Refused while another job works on a copy, or when it is gone."""
    if copy.state == "removed":
        raise Refused(_("This copy was removed from %(host)s.") % {"host": copy.host})
    refuse_while_busy(subject_kind="copy", subject_id=copy.pk)
    if fetching := _fetching(copy):
        raise Refused(_("“%(job)s” still runs. Wait for it or cancel it.") % {"job": fetching})
    if given := Job.objects.filter(state__in=LIVE_STATES, payload__giver=copy.pk).first():
        raise Refused(_("“%(job)s” reads from it. Wait for it or cancel it.") % {"job": given})


def _fetching(copy: Copy) -> Job | None:
    """A deploy that fetches this copy on its way."""
    if copy.state != "downloading":
        return None
    return Job.objects.filter(state__in=LIVE_STATES, payload__fetch=copy.pk).first()


def bad_files(copy: Copy) -> list[str]:
    """Files that the last verification found wrong or missing, as far as it names them."""
    found = copy.verification.get("findings") if isinstance(copy.verification, Mapping) else None
    errors = [entry for entry in found or [] if isinstance(entry, Mapping) and entry.get("severity") == "error"]
    known = set(copy.revision.files.values_list("path", flat=True))
    return sorted({str(entry["file"]) for entry in errors if entry.get("file") in known})

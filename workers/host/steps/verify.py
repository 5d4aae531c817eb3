"""Verify: is the model directory complete, and are its files what their headers say?"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from workers.contracts import MOST_FILES, FileProgress, ManifestFile
from workers.host.failures import StepCancelledError, StepFailedError
from workers.host.step_context import FilesProgress, StepContext
from workers.host.steps.preflight import resolve_model_path
from workers.step_payloads import VerifyPayload as Payload
from workers.step_payloads import VerifyResult
from workers.vllm.memory import record_of
from workers.weights.digests import Expected, collect
from workers.weights.findings import Finding, Findings, Severity
from workers.weights.layout import read_layout
from workers.weights.verification import FileRecord, Verification, changed_files, verify_directory

__all__ = ["Payload", "run"]

_ORDER = {"active": 0, "waiting": 1, "done": 2}
_SHOWN_FINDINGS = 200
_SHOWN_CHANGES = 5
_PREVIOUS = "the last verification"
_CONSENT = (
    "Verify the copy; an admin can then allow it on the copy's page. Or use a model with safetensors and no code."
)


def run(context: StepContext, payload: Payload) -> VerifyResult:
    """Return what the directory holds; fail with the first error, all errors as evidence."""
    path = resolve_model_path(context.config.models_dir, payload.model_path)
    known = [FileRecord(**item.model_dump()) for item in payload.manifest]
    changed = changed_files(path, known) if known else ()
    if payload.trust_unchanged and known and not changed:
        size = sum(record.size for record in known)
        return VerifyResult(
            model_path=str(path), files=len(known), size_bytes=size, seconds=0, unchanged=True, shape=_shape(path)
        )
    if payload.trust_unchanged and changed:
        more = f" and {len(changed) - _SHOWN_CHANGES} more" if len(changed) > _SHOWN_CHANGES else ""
        shown = ", ".join(changed[:_SHOWN_CHANGES])
        context.event(f"Touched since the last verification: {shown}{more}. Everything is verified again.")
    # People may change a directory of their own on purpose; a sum that changed while nobody wrote the file is damage.
    earlier = known if payload.pinned else [record for record in known if record.path not in changed]
    published = [Expected(item.path, item.algorithm, item.digest, item.source) for item in payload.checksums]
    entries = read_layout(path, Findings()).entries if payload.mode == "full" else {}
    reading = _Reading(context, {name: entry.size for name, entry in entries.items()})
    verification = context.in_background(
        lambda: verify_directory(
            path,
            checksums=published,
            hash_files=payload.mode == "full",
            previous_manifest=earlier,
            progress=reading.note,
        ),
        waiting_for=f"{path.name} to be read",
        progress=reading.tell,
    )
    _refuse_damaged(verification, payload)
    summary = dict(verification.summary)
    return VerifyResult(
        model_path=str(path),
        files=summary["files"],
        size_bytes=summary["bytes"],
        seconds=summary["seconds"],
        findings=[finding.as_json() for finding in verification.findings],
        details=summary,
        manifest=[ManifestFile.model_validate(entry) for entry in verification.manifest()],
        checked_against=_checked_against(path, payload, earlier),
        shape=_shape(path),
    )


def _shape(path: Path) -> dict[str, object]:
    """What memory is planned with; a model that can't be planned can still be served."""
    try:
        return record_of(path)
    except (OSError, ValueError):
        return {}


def _checked_against(path: Path, payload: Payload, earlier: list[FileRecord]) -> dict[str, int]:
    """How many files each source of checksums spoke of; empty when nothing was hashed."""
    if payload.mode != "full":
        return {}
    count: dict[str, int] = {}
    for expected in collect(read_layout(path, Findings()), Findings()).by_file.values():
        for source in {item.source for item in expected}:
            count[source] = count.get(source, 0) + 1
    for item in payload.checksums:
        count[item.source] = count.get(item.source, 0) + 1
    if hashed := sum(record.sha256 is not None for record in earlier):
        count[_PREVIOUS] = hashed
    return count


class _Reading:
    """How far the reading threads are, in all and with each file; they give up when the step must not go on."""

    def __init__(self, context: StepContext, sizes: Mapping[str, int]) -> None:
        self._context = context
        self._done = self._total = 0
        self._sizes = {name: size for name, size in sizes.items() if size}
        self._read: dict[str, int] = {}
        self._before: dict[str, tuple[float, int]] = {}

    def note(self, done: int, total: int, file: str) -> None:
        """Called by the reading threads after each piece, one at a time."""
        self._read[file] = self._read.get(file, 0) + done - self._done
        self._done, self._total = done, total
        if self._context.cancelled:
            raise StepCancelledError

    def tell(self) -> None:
        """Called by the step's own thread."""
        self._context.progress(
            self._done, self._total or None, unit="bytes", waiting_for="the files to be read", files=self._files
        )

    def _files(self) -> FilesProgress:
        """Each file with its own rate since this was last asked: those being read first, then waiting, then read ones."""
        now, read = time.monotonic(), dict(self._read)
        files = [self._shown(name, size, read.get(name, 0), now) for name, size in self._sizes.items()]
        files.sort(key=lambda file: (_ORDER[file.state], file.path))
        self._before = {file.path: (now, file.done) for file in files if file.state == "active"}
        return FilesProgress(files[:MOST_FILES], len(files), sum(file.state == "done" for file in files))

    def _shown(self, name: str, size: int, done: int, now: float) -> FileProgress:
        state: Literal["active", "waiting", "done"] = "done" if done >= size else "active" if done else "waiting"
        since, before = self._before.get(name, (now, done))
        rate = (done - before) / (now - since) if now > since and state == "active" else None
        left = (size - done) / rate if rate else None
        return FileProgress(path=name, done=done, total=size, state=state, rate=rate, remaining_seconds=left)


def _refuse_damaged(verification: Verification, payload: Payload) -> None:
    errors = [finding for finding in verification.findings if finding.severity is Severity.ERROR]
    damage = [finding for finding in errors if finding.code not in (*payload.allowed, *payload.consent_needed)]
    if damage:
        _fail(damage[0].code, damage, damage[0].fix)
    if held := [finding for finding in verification.findings if finding.code in payload.consent_needed]:
        _fail("consent.required", held, _CONSENT)


def _fail(code: str, findings: list[Finding], next_step: str) -> None:
    first = findings[0]
    others = len(findings) - 1
    more = f" There are {others} more errors." if others > 1 else " There is one more error." if others else ""
    where = f"{first.file}: " if first.file and first.file not in first.message else ""
    raise StepFailedError(
        code,
        f"{where}{first.message}{more}",
        next_step=next_step,
        evidence=[
            {"line": None, "text": finding.message, **finding.as_json()} for finding in findings[:_SHOWN_FINDINGS]
        ],
    )

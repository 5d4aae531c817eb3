"""Verify: is the model directory complete, and are its files what their headers say?"""

from workers.host.failures import StepCancelledError, StepFailedError
from workers.host.step_context import StepContext
from workers.host.steps.preflight import resolve_model_path
from workers.step_payloads import VerifyPayload as Payload
from workers.step_payloads import VerifyResult
from workers.weights.findings import Severity
from workers.weights.verification import Verification, verify_directory

__all__ = ["Payload", "run"]

_SHOWN_FINDINGS = 20


def run(context: StepContext, payload: Payload) -> VerifyResult:
    """Return what the directory holds; fail with the first error, all errors as evidence."""
    path = resolve_model_path(context.config.models_dir, payload.model_path)
    reading = _Reading(context)
    verification = context.in_background(
        lambda: verify_directory(path, hash_files=payload.mode == "full", progress=reading.note),
        waiting_for=f"{path.name} to be read",
        progress=reading.tell,
    )
    _refuse_damaged(verification)
    summary = dict(verification.summary)
    return VerifyResult(
        model_path=str(path),
        files=summary["files"],
        size_bytes=summary["bytes"],
        seconds=summary["seconds"],
        findings=[finding.as_json() for finding in verification.findings],
        details=summary,
    )


class _Reading:
    """How far the reading threads are; they are told to give up when the step must not go on."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._done = self._total = 0

    def note(self, done: int, total: int, _file: str) -> None:
        """Called by the reading threads after each piece."""
        self._done, self._total = done, total
        if self._context.cancelled:
            raise StepCancelledError

    def tell(self) -> None:
        """Called by the step's own thread."""
        self._context.progress(self._done, self._total or None, unit="bytes", waiting_for="the files to be read")


def _refuse_damaged(verification: Verification) -> None:
    errors = [finding for finding in verification.findings if finding.severity is Severity.ERROR]
    if not errors:
        return
    first = errors[0]
    more = f" There are {len(errors) - 1} more errors." if len(errors) > 1 else ""
    where = f"{first.file}: " if first.file else ""
    raise StepFailedError(
        first.code,
        f"{where}{first.message}{more}",
        next_step=first.fix,
        evidence=[{"line": None, "text": finding.message, **finding.as_json()} for finding in errors[:_SHOWN_FINDINGS]],
    )

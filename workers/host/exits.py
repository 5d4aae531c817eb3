"""Why an engine process ended, in words: its exit code, and the root cause from its log."""

import io
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from workers.contracts import Failure
from workers.host.instance_files import Attempt, InstanceFiles
from workers.vllm.diagnosis import Diagnosis, catalog, diagnose_file, diagnose_stream

_LAST_LINES = 5
_LONGEST_LINE = 500


def diagnose_attempt(files: InstanceFiles, attempt: Attempt) -> Diagnosis:
    """Find the root cause in an ended attempt's log. All of it is read, in constant memory: the cause may stand early."""
    log = files.log(attempt.number)
    if not log.exists():
        return diagnose_stream(io.BytesIO(), attempt.exit_code)
    return diagnose_file(log, attempt.exit_code)


def explain_exit(files: InstanceFiles, attempt: Attempt) -> Failure:
    """Say how an attempt ended, what caused it, and what to do. Reads its log."""
    return explain(attempt, diagnose_attempt(files, attempt), files)


def explain(attempt: Attempt, diagnosis: Diagnosis, files: InstanceFiles) -> Failure:
    """The same, with a diagnosis that was made already."""
    seconds = (attempt.ended_at or attempt.started_at) - attempt.started_at
    ended = f"the engine ended after {seconds:.1f} s with {describe_exit_code(attempt.exit_code)}"
    if attempt.reason:
        ended += f" ({attempt.reason})"
    if attempt.failure:
        known = Failure.model_validate(attempt.failure)
        evidence = [{"line": item.line, "text": item.text} for item in diagnosis.evidence]
        return known.model_copy(update={"message": f"{known.message}; it was ended after {seconds:.0f} s", "evidence":
                                        known.evidence or evidence})  # fmt: skip
    if not diagnosis.is_healthy:
        evidence = [{"line": item.line, "text": item.text} for item in diagnosis.evidence]
        return Failure(
            code=diagnosis.code, message=f"{ended}: {diagnosis.message}", next=diagnosis.fix, evidence=evidence
        )
    return Failure(
        code="engine.exited",
        message=f"{ended}, and its log shows no error",
        next="Read the end of its log. If something outside ended it (a person, the system short of memory), restart.",
        evidence=last_lines(files.log(attempt.number)),
    )


def with_known_cause(attempt: Attempt, diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis of an attempt that the agent had ended says why; what its log shows comes after that."""
    if not attempt.failure:
        return diagnosis
    known = Failure.model_validate(attempt.failure)
    entry = catalog().get(known.code) or catalog()["engine.hung"]
    also = diagnosis.also if diagnosis.is_healthy else (diagnosis.code, *diagnosis.also)
    return replace(
        diagnosis,
        code=entry.code,
        title=entry.title,
        message=known.message,
        confidence=1.0,
        fix=known.next or entry.fix,
        links=entry.links,
        also=tuple(code for code in also if code != entry.code),
    )


def describe_exit_code(code: int | None) -> str:
    """An exit code in words: a negative one names the signal."""
    if code is None:
        return "an unknown exit code"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def last_lines(log: Path) -> list[dict[str, Any]]:
    """The last lines of a log that say something, as evidence (without line numbers, which would mean reading all)."""
    if not log.exists():
        return []
    lines = [line.strip() for line in tail_bytes(log, 16_384).decode(errors="replace").splitlines()]
    return [{"line": None, "text": line[:_LONGEST_LINE]} for line in lines if line][-_LAST_LINES:]


def tail_bytes(path: Path, count: int) -> bytes:
    """The last `count` bytes of a file, or all of it."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - count))
        return file.read()

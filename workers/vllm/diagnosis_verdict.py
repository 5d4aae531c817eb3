"""From the facts in a log, and the exit code if there is one, to one diagnosis."""

import signal
from dataclasses import replace

from workers.vllm.diagnosis_facts import Cause, Evidence, Facts, clean_text
from workers.vllm.diagnosis_wrappers import CONSEQUENCES

# How far behind a cause its consequence in other words can be: one chain of exceptions. Before it stand a few lines at
# most, but for the hub's answers, whose chain begins with the most general one.
_SAME_CHAIN_LINES = 400
_LINES_BEFORE = 20
# Causes that explain a dead process even if their line comes after it (the kernel's and the driver's lines often do).
_EXPLAIN_DEATH = frozenset({"process.killed_by_oom", "gpu.xid", "gpu.lost", "memory.out_of_memory", "shm.exhausted"})
# One comes from a long compilation, too.
_WARNINGS_OF_A_HANG = 3
# Ended as asked, or not at all.
_PEACEFUL = frozenset({None, 0, -signal.SIGTERM, -signal.SIGINT})


def verdict(facts: Facts, exit_code: int | None) -> tuple[Cause, list[str]]:
    """The root cause, with code `healthy` if there is none, and the codes of the other causes in order of time."""
    code = _as_signal(exit_code)
    causes = _with_death(_without_consequences(sorted(facts.causes.values(), key=lambda cause: cause.line)), facts)
    causes = _without_recovered_hang(causes, facts)
    if code in _PEACEFUL:
        causes = _without_failed_requests(causes, facts)
    if not causes:
        return _without_causes(facts, code), []
    first = _first_to_blame(causes)
    if first.code == "engine.died" and code == -signal.SIGKILL:
        return replace(_killed(facts), evidence=first.evidence), [cause.code for cause in causes]
    if first.soft:
        first = replace(first, confidence=round(first.confidence * 0.7, 2))
    if (
        facts.started
        and facts.started.line > first.line
        and not (facts.death or facts.death_notice)
        and code in _PEACEFUL
    ):
        first = replace(first, confidence=min(first.confidence, 0.5))
    return first, [cause.code for cause in causes]


def _as_signal(exit_code: int | None) -> int | None:
    """Shells and containers report a signal as 128 + its number; Python as minus its number."""
    return 128 - exit_code if exit_code is not None and 128 < exit_code < 160 else exit_code


def _first_to_blame(causes: list[Cause]) -> Cause:
    """The first in time; what an engine only warned of stands behind what it failed of."""
    return next((cause for cause in causes if _is_grave(cause)), causes[0])


def _is_grave(cause: Cause) -> bool:
    """Whether the engine failed of it, rather than warned of it. All that a hang writes are warnings, again and again."""
    return not cause.soft or (cause.code == "engine.hung" and len(cause.evidence) >= _WARNINGS_OF_A_HANG)


def _without_failed_requests(causes: list[Cause], facts: Facts) -> list[Cause]:
    """Forget what a serving engine couldn't fetch: a picture that a request names, not a part of its model."""
    started, died = facts.started, facts.death or facts.death_notice
    if started is None or died is not None:
        return causes
    return [
        cause
        for cause in causes
        if cause.line < started.line or not (cause.code.startswith("hub.") or cause.code == "path.not_found")
    ]


def _without_consequences(causes: list[Cause]) -> list[Cause]:
    dropped = {
        other.code
        for cause in causes
        for other in causes
        if other.code in CONSEQUENCES.get(cause.code, ())
        and cause.start == other.start
        and other.line - cause.line <= _SAME_CHAIN_LINES
        and cause.line - other.line <= (_SAME_CHAIN_LINES if cause.code.startswith("hub.") else _LINES_BEFORE)
        # Where each could follow from the other, the first in time is the cause.
        and (cause.code not in CONSEQUENCES.get(other.code, ()) or cause.line < other.line)
    }
    return [cause for cause in causes if cause.code not in dropped]


def _with_death(causes: list[Cause], facts: Facts) -> list[Cause]:
    """Add `engine.died` where nothing before it, or nothing that explains it, was found."""
    death = facts.death or facts.death_notice
    if death is None:
        return causes
    explained = (
        cause for cause in causes if cause.code in _EXPLAIN_DEATH or (cause.line <= death.line and _is_grave(cause))
    )
    # A mere notice stands before the traceback that explains it.
    if any(explained) or (facts.death is None and causes):
        return causes
    exception = facts.exception
    if exception is not None and facts.started is None and exception.line < death.line:
        return causes  # it never served: a start that failed for a reason we don't know, not a death
    if exception is not None and (exception.line < death.line or facts.death is None):
        death = replace(death, message=exception.message, evidence=_merged(exception.evidence, death.evidence))
    elif exception is not None:
        death = replace(death, evidence=_merged(death.evidence, exception.evidence[-4:]))
    return [death, *causes]


def _merged(*parts: list[Evidence]) -> list[Evidence]:
    return sorted({evidence for part in parts for evidence in part}, key=lambda evidence: evidence.line)


def _without_recovered_hang(causes: list[Cause], facts: Facts) -> list[Cause]:
    """Forget a mere warning of a hang if a request was answered after it."""
    answered = max((e.line for e in facts.recent if '"POST /' in e.text and '" 200' in e.text), default=0)
    return [c for c in causes if not (c.code == "engine.hung" and c.soft and c.evidence[-1].line < answered)]


def _without_causes(facts: Facts, code: int | None) -> Cause:
    unknown = facts.exception or facts.complaint
    if unknown is not None and not (facts.started and code in _PEACEFUL):
        return unknown
    last = next((evidence for evidence in reversed(facts.recent) if evidence.text), None)
    # Still running, or ended by someone who lost patience.
    if last is not None and "vLLM is using nccl==" in last.text and code in (None, -signal.SIGTERM, -signal.SIGKILL):
        message = "The log stops at the start of NCCL. If nothing follows within a minute or two, it hangs."
        return Cause("nccl.hang", last.line, message, 0.4, evidence=[last])
    if code == -signal.SIGKILL:
        return _killed(facts)
    if code == -signal.SIGBUS:
        return _ended(
            facts, "shm.exhausted", 0.5, "The process ended with SIGBUS (bus error) and wrote nothing about it."
        )
    if code is not None and code < 0 and code not in _PEACEFUL:
        return _ended(
            facts, "engine.died", 0.6, f"The process was ended by {_signal_name(code)} and wrote nothing about it."
        )
    if code not in _PEACEFUL:
        return facts.survived or _ended(
            facts, "unknown", 0.1, f"The process ended with exit code {code}; the log doesn't say why."
        )
    return _healthy(facts, unknown)


def _healthy(facts: Facts, request_failure: Cause | None) -> Cause:
    if facts.started is None:
        return Cause("healthy", 0, "Nothing in the log points at a failure; the engine isn't up yet.", 0.5)
    message = "The engine started, and nothing in the log points at a failure."
    evidence = [facts.started]
    if facts.asked_to_stop:
        message = "The engine started, served, and was asked to stop."
        evidence.append(facts.asked_to_stop)
    if request_failure is not None:
        message += f" Single requests failed, the first with: {request_failure.message}"
        evidence = _merged(evidence, request_failure.evidence[-4:])
    return Cause("healthy", facts.started.line, message, 0.9, evidence=evidence)


def _killed(facts: Facts) -> Cause:
    return _ended(
        facts,
        "process.killed_by_oom",
        0.4 if facts.asked_to_stop else 0.6,
        "The process was killed by SIGKILL, which no process can log: by the kernel or the container at a memory limit, "
        "or by a person.",
    )


def _ended(facts: Facts, code: str, confidence: float, message: str) -> Cause:
    """A cause that only the exit code tells.

    Whom a signal ended wrote nothing about it: the last lines would pass what merely came before for its proof, such as
    the traceback of a client that went away. Of any other end they are all that the log can add.
    """
    last = [evidence for evidence in facts.recent if clean_text(evidence.text)][-4:]
    shown = last if code == "unknown" else []
    return Cause(code, last[-1].line if last else 0, message, confidence, evidence=shown)


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"

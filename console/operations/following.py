"""Following a job from a terminal: its events and its steps' progress, read from the ledger like the job page does."""

import time
from collections.abc import Callable

from console.jobs.models import Job, Step

POLL_SECONDS = 0.25
PROGRESS_EVERY_SECONDS = 2.0

_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


class JobFailed(Exception):
    """The job ended without success; the message says what happened and what to do next."""


class Interrupted(Exception):
    """Somebody asked to stop while something was being waited for."""


def follow(job: Job, *, say: Callable[[str], None], alive: Callable[[], bool]) -> Job:
    """Show a job's events and progress until it has ended; returns it, or raises JobFailed or Interrupted."""
    seen, shown_at = 0, time.monotonic()
    while True:
        if not alive():
            raise Interrupted
        job.refresh_from_db()
        for event in job.events.filter(seq__gt=seen).order_by("seq"):
            say(event.text)
            seen, shown_at = event.seq, time.monotonic()
        if not job.is_live:
            break
        if time.monotonic() - shown_at >= PROGRESS_EVERY_SECONDS:
            shown_at = time.monotonic()
            if step := job.steps.filter(state="running").first():
                say(progress(step))
        time.sleep(POLL_SECONDS)
    if job.state != "succeeded":
        failure = job.failure or {}
        why = " ".join(filter(None, [failure.get("message"), failure.get("next")]))
        raise JobFailed(f"{job.title}: {job.state}. {why or job.state_reason}".strip())
    return job


def progress(step: Step) -> str:
    """One line: how far a step is, how fast, how long it may still take."""
    known = step.progress or {}
    parts = [part for part in (_amount(known), _rate(known), _remaining(known), known.get("waiting_for", "")) if part]
    return f"{step.title}: {', '.join(parts) or 'running'}"


def _amount(known: dict[str, float]) -> str:
    if "done" not in known:
        return ""
    unit, total = str(known.get("unit", "items")), known.get("total")
    done = quantity(known["done"], unit)
    return f"{done} of {quantity(total, unit)}" if total else done


def _rate(known: dict[str, float]) -> str:
    unit = str(known.get("unit", "items"))
    return f"{quantity(known['rate'], unit)}/s" if known.get("rate") and unit != "seconds" else ""


def _remaining(known: dict[str, float]) -> str:
    total, rate = known.get("total"), known.get("rate")
    if not total or not rate or total <= known["done"]:
        return ""
    return f"about {(total - known['done']) / rate:.0f} s left"


def quantity(value: float, unit: str) -> str:
    """A number with its unit for people; bytes in powers of ten."""
    if unit == "bytes":
        for size, name in _UNITS:
            if value >= size:
                return f"{value / size:.1f} {name}"
        return f"{value:.0f} B"
    return f"{value:.0f} {'s' if unit == 'seconds' else unit}"

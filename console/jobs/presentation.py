"""Jobs as pages and sockets show them: one description of a step's state, of its result and of a failure for both."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.catalog.copy_presentation import HELD_STATES, ShownCopy, fallback_for, shown_copies
from console.catalog.models import Copy
from console.catalog.presentation import short_sums
from console.common.spans import readable_bytes, readable_duration
from console.jobs.models import Event, Job, Step
from workers.contracts import StepKind

_ABOUT_FILES = (StepKind.SERVE_COPY, StepKind.DOWNLOAD, StepKind.VERIFY)


@dataclass(frozen=True)
class Fact:
    """One line of a result card. `wide`: a text that wants the whole width, such as the model's answer."""

    label: str
    value: str
    wide: bool = False


def event(row: Event) -> dict[str, Any]:
    """One event for the browser."""
    return {"seq": row.seq, "at": row.at.isoformat(), "level": row.level, "text": row.text, "step": row.step_id}


def step_state(step: Step) -> dict[str, Any]:
    """A step for the browser: what moves while it runs. `progress` is markup, the same as on the page."""
    return {
        "id": step.pk,
        "position": step.position,
        "state": step.state,
        "started_at": step.started_at.isoformat() if step.started_at else None,
        "finished_at": step.finished_at.isoformat() if step.finished_at else None,
        "done": step.progress.get("done"),
        "total": step.progress.get("total"),
        "unit": step.progress.get("unit"),
        "rate": step.progress.get("rate"),
        "remaining_seconds": step.progress.get("remaining_seconds"),
        "waiting_for": step.progress.get("waiting_for", ""),
        "files": step.progress.get("files", []),
        "files_total": step.progress.get("files_total", 0),
        "files_done": step.progress.get("files_done", 0),
        "progress": render_to_string("jobs/_step_progress.html", {"step": step}).strip(),
    }


def job_state(job: Job, steps: list[Step]) -> dict[str, Any]:
    """A job for the browser. `sentence` moves while its step waits: how long already, or until when."""
    return {
        "id": job.pk,
        "state": job.state,
        "live": job.is_live,
        "finished_at": job.finished_at.isoformat() if job.finished_at else None,
        "failed": bool(job.failure),
        "sentence": sentence(job, steps),
    }


def position(steps: list[Step]) -> tuple[int, int]:
    """(n, m) of "step n of m": the first step that has not succeeded, counted from 1."""
    done = sum(step.state == "succeeded" for step in steps)
    return min(done + 1, len(steps)), len(steps)


def current(steps: list[Step]) -> Step | None:
    """The step that runs, failed or waits: the first that has not succeeded."""
    return next((step for step in steps if step.state != "succeeded"), None)


def sentence(job: Job, steps: list[Step]) -> str:
    """The truth about a job in one sentence."""
    at, count = position(steps)
    step = current(steps)
    took = (
        readable_duration((job.finished_at - (job.started_at or job.created_at)).total_seconds())
        if job.finished_at
        else ""
    )
    names = {"at": at, "count": count, "step": step.title if step else "", "took": took, "reason": job.state_reason}
    if job.state == "succeeded":
        text = ngettext("Succeeded, in %(took)s.", "All %(count)d steps succeeded, in %(took)s.", count)
        return text % names
    if job.state == "failed":
        return _("Failed at step %(at)d of %(count)d, %(step)s, after %(took)s.") % names
    if job.state == "cancelled":
        text = _("Cancelled at step %(at)d of %(count)d, %(step)s, after %(took)s.") % names
        if job.state_reason:
            text = (
                _("Cancelled at step %(at)d of %(count)d, %(step)s, after %(took)s, with the reason “%(reason)s”.")
                % names
            )
        kept = step is not None and step.kind == StepKind.DOWNLOAD and step.started_at is not None
        return text + " " + _("What has come is kept, and another download goes on from there.") if kept else text
    if job.state == "cancelling":
        return _("Being cancelled: waiting until %(step)s has stopped.") % names
    if step is None or job.state == "queued":
        return _("Waiting to begin.")
    waiting = waits_for(step) or (step.progress.get("waiting_for", "") if step.state == "running" else "")
    if waiting:
        return _("Step %(at)d of %(count)d: %(step)s, waiting for %(what)s.") % {**names, "what": waiting}
    return _("Step %(at)d of %(count)d: %(step)s.") % names


def unreached(job: Job, step: Step) -> bool:
    """True if a job ended before this step began."""
    waiting = step.state == "queued" and not job.is_live
    return step.started_at is None and (waiting or step.state == "cancelled")


def failure_line(step: Step) -> str:
    """Why a step failed, in its own row: the checksums in full stand above the timeline."""
    return short_sums(str((step.failure or {}).get("message", "")))


def waits_for(step: Step) -> str:
    """What a step that has not begun waits for, in words; empty if nothing is known."""
    if step.state in ("queued", "interrupted") and not step.host.is_online:
        return _("host %s to come back") % step.host.name
    if step.state == "queued" and step.sent_at:
        return _("host %s to begin") % step.host.name
    return ""


def subject_url(job: Job) -> str:
    """Address of the page of what the job is about; empty if it has none (any more)."""
    names = {
        "deployment": "deployment_detail", "instance": "instance_detail", "host": "host_detail", "copy": "copy_detail",
        "engine": "engine_detail", "benchmark": "benchmark_detail", "study": "study_detail",
    }  # fmt: skip
    try:
        if job.subject_kind in names and job.subject_id:
            return reverse(names[job.subject_kind], args=[job.subject_id])
    except NoReverseMatch:
        return ""
    return ""


@dataclass(frozen=True)
class Remedy:
    """What helps when a job failed because of a model's files: more than trying the same again."""

    held: ShownCopy | None = None
    """The copy that is held now; None once it is repaired or gone."""
    fallback: Copy | None = None
    """A copy that was verified last and can serve meanwhile."""

    @property
    def repair(self) -> Copy | None:
        """The copy to repair, if that is the next thing to do."""
        held = self.held
        return held.copy if held and held.can_repair and held.repair_first and not held.job else None

    @property
    def search_elsewhere(self) -> str:
        """Query of the search for other files, if these are wrong where they come from, too; empty otherwise."""
        return self.held.search_elsewhere if self.held else ""


def remedy(job: Job, steps: list[Step]) -> Remedy:
    """What helps a failed job whose step about a model's files failed; nothing if that is not why it failed."""
    failed = next((step for step in steps if step.state == "failed" and step.kind in _ABOUT_FILES), None)
    if job.state != "failed" or failed is None:
        return Remedy()
    rows = Copy.objects.select_related("revision__model", "host")
    if job.subject_kind == "copy" or "fetch" in job.payload:
        copy = rows.filter(pk=job.payload.get("fetch") or job.about).first()
    else:
        copy = rows.filter(host=failed.host_id, path=failed.payload.get("model_path", "")).first()
    if copy is None:
        return Remedy()
    # A download that failed goes on by a retry; only wrong files stay wrong however often they are read, or come.
    shown = shown_copies([copy])[0]
    held = copy.state in HELD_STATES and (failed.kind == StepKind.VERIFY or shown.as_published)
    return Remedy(shown if held else None, fallback_for(copy))


def log_url(job: Job, steps: list[Step]) -> str:
    """Address of the part with the engine's log, if this job starts, stops or restarts an engine."""
    about_engine = {StepKind.LAUNCH, StepKind.LISTENING, StepKind.VALIDATE, StepKind.WARMUP, StepKind.STOP}
    if job.subject_kind != "deployment" or not any(step.kind in about_engine for step in steps):
        return ""
    instance = job.payload.get("instance")
    if isinstance(instance, int):
        return reverse("instance_log_part", args=[instance])
    return reverse("deployment_log_part", args=[job.subject_id])


def evidence_lines(failure: Mapping[str, Any] | None) -> list[str]:
    """The lines of a failure's evidence: the log's own words first, other facts as `name: value`.

    What the message says already is left out.
    """
    given = failure or {}
    said, lines = str(given.get("message", "")), []
    for entry in given.get("evidence", []):
        if not isinstance(entry, Mapping):
            lines.append(str(entry))
            continue
        text = next((str(entry[key]) for key in ("text", "line_text", "message") if entry.get(key)), "")
        number = entry.get("line")
        if text:
            if isinstance(number, int):
                lines.append(f"{number}: {text}")
            elif text not in said:
                lines.append(text)
        else:
            lines.append(", ".join(f"{key}: {value}" for key, value in entry.items()))
    return lines


def facts(step: Step) -> list[Fact]:
    """The result card of a step that has succeeded."""
    describe = _DESCRIPTIONS.get(StepKind(step.kind))
    return describe(step.result) if describe and step.result else []


def findings(step: Step) -> list[str]:
    """Warnings that a step found and that did not stop it; those of a load log stand with the checks instead."""
    warnings = [text for text in step.result.get("warnings", []) if isinstance(text, str)]
    for finding in step.result.get("findings", []):
        text = finding.get("message") or finding.get("title") or finding.get("code")
        if text:
            warnings.append(str(text))
    return warnings


def _number(value: Any) -> str:
    return "–" if value is None else str(number_format(value))


def _milliseconds(seconds: Any) -> str:
    return "–" if seconds is None else _("%s ms") % number_format(round(1000 * seconds))


def _duration(seconds: Any) -> str:
    return "–" if seconds is None else readable_duration(seconds)


def _rate(value: Any) -> str:
    return "–" if value is None else _("%s tok/s") % number_format(round(value, 1))


def _preflight(result: Mapping[str, Any]) -> list[Fact]:
    return [
        Fact(_("Engine"), f"vLLM {result.get('engine_version', '')}".strip()),
        Fact(_("Port"), str(result.get("port", "–"))),
        Fact(
            _("Memory free"),
            _("%(free)s of %(total)s")
            % {
                "free": readable_bytes(result.get("memory_available", 0)),
                "total": readable_bytes(result.get("memory_total", 0)),
            },
        ),
        Fact(_("Disk free"), readable_bytes(result.get("disk_free", 0))),
    ]


def _download(result: Mapping[str, Any]) -> list[Fact]:
    fetched, seconds = result.get("fetched_bytes") or 0, result.get("seconds") or 0
    return [
        Fact(_("Files"), _number(result.get("files"))),
        Fact(_("Size"), readable_bytes(result.get("size_bytes", 0))),
        Fact(_("Fetched"), readable_bytes(fetched)),
        Fact(_("Rate"), _("%s/s") % readable_bytes(fetched / seconds) if fetched and seconds else "–"),
        Fact(_("Commit"), str(result.get("commit", ""))[:12]),
        Fact(_("Directory"), str(result.get("model_path", "")), wide=True),
    ]


def _serve_copy(result: Mapping[str, Any]) -> list[Fact]:
    return [
        Fact(_("Files"), _number(result.get("files"))),
        Fact(_("Size"), readable_bytes(result.get("size_bytes", 0))),
        Fact(_("Address"), str(result.get("endpoint", ""))),
    ]


def _delete_copy(result: Mapping[str, Any]) -> list[Fact]:
    return [
        Fact(_("Removed files"), _number(result.get("removed_files"))),
        Fact(_("Freed"), readable_bytes(result.get("freed_bytes", 0))),
        Fact(_("Directory"), str(result.get("model_path", "")), wide=True),
    ]


def _verify(result: Mapping[str, Any]) -> list[Fact]:
    if result.get("unchanged"):
        return [
            Fact(_("Files"), _number(result.get("files"))),
            Fact(_("Read"), _("nothing: untouched since the last verification")),
        ]
    return [
        Fact(_("Files"), _number(result.get("files"))),
        Fact(_("Size"), readable_bytes(result.get("size_bytes", 0))),
        Fact(_("Read in"), _duration(result.get("seconds") or None)),
        Fact(_("Directory"), str(result.get("model_path", "")), wide=True),
    ]


def _launch(result: Mapping[str, Any]) -> list[Fact]:
    return [Fact(_("Attempt"), _number(result.get("attempt"))), Fact(_("Process"), str(result.get("pid", "–")))]


def _listening(result: Mapping[str, Any]) -> list[Fact]:
    return [
        Fact(_("Port"), str(result.get("port", "–"))),
        Fact(_("After"), _duration(result.get("seconds"))),
    ]


def _validate(result: Mapping[str, Any]) -> list[Fact]:
    return [
        Fact(_("Answer"), str(result.get("answer", "")), wide=True),
        Fact(_("Took"), _duration(result.get("seconds"))),
        Fact(_("Tokens"), _number(result.get("completion_tokens"))),
        Fact(_("Ended by"), str(result.get("finish_reason") or "–")),
        Fact(_("Context"), _("%s tokens") % _number(result.get("max_model_len"))),
    ]


def _control_run(result: Mapping[str, Any]) -> list[Fact]:
    return [
        Fact(_("Verdict"), str(result.get("verdict", "")), wide=True),
        Fact(_("Answer of transformers"), str(result.get("answer", "")), wide=True),
        Fact(_("Answer of the engine"), str(result.get("engine_answer") or "–"), wide=True),
        Fact(_("Took"), _duration(result.get("seconds"))),
    ]


def _warmup(result: Mapping[str, Any]) -> list[Fact]:
    return [
        Fact(_("Time to first token"), _milliseconds(result.get("ttft_seconds"))),
        Fact(_("Speed"), _rate(result.get("tokens_per_second"))),
        Fact(_("Tokens"), _number(result.get("completion_tokens"))),
        Fact(_("First request"), _duration(result.get("first_seconds"))),
        *([Fact(_("Target"), _milliseconds(target))] if (target := result.get("target_seconds")) else []),
        *([Fact(_("First token, in turn"), _in_turn(rounds), wide=True)] if (rounds := result.get("rounds")) else []),
    ]


def _in_turn(rounds: Any) -> str:
    shown = [number_format(round(1000 * seconds)) for seconds in rounds]
    return _("%s ms") % ", ".join(shown if len(shown) < 13 else [*shown[:6], "…", *shown[-6:]])


def _stop(result: Mapping[str, Any]) -> list[Fact]:
    if not result.get("was_running"):
        return [Fact(_("Engine"), _("was not running"))]
    return [
        Fact(_("Ended"), _("killed after its grace time") if result.get("killed") else _("by itself, when asked")),
        Fact(_("Exit code"), str(result.get("exit_code", "–"))),
        *_memory_back(result),
        Fact(_("Took"), _duration(result.get("seconds"))),
    ]


def _memory_back(result: Mapping[str, Any]) -> list[Fact]:
    """What its processes held when the stop began, and is free again."""
    names = (("returned_device_bytes", _("GPU memory back")), ("returned_resident_bytes", _("RAM back")))
    return [Fact(label, readable_bytes(int(result[name]))) for name, label in names if result.get(name)]


def _engine(result: Mapping[str, Any]) -> list[Fact]:
    took = _("was there already") if result.get("already_installed") else _duration(result.get("seconds"))
    details = result.get("details") or {}
    torch = " · ".join(str(part) for part in (details.get("torch"), details.get("torch_build")) if part)
    return [
        Fact(_("Engine"), f"{result.get('distribution', '')} {result.get('version', '')}"),
        Fact(_("Platform"), str(result.get("platform") or "–")),
        Fact(_("torch"), torch or "–"),
        Fact(_("Attention"), str(details.get("attention") or "–")),
        Fact(_("Arguments"), _number(details.get("arguments"))),
        Fact(_("Size"), readable_bytes(result.get("size_bytes", 0))),
        Fact(_("Took"), took),
        Fact(_("Directory"), str(result.get("path", "")), wide=True),
    ]


def _freed(result: Mapping[str, Any]) -> list[Fact]:
    return [
        Fact(_("Freed"), readable_bytes(result.get("freed_bytes", 0))),
        Fact(_("Engine"), str(result.get("engine", ""))),
        *([Fact(_("Directory"), str(result["path"]), wide=True)] if result.get("path") else []),
    ]


def _demo(result: Mapping[str, Any]) -> list[Fact]:
    return [
        Fact(_("Size"), readable_bytes(result.get("size_bytes", 0))),
        Fact(_("License"), str(result.get("license", ""))),
        Fact(_("Directory"), str(result.get("model_path", "")), wide=True),
    ]


def _quantizer(result: Mapping[str, Any]) -> list[Fact]:
    details = result.get("details") or {}
    return [
        Fact(_("llm-compressor"), str(result.get("version", ""))),
        Fact(_("torch"), str(details.get("torch") or "–")),
        Fact(_("GPUs that it sees"), _number(details.get("gpus"))),
        Fact(_("Size"), readable_bytes(result.get("size_bytes") or 0)),
        Fact(_("Took"), _duration(result.get("seconds"))),
        Fact(_("Interpreter"), str(result.get("python", "")), wide=True),
    ]


def _quantize(result: Mapping[str, Any]) -> list[Fact]:
    size, before = result.get("size_bytes") or 0, result.get("source_bytes") or 0
    share = f" ({100 * size / before:.0f} %)" if before else ""
    return [
        Fact(_("Scheme"), str(result.get("scheme", ""))),
        Fact(_("Size"), f"{readable_bytes(size)}{share}"),
        Fact(_("Size of the original"), readable_bytes(before)),
        Fact(_("Texts to calibrate with"), _number(result.get("prompts"))),
        Fact(_("Took"), _duration(result.get("seconds"))),
        Fact(_("Directory"), str(result.get("model_path", "")), wide=True),
    ]


_DESCRIPTIONS: Mapping[StepKind, Callable[[Mapping[str, Any]], list[Fact]]] = {
    StepKind.PREFLIGHT: _preflight,
    StepKind.DOWNLOAD: _download,
    StepKind.VERIFY: _verify,
    StepKind.LAUNCH: _launch,
    StepKind.LISTENING: _listening,
    StepKind.VALIDATE: _validate,
    StepKind.WARMUP: _warmup,
    StepKind.STOP: _stop,
    StepKind.INSTALL_ENGINE: _engine,
    StepKind.ADOPT_ENGINE: _engine,
    StepKind.CHECK_ENGINE: _engine,
    StepKind.REMOVE_ENGINE: _freed,
    StepKind.CLEAR_CACHE: _freed,
    StepKind.MAKE_DEMO_MODEL: _demo,
    StepKind.CONTROL_RUN: _control_run,
    StepKind.DELETE_COPY: _delete_copy,
    StepKind.SERVE_COPY: _serve_copy,
    StepKind.INSTALL_QUANTIZER: _quantizer,
    StepKind.REMOVE_QUANTIZER: _freed,
    StepKind.QUANTIZE: _quantize,
}

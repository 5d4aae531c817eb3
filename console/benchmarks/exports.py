"""Benchmarks as files: CSV for tables, JSON for programs, HTML for people who were sent it."""

import csv
import io
import json
from typing import Any

from django.http import HttpResponse
from django.template.loader import render_to_string
from django.utils.text import slugify

from console.benchmarks import presentation
from console.benchmarks.curves import MEASURES
from console.benchmarks.models import Benchmark
from console.common.given import harmless

KINDS = ("csv", "json", "html")


def export(benchmark: Benchmark, kind: str) -> HttpResponse:
    """The file. `kind` is one of `KINDS`; the name says which benchmark it is, and if it isn't whole."""
    made = {"csv": _csv, "json": _json, "html": _html}[kind](benchmark)
    return as_file(made, kind, f"benchmark-{benchmark.pk}", benchmark.title, is_whole=benchmark.is_whole)


def as_file(content: str, kind: str, stem: str, title: str, *, is_whole: bool) -> HttpResponse:
    """A file to save, named after what it is of; `kind` is one of `KINDS`. Half a result says so in its name."""
    types = {"csv": "text/csv", "json": "application/json", "html": "text/html"}
    part = "" if is_whole else "-incomplete"
    name = f"{stem}-{slugify(title)[:60]}{part}.{kind}"
    return HttpResponse(
        content,
        content_type=f"{types[kind]}; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def _csv(benchmark: Benchmark) -> str:
    """One line for each run."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(
        ["benchmark", "state", "kind_of_load", "load", "repeat", "completed", "failed", "seconds", *MEASURES, "problem"]
    )
    for run in benchmark.runs.defer("raw", "requests"):
        told = run.told
        values = ["" if told is None or (one := measure.of(told)) is None else one for measure in MEASURES.values()]
        counts = [told.completed, told.failed, told.seconds] if told else ["", "", ""]
        cells = [benchmark.title, benchmark.state, run.by, run.load, run.repeat, *counts, *values, run.problem]
        writer.writerow([harmless(cell) for cell in cells])
    return buffer.getvalue()


def as_json(benchmark: Benchmark) -> dict[str, Any]:
    """Everything that is known of it."""
    return {
        "id": benchmark.pk,
        "title": benchmark.title,
        "state": benchmark.state,
        "whole": benchmark.is_whole,
        "origin": benchmark.origin,
        "created_at": benchmark.created_at.isoformat(),
        "finished_at": benchmark.finished_at.isoformat() if benchmark.finished_at else None,
        "profile": benchmark.profile,
        "workload": benchmark.workload,
        "loads": benchmark.loads,
        "targets": benchmark.targets,
        "subject": benchmark.subject,
        "result": benchmark.result,
        "quality": benchmark.quality,
        "failure": benchmark.failure,
        "notes": benchmark.notes,
        "tags": benchmark.tags,
        "runs": [
            {
                "key": run.key, "by": run.by, "load": run.load, "repeat": run.repeat, "numbers": run.numbers,
                "problem": run.problem, "argv": run.argv, "host_load": run.host_load, "raw": run.raw_json(),
            }
            for run in benchmark.runs.all()
        ],
    }  # fmt: skip


def _json(benchmark: Benchmark) -> str:
    return json.dumps(as_json(benchmark), indent=1)


def _html(benchmark: Benchmark) -> str:
    return render_to_string("benchmarks/export.html", presentation.context(benchmark))

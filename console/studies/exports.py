"""Studies as files: CSV for tables, JSON for programs."""

import csv
import io
import json
from typing import Any

from django.http import HttpResponse

from console.benchmarks import exports
from console.benchmarks.curves import MEASURES
from console.common.given import harmless
from console.studies import presentation
from console.studies.models import Study

KINDS = ("csv", "json")


def export(study: Study, kind: str) -> HttpResponse:
    """The file. `kind` is one of `KINDS`; the name says which study it is, and if it isn't whole."""
    content = {"csv": _csv, "json": _json}[kind](study)
    return exports.as_file(content, kind, f"study-{study.pk}", study.title, is_whole=study.state == "succeeded")


def _csv(study: Study) -> str:
    """One line for each variant and load: medians, and the verdict against the base at that load."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(["study", "variant", "state", "why", "load", "start_seconds", "answers_right", *MEASURES,
                     *(f"{key}_verdict" for key in presentation.TABLE)])  # fmt: skip
    loads: list[float | None] = list(presentation.seen(study).loads) or [None]
    for load in loads:
        found = presentation.seen(study, f"{load:g}" if load is not None else "")
        for row in presentation.rows_of(found)[1]:
            if row.point is None and load != loads[0]:
                continue
            values = [row.point.median(key) if row.point else None for key in MEASURES]
            verdicts = [one.verdict if (one := row.differs(key)) else "" for key in presentation.TABLE]
            cells = [study.title, row.label, row.trial.state, row.trial.state_reason, load if row.point else "",
                     row.trial.start_seconds, row.answered.right if row.answered else "", *values, *verdicts]  # fmt: skip
            writer.writerow([harmless("" if cell is None else cell) for cell in cells])
    return buffer.getvalue()


def _json(study: Study) -> str:
    trials: list[dict[str, Any]] = [
        {
            "label": presentation.label_of(one), "state": one.state, "why": one.state_reason, "changes": one.changes,
            "model": str(one.copy.revision.model) if one.copy else None,
            "arguments": one.arguments, "start_seconds": one.start_seconds, "engine_said": one.truth, "quality": one.quality,
            "benchmark": exports.as_json(one.benchmark) if one.benchmark else None,
        }
        for one in study.trials.select_related("benchmark", "copy__revision__model")
    ]  # fmt: skip
    return json.dumps(
        {
            "id": study.pk, "title": study.title, "state": study.state, "whole": study.state == "succeeded",
            "finding": study.finding, "ready_made": study.ready_made, "arguments": study.arguments,
            "workload": study.workload, "loads": study.loads, "targets": study.targets,
            "created_at": study.created_at.isoformat(), "trials": trials,
        },
        indent=1,
    )  # fmt: skip

"""Results of other tools, kept as benchmarks, so that they can be compared with ours."""

import json
from collections.abc import Sequence
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.benchmarks import services
from console.benchmarks.models import Benchmark, Run
from console.common import live
from console.common.errors import Refused
from console.common.states import move
from workers.benchmark_payloads import BenchmarkResult, LoadPlan
from workers.vllm.bench_imports import Imported, read_import
from workers.vllm.bench_results import UnreadableResult

MOST_FILES = 32
MOST_FILE_BYTES = 64 * 2**20
MOST_LOADS = 32
"""As many as a plan has."""


def import_files(files: "Sequence[UploadedFile[Any]]", *, title: str, notes: str, actor: User) -> Benchmark:
    """Keep the files' runs as one benchmark; those at one load are repeats. Refused, with the file's name, if one is none."""
    if len(files) > MOST_FILES:
        raise Refused(_("At most %(most)d files at once.") % {"most": MOST_FILES}, field="results")
    runs = [run for file in files for run in _read(file)]
    kinds = {run.by for run in runs}
    if len(kinds) > 1:
        raise Refused(_("Some runs have a rate, others a number at once. Import them apart."), field="results")
    loads = sorted({run.load for run in runs})
    if len(loads) > MOST_LOADS:
        raise Refused(_("There are %(count)d loads; %(most)d are taken at most.")
                      % {"count": len(loads), "most": MOST_LOADS}, field="results")  # fmt: skip
    first = runs[0]
    with transaction.atomic():
        plan = LoadPlan(by=first.by, values=loads, requests=max(1, min(20_000, first.numbers.completed or 1)))
        benchmark = Benchmark.objects.create(
            team_id=actor.team_id, title=(title or f"{first.model or first.tool} · {first.tool}")[:160], origin="import",
            profile="custom", loads=plan.model_dump(mode="json"), notes=_notes(notes, runs), requested_by=actor,
            subject={"model": first.model, "imported": first.tool, "files": [str(file.name)[:200] for file in files]},
        )  # fmt: skip
        Run.objects.bulk_create(_rows(benchmark, runs))
        access.record(
            actor=actor, action="benchmark.import", target=benchmark.title, target_url=f"/benchmarks/{benchmark.pk}/"
        )
        benchmark.started_at = timezone.now()
        move(benchmark, to="running")
        result = BenchmarkResult(runs=len(runs), loads=loads)
        services.ended(benchmark, to="succeeded", result=result.model_dump(mode="json"))
    live.changed("benchmark", benchmark.pk)
    return benchmark


def _read(file: "UploadedFile[Any]") -> list[Imported]:
    name = str(file.name)
    if (file.size or 0) > MOST_FILE_BYTES:
        raise Refused(
            _("%(name)s has %(size)d MiB; %(most)d are taken at most. Leave out the single requests.")
            % {"name": name, "size": (file.size or 0) >> 20, "most": MOST_FILE_BYTES >> 20},
            field="results",
        )
    try:
        return read_import(json.loads(file.read()))
    except (ValueError, RecursionError):
        raise Refused(_("%(name)s is no JSON.") % {"name": name}, field="results") from None
    except UnreadableResult as error:
        raise Refused(
            _("%(name)s is not understood: %(why)s.") % {"name": name, "why": error}, field="results"
        ) from None


def _rows(benchmark: Benchmark, runs: Sequence[Imported]) -> list[Run]:
    repeats: dict[float, int] = {}
    rows = []
    for run in runs:
        repeats[run.load] = repeats.get(run.load, 0) + 1
        key = f"{run.by}-{run.load:g}-{repeats[run.load]}"
        rows.append(
            Run(benchmark=benchmark, key=key[:60], by=run.by, load=run.load, repeat=repeats[run.load],
                numbers=run.numbers.model_dump(mode="json"))
        )  # fmt: skip
    return rows


def _notes(notes: str, runs: Sequence[Imported]) -> str:
    told = dict.fromkeys(run.note for run in runs if run.note)
    return "\n".join(filter(None, [notes, *told]))

"""One engine on many devices, or two on half of them each: what benchmarks of a model say, for the deploy form.

Two benchmarks are set against each other when nothing but the layout differs that changes the speed: the same question, the
same engine version, arguments and environment. Two engines share what one gets, so one's throughput at a load is set against
twice that of the other at half the load.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _

from console.benchmarks import subjects
from console.benchmarks.curves import Point, points
from console.benchmarks.models import Benchmark, Run
from console.catalog.models import Revision
from workers.vllm.memory import MeasuredLayouts

MOST_BENCHMARKS = 60
"""Of a model; older ones say little about today's engines."""
MOST_ERRORS_PERCENT = 2.0
"""A load at which more requests failed tells no throughput."""
_RANKS = ("--tensor-parallel-size", "-tp")
_OTHER_RANKS = ("--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp")
_SIZES = ("--max-model-len", "--gpu-memory-utilization", "--kv-cache-memory-bytes")
"""What follows from the memory that a layout leaves, and must not keep two of them from being compared."""


def measured(revision: Revision, device: str, tensor_parallel: int) -> MeasuredLayouts | None:
    """The newest pair of benchmarks of both layouts, else the newest one of either; None where there is none."""
    rows = _rows(revision, device)
    whole = [one for one in rows if ranks_of(one) == tensor_parallel]
    halves = [one for one in rows if ranks_of(one) == tensor_parallel // 2]
    curves = _curves([*whole, *halves])
    for first in whole:
        for second in halves:
            if _class_of(first) == _class_of(second) and (found := _pair(first, second, curves)):
                return found
    return next(_alone(whole, curves, engines=1), None) or next(_alone(halves, curves, engines=2), None)


def ranks_of(benchmark: Benchmark) -> int | None:
    """Devices of the engine that was measured; None where it was divided otherwise than by tensor parallelism."""
    values = dict(_options(benchmark))
    if any(values.get(name, "1") != "1" for name in _OTHER_RANKS):
        return None
    text = next((values[name] for name in _RANKS if name in values), "1")
    return int(text) if text.isdecimal() else None


def _rows(revision: Revision, device: str) -> list[Benchmark]:
    found = Benchmark.objects.filter(state="succeeded", revision=revision, remote_url="").order_by("-pk")
    kept = found.only("pk", "subject", "workload", "loads", "targets")[:MOST_BENCHMARKS]
    return [one for one in kept if set(one.subject.get("devices") or []) == {device}]


def _options(benchmark: Benchmark) -> Iterator[tuple[str, str]]:
    words = [str(word) for word in benchmark.subject.get("arguments") or []]
    for index, word in enumerate(words):
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            after = words[index + 1] if index + 1 < len(words) and not words[index + 1].startswith("-") else ""
            yield name, value if equals else after


def _class_of(benchmark: Benchmark) -> str:
    left_out = {*_RANKS, *_SIZES}
    asked: Mapping[str, Any] = {"workload": benchmark.workload, "loads": benchmark.loads, "targets": benchmark.targets}
    return subjects.digest(
        {
            "options": sorted(one for one in _options(benchmark) if one[0] not in left_out),
            "environment": benchmark.subject.get("environment") or {},
            "engine_version": benchmark.subject.get("engine_version"),
            "question": {name: asked[name] for name in ("workload", "targets")},
        }
    )


def _curves(rows: Sequence[Benchmark]) -> dict[int, list[Point]]:
    runs: dict[int, list[Run]] = {}
    found = Run.objects.filter(benchmark__in=[one.pk for one in rows]) if rows else Run.objects.none()
    for run in found.only("benchmark_id", "by", "load", "repeat", "numbers", "problem"):
        runs.setdefault(run.benchmark_id, []).append(run)
    return {pk: [one for one in points(own) if _tells(one)] for pk, own in runs.items()}


def _tells(point: Point) -> bool:
    return bool(point.told) and (point.median("error_share") or 0.0) <= MOST_ERRORS_PERCENT


def _speed(point: Point) -> float:
    return point.median("output_tokens_per_second") or 0.0


def _pair(whole: Benchmark, half: Benchmark, curves: Mapping[int, Sequence[Point]]) -> MeasuredLayouts | None:
    """Both at the highest load that one was given and the other half of."""
    halves = {(one.by, one.load): one for one in curves.get(half.pk, ())}
    shared = [one for one in curves.get(whole.pk, ()) if (one.by, one.load / 2) in halves]
    if not shared:
        return None
    most = max(shared, key=lambda one: one.load)
    names = _("benchmarks %(first)d and %(second)d") % {"first": whole.pk, "second": half.pk}
    return MeasuredLayouts(_speed(most), 2 * _speed(halves[most.by, most.load / 2]), _load_words(most), names)


def _alone(
    rows: Sequence[Benchmark], curves: Mapping[int, Sequence[Point]], *, engines: int
) -> Iterator[MeasuredLayouts]:
    for row in rows:
        if curves.get(row.pk):
            best = max(curves[row.pk], key=_speed)
            speed, names = engines * _speed(best), _("benchmark %(number)d") % {"number": row.pk}
            together, apart = (speed, None) if engines == 1 else (None, speed)
            yield MeasuredLayouts(together, apart, _load_words(best), names)


def _load_words(point: Point) -> str:
    if point.by == "rate":
        return _("%(load)s requests per second in all") % {"load": f"{point.load:g}"}
    return _("%(load)s requests at once in all") % {"load": f"{point.load:g}"}

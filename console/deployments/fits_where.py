"""Where a model fits: on the fleet's devices as they are now, and on those of the catalogue."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from console.catalog.models import Revision
from console.common.spans import readable_bytes
from console.deployments import launches
from console.deployments.device_catalogue import catalogue
from console.deployments.fitting import CPU_KV_GIB, GIB, kind_of
from console.fleet import presentation
from console.fleet.models import Device, Host
from workers.vllm.memory import (
    NEWEST_KNOWN_VERSION,
    LearnedResidual,
    ModelShape,
    Plan,
    PlanRequest,
    compute_plan,
    shape_from,
)
from workers.vllm.memory import Device as Kind

SIZES = (1, 2, 4, 8, 16)
USUAL_CONTEXT = 32_768


@dataclass(frozen=True)
class Place:
    """One kind of device, with the fewest that hold the model. `count` 0: not even the most of them do."""

    name: str
    where: str
    present: bool
    count: int
    weights: str
    kv_tokens: int | None
    concurrency: float | None
    overhead: str
    """Where the overhead is from, in words; empty where it doesn't fit."""
    why: str


def places(revision: Revision, hosts: QuerySet[Host], *, context: int | None = None) -> tuple[list[Place], int]:
    """All places for a revision, those of the fleet first, and the context they were planned with.

    ValueError when the model's shape isn't known or can't be planned.
    """
    if not revision.shape:
        raise ValueError(_("No host has read these files yet. Verify a copy, and this table is filled."))
    shape = shape_from(revision.shape)
    planned = min(context or USUAL_CONTEXT, shape.max_context)
    learned = launches.learned_by_device(revision=revision.pk, engine_version=NEWEST_KNOWN_VERSION)
    return [*_of_fleet(shape, planned, hosts, learned), *_of_catalogue(shape, planned)], planned


def _of_fleet(
    shape: ModelShape, context: int, hosts: QuerySet[Host], learned: Mapping[str, tuple[LearnedResidual, ...]]
) -> Iterator[Place]:
    rows = (
        Device.objects.usable()
        .filter(host__in=hosts)
        .select_related("host")
        .order_by("host__name", "kind", "name", "index")
    )
    for (host, _kind, name), group in groupby(rows, key=lambda row: (row.host, row.kind, row.name)):
        devices = list(group)
        free = sorted((presentation.memory(row, host.vitals).free for row in devices), reverse=True)
        yield _place(
            shape, kind_of(devices[0]), context, most=len(devices), free=free, name=name, learned=learned.get(name, ()),
            where=_("%(host)s, %(count)d there, up to %(free)s free") % {
                "host": host, "count": len(devices), "free": readable_bytes(free[0]),
            },
        )  # fmt: skip


def _of_catalogue(shape: ModelShape, context: int) -> Iterator[Place]:
    for kind in catalogue():
        if kind.memory_bytes is not None:
            yield _place(shape, kind, context, most=SIZES[-1], free=(), name=kind.title, where="")


def _place(
    shape: ModelShape, kind: Kind, context: int, *, most: int, free: Sequence[int], name: str, where: str,
    learned: tuple[LearnedResidual, ...] = (),
) -> Place:  # fmt: skip
    last: Plan | None = None
    for count in SIZES:
        if count > most:
            break
        request = PlanRequest(
            device=kind, count=count, tensor_parallel=count, max_model_len=context,
            free_bytes=free[count - 1] if free else None,
            kv_cache_memory=int(CPU_KV_GIB * GIB) if kind.platform == "cpu" else None, learned=learned,
        )  # fmt: skip
        last = compute_plan(shape, request)
        if last.fits:
            weights = readable_bytes(last.weights_bytes_per_device)
            overhead = _("learned here") if last.overhead.source == "learned" else _("first guess")
            return Place(
                name, where, bool(where), count, weights, last.kv_cache_tokens, last.max_concurrency, overhead, ""
            )
    why = next((one.text for one in last.reasons if one.severity == "error"), "") if last else ""
    return Place(name, where, bool(where), 0, "", None, None, "", why)

"""Which arguments an engine has: what it printed itself, else what is shipped for its version."""

from functools import lru_cache
from typing import Any

from console.fleet.models import Engine
from workers.vllm.arguments import ArgumentSchema, SchemaError, schema_for, schema_from_dump, shipped_versions

DUMP = "schema"
"""Key of `Engine.details` that holds what `dump_arguments` printed on the host."""
_dumped: dict[tuple[int, str], ArgumentSchema] = {}
_MOST_KEPT = 64


def schema_of(engine: Engine | None) -> ArgumentSchema | None:
    """The arguments of an engine; the newest shipped ones without an engine; None for a version nobody knows.

    Schemas that hosts dumped are kept per engine and moment: reading one takes longer than checking a line with it.
    """
    if engine is None:
        return newest()
    dump = engine.details.get(DUMP) if isinstance(engine.details, dict) else None
    if dump:
        known = _of_dump((engine.pk, f"{engine.version} {len(str(dump))}"), dump)
        if known is not None:
            return known
    return shipped(engine.version)


@lru_cache(maxsize=_MOST_KEPT)
def shipped(version: str) -> ArgumentSchema | None:
    """The shipped schema of a version, interpolated where it lies between two; None for what is no version."""
    try:
        return schema_for(version)
    except SchemaError:
        return None


def newest() -> ArgumentSchema:
    """The newest schema that is shipped: what the form begins with before an engine is chosen."""
    return schema_for(shipped_versions()[-1])


def _of_dump(key: tuple[int, str], dump: Any) -> ArgumentSchema | None:
    if key not in _dumped:
        try:
            found = schema_from_dump(dump)
        except SchemaError:
            return None  # a dump of another shape is no reason to show no form
        if len(_dumped) >= _MOST_KEPT:
            _dumped.clear()
        _dumped[key] = found
    return _dumped[key]

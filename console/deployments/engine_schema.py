"""Which arguments the form offers for an engine: what it printed itself, else what is shipped for its version."""

from console.fleet import schemas
from console.fleet.models import Engine
from workers.vllm.arguments import ArgumentSchema, SchemaError, schema_for, shipped_versions


def schema_of(engine: Engine | None) -> ArgumentSchema | None:
    """The arguments of an engine; the newest shipped ones without an engine; None for a version nobody knows."""
    if engine is None:
        return schema_for(shipped_versions()[-1])
    try:
        return schemas.schema_of(engine)
    except SchemaError:
        return None

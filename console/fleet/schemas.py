"""The arguments of engines: what each engine printed itself, and Slipway's own table where it didn't."""

import hashlib
import json
from functools import lru_cache
from typing import Any

from django.db import transaction

from console.common import live
from console.fleet.models import Engine, EngineSchema, Host
from workers import contracts
from workers.vllm.arguments import ArgumentSchema, SchemaError, schema_for, schema_from_dump


def take(host: Host, told: contracts.EngineSchema) -> None:
    """Keep what an engine of this host printed. Raises `SchemaError` if it is no schema of a vLLM."""
    engine = Engine.objects.filter(host=host, key=told.key).first()
    if engine is None:
        return  # removed meanwhile
    read = schema_from_dump(told.content)
    with transaction.atomic():
        # The digest is the host's word, and rows are shared: one host must not change what another's engine has.
        sha256 = _digest(told.content)
        engine.schema, _created = EngineSchema.objects.get_or_create(
            sha256=sha256, defaults={"version": read.version[:40], "content": told.content}
        )
        engine.save(update_fields=["schema"])
        live.changed("engine", engine.pk)


def schema_of(engine: Engine) -> ArgumentSchema:
    """The arguments that an engine takes: its own if it has printed them, else those of its version as far as known.

    Raises `SchemaError` for an engine that printed none and whose version is no version. A shipped schema says where it
    was interpolated (`between`).
    """
    if engine.schema_id is None:
        return schema_for(engine.version)
    return _read(EngineSchema.objects.values_list("sha256", flat=True).get(pk=engine.schema_id))


def difference(engine: Engine) -> tuple[list[str], list[str]]:
    """Flags that the engine has and the shipped table of its version lacks, and the other way round."""
    try:
        own, shipped = schema_of(engine), schema_for(engine.version)
    except SchemaError:
        return [], []
    has = {argument.flag for argument in own.arguments}
    known = {argument.flag for argument in shipped.arguments if argument.certain}
    return sorted(has - known), sorted(known - has)


@lru_cache(maxsize=16)
def _read(sha256: str) -> ArgumentSchema:
    content: Any = EngineSchema.objects.values_list("content", flat=True).get(sha256=sha256)
    return schema_from_dump(content)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

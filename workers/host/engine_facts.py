"""The engines of this host as the inventory lists them: what the register knows, and what each has compiled."""

from workers.contracts import EngineFacts
from workers.host.compile_caches import caches_of
from workers.host.engines import all_engines
from workers.host_config import HostConfig


def engine_facts(config: HostConfig) -> list[EngineFacts]:
    """Every engine of the register, with what it has compiled for which model."""
    found = []
    for engine in all_engines(config.engines_dir):
        facts = engine.facts(config.engines_dir)
        caches = [
            {"model": cache.model, "size_bytes": cache.size_bytes, "used_at": cache.used_at}
            for cache in caches_of(config.state_dir, engine.key)
        ]
        found.append(facts.model_copy(update={"details": {**facts.details, "caches": caches}}))
    return found

"""What the console is told about engines: the inventory, each schema once, and how a step about one ended."""

from collections.abc import Callable
from typing import Any, TypeVar

from workers.contracts import Body, EngineSchema
from workers.host.engines import Engine, all_engines
from workers.host.files import read_json, write_json
from workers.host.step_context import StepContext
from workers.host.vitals import inventory
from workers.host_config import HostConfig
from workers.step_payloads import EngineResult

_TOLD_FILE = "told-schemas.json"

Result = TypeVar("Result", bound=EngineResult)


def tell_engines(config: HostConfig, report: Callable[[Body], object], *, again: str = "") -> None:
    """Report the inventory, then the schemas that were not told yet; that of the engine `again` in any case."""
    report(inventory(config))
    told = read_json(config.state_dir / _TOLD_FILE) or {}
    now: dict[str, Any] = {}
    for engine in all_engines(config.engines_dir):
        sha256 = str(engine.details.get("schema_sha256") or "")
        if not sha256:
            continue
        if told.get(engine.key) != sha256 or engine.key == again:
            content = engine.arguments()
            if content is None:
                continue
            report(EngineSchema(key=engine.key, sha256=sha256, content=content))
        now[engine.key] = sha256
    if now != told:
        write_json(config.state_dir / _TOLD_FILE, now)


def engine_result(kind: type[Result], context: StepContext, engine: Engine, **more: Any) -> Result:
    """The result card of a step that ends with an engine in the register."""
    return kind(
        engine=engine.key,
        distribution=engine.distribution,
        version=engine.version,
        platform=engine.platform,
        path=engine.directory or str(context.config.engines_dir / engine.key),
        python=engine.python,
        size_bytes=engine.size_bytes,
        seconds=round(context.seconds, 1),
        details={name: value for name, value in engine.details.items() if name != "plan"},
        **more,
    )

"""Check engine: the self-test of an engine of this host once more, and its arguments anew.

An engine that fails it stays in the register, with what is wrong: instances that run are not touched, and a person may put
the driver right, or repair it.
"""

import time
from pathlib import Path

from workers.host.engine_environments import engine_lock, size_of
from workers.host.engine_examination import examine
from workers.host.engine_reports import engine_result, tell_engines
from workers.host.engines import Engine, register_engine, registered_engine
from workers.host.failures import StepFailedError
from workers.host.step_context import StepContext
from workers.step_payloads import CheckEnginePayload as Payload
from workers.step_payloads import CheckEngineResult

__all__ = ["Payload", "run"]


def run(context: StepContext, payload: Payload) -> CheckEngineResult:
    """Return what the engine says of itself now; a test that fails is kept in the register and fails the step."""
    engines_dir = context.config.engines_dir
    with engine_lock(engines_dir, payload.engine, waiting=lambda: _wait(context)):
        engine = registered_engine(engines_dir, payload.engine)
        if engine is None:
            raise StepFailedError(
                "engine.not_installed",
                f"engine {payload.engine!r} is not installed on this host",
                next_step="Install it, or adopt it again.",
            )
        try:
            tested = _test(context, engine)
        except StepFailedError as error:
            broken = engine.model_copy(
                update={
                    "problem": error.failure.message,
                    "details": {**engine.details, "tested_at": time.time()},
                }
            )
            register_engine(engines_dir, broken)
            tell_engines(context.config, context.report)
            raise
        register_engine(engines_dir, tested)
    tell_engines(context.config, context.report, again=tested.key)
    return engine_result(CheckEngineResult, context, tested, warnings=[f"{tested.problem}."] if tested.problem else [])


def _test(context: StepContext, engine: Engine) -> Engine:
    own = context.config.engines_dir / engine.key
    directory = Path(engine.directory) if engine.directory else own
    if not Path(engine.python).exists():
        repair = (
            "Adopt it again where it lies now, or forget it." if engine.adopted else "Repair it: it is installed anew."
        )
        raise StepFailedError("engine.gone", f"{engine.python} is no longer there", next_step=repair)
    tested = examine(context, engine, (own if engine.adopted else directory) / "schema.json")
    return tested.model_copy(update={"size_bytes": size_of(directory)})


def _wait(context: StepContext) -> None:
    context.progress(context.seconds, unit="seconds", waiting_for="another step about this engine")
    context.check()

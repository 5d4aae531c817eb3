"""Remove engine: its environment and its compile caches leave this host; an adopted one is only forgotten."""

from workers.host import compile_caches
from workers.host.engine_environments import engine_lock, remove_tree, unfinished_orders, words_in_use
from workers.host.engine_reports import tell_engines
from workers.host.engines import ENGINE_FILE, registered_engine
from workers.host.failures import StepFailedError
from workers.host.step_context import StepContext
from workers.step_payloads import RemoveEnginePayload as Payload
from workers.step_payloads import RemoveEngineResult

__all__ = ["Payload", "run"]


def run(context: StepContext, payload: Payload) -> RemoveEngineResult:
    """Return what the disk got back; an engine that is gone already is no failure."""
    config = context.config
    with engine_lock(config.engines_dir, payload.engine, waiting=lambda: _wait(context)):
        engine = registered_engine(config.engines_dir, payload.engine)
        directory = config.engines_dir / payload.engine
        if engine is not None:
            _refuse_running(context, payload.engine)
            # First out of the register: what is half removed must not be started.
            (directory / ENGINE_FILE).unlink()
            tell_engines(config, context.report)
        context.progress(0, unit="bytes", waiting_for="the files to be removed")
        freed = remove_tree(directory) if engine is not None else 0
        freed += compile_caches.clear(config.state_dir, payload.engine)
    context.event(f"The disk has {freed / 1e9:.2f} GB more.")
    return RemoveEngineResult(
        engine=payload.engine,
        path=engine.directory or str(directory) if engine else str(directory),
        freed_bytes=freed,
        adopted=engine is not None and engine.adopted,
        already_gone=engine is None,
    )


def _refuse_running(context: StepContext, key: str) -> None:
    users = [order.deployment for order in unfinished_orders(context.config.state_dir) if order.engine == key]
    programs = f"{context.config.engines_dir / key}/"
    if not users and any(word.startswith(programs) for word in words_in_use(context.config.state_dir)):
        # Hosts and clones may share the directory; a test by hand counts, too.
        users = ["a process of this machine that Slipway did not start for this host"]
    if users:
        raise StepFailedError(
            "engine.in_use",
            f"nothing was removed: {', '.join(sorted(set(users)))} runs on {key}",
            next_step="Stop it first.",
        )


def _wait(context: StepContext) -> None:
    context.progress(context.seconds, unit="seconds", waiting_for="another step about this engine")
    context.check()

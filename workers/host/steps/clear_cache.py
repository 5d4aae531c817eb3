"""Clear cache: what an engine compiled for a model is deleted; its next start compiles anew."""

from workers.host import compile_caches
from workers.host.engine_environments import unfinished_orders
from workers.host.engine_reports import tell_engines
from workers.host.failures import StepFailedError
from workers.host.step_context import StepContext
from workers.step_payloads import ClearCachePayload as Payload
from workers.step_payloads import ClearCacheResult

__all__ = ["Payload", "run"]


def run(context: StepContext, payload: Payload) -> ClearCacheResult:
    """Return what the disk got back; refused while an engine runs that compiles into it."""
    state_dir = context.config.state_dir
    users = {
        order.deployment
        for order in unfinished_orders(state_dir)
        if order.engine == payload.engine and payload.model in ("", compile_caches.model_name(order.model_path))
    }
    if users:
        raise StepFailedError(
            "cache.in_use",
            f"nothing was removed: {', '.join(sorted(users))} runs with this cache",
            next_step="Stop it first, or leave the cache: it is reused.",
        )
    freed = compile_caches.clear(state_dir, payload.engine, payload.model)
    tell_engines(context.config, context.report)
    context.event(f"The disk has {freed / 1e6:.1f} MB more.")
    return ClearCacheResult(engine=payload.engine, model=payload.model, freed_bytes=freed)

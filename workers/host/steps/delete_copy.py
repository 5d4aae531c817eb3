"""Delete copy: a model's files leave this host, or the parts that an abandoned download left do.

Nothing outside the models directory and the hub cache is ever removed, and nothing that an engine of this host runs from.
"""

from pathlib import Path

from workers.host.engine_environments import unfinished_orders
from workers.host.failures import StepFailedError
from workers.host.step_context import StepContext
from workers.step_payloads import DeleteCopyPayload as Payload
from workers.step_payloads import DeleteCopyResult
from workers.weights.download_cache import RepositoryCache, UnsafePathError, check_inside, hub_cache_of, remove_copy

__all__ = ["Payload", "run"]

_MARKS = ("config.json", "*.safetensors", "*.gguf", "*.bin", "*.pt", "adapter_config.json", "params.json")
"""A directory that holds none of these is no model's: it may hold many."""


def run(context: StepContext, payload: Payload) -> DeleteCopyResult:
    """Return what was removed; a copy that is gone already is no failure."""
    cache = hub_cache_of(context.config.models_dir)
    try:
        if payload.parts_only:
            store = RepositoryCache(cache, payload.repository)
            removed = store.discard_parts()
            return DeleteCopyResult(
                model_path=str(store.folder), removed_files=removed.files, freed_bytes=removed.bytes
            )
        path = context.config.models_dir / Path(payload.model_path).expanduser()
        real = check_inside(path, [context.config.models_dir, cache])
    except UnsafePathError as error:
        raise StepFailedError(
            "path.outside",
            f"nothing was removed: {error}",
            next_step="Remove a directory that people keep elsewhere by hand.",
        ) from error
    if not real.exists():
        return DeleteCopyResult(model_path=str(path), removed_files=0, freed_bytes=0, already_gone=True)
    _refuse_shared(real, cache)
    _refuse_running(context, real)
    removed = remove_copy(real, cache)
    context.event(f"Removed {removed.files} files; the disk has {removed.bytes / 1e9:.2f} GB more.")
    return DeleteCopyResult(model_path=str(path), removed_files=removed.files, freed_bytes=removed.bytes)


def _refuse_shared(real: Path, cache: Path) -> None:
    """A whole cache, a repository's folder in it, or a folder of several models is more than one copy."""
    root = cache.resolve()
    if root in real.parents:
        is_copy = real.parent.name == "snapshots" and real.parent.parent.parent == root
    else:
        is_copy = real not in (root, *root.parents) and any(any(real.glob(pattern)) for pattern in _MARKS)
    if not real.is_dir() or not is_copy:
        raise StepFailedError(
            "path.not_a_copy",
            f"nothing was removed: {real} is no model's directory",
            next_step="Give the directory of one copy: a snapshot, or a directory with config.json.",
        )


def _refuse_running(context: StepContext, real: Path) -> None:
    for order in unfinished_orders(context.config.state_dir):
        used = (context.config.models_dir / Path(order.model_path).expanduser()).resolve()
        if used == real or real in used.parents:
            raise StepFailedError(
                "copy.in_use",
                f"nothing was removed: an engine of {order.deployment} runs from {real}",
                next_step="Stop that deployment first.",
            )

"""What a fresh engine turned out to need: from its log, its own metrics and the memory of its processes."""

import logging
import time
from contextlib import suppress
from typing import Any

import psutil

from workers.contracts import LaunchFacts
from workers.host.engine_client import EngineClient, EngineError
from workers.host.instance_files import InstanceFiles
from workers.vllm.launch_log import read_launch_log
from workers.vllm.metrics import parse_metrics

logger = logging.getLogger(__name__)

_LOG_BYTES = 4 * 2**20
"""Everything about memory is said at the start; a DEBUG log is longer than that."""


def measure(
    files: InstanceFiles, attempt: int, client: EngineClient, *, pid: int, seconds: float | None
) -> LaunchFacts:
    """Gather what is known of a start that has warmed up. What can't be had stays None: nothing waits for it."""
    with files.log(attempt).open("rb") as log:
        said = read_launch_log(log.read(_LOG_BYTES).decode(errors="replace"))
    facts: dict[str, Any] = {"resident_bytes": _resident_bytes(pid), "seconds": seconds}
    with suppress(EngineError, ValueError):
        pool = parse_metrics(client.metrics(), taken_at=time.monotonic()).cache
        if pool is not None:
            facts |= {"num_blocks": pool.num_gpu_blocks, "block_size": pool.block_size}
            # The metric is exact where the log is rounded, or says another thing for hybrids (0.20 and before).
            facts["kv_cache_tokens"] = said.kv_cache_tokens or pool.size_tokens
    return said.model_copy(update=facts)


def _resident_bytes(pid: int) -> int | None:
    """Memory of a process and its descendants, shared pages counted once for all (PSS); None where it can't be read."""
    try:
        leader = psutil.Process(pid)
        return sum(one.memory_full_info().pss for one in [leader, *leader.children(recursive=True)])
    except (psutil.Error, AttributeError) as error:
        logger.info("the memory of process %d can't be read: %s", pid, error)
        return None

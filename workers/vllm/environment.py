"""The environment card: what of a host's environment lets an engine run well, what doesn't, and what to do about it.

Pure judgement over what a host told (`workers.host_facts`). Each line has a fact, a need and a fix. "Failure" means: an engine
would not start here, or would silently run on the wrong device; a deploy's preflight stops at it. "Unknown" is said as such.
"""

from workers.host_facts import EngineEnvironment, GpuReading, HostFacts
from workers.vllm import environment_devices, environment_engine, environment_host
from workers.vllm.environment_types import WORST_FIRST, Judged, Line, Verdict

__all__ = ["WORST_FIRST", "Line", "Verdict", "failures", "judge"]

_OF_HOST = (*environment_devices.CHECKS, *environment_host.CHECKS)


def judge(
    facts: HostFacts,
    gpus: GpuReading,
    engine: EngineEnvironment | None = None,
    *,
    clock_skew_seconds: float | None = None,
    world_size: int | None = None,
) -> tuple[Line, ...]:
    """All lines, failures first. Without an engine: what holds for every engine of this host."""
    judged = Judged(facts, gpus, engine, clock_skew_seconds, world_size)
    checks = (*_OF_HOST, *(environment_engine.CHECKS if engine is not None else ()))
    lines = [line for check in checks for line in check(judged)]
    return tuple(sorted(lines, key=lambda line: WORST_FIRST.index(line.verdict)))


def failures(lines: tuple[Line, ...]) -> list[Line]:
    """The lines that forbid a start."""
    return [line for line in lines if line.verdict == "failure"]

"""Preflight: everything that can be known before a start, checked in seconds and without changing anything."""

import shutil
from pathlib import Path

import psutil

from workers.host import ports
from workers.host.engines import Engine, find_engine
from workers.host.failures import StepFailedError
from workers.host.inventory.engine_environment import read_engine
from workers.host.inventory.limits import read_disks, read_limits, read_memory
from workers.host.launching import check_arguments, check_environment
from workers.host.step_context import StepContext
from workers.host.vitals import stored_facts
from workers.host_config import HostConfig
from workers.step_payloads import PreflightPayload as Payload
from workers.step_payloads import PreflightResult
from workers.vllm.environment import failures, judge

__all__ = ["Payload", "resolve_model_path", "run"]


def run(context: StepContext, payload: Payload) -> PreflightResult:
    """Return the facts and the chosen port; fail with the first thing that forbids a start."""
    config = context.config
    engine = find_engine(config.engines_dir, payload.engine)
    path = resolve_model_path(config.models_dir, payload.model_path) if payload.model_path else ""
    check_arguments(payload.arguments)
    check_environment(payload.environment)
    context.check()
    warnings = _judge_environment(context.config, engine, payload.arguments)
    port = _port(payload, config.port_range)
    memory = psutil.virtual_memory()
    disk = shutil.disk_usage(config.state_dir)
    _check_amount("memory", payload.memory_needed, memory.available, "Stop another instance, or use a smaller model.")
    _check_amount("disk", payload.disk_needed, disk.free, f"Free space on the disk that holds {config.state_dir}.")
    return PreflightResult(
        engine=engine.key,
        engine_version=engine.version,
        model_path=str(path),
        port=port,
        memory_total=memory.total,
        memory_available=memory.available,
        disk_free=disk.free,
        warnings=warnings,
    )


def resolve_model_path(models_dir: Path, model_path: str) -> Path:
    """The absolute path of a model directory. Raises `StepFailedError` (`path.not_found`, `path.not_a_directory`)."""
    path = models_dir / Path(model_path).expanduser()
    if not path.exists():
        near = sorted(child.name for child in path.parent.iterdir() if child.is_dir()) if path.parent.is_dir() else []
        beside = f" {path.parent} holds: {', '.join(near[:10]) or 'no directories'}." if path.parent.is_dir() else ""
        raise StepFailedError(
            "path.not_found",
            f"there is no model directory {path} on this host.{beside}",
            next_step="Correct the path, or copy the model to this host first.",
        )
    if not path.is_dir():
        raise StepFailedError(
            "path.not_a_directory", f"{path} is a file", next_step="Give the directory that holds config.json."
        )
    return path


def _judge_environment(config: HostConfig, engine: Engine, arguments: list[str]) -> list[str]:
    """Warnings of the environment card; raises `StepFailedError` with the code of its first failure.

    The same judgement as on the host's page, over what the agent's watcher last found; memory and disks are looked at now.
    """
    stored = stored_facts(config)
    if stored is None:
        return ["The agent has not looked at this host's devices yet: its environment was not judged."]
    facts, reading = stored
    fresh = facts.model_copy(update={"memory": read_memory(), "limits": read_limits(), "disks": read_disks(config)})
    lines = judge(fresh, reading, read_engine(engine), world_size=world_size(arguments))
    forbidding = failures(lines)
    if forbidding:
        first = forbidding[0]
        raise StepFailedError(
            first.code,
            f"{first.title}: {first.fact}" + (f" (needed: {first.need})" if first.need else ""),
            next_step=first.fix,
            evidence=[{"line": None, "text": f"{line.title}: {line.fact}. {line.fix}"} for line in forbidding],
        )
    return [f"{line.title}: {line.fact}. {line.fix}" for line in lines if line.verdict == "warning"]


_PARALLEL = {"--tensor-parallel-size": "tp", "-tp": "tp", "--pipeline-parallel-size": "pp", "-pp": "pp"}


def world_size(arguments: list[str]) -> int:
    """GPUs that one instance takes: tensor times pipeline parallel size, 1 unless they are given."""
    sizes = {"tp": 1, "pp": 1}
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        kind = _PARALLEL.get(name.replace("_", "-"))
        text = value if equals else "".join(arguments[at + 1 : at + 2])
        if kind and text.isdigit():
            sizes[kind] = int(text)
    return sizes["tp"] * sizes["pp"]


def _port(payload: Payload, configured: tuple[int, int]) -> int:
    first, last = payload.port_range or configured
    if payload.port is not None:
        if not first <= payload.port <= last:
            raise StepFailedError(
                "port.outside_range",
                f"port {payload.port} is not among the ports of this host's instances ({first} to {last})",
                next_step="Choose a port of that range, leave it to the host, or have an admin change the range.",
            )
        if payload.port in payload.reserved_ports:
            raise StepFailedError(
                "port.in_use",
                f"port {payload.port} is promised to another instance on this host",
                next_step="Choose another port, or leave it to the host.",
            )
        if not ports.is_free(payload.port):
            raise StepFailedError.of(ports.in_use(payload.port))
        return payload.port
    port = ports.choose(first, last, payload.reserved_ports)
    if port is None:
        raise StepFailedError(
            "port.none_free",
            f"none of the {last - first + 1} ports between {first} and {last} is free on this host"
            f" ({len(payload.reserved_ports)} are promised to instances; {first} is held by {ports.holder(first)})",
            next_step="Stop an instance, or have an admin widen the host's port range.",
        )
    return port


def _check_amount(what: str, needed: int, free: int, next_step: str) -> None:
    if needed > free:
        raise StepFailedError(
            f"{what}.not_enough",
            f"{needed / 2**30:.1f} GiB of {what} are needed, {free / 2**30:.1f} GiB are free",
            next_step=next_step,
        )

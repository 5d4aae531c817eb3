"""Preflight: everything that can be known before a start, checked in seconds and without changing anything."""

import shutil
from pathlib import Path

import psutil

from workers.host import ports
from workers.host.engines import find_engine
from workers.host.failures import StepFailedError
from workers.host.launching import check_arguments, check_environment
from workers.host.step_context import StepContext
from workers.step_payloads import PreflightPayload as Payload
from workers.step_payloads import PreflightResult

__all__ = ["Payload", "resolve_model_path", "run"]


def run(context: StepContext, payload: Payload) -> PreflightResult:
    """Return the facts and the chosen port; fail with the first thing that forbids a start."""
    config = context.config
    engine = find_engine(config.engines_dir, payload.engine)
    path = resolve_model_path(config.models_dir, payload.model_path)
    check_arguments(payload.arguments)
    check_environment(payload.environment)
    context.check()
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

"""What this host is and how it is, put together for the console from what the watcher saw. Nothing here waits for a device."""

import importlib.metadata
import platform
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from workers.contracts import CONTRACT, DeviceFacts, HostInventory
from workers.host.drivers.choosing import driver_facts
from workers.host.engine_facts import engine_facts
from workers.host.files import read_json
from workers.host.inventory.cpu import read_cpu
from workers.host.inventory.network import read_network
from workers.host.processes import boot_id
from workers.host.watcher_process import FACTS_FILE
from workers.host_config import HostConfig
from workers.host_facts import Cpu, Gpu, GpuReading, HostFacts, Live
from workers.sealing import public_key_of
from workers.weights.download_cache import hub_cache_of

_NAME_LENGTH = 120
_UUID_LENGTH = 80


def agent_version() -> str:
    """Version of Slipway that this agent is: of the agent's own wheel, or of the console that it came with."""
    for distribution in ("slipway-host", "slipway"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return "unpackaged"


def stored_facts(config: HostConfig) -> tuple[HostFacts, GpuReading] | None:
    """What the watcher last found; None before its first look."""
    raw = read_json(config.state_dir / FACTS_FILE)
    if raw is None:
        return None
    try:
        return HostFacts.model_validate(raw.get("host")), GpuReading.model_validate(raw.get("reading"))
    except ValidationError:
        return None  # of another version; the next look replaces it


def inventory(config: HostConfig) -> HostInventory:
    """What the host has, for the console's pages and checks. Before the watcher's first look: without its devices."""
    stored = stored_facts(config)
    facts, reading = stored or (HostFacts(cpu=read_cpu(), gpus=GpuReading(source="pending")), GpuReading())
    return HostInventory(
        agent_version=agent_version(),
        contract=CONTRACT,
        devices=[_cpu(facts.cpu), *(_gpu(gpu, reading) for gpu in reading.gpus)],
        devices_known=stored is not None,
        engines=engine_facts(config),
        facts={
            "hostname": socket.gethostname(),
            "system": platform.platform(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "boot_id": boot_id(),
            "boot_time": psutil.boot_time(),
            "public_key": public_key_of(config.private_key),
            "models_dir": str(config.models_dir),
            "engines_dir": str(config.engines_dir),
            "port_range": list(config.port_range),
            "disk_total": shutil.disk_usage(config.state_dir).total,
            "host": facts.model_dump(mode="json", exclude_defaults=True),
            **driver_facts(config),
        },
    )


def vitals(config: HostConfig, live: Live | None = None) -> dict[str, Any]:
    """How the host is now. Bytes, fractions 0 to 1, the load average of the last minute, and the network's counters."""
    memory = psutil.virtual_memory()
    disk = shutil.disk_usage(config.state_dir)
    models = shutil.disk_usage(_existing(hub_cache_of(config.models_dir)))
    gpus = live.gpus.gpus if live is not None else []
    return {
        "cpu_used": psutil.cpu_percent() / 100,
        "load_1m": psutil.getloadavg()[0],
        "memory_total": memory.total,
        "memory_available": memory.available,
        "disk_total": disk.total,
        "disk_free": disk.free,
        # Often a disk of its own; the one above holds logs and engines.
        "models_disk_total": models.total,
        "models_disk_free": models.free,
        "network": read_network(),
        "gpus": [{"uuid": gpu.uuid, "memory_free": gpu.memory_free, "memory_total": gpu.memory_total} for gpu in gpus],
    } | ({"live": live.model_dump(mode="json", exclude_defaults=True)} if live is not None else {})


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there already: both will be on the same disk."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def _cpu(cpu: Cpu) -> DeviceFacts:
    memory = psutil.virtual_memory()
    return DeviceFacts(
        kind="cpu",
        index=0,
        uuid="cpu",
        name=(cpu.name or "CPU")[:_NAME_LENGTH],
        memory_total=memory.total,
        memory_free=memory.available,
        details={
            "cores": cpu.cores,
            "threads": cpu.threads,
            "usable": cpu.usable,
            "features": cpu.features,
            "nodes": len(cpu.nodes),
            "avx512": any(feature.startswith("avx512") for feature in cpu.features),
            "amx": "amx_bf16" in cpu.features,
        },
    )


def _gpu(gpu: Gpu, reading: GpuReading) -> DeviceFacts:
    free = gpu.memory_free if gpu.memory_free is not None else gpu.memory_total
    return DeviceFacts(
        kind="gpu",
        index=gpu.index,
        uuid=gpu.uuid[:_UUID_LENGTH],
        name=gpu.name[:_NAME_LENGTH],
        memory_total=gpu.memory_total,
        memory_free=free,
        details={
            "capability": gpu.capability,
            "driver": reading.driver,
            "cuda": reading.cuda,
            "bus_id": gpu.bus_id,
            "divided": not gpu.usable,
            "mig": gpu.mig.model_dump(mode="json") if gpu.mig else None,
        },
    )

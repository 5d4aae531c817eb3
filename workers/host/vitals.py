"""What this host is and how it is: devices, engines, memory, load."""

import importlib.metadata
import logging
import platform
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pynvml

from workers.contracts import CONTRACT, DeviceFacts, HostInventory
from workers.host.engines import all_engines
from workers.host.processes import boot_id
from workers.host_config import HostConfig
from workers.sealing import public_key_of

logger = logging.getLogger(__name__)


def agent_version() -> str:
    """Version of Slipway that this agent is."""
    try:
        return importlib.metadata.version("slipway")
    except importlib.metadata.PackageNotFoundError:
        return "unpackaged"


def inventory(config: HostConfig) -> HostInventory:
    """What the host has, for the console's pages and checks."""
    return HostInventory(
        agent_version=agent_version(),
        contract=CONTRACT,
        devices=[_cpu(), *_gpus()],
        engines=[engine.facts(config.engines_dir) for engine in all_engines(config.engines_dir)],
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
        },
    )


def vitals(config: HostConfig) -> dict[str, Any]:
    """How the host is now. Bytes, fractions 0 to 1, and the load average of the last minute."""
    memory = psutil.virtual_memory()
    disk = shutil.disk_usage(config.state_dir)
    return {
        "cpu_used": psutil.cpu_percent() / 100,
        "load_1m": psutil.getloadavg()[0],
        "memory_total": memory.total,
        "memory_available": memory.available,
        "disk_total": disk.total,
        "disk_free": disk.free,
        "gpus": [
            {"uuid": gpu.uuid, "memory_free": gpu.memory_free, "memory_total": gpu.memory_total} for gpu in _gpus()
        ],
    }


def _cpu() -> DeviceFacts:
    memory = psutil.virtual_memory()
    flags = _cpu_flags()
    return DeviceFacts(
        kind="cpu",
        index=0,
        uuid="cpu",
        name=_cpu_name(),
        memory_total=memory.total,
        memory_free=memory.available,
        details={
            "cores": psutil.cpu_count(logical=False),
            "threads": psutil.cpu_count(),
            "avx512": any(flag.startswith("avx512") for flag in flags),
            "amx": "amx_bf16" in flags,
        },
    )


def _cpu_name() -> str:
    return next((value for name, value in _cpu_info() if name == "model name"), platform.processor() or "CPU")


def _cpu_flags() -> set[str]:
    return set(next((value for name, value in _cpu_info() if name in ("flags", "Features")), "").split())


def _cpu_info() -> list[tuple[str, str]]:
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return [(name.strip(), value.strip()) for name, _colon, value in (line.partition(":") for line in lines)]
    return []


def _gpus() -> list[DeviceFacts]:
    """All NVIDIA GPUs; none if there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        logger.warning("the GPUs can't be read: %s", error)
        return []
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu(index: int) -> DeviceFacts:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return DeviceFacts(
        kind="gpu",
        index=index,
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_total=memory.total,
        memory_free=memory.free,
        details={"capability": f"{major}.{minor}", "driver": _text(pynvml.nvmlSystemGetDriverVersion())},
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

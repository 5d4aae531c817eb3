"""GPUs through NVML. The library is handed in, so that recordings of its calls can take its place.

Every question may be refused by itself: a T4 has no NVLink, a GeForce no ECC, WSL2 no processes. What is refused is None;
only an answer that the GPU is gone ends the reading of that GPU.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from workers.host_facts import Gpu, GpuProcess, GpuReading, Mig

_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND, _GPU_IS_LOST, _RESET_REQUIRED = 9, 12, 15, 16
_NO_PERMISSION, _MISMATCH, _UNKNOWN = 4, 18, 999
_GONE = (_GPU_IS_LOST, _RESET_REQUIRED, _UNKNOWN)
_MAX_LINKS = 18

_SLOWDOWNS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of the clocks' event reasons that cost speed; idle, application clocks and display are none."""

COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}


class _Asked:
    """One GPU's handle, and questions about it."""

    def __init__(self, library: Any, handle: Any) -> None:
        self.library = library
        self.handle = handle

    def __call__(self, name: str, *arguments: Any, **named: Any) -> Any:
        """The answer to nvmlDevice`name`, or None when it is refused. Raises NVMLError when the GPU is gone."""
        question = getattr(self.library, f"nvmlDevice{name}", None)
        if question is None:
            return None
        try:
            answer = question(self.handle, *arguments, **named)
        except self.library.NVMLError as error:
            if error.value in _GONE:
                raise
            return None
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


def read_nvml(library: Any) -> GpuReading:
    """All GPUs, with what can't be read said in the reading; never raises for what NVML answers."""
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        return _refused(error.value, str(error))
    try:
        return _read(library)
    except library.NVMLError as error:
        return _refused(error.value, str(error))
    finally:
        with suppress(library.NVMLError):
            library.nvmlShutdown()


def _read(library: Any) -> GpuReading:
    gpus: list[Gpu] = []
    unreadable: list[str] = []
    for index in range(library.nvmlDeviceGetCount()):
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
            gpus += _gpu_and_parts(_Asked(library, handle), index)
        except library.NVMLError as error:
            unreadable.append(f"GPU {index}: {error}")
    return GpuReading(
        source="nvml",
        driver=_text(library.nvmlSystemGetDriverVersion()),
        cuda=_cuda(library),
        gpus=gpus,
        unreadable=unreadable,
        code="lost" if unreadable else "",
        problem="; ".join(unreadable),
    )


def _cuda(library: Any) -> str:
    try:
        number = library.nvmlSystemGetCudaDriverVersion_v2()
    except library.NVMLError:
        return ""
    return f"{number // 1000}.{number % 1000 // 10}"


def _refused(value: int, text: str) -> GpuReading:
    code = {
        _DRIVER_NOT_LOADED: "not_loaded",
        _LIBRARY_NOT_FOUND: "no_driver",
        _MISMATCH: "mismatch",
        _NO_PERMISSION: "no_permission",
        _GPU_IS_LOST: "lost",
    }.get(value, "failed")
    return GpuReading(code=code, problem=text)


def _gpu_and_parts(ask: _Asked, index: int) -> Iterator[Gpu]:
    whole = _gpu(ask, index)
    yield whole
    if whole.mig_enabled:
        yield from _mig_instances(ask, whole)


def _gpu(ask: _Asked, index: int) -> Gpu:
    library = ask.library
    memory = _memory(ask)
    capability = ask("GetCudaComputeCapability")
    ecc = ask("GetEccMode")
    mig = ask("GetMigMode")
    utilization = ask("GetUtilizationRates")
    links, peers = _nvlink(ask)
    pci = ask("GetPciInfo")
    power, limit = ask("GetPowerUsage"), ask("GetEnforcedPowerLimit")
    return Gpu(
        index=index,
        uuid=ask("GetUUID") or f"GPU-at-{index}",
        name=ask("GetName") or "GPU",
        bus_id=_text(pci.busId) if pci is not None else "",
        capability=f"{capability[0]}.{capability[1]}" if capability else "",
        **memory,
        pcie_generation=ask("GetCurrPcieLinkGeneration"),
        pcie_generation_max=ask("GetMaxPcieLinkGeneration"),
        pcie_width=ask("GetCurrPcieLinkWidth"),
        pcie_width_max=ask("GetMaxPcieLinkWidth"),
        nvlink_links=links,
        nvlink_peers=peers,
        mig_enabled=bool(mig[0]) if mig else None,
        ecc_enabled=bool(ecc[0]) if ecc else None,
        ecc_corrected=ask("GetTotalEccErrors", library.NVML_MEMORY_ERROR_TYPE_CORRECTED, library.NVML_AGGREGATE_ECC),
        ecc_uncorrected=ask(
            "GetTotalEccErrors", library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_AGGREGATE_ECC
        ),
        rows_pending=_rows_pending(ask),
        clock_sm_mhz=ask("GetClockInfo", library.NVML_CLOCK_SM),
        clock_sm_max_mhz=ask("GetMaxClockInfo", library.NVML_CLOCK_SM),
        clock_memory_mhz=ask("GetClockInfo", library.NVML_CLOCK_MEM),
        slowdowns=_slowdowns(ask("GetCurrentClocksEventReasons") or 0),
        power_watts=power / 1000 if power is not None else None,
        power_limit_watts=limit / 1000 if limit is not None else None,
        temperature_c=ask("GetTemperature", library.NVML_TEMPERATURE_GPU),
        utilization=utilization.gpu / 100 if utilization is not None else None,
        compute_mode=COMPUTE_MODES.get(ask("GetComputeMode"), ""),
        processes=_processes(ask),
    )


def _mig_instances(ask: _Asked, whole: Gpu) -> Iterator[Gpu]:
    library = ask.library
    for number in range(ask("GetMaxMigDeviceCount") or 0):
        handle = ask("GetMigDeviceHandleByIndex", number)
        if handle is None:
            continue
        part = _Asked(library, handle)
        name = part("GetName") or whole.name
        yield Gpu(
            index=whole.index,
            uuid=part("GetUUID") or f"MIG-{whole.uuid}/{number}",
            name=name,
            bus_id=whole.bus_id,
            capability=whole.capability,
            **_memory(part),
            mig_enabled=True,
            mig=Mig(
                parent=whole.uuid,
                gpu_instance=part("GetGpuInstanceId") or 0,
                compute_instance=part("GetComputeInstanceId") or 0,
                profile=name.partition(" MIG ")[2],
            ),
            ecc_enabled=whole.ecc_enabled,
            processes=_processes(part),
        )


def _memory(ask: _Asked) -> dict[str, Any]:
    # The second version tells what the driver keeps for itself; the first counts that as used.
    version = getattr(ask.library, "nvmlMemory_v2", None)
    memory = ask("GetMemoryInfo", version=version) if version is not None else None
    memory = memory if memory is not None else ask("GetMemoryInfo")
    if memory is None:
        return {}
    return {
        "memory_total": memory.total,
        "memory_used": memory.used,
        "memory_free": memory.free,
        "memory_reserved": getattr(memory, "reserved", None),
    }


def _nvlink(ask: _Asked) -> tuple[int | None, list[str]]:
    states = [ask("GetNvLinkState", link) for link in range(_MAX_LINKS)]
    if all(state is None for state in states):
        return None, []
    active = [link for link, state in enumerate(states) if state]
    remotes = (ask("GetNvLinkRemotePciInfo", link) for link in active)
    return len(active), list(dict.fromkeys(_text(remote.busId) for remote in remotes if remote is not None))


def _rows_pending(ask: _Asked) -> bool | None:
    rows = ask("GetRemappedRows")
    if rows is not None:
        return bool(rows[2])
    pages = ask("GetRetiredPagesPendingStatus")
    return None if pages is None else bool(pages)


def _slowdowns(reasons: int) -> list[str]:
    return [word for bit, word in _SLOWDOWNS.items() if reasons & bit]


def _processes(ask: _Asked) -> list[GpuProcess]:
    found: dict[int, GpuProcess] = {}
    for question in ("GetComputeRunningProcesses", "GetGraphicsRunningProcesses"):
        for one in ask(question) or []:
            known = found.get(one.pid)
            if known is None or known.memory is None:
                found[one.pid] = GpuProcess(pid=one.pid, memory=one.usedGpuMemory)
    return list(found.values())


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

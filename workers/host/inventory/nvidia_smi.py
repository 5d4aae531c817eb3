"""GPUs from the text of `nvidia-smi -q -x`, for hosts where NVML can't be loaded into this Python.

`[N/A]`, `N/A`, `Requested functionality has been deprecated` and missing elements all mean: unknown. What nvidia-smi says
instead of a list (another driver version loaded than installed, a GPU fallen off the bus) becomes the reading's problem.
"""

import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from workers.host_facts import Gpu, GpuProcess, GpuReading, Mig
from workers.vllm.devices import find_device

_MIB = 2**20
_NOTHING = ("", "n/a", "[n/a]", "none", "not found", "not supported", "[not supported]", "unknown error")
_ARCHITECTURES = {"hopper": "9.0", "ada lovelace": "8.9", "turing": "7.5", "volta": "7.0", "pascal": "6.1"}
"""Those with one capability; Ampere and Blackwell have several."""

_TROUBLES = (
    ("mismatch", r"Driver/library version mismatch"),
    ("not_loaded", r"couldn't communicate with the NVIDIA driver|driver is not loaded"),
    ("lost", r"GPU is lost|fallen off the bus|Unable to determine the device handle"),
    ("no_permission", r"Insufficient Permissions"),
    ("no_devices", r"No devices were found"),
)

_SLOWDOWNS = {
    "sw_power_cap": "power cap",
    "hw_slowdown": "hardware slowdown",
    "sw_thermal_slowdown": "thermal slowdown",
    "hw_thermal_slowdown": "hardware thermal slowdown",
    "hw_power_brake_slowdown": "power brake",
}


def parse_query(output: str, capabilities: dict[str, str] | None = None) -> GpuReading:
    """The reading in `nvidia-smi -q -x`'s output, with whatever it wrote around or instead of XML.

    `capabilities`: uuid -> compute capability from `parse_capabilities`, which the XML doesn't hold.
    """
    begin, end = output.find("<nvidia_smi_log"), output.find("</nvidia_smi_log>")
    around = (output[:begin] + output[end:].removeprefix("</nvidia_smi_log>")) if end >= 0 else output
    code, problem = explain(around)
    if begin < 0 or end < 0:
        return GpuReading(code=code or "failed", problem=problem or _first_line(output))
    if "<!ENTITY" in output:
        return GpuReading(code="failed", problem="nvidia-smi's output defines entities and is not read")
    try:
        root = ElementTree.fromstring(output[begin : end + len("</nvidia_smi_log>")])  # noqa: S314 - no DTD, no entities
    except ElementTree.ParseError as error:
        return GpuReading(code="failed", problem=f"nvidia-smi's output can't be read: {error}")
    gpus, unreadable = _all_gpus(root, capabilities or {})
    if code == "lost" and not unreadable:
        unreadable = [problem]
    return GpuReading(
        source="nvidia-smi",
        driver=_text(root, "driver_version"),
        cuda=_text(root, "cuda_version"),
        gpus=gpus,
        unreadable=unreadable,
        code="lost" if unreadable else code,
        problem=problem or "; ".join(unreadable),
    )


def explain(text: str) -> tuple[str, str]:
    """Code and words of what nvidia-smi complains about; both empty if it doesn't."""
    for code, pattern in _TROUBLES:
        for line in text.splitlines():
            if re.search(pattern, line, re.IGNORECASE):
                return code, line.strip()
    return "", ""


def parse_capabilities(output: str) -> dict[str, str]:
    """uuid -> capability from `nvidia-smi --query-gpu=uuid,compute_cap --format=csv,noheader`."""
    rows = (line.split(",") for line in output.splitlines() if line.count(",") == 1)
    return {uuid.strip(): value.strip() for uuid, value in rows if re.fullmatch(r"\d+\.\d+", value.strip())}


def _all_gpus(root: ElementTree.Element, capabilities: dict[str, str]) -> tuple[list[Gpu], list[str]]:
    gpus: list[Gpu] = []
    unreadable: list[str] = []
    for index, element in enumerate(root.iter("gpu")):
        uuid, name = _text(element, "uuid"), _text(element, "product_name")
        if not uuid or not name:
            unreadable.append(f"GPU {element.get('id', index)}: {_trouble(element)}")
            continue
        whole = _gpu(element, index, capabilities.get(uuid, ""))
        gpus += [whole, *_mig_instances(element, whole)]
    return gpus, unreadable


def _trouble(element: ElementTree.Element) -> str:
    texts = (text.strip() for text in element.itertext())
    return next((text for text in texts if explain(text)[0]), "it answers no questions")


def _gpu(element: ElementTree.Element, index: int, capability: str) -> Gpu:
    name = _text(element, "product_name")
    power = _power(element)
    mig = _text(element, "mig_mode/current_mig")
    ecc = _text(element, "ecc_mode/current_ecc")
    return Gpu(
        index=index,
        uuid=_text(element, "uuid"),
        name=name,
        bus_id=_text(element, "pci/pci_bus_id") or element.get("id", ""),
        capability=capability or _capability(name, _text(element, "product_architecture")),
        **_memory(element),
        pcie_generation=_whole(element, "pci/pci_gpu_link_info/pcie_gen/current_link_gen"),
        pcie_generation_max=_whole(element, "pci/pci_gpu_link_info/pcie_gen/max_link_gen"),
        pcie_width=_whole(element, "pci/pci_gpu_link_info/link_widths/current_link_width"),
        pcie_width_max=_whole(element, "pci/pci_gpu_link_info/link_widths/max_link_width"),
        mig_enabled=_switch(mig),
        ecc_enabled=_switch(ecc),
        ecc_corrected=_errors(element, ("sram_correctable", "dram_correctable"), "single_bit"),
        ecc_uncorrected=_errors(element, _UNCORRECTABLE, "double_bit"),
        rows_pending=_rows_pending(element),
        clock_sm_mhz=_whole(element, "clocks/sm_clock"),
        clock_sm_max_mhz=_whole(element, "max_clocks/sm_clock"),
        clock_memory_mhz=_whole(element, "clocks/mem_clock"),
        slowdowns=_slowdowns(element),
        power_watts=power[0],
        power_limit_watts=power[1],
        temperature_c=_whole(element, "temperature/gpu_temp"),
        utilization=_share(element, "utilization/gpu_util"),
        compute_mode=_text(element, "compute_mode"),
        processes=_processes(element, None),
    )


def _mig_instances(element: ElementTree.Element, whole: Gpu) -> Iterator[Gpu]:
    for part in element.iterfind("mig_devices/mig_device"):
        gpu_instance, compute = _whole(part, "gpu_instance_id") or 0, _whole(part, "compute_instance_id") or 0
        memory = _memory(part)
        slices = round(memory.get("memory_total", 0) / 2**30)
        yield Gpu(
            index=whole.index,
            # Not every driver tells it here; this older form is what CUDA_VISIBLE_DEVICES takes, too.
            uuid=_text(part, "uuid") or f"MIG-{whole.uuid}/{gpu_instance}/{compute}",
            name=f"{whole.name} MIG {slices} GiB",
            bus_id=whole.bus_id,
            capability=whole.capability,
            **memory,
            mig_enabled=True,
            mig=Mig(parent=whole.uuid, gpu_instance=gpu_instance, compute_instance=compute),
            ecc_enabled=whole.ecc_enabled,
            processes=_processes(element, (gpu_instance, compute)),
        )


def _capability(name: str, architecture: str) -> str:
    known = find_device(name)
    if known is not None and known.capability is not None:
        return f"{known.capability[0]}.{known.capability[1]}"
    return _ARCHITECTURES.get(architecture.lower(), "")


def _memory(element: ElementTree.Element) -> dict[str, Any]:
    sizes = {name: _bytes(element, f"fb_memory_usage/{name}") for name in ("total", "used", "free", "reserved")}
    total = sizes.pop("total")
    return {"memory_total": total or 0} | {f"memory_{name}": value for name, value in sizes.items()}


_UNCORRECTABLE = (
    "sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable",
)  # fmt: skip


def _errors(element: ElementTree.Element, names: tuple[str, ...], older: str) -> int | None:
    counters = [_whole(element, f"ecc_errors/aggregate/{name}") for name in names]
    counters.append(_whole(element, f"ecc_errors/aggregate/{older}/total"))
    known = [count for count in counters if count is not None]
    return sum(known) if known else None


def _rows_pending(element: ElementTree.Element) -> bool | None:
    answers = [
        _text(element, path) for path in ("remapped_rows/remapped_row_pending", "retired_pages/pending_retirement")
    ]
    known = [answer for answer in answers if answer]
    return any(answer.lower() == "yes" for answer in known) if known else None


def _slowdowns(element: ElementTree.Element) -> list[str]:
    # Named "throttle" up to driver 530, "event" since.
    names = [f"clocks_{word}_reasons/clocks_{word}_reason_" for word in ("event", "throttle")]
    return [word for name, word in _SLOWDOWNS.items() if "Active" in [_text(element, path + name) for path in names]]


def _power(element: ElementTree.Element) -> tuple[float | None, float | None]:
    """Draw and limit in watts. The readings have had three names, the draw two since drivers average it."""
    for folder in ("gpu_power_readings", "power_readings", "module_power_readings"):
        draws = (f"{folder}/{name}" for name in ("instant_power_draw", "power_draw", "average_power_draw"))
        draw = next((value for path in draws if (value := _number(element, path)) is not None), None)
        limits = (f"{folder}/{name}" for name in ("current_power_limit", "power_limit", "enforced_power_limit"))
        limit = next((value for path in limits if (value := _number(element, path)) is not None), None)
        if draw is not None or limit is not None:
            return draw, limit
    return None, None


def _processes(element: ElementTree.Element, part: tuple[int, int] | None) -> list[GpuProcess]:
    """Processes of a whole GPU (`part` None), or of one MIG instance; the driver lists them all in one place."""
    found = []
    for one in element.iterfind("processes/process_info"):
        instance = (_whole(one, "gpu_instance_id"), _whole(one, "compute_instance_id"))
        pid = _whole(one, "pid")
        if pid is None or (part is not None and instance != part) or (part is None and instance[0] is not None):
            continue
        found.append(GpuProcess(pid=pid, name=_text(one, "process_name"), memory=_bytes(one, "used_memory")))
    return found


def _text(element: ElementTree.Element, path: str) -> str:
    text = (element.findtext(path) or "").strip()
    return "" if text.lower() in _NOTHING or text.startswith("Requested functionality") else text


def _number(element: ElementTree.Element, path: str) -> float | None:
    match = re.match(r"-?\d+(?:\.\d+)?", _text(element, path))
    return float(match[0]) if match else None


def _whole(element: ElementTree.Element, path: str) -> int | None:
    number = _number(element, path)
    return None if number is None else int(number)


def _share(element: ElementTree.Element, path: str) -> float | None:
    number = _number(element, path)
    return None if number is None else number / 100


def _bytes(element: ElementTree.Element, path: str) -> int | None:
    number = _number(element, path)
    return None if number is None else int(number * _MIB)


def _switch(text: str) -> bool | None:
    return {"enabled": True, "disabled": False}.get(text.lower())


def _first_line(output: str) -> str:
    return next((line.strip()[:300] for line in output.splitlines() if line.strip()), "nvidia-smi said nothing")

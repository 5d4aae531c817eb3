"""The environment card's lines about devices: the driver's state, each GPU's health, Xid errors, other accelerators."""

from collections.abc import Iterator

from workers.host_facts import Gpu
from workers.vllm.environment_types import GIB, Check, Judged, Line, Verdict

_VENDOR_BUILDS = {
    "ascend": ("Huawei Ascend NPUs", "vllm-ascend (torch_npu, CANN)"),
    "rocm": ("AMD GPUs (ROCm)", "vllm built for ROCm"),
    "dcu": ("Hygon DCUs (DTK)", "the vendor's vllm for DTK"),
    "mlu": ("Cambricon MLUs", "the vendor's vllm for MLU"),
    "gaudi": ("Intel Gaudi", "vllm-gaudi"),
    "xpu": ("Intel GPUs", "vllm built for XPU"),
    "musa": ("Moore Threads GPUs", "the vendor's vllm for MUSA"),
}
_OTHER_PLATFORMS = {
    "ascend": "npu",
    "rocm": "rocm",
    "dcu": "rocm",
    "mlu": "mlu",
    "gaudi": "hpu",
    "xpu": "xpu",
    "musa": "musa",
}


_DRIVER_FIXES = {
    "mismatch": (
        "The driver was upgraded under the running kernel module: reboot the host, or unload and load nvidia and nvidia_uvm."
    ),
    "not_loaded": (
        "Load the driver (modprobe nvidia), or install it for this kernel; start a container with --gpus all."
    ),
    "no_driver": "Install NVIDIA's driver for this card.",
    "no_permission": "Give the agent's user access to /dev/nvidia*.",
    "hangs": "A GPU or its driver does not answer: look for Xid errors, reset the GPU or reboot the host.",
    "lost": "Reset or reboot; if it comes back, check power, riser and temperature, and have the card replaced.",
    "failed": "Run nvidia-smi on the host and follow what it says.",
    "no_devices": (
        "The driver runs and sees no GPU: check lspci, or pass the devices into the container (--gpus all)."
    ),
}
"""Fix for each code of a reading's problem; a host that simply has no GPU is none."""


def _gpus(judged: Judged) -> Iterator[Line]:
    reading = judged.gpus
    fix = _DRIVER_FIXES.get(reading.code) if reading.problem else None
    if fix and (judged.on_gpu or judged.engine is None):
        verdict: Verdict = "failure" if judged.on_gpu and not reading.gpus else "warning"
        yield Line("environment.driver_state", verdict, "NVIDIA driver", reading.problem, "a driver that answers", fix)
    for gpu in reading.gpus:
        yield from _health(gpu, alone=len(judged.usable) == 1)


def _health(gpu: Gpu, *, alone: bool) -> Iterator[Line]:
    name = f"GPU {gpu.number} ({gpu.name})"
    if gpu.ecc_uncorrected:
        fact = f"{gpu.ecc_uncorrected:,} uncorrectable memory errors since it was made"
        verdict: Verdict = "warning" if gpu.rows_pending else "ok"
        fix = "Memory rows wait to be replaced: drain the host and reset the GPU." if gpu.rows_pending else ""
        yield Line("environment.ecc", verdict, name, fact, "none that wait for a reset", fix)
    if gpu.compute_mode in ("Prohibited", "Exclusive_Process", "Exclusive_Thread"):
        verdict = "failure" if gpu.compute_mode == "Prohibited" and alone else "warning"
        fix = f"nvidia-smi -i {gpu.index} -c DEFAULT"
        yield Line("environment.compute_mode", verdict, name, f"compute mode {gpu.compute_mode}", "Default", fix)
    hot = [word for word in gpu.slowdowns if "thermal" in word or word == "hardware slowdown"]
    if hot:
        fact = f"{', '.join(hot)} at {gpu.temperature_c} °C" if gpu.temperature_c is not None else ", ".join(hot)
        yield Line(
            "environment.heat",
            "warning",
            name,
            fact,
            "full clocks",
            "Look at fans, filters and the room's temperature.",
        )
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max and gpu.memory_total > 30 * GIB:
        fact = f"PCIe x{gpu.pcie_width} of x{gpu.pcie_width_max}"
        fix = "Loading and tensor parallelism over PCIe are slower: check the slot, or accept it."
        yield Line("environment.pcie", "warning", name, fact, "all lanes", fix)


def _xid(judged: Judged) -> Iterator[Line]:
    log = judged.facts.xid
    title = "Kernel log (Xid)"
    if log.events:
        last = log.events[-1]
        fact = f"{len(log.events)} since boot, the last: Xid {last.code} of {last.bus_id}: {last.text}"
        yield Line(
            "environment.xid",
            "warning",
            title,
            fact,
            "none",
            XID_MEANINGS.get(last.code, "Look the number up in NVIDIA's list of Xid errors."),
        )
    elif judged.gpus.gpus and log.problem:
        fix = "Let the agent's user read /dev/kmsg, or put it into group systemd-journal."
        yield Line("environment.xid", "unknown", title, f"can't be read: {log.problem}", "none", fix)
    elif judged.gpus.gpus:
        yield Line("environment.xid", "ok", title, f"none since boot ({log.source})", "none")


XID_MEANINGS = {
    13: "A program touched memory it may not: usually the engine's fault. If it comes with several programs, test the card.",
    31: "A program touched memory it may not: usually the engine's fault, sometimes the driver's.",
    43: "A program was stopped by the driver; others go on. Read the engine's log.",
    45: "A program was cleaned up after another error: look at the Xid before it.",
    48: "An uncorrectable memory error: drain the host and reset the GPU.",
    61: "The GPU's firmware stopped: reset the GPU; if it comes back, have the card replaced.",
    62: "The GPU's firmware stopped: reset the GPU; if it comes back, have the card replaced.",
    63: "A memory row was taken out of use: it takes effect at the next reset.",
    64: "A memory row could not be taken out of use: have the card replaced.",
    74: "An NVLink error: check the bridge or baseboard; if it comes back, have it replaced.",
    79: "The GPU has fallen off the bus: reboot; check power, riser and temperature.",
    94: "A contained memory error: only the program that hit it ends. Drain and reset the GPU soon.",
    95: "An uncontained memory error: every program on the GPU ends. Drain and reset the GPU.",
    119: "The GPU's system processor does not answer: reset the GPU, and take the newest driver.",
}


def _accelerators(judged: Judged) -> Iterator[Line]:
    for one in judged.facts.accelerators:
        title, build = _VENDOR_BUILDS[one.kind]
        count = f"{one.count} found" if one.count else "found"
        fits = judged.engine is not None and judged.engine.platform == _OTHER_PLATFORMS[one.kind]
        need = f"another engine build: {build}"
        fix = "" if fits else f"Install {build} into an environment of its own, and register its Python as an engine."
        yield Line(
            "environment.accelerator", "ok" if fits else "warning", title, f"{count} ({one.evidence})", need, fix
        )


CHECKS: tuple[Check, ...] = (_gpus, _xid, _accelerators)

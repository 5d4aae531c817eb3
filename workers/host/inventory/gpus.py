"""The GPUs of this machine: through NVML, else `nvidia-smi`, else none with the reason.

Called in the watcher's own process only: a driver that hangs takes its caller with it.
"""

import glob
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pynvml

from workers.host.inventory.nvidia_smi import parse_capabilities, parse_query
from workers.host.inventory.nvml import read_nvml
from workers.host_facts import GpuReading

SMI_SECONDS = 20.0
"""nvidia-smi takes a second or two; where it takes longer, the driver hangs."""

Run = Callable[[list[str]], str]


def read_gpus() -> GpuReading:
    """What this machine's GPUs say now."""
    return choose(read_nvml(pynvml), shutil.which("nvidia-smi"), run=run_smi, nodes=device_nodes())


def choose(through_library: GpuReading, tool: str | None, *, run: Run, nodes: list[str]) -> GpuReading:
    """The reading to believe. `tool`: path of nvidia-smi or None; `nodes`: the driver's device files."""
    if through_library.source == "nvml" or through_library.code == "mismatch":
        return through_library
    if tool is None:
        return _explained(through_library, nodes)
    try:
        output = run([tool, "-q", "-x"])
        reading = parse_query(output)
        if reading.gpus:
            capabilities = run([tool, "--query-gpu=uuid,compute_cap", "--format=csv,noheader"])
            reading = parse_query(output, parse_capabilities(capabilities))
    except subprocess.TimeoutExpired:
        return GpuReading(code="hangs", problem=f"nvidia-smi has not answered for {SMI_SECONDS:.0f} s")
    except OSError as error:
        return GpuReading(code="failed", problem=f"nvidia-smi can't be run: {error.strerror}")
    return reading


def run_smi(argv: list[str]) -> str:
    """What nvidia-smi writes, wherever to. Raises TimeoutExpired, without waiting for one that can't be killed."""
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output, _nothing = process.communicate(timeout=SMI_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return output.decode(errors="replace")


def device_nodes() -> list[str]:
    """The NVIDIA driver's device files, such as /dev/nvidia0; WSL2 has /dev/dxg instead."""
    return sorted(glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/nvidiactl") + glob.glob("/dev/dxg"))  # noqa: PTH207 - absolute patterns


def _explained(reading: GpuReading, nodes: list[str]) -> GpuReading:
    if reading.code != "no_driver":
        return reading
    if nodes:
        text = f"there are {', '.join(nodes[:3])}, but neither NVML nor nvidia-smi can be found"
        return GpuReading(code="not_loaded", problem=text)
    if _has_nvidia_card():
        return GpuReading(code="no_driver", problem="there is an NVIDIA card, but no driver is installed")
    return GpuReading(code="none", problem="no NVIDIA GPU and no NVIDIA driver here")


def _has_nvidia_card() -> bool:
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor = (device / "vendor").read_text(encoding="ascii").strip()
            kind = (device / "class").read_text(encoding="ascii").strip()
        except OSError:
            continue
        if vendor == "0x10de" and kind.startswith("0x03"):
            return True
    return False

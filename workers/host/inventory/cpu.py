"""The processor as a device: cores, NUMA nodes and the instruction sets that decide how fast a CPU engine is."""

import math
import os
import platform
import re
from pathlib import Path

from workers.host.inventory.limits import cpu_quota
from workers.host_facts import Cpu, NumaNode

FEATURES = (
    "avx", "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8",
    "asimd", "asimddp", "bf16", "i8mm", "sve", "sve2", "vsx", "vx",
)  # fmt: skip
"""By the kernel's names: x86, ARM, POWER and z have their own."""

_ARM_IMPLEMENTERS = {
    "0x41": "ARM", "0x48": "HiSilicon", "0x4e": "NVIDIA", "0x50": "Ampere", "0x51": "Qualcomm", "0x70": "Phytium",
    "0xc0": "Ampere", "0x61": "Apple",
}  # fmt: skip


def read_cpu(root: Path = Path("/")) -> Cpu:
    """The processor of this machine, from /proc and /sys below `root`."""
    info = _text(root / "proc/cpuinfo")
    return parse_cpu(info).model_copy(update={"usable": usable_cpus(root), "nodes": read_nodes(root)})


def parse_cpu(cpuinfo: str) -> Cpu:
    """Name, counts and instruction sets from the text of /proc/cpuinfo."""
    blocks = [_fields(block) for block in cpuinfo.strip().split("\n\n")]
    blocks = [block for block in blocks if "processor" in block]
    if not blocks:
        return Cpu(name=platform.processor() or platform.machine(), threads=os.cpu_count())
    first = blocks[0]
    sockets = {block["physical id"] for block in blocks if "physical id" in block}
    cores = {(block["physical id"], block["core id"]) for block in blocks if {"physical id", "core id"} <= set(block)}
    have = set((first.get("flags") or first.get("Features") or "").split())
    return Cpu(
        name=_name(first),
        sockets=len(sockets) or None,
        cores=len(cores) or None,
        threads=len(blocks),
        features=[name for name in FEATURES if name in have],
    )


def _name(block: dict[str, str]) -> str:
    if name := block.get("model name") or block.get("cpu model"):
        return re.sub(r"\s+", " ", name)
    maker = _ARM_IMPLEMENTERS.get(block.get("CPU implementer", ""), "")
    part = block.get("CPU part", "")
    return f"{maker} {part}".strip() or platform.machine()


def usable_cpus(root: Path = Path("/")) -> float:
    """Logical CPUs that this process may use: the smaller of its affinity and its cgroup's quota."""
    affinity = len(os.sched_getaffinity(0))
    return min(float(affinity), cpu_quota(root) or math.inf)


def read_nodes(root: Path = Path("/")) -> list[NumaNode]:
    """NUMA nodes with their CPUs and memory; empty where the kernel has none."""
    nodes = []
    for directory in (root / "sys/devices/system/node").glob("node[0-9]*"):
        sizes = {
            name: int(amount) * 1024
            for name, amount in re.findall(r"(Mem\w+):\s+(\d+) kB", _text(directory / "meminfo"))
        }
        nodes.append(
            NumaNode(
                index=int(directory.name.removeprefix("node")),
                cpus=_text(directory / "cpulist").strip(),
                memory_total=sizes.get("MemTotal", 0),
                memory_free=sizes.get("MemFree", 0),
            )
        )
    return sorted(nodes, key=lambda node: node.index)


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

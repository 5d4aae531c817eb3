"""Kernel, distribution, C library, container; variables and tools that engines inherit or need."""

import os
import platform
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from workers.host_facts import Accelerator, Surroundings, System

_TOOL_SECONDS = 10.0

VARIABLES = (
    "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "LD_LIBRARY_PATH", "LD_PRELOAD", "CONDA_PREFIX",
    "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "VIRTUAL_ENV", "CC", "CXX", "TMPDIR",
)  # fmt: skip

_USER_SITE_MATTERS = ("torch", "vllm", "transformers", "triton", "numpy", "nvidia", "ray", "flashinfer")


def read_system(root: Path = Path("/")) -> System:
    """What this machine runs."""
    release = _release(root)
    kernel = platform.release()
    return System(
        kernel=kernel,
        machine=platform.machine(),
        distribution=release.get("PRETTY_NAME", ""),
        distribution_id=release.get("ID", "").lower(),
        wsl="microsoft" in kernel.lower() or "microsoft" in _text(root / "proc/version").lower(),
        container=container_kind(root),
        glibc=_glibc(),
        python=platform.python_version(),
        user=_user(),
    )


def container_kind(root: Path = Path("/")) -> str:
    """`docker`, `podman`, `kubernetes`, …, or empty on a machine of its own."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    return _text(root / "run/systemd/container").strip()


def read_surroundings(environ: Mapping[str, str], root: Path = Path("/")) -> Surroundings:
    """Variables and tools of the agent's environment."""
    return Surroundings(
        variables={name: environ[name][:500] for name in VARIABLES if environ.get(name)},
        conda=_conda(environ),
        user_site=_user_site(),
        compiler=_compiler(environ),
        compat_driver=_compat_driver(environ, root),
    )


def _conda(environ: Mapping[str, str]) -> str:
    if (Path(sys.base_prefix) / "conda-meta").is_dir():
        return sys.base_prefix
    return environ.get("CONDA_PREFIX", "")


def _user_site() -> list[str]:
    directory = Path(site.getusersitepackages())
    if not directory.is_dir():
        return []
    names = {entry.name.partition("-")[0].lower() for entry in directory.iterdir()}
    return sorted(name for name in names if name in _USER_SITE_MATTERS)


def _compiler(environ: Mapping[str, str]) -> str:
    for name in (environ.get("CC"), "gcc", "cc", "clang"):
        path = shutil.which(name) if name else None
        if path is None:
            continue
        try:
            ended = subprocess.run([path, "--version"], capture_output=True, timeout=_TOOL_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if ended.returncode == 0:
            return ended.stdout.decode(errors="replace").partition("\n")[0][:120]
    return ""


def _compat_driver(environ: Mapping[str, str], root: Path) -> str:
    folders = [Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder.endswith("compat")]
    folders += sorted((root / "usr/local").glob("cuda*/compat"), reverse=True)
    for folder in folders:
        for library in folder.glob("libcuda.so.[0-9]*.*"):
            return library.name.removeprefix("libcuda.so.")
    return ""


_NODES: tuple[tuple[str, str, str], ...] = (
    ("ascend", "dev", "davinci[0-9]*"),
    ("mlu", "dev", "cambricon_dev[0-9]*"),
    ("gaudi", "dev/accel", "accel[0-9]*"),
    ("musa", "dev", "mtgpu.[0-9]*"),
)


def find_accelerators(root: Path = Path("/")) -> list[Accelerator]:
    """Devices that compute and are no NVIDIA GPUs, by the files that their drivers make."""
    found = []
    for kind, folder, pattern in _NODES:
        nodes = sorted((root / folder).glob(pattern))
        if kind == "gaudi" and not _driver_of(root, "habanalabs"):
            continue
        if nodes:
            text = f"/{folder}/{nodes[0].name}"
            found.append(Accelerator.model_validate({"kind": kind, "count": len(nodes), "evidence": text}))
    if (root / "dev/kfd").exists():
        found.append(_amd(root))
    return found


def _amd(root: Path) -> Accelerator:
    """ROCm and Hygon's DCU share a kernel driver; DCUs are told by Hygon's PCI vendor, or by its toolkit."""
    vendors = [_text(path / "vendor").strip() for path in (root / "sys/bus/pci/devices").glob("*") if _computes(path)]
    if "0x1d94" in vendors or (root / "opt/dtk").exists():
        return Accelerator(
            kind="dcu", count=vendors.count("0x1d94"), evidence="/dev/kfd, Hygon's PCI vendor or /opt/dtk"
        )
    return Accelerator(kind="rocm", count=vendors.count("0x1002"), evidence="/dev/kfd")


def _computes(device: Path) -> bool:
    return _text(device / "class").strip().startswith(("0x03", "0x0b", "0x12"))


def _driver_of(root: Path, name: str) -> bool:
    return (root / "sys/module" / name).is_dir()


def _release(root: Path) -> dict[str, str]:
    pairs = re.findall(r'(?m)^([A-Z_]+)="?([^"\n]*)"?$', _text(root / "etc/os-release"))
    return dict(pairs)


def _glibc() -> str:
    try:
        name, _space, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return ""
    return version if name == "glibc" else ""


def _user() -> str:
    return "root" if os.geteuid() == 0 else os.environ.get("USER", str(os.geteuid()))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

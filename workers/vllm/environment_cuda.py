"""Which NVIDIA driver runs which CUDA, and which CUDA has code for which GPU.

Sources: NVIDIA's CUDA toolkit release notes (driver of each toolkit; oldest driver of each major version, which runs every
minor of it: "minor version compatibility") and its compatibility guide (cuda-compat packages, data-centre GPUs only).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Version = tuple[int, ...]

OLDEST_OF_MAJOR: dict[int, Version] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
"""From here on a driver runs every toolkit of that major version, as long as nothing must be compiled for the GPU first."""

DRIVER_OF: dict[Version, Version] = {
    (11, 8): (520, 61, 5),
    (12, 0): (525, 60, 13),
    (12, 1): (530, 30, 2),
    (12, 2): (535, 54, 3),
    (12, 3): (545, 23, 6),
    (12, 4): (550, 54, 14),
    (12, 5): (555, 42, 2),
    (12, 6): (560, 28, 3),
    (12, 8): (570, 26),
    (12, 9): (575, 51, 3),
    (13, 0): (580, 65, 6),
}
"""The driver that each toolkit was released with: everything of it works from here on."""

_CONSUMER = ("geforce", "rtx", "titan", "quadro")

_CODE_FROM: tuple[tuple[Version, Version], ...] = (
    ((12, 0), (12, 8)),
    ((10, 3), (12, 9)),
    ((10, 0), (12, 8)),
    ((9, 0), (11, 8)),
    ((8, 9), (11, 8)),
)
"""(capability, first CUDA with code for it), newest first."""

_OLDEST_CAPABILITY: dict[int, Version] = {11: (7, 0), 12: (7, 0), 13: (7, 5)}
"""vLLM's kernels begin at 7.0; CUDA 13 has left Volta behind."""


@dataclass(frozen=True)
class DriverVerdict:
    """Whether a driver runs an engine's CUDA."""

    verdict: Literal["failure", "warning", "unknown", "ok"]
    need: str
    fix: str = ""


def numbers(text: str) -> Version:
    """The leading numbers of a version: `570.124.06` → (570, 124, 6), `0.32.0+cpu` → (0, 32, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def cuda_verdict(driver: str, cuda: str, *, compat_driver: str = "", names: Iterable[str] = ()) -> DriverVerdict:
    """Judge a driver against the CUDA of an engine's torch. `names`: of the GPUs, for forward compatibility."""
    have, wanted = numbers(driver), numbers(cuda)[:2]
    if not have or len(wanted) < 2:
        return DriverVerdict("unknown", "a driver for the engine's CUDA", "The CUDA of the engine's torch isn't known.")
    full = DRIVER_OF.get(wanted) or _driver_below(wanted)
    oldest = OLDEST_OF_MAJOR.get(wanted[0])
    need = f"{_dotted(full)} or newer for CUDA {cuda}" if full else f"a driver for CUDA {cuda}"
    if full is None or oldest is None:
        return DriverVerdict(
            "unknown", need, f"CUDA {cuda} is newer than this table: compare with NVIDIA's release notes."
        )
    if have >= full:
        return DriverVerdict("ok", need)
    if have >= oldest:
        fix = (
            "It runs by minor-version compatibility; kernels that are compiled on the host (PTX) may fail. "
            f"Driver {_dotted(full)} ends the doubt."
        )
        return DriverVerdict("warning", need, fix)
    if numbers(compat_driver) >= full and not _any_consumer(names):
        fix = f"It runs through the cuda-compat package (libcuda {compat_driver}). A newer driver is the better way."
        return DriverVerdict("warning", need, fix)
    other = f"an engine whose torch is built for {newest_cuda(driver)}"
    fix = f"Upgrade the driver to {_dotted(full)} or newer, or install {other}."
    return DriverVerdict("failure", need, fix)


def newest_cuda(driver: str) -> str:
    """The newest major CUDA that a driver runs, in words."""
    have = numbers(driver)
    major = max((major for major, oldest in OLDEST_OF_MAJOR.items() if have >= oldest), default=None)
    return f"CUDA {major}" if major else "an older CUDA"


def capability_need(capability: str, cuda: str) -> tuple[str, str]:
    """What an engine built for `cuda` needs of a GPU, and the fix if this GPU doesn't have it (else empty)."""
    have, built = numbers(capability)[:2], numbers(cuda)[:2]
    oldest = _OLDEST_CAPABILITY.get(built[0] if built else 12, (7, 0))
    need = f"{_dotted(oldest)} or newer"
    if have < oldest:
        older = " An engine built for CUDA 12 still has Volta." if oldest == (7, 5) and have >= (7, 0) else ""
        return need, f"vLLM has no kernels for it: use a newer GPU, or serve on the CPU.{older}"
    for known, first in _CODE_FROM:
        if have >= known:
            need = f"{need}; CUDA {_dotted(first)} or newer for {capability}"
            if built and built < first:
                return (
                    need,
                    f"This engine is built for CUDA {cuda}: install one built for CUDA {_dotted(first)} or newer.",
                )
            break
    return need, ""


def _driver_below(wanted: Version) -> Version | None:
    """For a toolkit that isn't in the table: the nearest older one of its major version."""
    older = [driver for cuda, driver in DRIVER_OF.items() if cuda[0] == wanted[0] and cuda < wanted]
    return max(older, default=None)


def _any_consumer(names: Iterable[str]) -> bool:
    return any(word in name.lower() for name in names for word in _CONSUMER)


def _dotted(version: Version) -> str:
    return ".".join(str(part) for part in version)

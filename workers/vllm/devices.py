"""The device catalogue: what planning needs to know about hardware one doesn't have yet, and how devices are named."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

Platform = Literal["cuda", "cpu"]
OverheadClass = Literal["datacenter", "workstation", "cpu"]

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DECIMAL_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


@dataclass(frozen=True)
class Device:
    """A kind of device, or one device with its live numbers.

    Attributes:
        key: short name, as `--device` takes it.
        title: name for people.
        vendor: "nvidia", "amd", "cpu" or "unknown".
        platform: the engine platform it needs.
        memory_bytes: total memory as the engine will see it; None when it depends on the machine.
        capability: CUDA compute capability (8, 9) for sm_89; None where there is none or it isn't known.
        bandwidth_gb_s: memory bandwidth in 10^9 bytes per second, or None.
        nvlink_gb_s: bandwidth to its neighbours in 10^9 bytes per second, 0 without a link.
        overhead_class: which first guess of the engine's own memory applies.
        aliases: other names, in lower case, among them what drivers report.
    """

    key: str
    title: str
    vendor: str
    platform: Platform
    memory_bytes: int | None
    capability: tuple[int, int] | None
    bandwidth_gb_s: int | None
    nvlink_gb_s: int
    overhead_class: OverheadClass
    aliases: tuple[str, ...] = ()


def parse_catalogue(text: str) -> tuple[Device, ...]:
    """Devices from the catalogue's JSON. ValueError names the entry that is wrong."""
    devices = []
    for entry in json.loads(text)["devices"]:
        try:
            devices.append(_device(entry))
        except (KeyError, TypeError, ValueError) as error:
            message = f"device catalogue entry {entry.get('key', entry)!r}: {error}"
            raise ValueError(message) from error
    return tuple(devices)


def _device(entry: Mapping[str, Any]) -> Device:
    capability = entry["capability"]
    major, minor = (int(part) for part in capability.split(".")) if capability else (0, 0)
    return Device(
        key=entry["key"],
        title=entry["title"],
        vendor=entry["vendor"],
        platform=entry["platform"],
        memory_bytes=entry["memory_bytes"],
        capability=(major, minor) if capability else None,
        bandwidth_gb_s=entry["bandwidth_gb_s"],
        nvlink_gb_s=entry["nvlink_gb_s"],
        overhead_class=entry["overhead_class"],
        aliases=tuple(entry["aliases"]),
    )


@cache
def builtin_catalogue() -> tuple[Device, ...]:
    """The devices that come with Slipway."""
    return parse_catalogue((Path(__file__).parent / "data/devices.json").read_text(encoding="utf-8"))


def merged_catalogue(edited: Iterable[Device]) -> tuple[Device, ...]:
    """The built-in catalogue with edited devices put in place of those of the same key, and new ones at the end."""
    changed = {device.key: device for device in edited}
    kept = [changed.pop(device.key, device) for device in builtin_catalogue()]
    return (*kept, *changed.values())


def find_device(name: str, catalogue: Iterable[Device] | None = None) -> Device | None:
    """The device of that name (key, title or alias, in any spelling of case, spaces and dashes), or None."""
    wanted = _normal(name)
    devices = builtin_catalogue() if catalogue is None else tuple(catalogue)
    for device in devices:
        if wanted in {_normal(word) for word in (device.key, device.title, *device.aliases)}:
            return device
    return None


def _normal(name: str) -> str:
    return re.sub(r"[\s_\-]+", "", name.lower())


def device_of_bytes(memory_bytes: int, platform: Platform) -> Device:
    """A device of which only the memory is known, so that nothing can be said about its kernels."""
    on_cpu = platform == "cpu"
    return Device(
        key="cpu" if on_cpu else "unnamed",
        title=f"a {'CPU' if on_cpu else 'device'} with {memory_bytes / 2**30:.1f} GiB",
        vendor="cpu" if on_cpu else "unknown",
        platform=platform,
        memory_bytes=memory_bytes,
        capability=None,
        bandwidth_gb_s=None,
        nvlink_gb_s=0,
        overhead_class="cpu" if on_cpu else "datacenter",
    )


def parse_bytes(text: str) -> int:
    """Bytes of "85899345920", "80GiB", "80G" (binary, as vLLM reads it) or "80GB" (decimal). ValueError otherwise."""
    match = re.fullmatch(r"\s*([\d_,]*\.?\d+)\s*([a-z]*)\s*", text.lower())
    if match is None:
        message = f"{text!r} is not a number of bytes; write 85899345920, 80GiB or 80GB"
        raise ValueError(message)
    number, unit = float(match[1].replace(",", "").replace("_", "")), match[2]
    factor = _DECIMAL_UNITS.get(unit) or _UNITS.get(unit.removesuffix("ib"))
    if factor is None:
        message = f"{unit!r} is not a unit of bytes; write 85899345920, 80GiB or 80GB"
        raise ValueError(message)
    return (
        int(match[1].replace(",", "").replace("_", "")) if match[1].isdigit() and factor == 1 else int(number * factor)
    )

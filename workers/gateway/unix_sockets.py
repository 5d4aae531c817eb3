"""Commands to a program's Unix socket, wherever its folder lies.

The kernel takes 107 bytes for a socket's path, and HAProxy ten fewer. A home directory may be longer; so programs bind their
sockets relative to their folder, and clients reach them through a descriptor of it (`/proc/self/fd`, see proc(5)).
"""

import os
import socket
from pathlib import Path


def exchange(path: Path, command: str, *, seconds: float) -> str:
    """Send a command's line to the socket at `path` and return all that it answers. Raises OSError."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(seconds)
            link.connect(f"/proc/self/fd/{folder}/{path.name}")
            link.sendall(command.encode() + b"\n")
            pieces = []
            while piece := link.recv(65536):
                pieces.append(piece)
    finally:
        os.close(folder)
    return b"".join(pieces).decode(errors="replace")

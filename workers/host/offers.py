"""Copies that this host gives to others: a server for each offer of the desired state, ended with it.

The servers are children of the agent: they end with it, and the next agent starts them again at the same port.
"""

import logging
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from workers.host.desired import DesiredStore
from workers.host.offer_files import OfferFiles

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.2
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_PAUSE_SECONDS = 2.0


@dataclass
class _Server:
    """A server's process, and when it may be started again after it ended."""

    process: "subprocess.Popen[bytes] | None" = None
    start_at: float = field(default=0.0)
    version: int = 0
    """Of the list of files that it was started with."""


class Offers:
    """Call `tick` again and again, and `close` once."""

    def __init__(self, desired: DesiredStore, state_dir: Path, config_path: Path) -> None:
        self._desired = desired
        self._state_dir = state_dir
        self._config_path = config_path.resolve()
        self._servers: dict[int, _Server] = {}

    def tick(self) -> None:
        """Open what is offered and prepared, close what is not offered any more."""
        state = self._desired.state
        wanted = {offer.number for offer in state.copy_offers} if state else set()
        for number in {*self._servers, *OfferFiles.numbers(self._state_dir)} - wanted:
            self._end(number)
        for number in wanted:
            self._keep_open(number)

    def close(self) -> None:
        """End all servers; what is offered stays on disk for the next agent."""
        for server in self._servers.values():
            _stop(server)
        self._servers.clear()

    def _keep_open(self, number: int) -> None:
        server = self._servers.setdefault(number, _Server())
        now = time.monotonic()
        if server.process is not None and (code := server.process.poll()) is not None:
            logger.warning("the server of copy offer %d ended with code %d", number, code)
            server.process, server.start_at = None, now + _PAUSE_SECONDS
        version = OfferFiles(self._state_dir, number).version
        if server.version != version:
            _stop(server)
            server.process = None
        if server.process is None and version and now >= server.start_at:
            server.version = version
            server.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "workers.host.copy_server",
                    f"--config={self._config_path}",
                    f"--offer={number}",
                    f"--parent={os.getpid()}",
                ],
                cwd=_PACKAGE_ROOT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _end(self, number: int) -> None:
        if server := self._servers.pop(number, None):
            _stop(server)
        OfferFiles(self._state_dir, number).remove()


def _stop(server: _Server) -> None:
    """Nothing is lost by a kill: the server only reads, and the receiver goes on where it was."""
    if server.process is not None and server.process.poll() is None:
        server.process.kill()
        server.process.wait()

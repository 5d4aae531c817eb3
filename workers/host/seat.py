"""One agent for one host, wherever it runs: a key in the broker that the agent holds while it is heard of.

`AgentLock` keeps two agents of one state directory apart. This keeps apart two machines that have the same host's
configuration, as a cloned virtual machine has. The key expires together with the console's patience for a silent host, so
a machine that was lost for good can be replaced after that.
"""

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.contracts import agent_seat_key, refused_agent_key
from workers.host.agent_lock import AlreadyRunningError
from workers.host.processes import boot_id
from workers.host.redis_link import Client

SEAT_SECONDS = 15.0
"""How long a silent agent keeps its seat."""

_REFUSED_SECONDS = 60
_TRIES = 3


class SeatTakenError(AlreadyRunningError):
    """Another machine's agent speaks for this host; the message names it."""


@dataclass(frozen=True)
class Seat:
    """This agent's claim. `identity` is that of the state directory, so that an agent follows on itself at once."""

    host: str
    identity: str
    machine: str
    pid: int

    @classmethod
    def of(cls, host: str, state_dir: Path) -> "Seat":
        """The claim of the agent that runs in this process."""
        place = state_dir.stat()
        identity = f"{boot_id()}:{place.st_dev}:{place.st_ino}"
        return cls(host, identity, socket.gethostname(), os.getpid())

    async def take(self, client: Client) -> None:
        """Take or keep the seat; raises SeatTakenError if another agent has it. Call it with every heartbeat."""
        key, life = agent_seat_key(self.host), int(SEAT_SECONDS * 1000)
        claim = json.dumps({"identity": self.identity, "machine": self.machine, "pid": self.pid})
        for _try in range(_TRIES):
            if await client.set(key, claim, nx=True, px=life):
                return
            held = _read(await client.get(key))
            if held.get("identity") == self.identity:
                await client.set(key, claim, px=life)
                return
            if held:
                await self._refuse(client, held)

    async def leave(self, client: Client) -> None:
        """Give the seat up at an orderly end, so that a successor elsewhere need not wait."""
        key = agent_seat_key(self.host)
        if _read(await client.get(key)).get("identity") == self.identity:
            await client.delete(key)

    async def refused(self, client: Client) -> dict[str, Any]:
        """The agent that was refused in the last minute (`machine`, `pid`, `at`), for the console's page; else empty."""
        return _read(await client.get(refused_agent_key(self.host)))

    async def _refuse(self, client: Client, held: dict[str, Any]) -> None:
        told = {"machine": self.machine, "pid": self.pid, "at": time.time()}
        await client.set(refused_agent_key(self.host), json.dumps(told), ex=_REFUSED_SECONDS)
        raise SeatTakenError(
            f"an agent for host {self.host!r} runs already: process {held.get('pid')} on machine {held.get('machine')!r}. "
            f"Stop that one first, or give this machine a name of its own: add a host in the console and join it. A "
            f"machine that is gone for good can be replaced {SEAT_SECONDS:.0f} s after its last sign of life."
        )


def _read(text: str | bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(text or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

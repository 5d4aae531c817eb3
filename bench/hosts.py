"""The samplers of many hosts in one process: `python -m bench.hosts FLEET.json REDIS_URL SECONDS`.

FLEET.json: host -> instance's UUID -> port. Prints what was sampled: for each instance how often, how many finished requests
the first and the last sample told, and the CPU seconds of it all.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from workers.host import redis_link
from workers.host.sampling import EVERY_SECONDS, Sampler, Target


class Host:
    """One host's sampler, and what it has seen."""

    def __init__(self, name: str, ports: dict[str, int]) -> None:
        self.sampler = Sampler(name, lambda: [Target(UUID(uuid), 1, port) for uuid, port in ports.items()])
        self.seen: dict[str, dict[str, float]] = {}

    async def sample(self) -> None:
        """One round."""
        await self.sampler.sample_all()
        for instance, one in self.sampler.latest.items():
            requests = sum(one.sample.finished.values())
            seen = self.seen.setdefault(str(instance), {"samples": 0, "first": requests})
            seen["samples"] += 1
            seen["last"] = requests


async def play(hosts: list[Host], url: str, seconds: int) -> dict[str, Any]:
    """Sample on every full second, as agents do, and send it."""
    address = redis_link.Address(url)
    lanes = [asyncio.create_task(redis_link.keep_connected("samples", address, host.sampler.session)) for host in hosts]
    await asyncio.sleep(2)  # a session's first act is to forget what is old
    began = time.process_time()
    for _ in range(seconds):
        await asyncio.sleep(EVERY_SECONDS - time.time() % EVERY_SECONDS)
        await asyncio.gather(*(host.sample() for host in hosts))
    used = time.process_time() - began
    await asyncio.sleep(1)
    await redis_link.end(lanes)
    return {"cpu_seconds": used, "instances": {key: seen for host in hosts for key, seen in host.seen.items()}}


if __name__ == "__main__":
    fleet = json.loads(Path(sys.argv[1]).read_text())
    played = play([Host(name, ports) for name, ports in fleet.items()], sys.argv[2], int(sys.argv[3]))
    print(json.dumps(asyncio.run(played)))

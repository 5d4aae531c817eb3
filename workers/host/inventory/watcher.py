"""The watcher: a process of its own that looks at devices, processes and file systems, so that the agent never waits for them.

A driver that hangs, a dead network file system or a process whose memory map is locked blocks whoever asks, sometimes
beyond SIGKILL. The agent therefore only reads lines from this process: `{"live": …}` every five seconds, `{"facts": …,
"reading": …}` at the start and whenever they change.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from workers.host.engines import all_engines
from workers.host.inventory.cpu import read_cpu
from workers.host.inventory.engine_environment import read_engine
from workers.host.inventory.gpus import read_gpus
from workers.host.inventory.limits import read_disks, read_limits, read_memory, shm
from workers.host.inventory.owners import ProcessTable, find_strangers, memory_of_instances, named
from workers.host.inventory.system import find_accelerators, read_surroundings, read_system
from workers.host.inventory.xid import read_xids
from workers.host.processes import die_with_parent
from workers.host_config import HostConfig
from workers.host_facts import GpuReading, HostFacts, Hub, Live

SAMPLE_SECONDS = 5.0
FACTS_SECONDS = 60.0
HUB_SECONDS = 600.0
_NO_GPU_SECONDS = 60.0
"""How often a host without GPUs looks again: a driver may be installed while the agent runs."""


class Watcher:
    """Looks, and writes one line for what it saw."""

    def __init__(self, config: HostConfig) -> None:
        self._config = config
        self._hub = Hub()
        self._hub_at = float("-inf")
        self._facts_at = float("-inf")
        self._signature = ""
        self._reading = GpuReading()
        self._read_at = float("-inf")

    def run(self) -> None:
        """Until the agent ends or closes the pipe."""
        while True:
            began = time.monotonic()
            self._tell(Live.__name__.lower(), self.live().model_dump_json(exclude_defaults=True))
            if began - self._facts_at >= FACTS_SECONDS:
                self._facts_at = began
                self._tell_facts()
            time.sleep(max(0.5, SAMPLE_SECONDS - (time.monotonic() - began)))

    def live(self) -> Live:
        """What changes from moment to moment."""
        now = time.monotonic()
        if self._reading.gpus or now - self._read_at >= _NO_GPU_SECONDS:
            self._reading, self._read_at = read_gpus(), now
        table = ProcessTable.read(self._config.state_dir)
        gpus = named(self._reading.gpus, table)
        self._reading = self._reading.model_copy(update={"gpus": gpus})
        return Live(
            gpus=self._reading,
            strangers=find_strangers(table, gpus),
            processes=memory_of_instances(table),
            memory=read_memory(),
            shm_free=shm()[1],
        )

    def facts(self) -> HostFacts:
        """What changes rarely."""
        config = self._config
        return HostFacts(
            system=read_system(),
            cpu=read_cpu(),
            memory=read_memory(),
            disks=read_disks(config),
            limits=read_limits(),
            surroundings=read_surroundings(os.environ),
            accelerators=find_accelerators(),
            hub=self._hub,
            xid=read_xids(),
            gpus=self._reading.model_copy(update={"gpus": []}),
            engines=[read_engine(engine) for engine in all_engines(config.engines_dir)],
        )

    def _tell_facts(self) -> None:
        self._tell_if_new()
        now = time.monotonic()
        if now - self._hub_at >= HUB_SECONDS:
            from workers.host.inventory.hub import ask_hub  # an HTTP client is slow to load: devices come first

            # Last, because a hub that doesn't answer takes its seconds.
            self._hub, self._hub_at = ask_hub(os.environ), now
            self._tell_if_new()

    def _tell_if_new(self) -> None:
        facts = self.facts()
        signature = signature_of(facts, self._reading)
        if signature != self._signature:
            self._signature = signature
            reading = self._reading.model_dump_json(exclude_defaults=True)
            self._tell("facts", f'{facts.model_dump_json(exclude_defaults=True)}, "reading": {reading}')

    def _tell(self, name: str, content: str) -> None:
        sys.stdout.write(f'{{"{name}": {content}}}\n')
        sys.stdout.flush()


def signature_of(facts: HostFacts, reading: GpuReading) -> str:
    """A text that changes when something changed that is worth an inventory; amounts that always move are left out."""
    steady = facts.model_copy(
        update={
            "memory": facts.memory.model_copy(update={"available": 0, "limit_used": None}),
            "disks": [disk.model_copy(update={"free": disk.free >> 32}) for disk in facts.disks],
            "limits": facts.limits.model_copy(update={"shm_free": None}),
            "hub": facts.hub.model_copy(update={"milliseconds": None}),
            "cpu": facts.cpu.model_copy(
                update={"nodes": [node.model_copy(update={"memory_free": 0}) for node in facts.cpu.nodes]}
            ),
        }
    )
    devices = [(gpu.uuid, gpu.name, gpu.memory_total, gpu.mig_enabled, gpu.ecc_uncorrected) for gpu in reading.gpus]
    return f"{steady.model_dump_json()} {devices}"


def main() -> None:
    """`python -m workers.host.inventory.watcher --config FILE --parent PID`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    given = parser.parse_args()
    die_with_parent(given.parent)
    config = HostConfig.load(given.config)
    try:
        Watcher(config).run()
    except BrokenPipeError:
        os._exit(0)  # the agent closed the pipe; there is nobody to tell


if __name__ == "__main__":
    main()

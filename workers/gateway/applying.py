"""Bringing the running HAProxy to what is wanted: by its runtime API where that suffices, by a hitless reload otherwise.

Files are written first, so that a restart finds what runs. The last configuration that was good stays in force when a
new one is not.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workers.gateway import config, maps, program
from workers.gateway.description import Gateway
from workers.gateway.files import replace_private
from workers.gateway.runtime_api import Away, RuntimeApi

logger = logging.getLogger(__name__)

DRAFT = "haproxy.cfg.draft"
Way = Literal["nothing", "runtime", "reload", "later"]


@dataclass(frozen=True)
class Outcome:
    """How a description came into force, or why it did not."""

    way: Way
    problem: str = ""


class Applier:
    """Knows what one HAProxy has, and changes it."""

    def __init__(self, directory: Path, binary: str, *, pause_seconds: float = 0) -> None:
        self._directory = directory
        self._pause_seconds = pause_seconds
        self._reloaded_at = 0.0
        self._binary = binary
        self.api = RuntimeApi(directory)
        self._skeleton = ""
        self._maps: maps.Maps = {}
        self._config = ""
        self._refused = ""

    def prepare(self, gateway: Gateway) -> str:
        """Write all files for a start; returns what is wrong with them, empty if nothing (the old ones stay then)."""
        for folder in (self._directory, self._directory / "maps"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._write_maps(maps.build(gateway))
        return self._write_config(gateway)

    def forget(self) -> None:
        """HAProxy is about to be started: what was known of the one before is no longer true."""
        self._skeleton = self._refused = ""

    def apply(self, gateway: Gateway) -> Outcome:
        """Bring HAProxy to the description. Raises Away if it does not answer."""
        wanted = config.skeleton(gateway)
        if self._skeleton and wanted == self._skeleton:
            return Outcome(self._by_runtime(gateway))
        if wanted == self._refused:
            return Outcome("nothing", "the last configuration was refused and is not tried again")
        if self._skeleton and time.monotonic() - self._reloaded_at < self._pause_seconds:
            return Outcome("later")
        return self._by_reload(gateway, wanted)

    def repair(self, gateway: Gateway) -> bool:
        """Compare what HAProxy really has with the description and put right what differs; True if something did."""
        wanted = maps.build(gateway)
        astray = [name for name in self._used() if self.api.map(self._map_path(name)) != _as_shown(wanted[name])]
        for name in astray:
            logger.warning("the gateway's map %s had drifted; repaired", name)
            self.api.replace_map(self._map_path(name), wanted[name])
        return bool(astray) | self._servers(gateway)

    # -- by reload ----------------------------------------------------------------------------------------------------

    def _by_reload(self, gateway: Gateway, wanted: str) -> Outcome:
        previous = self._read(program.CONFIG)
        first = not self._skeleton
        if first and previous == config.render(gateway):
            # This process is new, HAProxy is not: it has what the file says, and drift is looked for next.
            self._adopt(gateway, wanted)
            self.repair(gateway)
            return Outcome("nothing")
        self._write_maps(maps.build(gateway))
        problem = self._write_config(gateway)
        if not problem and (problem := self.api.reload()):
            self._write(program.CONFIG, previous)
        if problem:
            self._refused = wanted
            logger.error("the gateway's new configuration was refused; the last good one stays: %s", problem)
            return Outcome("nothing", problem)
        self._adopt(gateway, wanted)
        self._reloaded_at = time.monotonic()
        self._wait_for_worker()
        return Outcome("reload")

    def _adopt(self, gateway: Gateway, wanted: str) -> None:
        self._skeleton, self._refused = wanted, ""
        self._maps = maps.build(gateway)
        self._config = config.render(gateway)

    def _wait_for_worker(self) -> None:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            try:
                self.api.info()
            except Away:
                time.sleep(0.05)
            else:
                return

    # -- by the runtime API -------------------------------------------------------------------------------------------

    def _by_runtime(self, gateway: Gateway) -> Way:
        wanted = maps.build(gateway)
        way: Way = "nothing"
        for name in self._used():
            if wanted[name] != self._maps.get(name):
                self._write(f"maps/{name}.map", maps.text(wanted[name]))
                self.api.replace_map(self._map_path(name), wanted[name])
                self._maps[name] = wanted[name]
                way = "runtime"
        text = config.render(gateway)
        if text != self._config and self._skeleton == config.skeleton(gateway):
            self._write(program.CONFIG, text)
            self._config = text
        return "runtime" if self._servers(gateway) else way

    def _used(self) -> list[str]:
        """Maps that the configuration names: HAProxy knows no others."""
        return [name for name in maps.NAMES if f"/maps/{name}.map" in self._skeleton]

    def _servers(self, gateway: Gateway) -> bool:
        """Add, drain and remove servers until the backends that HAProxy has are as wanted."""
        live = self.api.servers()
        wanted = {
            (backend, server.name): (server, target.in_flight_each)
            for backend, target in maps.backends(gateway).items()
            for server in target.servers
        }
        done = False
        for (backend, name), (server, in_flight) in wanted.items():
            seen = live.get((backend, name))
            if seen and (seen.address, seen.port) != (server.address, server.port):
                if not self.api.delete(backend, name):
                    continue
                seen = None
            if seen is None:
                if problem := self.api.add(backend, server, in_flight):
                    logger.warning("the server %s/%s could not be added: %s", backend, name, problem)
                    continue
                done = True
            if server.draining != (seen.draining if seen else False) or (seen and seen.in_maintenance):
                self.api.set_state(backend, name, "drain" if server.draining else "ready")
                done = True
        for (backend, name), seen in live.items():
            if (backend, name) not in wanted:
                # What it has begun goes on; it is forgotten once nothing of that is left.
                self.api.delete(backend, name)
                done = done or not seen.in_maintenance
        return done

    # -- files --------------------------------------------------------------------------------------------------------

    def _write_config(self, gateway: Gateway) -> str:
        self._write(DRAFT, config.render(gateway))
        draft = self._directory / DRAFT
        if problem := program.problem_with(self._binary, draft, gateway.listener.log_descriptors):
            return problem
        draft.replace(self._directory / program.CONFIG)
        return ""

    def _write_maps(self, wanted: Mapping[str, Mapping[str, str]]) -> None:
        for name, entries in wanted.items():
            self._write(f"maps/{name}.map", maps.text(entries))

    def _write(self, name: str, text: str) -> None:
        replace_private(self._directory / name, text)  # engines' keys stand in the configuration

    def _read(self, name: str) -> str:
        path = self._directory / name
        return path.read_text() if path.exists() else ""

    def _map_path(self, name: str) -> Path:
        return self._directory / "maps" / f"{name}.map"


def _as_shown(entries: Mapping[str, str]) -> dict[str, str]:
    return {key: value.strip() for key, value in entries.items()}

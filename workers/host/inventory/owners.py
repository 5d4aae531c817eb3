"""Whose process is it: one of our instances, or a stranger's; and which strangers are vLLM servers.

Reading other processes' files may hang for as long as the kernel holds their memory map, so this runs in the watcher.
"""

import os
import pwd
import shlex
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import psutil

from workers.host.inventory.masking import masked
from workers.host.processes import OWNER_VARIABLE, ProcessFacts, all_processes, descendants_of
from workers.host_facts import Gpu, GpuProcess, Stranger

SERVER_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
DEFAULT_PORT = 8000
_NAME_LENGTH = 200
_COMMAND_LENGTH = 8_000
_ARGUMENTS = 400
_MOST_STRANGERS = 20
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class ProcessTable:
    """All processes of one moment. `instances`: pid -> instance of ours."""

    processes: dict[int, ProcessFacts]
    instances: dict[int, str]
    names: dict[int, str] = field(default_factory=dict)

    @classmethod
    def read(cls, state_dir: Path) -> "ProcessTable":
        """Look at every process once."""
        processes = {process.pid: process for process in all_processes() if not process.zombie}
        table = cls(processes, {})
        table.instances = _owned(processes, state_dir)
        return table

    def family(self, pid: int) -> set[int]:
        """The process and everything below it."""
        return {pid} | descendants_of(pid, self.processes.values())

    def name(self, pid: int) -> str:
        """Its command line, masked and shortened; empty if it can't be seen."""
        if pid not in self.names:
            self.names[pid] = " ".join(masked(arguments_of(pid)))[:_NAME_LENGTH] or _short_name(pid)
        return self.names[pid]


def _owned(processes: Mapping[int, ProcessFacts], state_dir: Path) -> dict[int, str]:
    """Carriers of the mark first, then their descendants, then who works in an instance's directory.

    vLLM's EngineCore and Worker overwrite their environment with a title, so the mark alone would miss them.
    """
    owned = {pid: instance for pid in processes if (instance := _marked(pid))}
    for pid, instance in list(owned.items()):
        for child in descendants_of(pid, processes.values()):
            owned.setdefault(child, instance)
    for pid in processes:
        if pid not in owned and (instance := _at_home(pid, state_dir / "instances")):
            owned[pid] = instance
    return owned


def _marked(pid: int) -> str:
    token = f"{OWNER_VARIABLE}=".encode()
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    found = next((word[len(token) :] for word in words if word.startswith(token)), b"")
    return _instance_id(found.decode(errors="replace"))


def _at_home(pid: int, instances: Path) -> str:
    for link in ("cwd", "fd/1"):
        try:
            target = Path(f"/proc/{pid}/{link}").readlink()
        except OSError:
            continue
        if instances in target.parents:
            return _instance_id(target.relative_to(instances).parts[0])
    return ""


def _instance_id(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        return ""


def named(gpus: Iterable[Gpu], table: ProcessTable) -> list[Gpu]:
    """The GPUs with each process's owner and name."""
    return [
        gpu.model_copy(
            update={
                "processes": [
                    one.model_copy(
                        update={
                            "instance": table.instances.get(one.pid, ""),
                            "name": table.name(one.pid) or " ".join(masked(one.name.split()))[:_NAME_LENGTH],
                        }
                    )
                    for one in gpu.processes
                ]
            }
        )
        for gpu in gpus
    ]


def memory_of_instances(table: ProcessTable) -> list[GpuProcess]:
    """RAM that our instances hold for themselves, one entry an instance; its first process stands for it."""
    sums: dict[str, tuple[int, int]] = {}
    for pid, instance in sorted(table.instances.items()):
        first, memory = sums.get(instance, (pid, 0))
        sums[instance] = (first, memory + own_memory(pid))
    return [GpuProcess(pid=pid, memory=memory, instance=instance) for instance, (pid, memory) in sums.items()]


def own_memory(pid: int) -> int:
    """RAM that belongs to this process alone: resident without what it shares; 0 if it can't be seen."""
    try:
        words = Path(f"/proc/{pid}/statm").read_bytes().split()
    except OSError:
        return 0
    return max(0, int(words[1]) - int(words[2])) * _PAGE


def find_strangers(table: ProcessTable, gpus: Iterable[Gpu]) -> list[Stranger]:
    """vLLM servers that nobody ordered from Slipway, each with its command line, port, devices and memory."""
    servers = {}
    for pid in table.processes:
        if pid not in table.instances and (argv := arguments_of(pid)) and is_server(argv):
            servers[pid] = argv
    # A server that serves with several processes forks copies of itself: the first of them stands for all.
    first = [pid for pid in servers if not _ancestors(pid, table.processes) & set(servers)]
    on_gpus = list(gpus)
    return [_stranger(pid, servers[pid], table, on_gpus) for pid in sorted(first)[:_MOST_STRANGERS]]


def is_server(argv: list[str]) -> bool:
    """True for the words of a process that is a vLLM server itself (not of a shell or launcher that started one)."""
    program = Path(argv[0]).name
    if not (program.startswith(("python", "vllm")) or program == "pypy3"):
        return False
    for at, word in enumerate(argv[:8]):
        if Path(word).name == "vllm" and argv[at + 1 : at + 2] == ["serve"]:
            return True
        if word == "-m" and argv[at + 1 : at + 2] and _is_module(argv[at + 1], argv[at + 2 : at + 3]):
            return True
        if word.replace("/", ".").removesuffix(".py").endswith(SERVER_MODULES):
            return True
    return False


def _is_module(module: str, following: list[str]) -> bool:
    return module in SERVER_MODULES or (module in ("vllm", "vllm.entrypoints.cli.main") and following == ["serve"])


def _stranger(pid: int, argv: list[str], table: ProcessTable, gpus: list[Gpu]) -> Stranger:
    family = table.family(pid)
    held = [(gpu, one) for gpu in gpus for one in gpu.processes if one.pid in family]
    on_gpu = sum(one.memory or 0 for _gpu, one in held)
    words = masked(argv)[:_ARGUMENTS]
    return Stranger(
        pid=pid,
        user=_user(pid),
        argv=words,
        command=shlex.join(words)[:_COMMAND_LENGTH],
        started_at=_started_at(table.processes[pid]),
        port=_listening_port(family) or _asked_port(argv),
        model=_model(argv),
        python=_link(pid, "exe"),
        container=_link(pid, "ns/mnt") != _link(os.getpid(), "ns/mnt"),
        devices=list(dict.fromkeys(gpu.uuid for gpu, _one in held)),
        memory=on_gpu if held else sum(own_memory(one) for one in family),
    )


def _ancestors(pid: int, processes: Mapping[int, ProcessFacts]) -> set[int]:
    found: set[int] = set()
    while (process := processes.get(pid)) is not None and process.parent not in found:
        pid = process.parent
        found.add(pid)
    return found


def arguments_of(pid: int) -> list[str]:
    """The words of a process's command line; empty for a kernel thread or what can't be seen."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [word.decode(errors="replace") for word in raw.rstrip(b"\0").split(b"\0")] if raw else []


def _short_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _started_at(process: ProcessFacts) -> float:
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return round(boot + process.start / _TICKS, 1)


def _listening_port(family: set[int]) -> int | None:
    ports = set()
    for pid in family:
        with suppress(psutil.Error, OSError):
            for connection in psutil.Process(pid).net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr:
                    ports.add(int(connection.laddr.port))
    return min(ports, default=None)


def _asked_port(argv: list[str]) -> int:
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name == "--port":
            text = value if equals else "".join(argv[at + 1 : at + 2])
            return int(text) if text.isdigit() else DEFAULT_PORT
    return DEFAULT_PORT


def _model(argv: list[str]) -> str:
    for at, word in enumerate(argv):
        following = "".join(argv[at + 1 : at + 2])
        if word == "--model":
            return following
        if word.startswith("--model="):
            return word.partition("=")[2]
        if word == "serve" and following and not following.startswith("-"):
            return following
    return ""


def _user(pid: int) -> str:
    try:
        number = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _link(pid: int, name: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/{name}").readlink())
    except OSError:
        return ""

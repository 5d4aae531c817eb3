"""The environment card's lines about the machine: system, C library, variables, memory, disks, limits, clock, hub."""

from collections.abc import Iterator

from workers.vllm.environment_cuda import numbers
from workers.vllm.environment_types import GIB, Check, Judged, Line, Verdict, gib

_SKEW_SECONDS = 2.0
_SKEW_FAILURE_SECONDS = 300.0
"""Beyond this, signatures and certificates are refused."""
_OPEN_FILES = 4096
_SHM_FOR_PARALLEL = 8 * GIB
_SHM_LEAST = 64 << 20
_DISK_WARNING = 20 * GIB
_DISK_FAILURE = 1 * GIB
_MEMORY_FAILURE = 2 * GIB
_MEMORY_WARNING = 8 * GIB
_GLIBC_FOR_MANYLINUX = (2, 28)

_POLLUTING = {
    "PYTHONPATH": "packages in it hide the engine's own",
    "PYTHONHOME": "it gives every Python another standard library",
    "PYTHONUSERBASE": "packages below it hide the engine's own",
    "LD_PRELOAD": "it loads a library into every engine",
}


def _system(judged: Judged) -> Iterator[Line]:
    system = judged.facts.system
    fact = ", ".join(
        part for part in (system.distribution or "Linux", system.machine, f"kernel {system.kernel}") if part
    )
    title, need = "Operating system", "64-bit Linux on x86-64 or ARM64"
    if not system.machine:
        yield Line("environment.system", "unknown", title, "not told", need, "Upgrade the agent.")
    elif system.machine not in ("x86_64", "aarch64", "arm64"):
        fix = (
            "There are no vLLM packages for this processor: build it from source, and register its Python as an engine."
        )
        yield Line("environment.system", "warning", title, fact, need, fix)
    elif system.wsl:
        fix = (
            "It works for trying out. Pinned memory and the memory of other processes can't be seen; serve from Linux "
            "itself where it matters, and give WSL enough memory in .wslconfig."
        )
        yield Line("environment.system", "warning", title, f"{fact}, in WSL2", need, fix)
    elif system.machine in ("aarch64", "arm64"):
        fix = "Choose engines and models with ARM64 packages: not every version and kernel (flash-attn, bitsandbytes) has them."
        yield Line("environment.system", "ok", title, fact, need, fix if judged.on_gpu else "")
    elif system.distribution_id in ("kylin", "openeuler", "uos", "uniontech", "anolis"):
        fix = "vLLM's packages are made for a glibc, not for a distribution: the line on it decides."
        yield Line("environment.system", "ok", title, fact, need, fix)
    else:
        yield Line("environment.system", "ok", title, fact, need)


def _glibc(judged: Judged) -> Iterator[Line]:
    found = judged.facts.system.glibc
    tag = judged.engine.wheel_tag if judged.engine else ""
    wanted = numbers(tag.removeprefix("manylinux_").replace("_", "."))[:2] if tag.startswith("manylinux_") else ()
    least = wanted or _GLIBC_FOR_MANYLINUX
    need = f"glibc {'.'.join(map(str, least))} or newer"
    title = "C library"
    if not found:
        fix = "On musl (Alpine) there are no vLLM packages: use a distribution with glibc, or a container."
        yield Line("environment.glibc", "unknown", title, "no glibc was found", need, fix)
    elif numbers(found)[:2] < least:
        fix = "Use a newer release of the distribution, or run the agent in a container that has one."
        yield Line("environment.glibc", "failure" if wanted else "warning", title, f"glibc {found}", need, fix)
    else:
        yield Line("environment.glibc", "ok", title, f"glibc {found}", need)


def _pollution(judged: Judged) -> Iterator[Line]:
    around = judged.facts.surroundings
    title, need = "Clean environment", "no conda, no PYTHONPATH, no foreign libraries around the agent"
    found = [f"{name}={around.variables[name]} ({why})" for name, why in _POLLUTING.items() if name in around.variables]
    libraries = around.variables.get("LD_LIBRARY_PATH", "")
    if libraries:
        found.append(f"LD_LIBRARY_PATH={libraries} (libraries there go before the engine's own CUDA)")
    if around.conda:
        found.append(f"conda at {around.conda}")
    if around.user_site:
        found.append(f"{', '.join(around.user_site)} in the user's site directory")
    if not found:
        yield Line("environment.polluted", "ok", title, "nothing in the way", need)
        return
    fix = "Unset them in the agent's unit or shell and start the agent again from a plain Python (python3 -m venv)."
    yield Line("environment.polluted", "warning", title, "; ".join(found), need, fix)


def _memory(judged: Judged) -> Iterator[Line]:
    memory = judged.facts.memory
    if not memory.total:
        return
    limit = f"; the container may use {gib(memory.limit)}" if memory.limit else ""
    fact = f"{gib(memory.available)} of {gib(memory.total)} free{limit}"
    title, need = "RAM", f"{gib(_MEMORY_WARNING)} or more, and room for the weights of an engine on the CPU"
    if memory.available < _MEMORY_FAILURE:
        fix = "Stop what takes it, or raise the container's limit."
        yield Line("environment.memory", "failure", title, fact, f"at least {gib(_MEMORY_FAILURE)}", fix)
    elif memory.available < _MEMORY_WARNING:
        yield Line(
            "environment.memory",
            "warning",
            title,
            fact,
            need,
            "Loading goes through RAM: large models will be slow or fail.",
        )
    else:
        yield Line("environment.memory", "ok", title, fact, need)


def _disks(judged: Judged) -> Iterator[Line]:
    for disk in judged.facts.disks:
        ours = [name for name in ("models", "engines", "state") if name in disk.holds]
        if not ours:
            continue
        title = f"Disk of {', '.join(ours)}"
        fact = f"{gib(disk.free)} of {gib(disk.total)} free on {disk.mount}" + (
            f" ({disk.filesystem})" if disk.filesystem else ""
        )
        need = f"{gib(_DISK_WARNING)} or more"
        fix = f"Free space on {disk.mount}: copies of models and engines that nothing uses are the largest."
        if disk.free < _DISK_FAILURE:
            yield Line(
                "environment.disk", "failure", title, fact, f"at least {gib(_DISK_FAILURE)} for logs and caches", fix
            )
        else:
            verdict: Verdict = "warning" if disk.free < _DISK_WARNING else "ok"
            yield Line("environment.disk", verdict, title, fact, need, fix if verdict == "warning" else "")


def _shared_memory(judged: Judged) -> Iterator[Line]:
    total = judged.facts.limits.shm_total
    title = "Shared memory"
    if total is None:
        yield Line(
            "environment.shm",
            "unknown",
            title,
            "no /dev/shm, or not told",
            "a /dev/shm",
            "Mount a tmpfs there.",
        )
        return
    fact = f"/dev/shm has {gib(total)}"  # noqa: S108 - its name in a sentence
    several = judged.world_size > 1 if judged.world_size is not None else len(judged.usable) > 1
    need = f"{gib(_SHM_FOR_PARALLEL)} for several GPUs" if several else f"{_SHM_LEAST >> 20} MiB"
    fix = "In a container: --shm-size=16g or --ipc=host. Elsewhere: mount -o remount,size=16G /dev/shm."
    # 64 MiB is what containers get unasked: enough for one GPU, and the end of NCCL between several.
    if total < _SHM_LEAST or (several and judged.world_size is not None and total <= _SHM_LEAST):
        yield Line("environment.shm", "failure", title, fact, need, fix)
    elif several and total < _SHM_FOR_PARALLEL:
        yield Line("environment.shm", "warning", title, fact, need, fix)
    else:
        yield Line("environment.shm", "ok", title, fact, need)


def _open_files(judged: Judged) -> Iterator[Line]:
    limit = judged.facts.limits.open_files
    if limit is None:
        return
    fact = "unlimited" if limit < 0 else f"{limit:,}"
    need = f"{_OPEN_FILES:,} or more: each request is a socket"
    if 0 <= limit < _OPEN_FILES:
        fix = "Set LimitNOFILE=65536 in the agent's unit (or ulimit -n 65536) and restart the agent and the engines."
        yield Line("environment.files", "warning", "Open files", fact, need, fix)
    else:
        yield Line("environment.files", "ok", "Open files", fact, need)


def _clock(judged: Judged) -> Iterator[Line]:
    skew = judged.clock_skew_seconds
    if skew is None:
        return
    fact = f"{skew:+.1f} s against the console's"
    need = f"within {_SKEW_SECONDS:.0f} s"
    fix = "Let it follow a time server: timedatectl set-ntp true, or chrony."
    if abs(skew) > _SKEW_FAILURE_SECONDS:
        yield Line(
            "environment.clock", "warning", "Clock", fact, need, f"{fix} Certificates and tokens may be refused."
        )
    elif abs(skew) > _SKEW_SECONDS:
        yield Line("environment.clock", "warning", "Clock", fact, need, fix)
    else:
        yield Line("environment.clock", "ok", "Clock", fact, need)


def _hub(judged: Judged) -> Iterator[Line]:
    hub = judged.facts.hub
    if not hub.endpoint:
        return
    title, need = "Model hub", "an answer, for downloads"
    if hub.reachable is None:
        yield Line("environment.hub", "unknown", title, f"{hub.endpoint}: {hub.problem or 'not asked yet'}", need)
    elif hub.reachable:
        took = f" in {hub.milliseconds:.0f} ms" if hub.milliseconds is not None else ""
        yield Line("environment.hub", "ok", title, f"{hub.endpoint} answers{took}", need)
    else:
        fix = (
            "Set HF_ENDPOINT to a mirror or HTTPS_PROXY for the agent; without a hub, bring the files by hand and add "
            "their directory."
        )
        yield Line("environment.hub", "warning", title, f"{hub.endpoint}: {hub.problem}", need, fix)


CHECKS: tuple[Check, ...] = (
    _system, _glibc, _pollution, _memory, _disks, _shared_memory, _open_files, _clock, _hub,
)  # fmt: skip

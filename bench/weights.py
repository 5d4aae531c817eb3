"""Downloads against `hf download`, verification against `sha256sum`, headers of many shards, memory of a download."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.console import Bench
from bench.rows import Row
from tests.weights import build

RUNS = 5
FILES, FILE_BYTES = 4, 96 << 20
SHARDS = 200
REPOSITORY = "makers/measured"


def measure(_bench: Bench) -> list[Row]:
    """All four promises; needs no console."""
    with tempfile.TemporaryDirectory(prefix="slipway-bench-weights-") as folder:
        root = Path(folder)
        model = root / "hub" / REPOSITORY
        make_files(model)
        return [*downloads(root), verification(model), headers(root / "shards")]


def make_files(folder: Path) -> None:
    """A sound model whose weights are large."""
    build.make_model(folder, "llama")
    (folder / "model.safetensors").unlink()
    config = build.config_of("llama")
    config["num_hidden_layers"] = 0
    names = {}
    for number in range(FILES):
        name = f"model-{number + 1:05}-of-{FILES:05}.safetensors"
        data = random.Random(number).randbytes(FILE_BYTES)
        (folder / name).write_bytes(build.safetensors_bytes({f"measured.{number}": ("U8", (FILE_BYTES,), data)}))
        names[f"measured.{number}"] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def downloads(root: Path) -> list[Row]:
    """Ours and theirs from the same local server, alternating, each in a process of its own with an empty cache."""
    ours, theirs, memory = [], [], []
    with hub(root / "hub") as endpoint:
        for number in range(RUNS + 1):
            cache = root / "cache"
            fetched, mine = timed([sys.executable, "-m", "bench.fetch", endpoint, REPOSITORY, str(cache / "ours")])
            environment = {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(cache / "theirs")}
            command = [str(Path(sys.executable).with_name("hf")), "download", REPOSITORY]
            _said, other = timed(command, **environment)
            shutil.rmtree(cache)
            if number:  # the first run of each reads programs from the disk
                ours.append(mine)
                theirs.append(other)
                memory.append(int(fetched))
    size = FILES * FILE_BYTES
    reference = (
        f"hf download of {size >> 20} MiB from the same local server: {listed(theirs)} s; ours: {listed(ours)} s; "
        "both with the start of their process"
    )
    ratio = round(median(theirs) / median(ours), 2)
    return [
        Row("download speed", ratio, "× hf download", 0.95, "higher", reference),
        Row("download memory", round(max(memory) / 1e6), "MB", 200, "lower", "peak of the process, imports included"),
    ]


def verification(model: Path) -> Row:
    """Every byte read and hashed, against one sha256sum per core on the same files."""
    files = sorted(str(path) for path in model.glob("*.safetensors"))
    cores = min(len(os.sched_getaffinity(0)), len(files))

    def sums() -> None:
        running = [
            subprocess.Popen(["sha256sum", *files[core::cores]], stdout=subprocess.DEVNULL) for core in range(cores)
        ]
        for process in running:
            process.wait()

    command = [sys.executable, "-m", "workers.cli", "verify", str(model), "--json"]
    base = [sys.executable, "-m", "workers.cli", "verify", str(model), "--json", "--fast"]
    theirs = [seconds(sums) for _run in range(RUNS)]
    # The same directory with --fast is the price of the process and of all checks but reading.
    fixed = min(timed(base, may_fail=True)[1] for _run in range(3))
    ours = [timed(command, may_fail=True)[1] - fixed for _run in range(RUNS)]
    reference = (
        f"sha256sum on {cores} cores of the same {len(files)} files: {listed(theirs)} s; ours: {listed(ours)} s, without "
        f"the {fixed:.2f} s that the start of the process and the checks of headers take"
    )
    return Row("verify speed", round(median(theirs) / median(ours), 2), "× sha256sum", 0.90, "higher", reference)


def headers(folder: Path) -> Row:
    """`slipway verify --fast` of 200 shards, as a command."""
    build.make_model(folder, "llama")
    config = build.config_of("llama")
    config["num_hidden_layers"] = SHARDS // 4
    (folder / "config.json").write_text(json.dumps(config))
    tensors: build.Tensors = {}
    for name, (dtype, shape, data) in build.tensors_of("llama").items():
        if ".layers." not in name:
            tensors[name] = (dtype, shape, data)
        elif ".layers.0." in name:
            for layer in range(SHARDS // 4):
                tensors[name.replace(".layers.0.", f".layers.{layer}.")] = (dtype, shape, data)
    build.write_shards(folder, tensors, SHARDS)
    command = [sys.executable, "-m", "workers.cli", "verify", str(folder), "--fast", "--json"]
    taken = [timed(command)[1] for _run in range(RUNS)]
    # Whatever else the machine does can only add to it.
    return Row("verify --fast", round(min(taken), 2), "s", 0.5, "lower", f"{SHARDS} shards, best of: {listed(taken)} s")


@contextmanager
def hub(folder: Path) -> Iterator[str]:
    """The tests' hub in a process of its own; yields its address."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.standin.hub", str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdin
    assert server.stdout
    try:
        yield server.stdout.readline().strip()
    finally:
        server.stdin.close()
        server.wait()


def timed(command: list[str], *, may_fail: bool = False, **environment: str) -> tuple[str, float]:
    """What a command prints, and the seconds that it takes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    began = time.monotonic()
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=False)
    taken = time.monotonic() - began
    if done.returncode and not may_fail:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout)[-300:]}")
    return done.stdout, taken


def seconds(work: Callable[[], None]) -> float:
    """How long some work takes."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def listed(numbers: list[float]) -> str:
    """Numbers for a sentence."""
    return ", ".join(f"{number:.2f}" for number in numbers)

"""Processes that are killed: what they had fetched stays fetched."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from ctypes import Array, c_longlong
from pathlib import Path

import httpx2
import pytest

from tests.standin.hub import Faults, Hub
from tests.weights.hub.conftest import NAME, noise, request_of
from workers.weights.download import Downloader
from workers.weights.download_types import DownloadRequest

MEASURE = """
import sys
from pathlib import Path
from workers.weights.download import Downloader
from workers.weights.download_types import DownloadRequest
from workers.weights.hub import Source, SourceKind, lookup
source = Source(SourceKind.MIRROR, sys.argv[1])
facts = lookup(source, sys.argv[2])
Downloader(DownloadRequest(source, sys.argv[2], facts.commit, facts.files), Path(sys.argv[3])).run()
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def in_a_process(request: DownloadRequest, cache: Path, got: "Array[c_longlong]", number: int) -> int:
    """Fetch in a child, counting the bytes that it takes from its sockets; returns its pid."""
    if pid := os.fork():
        return pid
    # No lock that is shared with this process: it would stay locked when this one is killed.
    code, plain, counting = 1, httpx2.Response.iter_raw, threading.Lock()

    def counted(response: httpx2.Response, chunk_size: int | None = None) -> Iterator[bytes]:
        for chunk in plain(response, chunk_size):
            with counting:
                got[number] += len(chunk)
            yield chunk

    try:
        httpx2.Response.iter_raw = counted  # type: ignore[method-assign]
        Downloader(request, cache).run()
        code = 0
    finally:
        os._exit(code)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.long
def test_ten_kills_at_random_moments_cost_less_than_one_percent(hub: Hub, cache: Path) -> None:
    # Each kill costs what the connections hold between reading and writing, 64 KiB each at most, whatever the size: the
    # busier the machine, the nearer it comes to that, which is 1.3 % of a model as small as this one.
    shared = noise(40_000_000, 1)
    files = {"model-1.safetensors": shared * 6, "model-2.safetensors": shared[::-1] * 4}
    repository = hub.add(NAME, {"config.json": b"{}", **files})
    size = sum(len(item.data) for item in repository.files.values())
    request = request_of(hub)
    hub.sent.clear()
    hub.faults = Faults(rate=70e6, block=4096)
    draw, got = random.Random(), multiprocessing.RawArray("q", 11)
    for kill in range(10):
        goal = sum(got) + draw.randrange(100_000, size // 11)
        pid = in_a_process(request, cache, got, kill)
        wait_until(lambda goal=goal: sum(got) >= goal)  # type: ignore[misc]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert not list(cache.rglob("snapshots/*"))
    hub.faults = Faults()
    _pid, status = os.waitpid(in_a_process(request, cache, got, 10), 0)
    assert status == 0
    snapshot = next(cache.rglob("snapshots/*"))
    assert all((snapshot / path).read_bytes() == item.data for path, item in repository.files.items())
    print(f"fetched twice: {sum(got) / size - 1:.4%}")
    assert size <= sum(got) < 1.01 * size
    # The hub has also sent what lay in the sockets of the killed: the more, the busier the machine. Beginning anew
    # each time would have sent it five times.
    assert sum(hub.sent.values()) < 2 * size


@pytest.mark.long
def test_memory_does_not_grow_with_the_file(hub: Hub, cache: Path) -> None:
    hub.add(NAME, {"config.json": b"{}", "model.safetensors": bytes(400_000_000)})
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, hub.url, NAME, str(cache)], capture_output=True, text=True, check=True
    )
    assert int(measured.stdout) * 1024 < 200e6

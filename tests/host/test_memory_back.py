"""A stopped engine's memory is back: proven by what the driver says before and after, and by shared memory that is gone."""

import subprocess
import sys
import uuid
from pathlib import Path

from tests.host.inventory.recordings import Recording
from workers.host.inventory.nvml import read_nvml
from workers.host.memory_back import free_shared, held_by, not_back
from workers.host_facts import Gpu, GpuProcess, GpuReading

GIB = 2**30


class Card(Recording):
    """A recorded T4 on which processes hold memory now: pid -> bytes."""

    def __init__(self, holders: dict[int, int], *, used: int | None = None) -> None:
        super().__init__("t4.json")
        device = self._said["devices"][0]
        total = device["MemoryInfo"]["total"]
        taken = sum(holders.values()) if used is None else used
        device["MemoryInfo"] = {"total": total, "used": taken, "free": total - taken}
        device["ComputeRunningProcesses"] = [{"pid": pid, "usedGpuMemory": nbytes} for pid, nbytes in holders.items()]


def reading(holders: dict[int, int], *, used: int | None = None) -> GpuReading:
    found = read_nvml(Card(holders, used=used))
    assert [one.pid for one in found.gpus[0].processes] == list(holders)
    return found


def test_memory_is_back_when_its_processes_hold_none_and_the_card_has_it_again() -> None:
    before = held_by([7, 8], reading({7: 8 * GIB, 8: GIB, 99: GIB}))
    assert before.device_bytes == 9 * GIB
    assert not_back(before, reading({99: GIB})) == []


def test_a_process_that_still_holds_memory_is_named() -> None:
    before = held_by([7], reading({7: 8 * GIB}))
    assert not_back(before, reading({7: 8 * GIB})) == ["GPU 0: process 7 still holds 8.0 GiB"]


def test_memory_that_nobody_holds_and_that_isn_t_free_is_not_back() -> None:
    before = held_by([7], reading({7: 8 * GIB}))
    assert not_back(before, reading({}, used=8 * GIB)) == ["GPU 0: 8.0 GiB of 8.0 GiB are in use by no process"]
    assert not_back(before, reading({}, used=GIB // 4)) == [], "the driver may keep a little"


def test_what_somebody_else_takes_meanwhile_isn_t_missing() -> None:
    before = held_by([7], reading({7: 8 * GIB}))
    assert not_back(before, reading({99: 7 * GIB})) == []


def test_where_the_driver_does_not_tell_who_holds_what_only_the_processes_count() -> None:
    untold = GpuReading(gpus=[Gpu(index=0, uuid="a", name="A", processes=[GpuProcess(pid=7)])])
    before = held_by([7], untold)
    assert before.devices == {}
    assert not_back(before, untold) == ["GPU 0: process 7 still holds memory"]
    assert not_back(before, GpuReading(gpus=[Gpu(index=0, uuid="a", name="A")])) == []


def test_shared_memory_of_a_killed_process_is_freed_and_that_of_a_living_one_stays() -> None:
    name = f"slipway-test-{uuid.uuid4().hex}"
    script = (
        "import sys, time; from multiprocessing import resource_tracker, shared_memory\n"
        "resource_tracker.register = lambda *_: None\n"
        f"one = shared_memory.SharedMemory(name='{name}', create=True, size=1 << 20); one.buf[:] = b'x' * (1 << 20)\n"
        "print('there', flush=True); time.sleep(60)"
    )
    path = Path("/dev/shm") / name
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"there\n"
            before = held_by([process.pid], None)
            assert before.shared == {path: 1 << 20}
            assert before.resident > 0
            assert free_shared(before) == 0, "it lives and uses it"
            process.kill()
            process.wait()
            assert path.exists()
            assert free_shared(before) == 1 << 20
            assert not path.exists()
        finally:
            process.kill()
            path.unlink(missing_ok=True)

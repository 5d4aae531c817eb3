"""Engines of the local host, as `demo-down` sees and ends them when no console runs."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from console import env
from console.operations import engines, local_host


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "300"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env.environment(), "slipway_home", tmp_path)


def start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def write_state(process: "subprocess.Popen[bytes]", **changes: Any) -> None:
    folder = local_host.directory() / "state" / "instances" / "one"
    folder.mkdir(parents=True)
    state = {
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "shim_pid": process.pid, "shim_start": start_ticks(process.pid), "pid": None, "pid_start": None,
    }  # fmt: skip
    (folder / "state.json").write_text(json.dumps(state | changes))


def test_a_living_shim_is_stopped(sleeper: "subprocess.Popen[bytes]") -> None:
    write_state(sleeper)
    assert [one.shim for one in engines.running()] == [sleeper.pid]
    assert engines.stop_all() == []
    assert sleeper.wait(5) == -15
    assert engines.running() == []


@pytest.mark.parametrize(
    "changes",
    [{"shim_start": 1}, {"boot_id": "another"}, {"shim_pid": None}],
    ids=["reused pid", "older boot", "no pid"],
)
def test_a_process_that_is_not_the_shim_any_more_is_left_alone(
    sleeper: "subprocess.Popen[bytes]", changes: dict[str, Any]
) -> None:
    write_state(sleeper, **changes)
    assert engines.running() == []
    assert engines.stop_all() == []
    assert psutil.Process(sleeper.pid).is_running()


def test_a_damaged_state_file_is_passed_over(sleeper: "subprocess.Popen[bytes]") -> None:
    write_state(sleeper)
    (local_host.directory() / "state" / "instances" / "one" / "state.json").write_text("{")
    assert engines.running() == []

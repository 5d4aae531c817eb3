"""The systemd driver against a real systemd: the drivers' contract, what only units can do, and an agent's unit."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.systemd_box import SystemdBox, why_not
from workers.host.drivers import DriverError
from workers.host.drivers.systemd import SystemdDriver
from workers.host.instance_files import InstanceFiles
from workers.host.launching import Launch

ROOT = Path(__file__).resolve().parents[2]

needs_systemd = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdBox]:
    directory = tmp_path_factory.mktemp("systemd")
    made = SystemdBox(directory, [Path("/tmp").resolve(), ROOT])
    try:
        made.start()
        yield made
    finally:
        made.stop()


def pytest_inside(box: SystemdBox, *what: str) -> "subprocess.CompletedProcess[str]":
    return box.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *what],
        seconds=500, SLIPWAY_TEST_DRIVER="systemd",
    )  # fmt: skip


@pytest.mark.long
@needs_systemd
def test_the_systemd_driver_keeps_the_whole_contract(box: SystemdBox) -> None:
    done = pytest_inside(box, "tests/host/test_driver_contract.py")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.long
@needs_systemd
def test_units_do_what_a_shim_alone_can_t(box: SystemdBox) -> None:
    done = pytest_inside(box, "tests/host/in_systemd.py")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "4 passed" in done.stdout


def test_without_a_systemd_a_start_says_so_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    files = InstanceFiles(tmp_path / "41d5d7b7-5701-4abb-be29-5edf13a1c2a9")
    files.prepare()
    with pytest.raises(DriverError, match=r"no systemd manager of this user .* driver to shim"):
        SystemdDriver().start(files, Launch(spec={}, environment={}))

"""Tests that run inside a real systemd only; tests/host/test_systemd_driver.py runs them there."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import Broker, Console, HostUnderTest, make_host, wait_for
from tests.host.test_driver_contract import Driven
from workers.host_config import HostConfig

AGENT_UNIT = "slipway-agent-test"


def units(pattern: str) -> list[str]:
    argv = ["systemctl", "list-units", "--all", "--plain", "--no-legend", pattern]
    return [line.split()[0] for line in subprocess.check_output(argv, text=True).splitlines()]


def shown(unit: str, name: str) -> str:
    return subprocess.check_output(["systemctl", "show", "--value", "-p", name, unit], text=True).strip()


def test_an_escaped_process_of_the_engine_ends_with_its_instance(lone_host: HostUnderTest) -> None:
    """Another session, another parent, no mark, no file of ours open: only the cgroup still knows whose it is."""
    driven = Driven(lone_host)
    state = driven.start()
    cgroup = next(
        line.partition("::")[2] for line in Path(f"/proc/{state.pid}/cgroup").read_text().splitlines() if "::" in line
    )
    escaped = subprocess.Popen(["sleep", "600"], cwd="/", env={}, start_new_session=True)
    (Path("/sys/fs/cgroup") / cgroup.lstrip("/") / "cgroup.procs").write_text(str(escaped.pid))
    driven.driver.stop(driven.files, 5)
    driven.finished()
    assert escaped.wait(10) == -signal.SIGKILL
    wait_for(lambda: not units(f"slipway-{driven.order.instance}-*"), 10, what="its units are gone")


def test_no_secret_is_in_a_unit_s_properties(lone_host: HostUnderTest) -> None:
    driven = Driven(lone_host)
    driven.start()
    (unit,) = units(f"slipway-{driven.order.instance}-*")
    everything = subprocess.check_output(["systemctl", "show", unit], text=True)
    assert "sk-secret" not in everything
    assert shown(unit, "KillMode") == "process"
    assert not (driven.files.directory / "environment").exists()


def test_a_stop_of_the_unit_by_an_admin_stops_the_engine_in_order(lone_host: HostUnderTest) -> None:
    driven = Driven(lone_host)
    driven.start()
    family = driven.family()
    (unit,) = units(f"slipway-{driven.order.instance}-*")
    subprocess.run(["systemctl", "stop", unit], check=True, timeout=30)
    assert driven.finished().state == "stopped"
    assert not any(Path(f"/proc/{pid}").exists() for pid in family)


@pytest.fixture
def host_in_unit(tmp_path: Path, shared_broker: Broker) -> Iterator[tuple[HostUnderTest, Console]]:
    host = make_host(tmp_path, shared_broker)
    values: dict[str, Any] = host.config.model_dump() | {"driver": "systemd"}
    config = HostConfig.model_validate(values)
    config.save(host.path)
    host.config = config
    yield host, Console(shared_broker, config)
    subprocess.run(["systemctl", "stop", AGENT_UNIT], check=False, timeout=60)
    host.end()


def test_restarting_and_upgrading_the_agent_s_unit_leaves_engines_serving(
    host_in_unit: tuple[HostUnderTest, Console],
) -> None:
    host, console = host_in_unit
    agent = [sys.executable, "-m", "workers.cli", "host", "run", "--config", str(host.path)]
    start = [
        "systemd-run",
        "--quiet",
        f"--unit={AGENT_UNIT}",
        "--property=KillMode=process",
        f"--working-directory={Path.cwd()}",
    ]
    subprocess.run([*start, "--", *agent], check=True, timeout=30)
    order = host.order()
    console.want(order)
    console.wait_phase(order.instance, "ready")
    before = host.files(order).state()
    assert before
    main_pid = shown(AGENT_UNIT, "MainPID")
    # A restart; then, as an upgrade does, a stop, another unit file, and a start.
    subprocess.run(["systemctl", "restart", AGENT_UNIT], check=True, timeout=60)
    wait_for(lambda: shown(AGENT_UNIT, "MainPID") not in ("0", main_pid), 30)
    assert before.engine_alive
    subprocess.run(["systemctl", "stop", AGENT_UNIT], check=True, timeout=60)
    assert before.engine_alive
    subprocess.run([*start, "--description=a newer agent", "--", *agent], check=True, timeout=30)
    seen = len(console.reports)
    wait_for(
        lambda: (console.take(), [r for r in console.reports[seen:] if r["body"].get("phase") == "ready"])[1], 60,
        what="the new agent has adopted the engine",
    )  # fmt: skip
    time.sleep(0.5)
    after = host.files(order).state()
    assert after
    assert (after.pid, after.attempt, after.shim_pid) == (before.pid, before.attempt, before.shim_pid)
    assert before.engine_alive
    console.want(order.model_copy(update={"run": False}))
    console.wait_phase(order.instance, "stopped")
    wait_for(lambda: not units(f"slipway-{order.instance}-*"), 10)

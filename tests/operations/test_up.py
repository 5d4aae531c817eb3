"""`manage.py up` as a whole, without a host: one console that is started, hurt, killed and started again."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
MARK = "SLIPWAY_CONSOLE_PROCESS"


class Up:
    """One SLIPWAY_HOME and the `up` that runs for it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "DATABASE_URL")},
            "SLIPWAY_HOME": str(home),
            "SLIPWAY_PORT": str(free_port()),
            "DJANGO_SETTINGS_MODULE": "console.settings",
        }
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=240,
        )  # fmt: skip

    def start(self) -> None:
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", "--no-host"],
                cwd=ROOT, env=self.environment, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        count = self.log().count("the console is up")
        wait_until(lambda: self.log().count("the console is up") > count, seconds=240, show=self.log)

    def log(self) -> str:
        path = self.home / "log"
        return path.read_text() if path.exists() else ""

    def runtime(self) -> dict[str, Any]:
        return json.loads((self.home / "console" / "runtime.json").read_text())

    def processes(self) -> dict[int, str]:
        """Everything that `up` has started and that lives, by the mark in its environment."""
        found = {}
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == str(self.home) and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = " ".join(process.cmdline())
            except psutil.Error:
                continue
        return found

    def pid_of(self, word: str) -> int:
        return next((pid for pid, command in self.processes().items() if word in command), 0)

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.runtime()["console_url"] + "/account/login/", timeout=3) as response:
                return response.status == 200
        except OSError:
            return False


def wait_until(condition: Callable[[], Any], *, seconds: float, show: Callable[[], Any] = str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, show()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    one = Up(tmp_path_factory.mktemp("up"))
    one.start()
    yield one
    if one.process and one.process.poll() is None:
        one.process.kill()
        one.process.wait(10)
    for pid in one.processes():
        os.kill(pid, signal.SIGKILL)


def test_it_serves_and_its_files_are_private(up: Up) -> None:
    assert up.answers()
    console = up.home / "console"
    for name in ("secrets.json", "broker/users.acl", "up.lock"):
        assert (console / name).stat().st_mode & 0o077 == 0, name
    assert up.runtime()["supervisor_pid"] == up.process.pid  # type: ignore[union-attr]


def test_a_second_one_says_where_the_first_is(up: Up) -> None:
    second = up.command("up")
    assert second.returncode == 1
    assert f"already running at {up.runtime()['console_url']} (pid {up.process.pid})" in second.stderr  # type: ignore[union-attr]


def test_a_killed_web_process_comes_back(up: Up) -> None:
    before = up.pid_of("uvicorn")
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: up.pid_of("uvicorn") not in (0, before), seconds=5, show=up.log)
    wait_until(up.answers, seconds=60, show=up.log)


@pytest.mark.long
def test_a_killed_worker_leaves_no_second_beat(up: Up) -> None:
    wait_until(lambda: sum("manage.py worker" in one for one in up.processes().values()) == 2, seconds=60, show=up.log)
    os.kill(min(pid for pid, command in up.processes().items() if "manage.py worker" in command), signal.SIGKILL)
    wait_until(lambda: up.log().count("worker ended after") == 1, seconds=10, show=up.log)
    wait_until(lambda: sum("manage.py worker" in one for one in up.processes().values()) == 2, seconds=60, show=up.log)


@pytest.mark.long
def test_kill_of_everything_leaves_nothing_and_the_next_start_has_the_same_ports(up: Up) -> None:
    before = up.runtime()
    assert up.process
    up.process.kill()
    up.process.wait(10)
    wait_until(lambda: not up.processes(), seconds=10, show=up.processes)
    up.start()
    after = up.runtime()
    assert (after["web_port"], after["broker_port"]) == (before["web_port"], before["broker_port"])
    assert up.answers()


def test_sigterm_stops_all_of_it_in_order_and_says_so(up: Up) -> None:
    assert up.process
    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(60) == 0
    assert not up.processes()
    assert up.log().rstrip().endswith("stopped; no engine runs")
    assert "and is killed" not in up.log()


@pytest.mark.long
def test_a_port_that_is_taken_is_named_with_its_holder_and_the_next_one_is_used(up: Up) -> None:
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", up.runtime()["web_port"]))
        thief.listen(1)
        before = up.runtime()["web_port"]
        up.start()
        try:
            assert up.runtime()["web_port"] > before
            assert up.answers()
            assert f"port {before} is held by pid {os.getpid()}: " in up.log()
        finally:
            up.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
            up.process.wait(60)  # type: ignore[union-attr]


def test_a_wrong_value_stops_the_start_and_names_the_fix(up: Up) -> None:
    up.environment["SLIPWAY_TIME_ZONE"] = "Mars/Olympus"
    try:
        done = up.command("up")
    finally:
        del up.environment["SLIPWAY_TIME_ZONE"]
    assert done.returncode == 1
    assert "SLIPWAY_TIME_ZONE=Mars/Olympus: no such time zone; use a name such as UTC" in done.stderr


def test_a_redis_that_does_not_answer_stops_the_start(up: Up) -> None:
    up.environment["REDIS_URL"] = f"redis://127.0.0.1:{free_port()}/0"
    try:
        done = up.command("up", "--no-host")
    finally:
        del up.environment["REDIS_URL"]
    assert done.returncode == 1
    assert "The broker at REDIS_URL does not answer PING" in done.stderr
    assert not up.processes()

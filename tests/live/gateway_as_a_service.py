"""Run inside a real systemd only, by test_join_as_a_service.py: one gateway's life as a service, in this order."""

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from tests.live.harness import wait_for
from tests.live.joining import OpenConsole, command_on
from tests.live.namespaces import bare_environment
from tests.ports import free_port
from workers.gateway_machine.haproxy_process import HAProxyProcess

NAME = "edge-s"
UNIT = f"slipway-gateway-{NAME}.service"


@dataclass
class Service:
    """The console, the machine that joined it as a gateway, and a client's key."""

    console: OpenConsole
    home: Path
    port: int
    key: str

    def join(self, command: str, *options: str) -> "subprocess.CompletedProcess[str]":
        words = [*shlex.split(command), "--systemd", *options]
        surroundings = bare_environment(self.home)
        return subprocess.run(
            words, env=surroundings, cwd=self.home, capture_output=True, text=True, timeout=600, check=False
        )

    def answers(self) -> int:
        """Status of a client's request; 0 if nobody is there."""
        try:
            headers = {"Authorization": f"Bearer {self.key}"}
            return httpx2.get(f"http://127.0.0.1:{self.port}/v1/models", headers=headers, timeout=5).status_code
        except httpx2.TransportError:
            return 0

    def haproxy(self) -> int:
        pid = HAProxyProcess("", self.home / "slipway" / "gateways" / NAME / "state").pid()
        assert pid, "HAProxy runs"
        return pid

    def row(self) -> str:
        page = self.console.get("/gateways/").text
        return page[page.index(NAME) :].partition("</tr>")[0]


def shown(name: str) -> str:
    return subprocess.check_output(["systemctl", "show", "--value", "-p", name, UNIT], text=True).strip()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    console = OpenConsole(
        tmp_path_factory.mktemp("console"), options=("--no-host",), addresses="127.0.0.1",
        wheels=Path(os.environ["SLIPWAY_TEST_WHEELS"]),
    )  # fmt: skip
    with console.running():
        create = (
            "from console.gateway import keys;"
            "print(keys.create(name='t', owner=None, routes=None, expires_at=None, actor=None, team_id=1)[1])"
        )
        key = console.manage("shell", "-v", "0", "-c", create).split()[-1]
        yield Service(console, tmp_path_factory.mktemp("machine"), free_port(), key)
        for words in (["stop", UNIT], ["disable", UNIT]):
            subprocess.run(["systemctl", *words], check=False, timeout=60)


def test_a_bare_machine_joins_as_a_gateway_that_starts_at_every_boot(service: Service) -> None:
    command = command_on(service.console.post("/gateways/new/", {"name": NAME}).text)
    done = service.join(command, "--port", str(service.port), "--bind", "127.0.0.1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"its agent runs as a service: /etc/systemd/system/{UNIT}" in done.stdout
    assert (shown("ActiveState"), shown("UnitFileState"), shown("KillMode")) == ("active", "enabled", "process")
    wait_for("a client gets an answer", lambda: service.answers() == 200, seconds=60)
    wait_for("the page says so", lambda: "It serves the same routes and keys as here." in service.row(), seconds=60)
    assert "An upgrade is ready" not in service.row()


def test_haproxy_outlives_the_agent_s_crash_and_restart(service: Service) -> None:
    haproxy, agent = service.haproxy(), int(shown("MainPID"))
    os.kill(agent, signal.SIGKILL)
    assert service.answers() == 200
    wait_for("systemd starts the agent again", lambda: int(shown("MainPID")) not in (0, agent), seconds=30)
    subprocess.run(["systemctl", "restart", UNIT], check=True, timeout=60)
    assert (service.answers(), service.haproxy()) == (200, haproxy)


def test_joining_anew_upgrades_the_agent_and_clients_notice_nothing(service: Service) -> None:
    haproxy, agent = service.haproxy(), int(shown("MainPID"))
    number = service.console.one("select id from gateway_gatewaymachine where name = ?", NAME)
    command = command_on(service.console.post(f"/gateways/{number}/token/", {}).text)
    done = service.join(command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (service.answers(), service.haproxy()) == (200, haproxy)
    assert int(shown("MainPID")) not in (0, agent)
    wait_for("the page says so", lambda: "It serves the same routes and keys as here." in service.row(), seconds=60)
    assert f"127.0.0.1:{service.port}" in service.row()


def test_one_that_is_removed_ends_and_systemd_does_not_start_it_again(service: Service) -> None:
    haproxy = service.haproxy()
    number = service.console.one("select id from gateway_gatewaymachine where name = ?", NAME)
    service.console.post(f"/gateways/{number}/remove/", {"reason": "moved"})
    wait_for("HAProxy ends", lambda: not Path(f"/proc/{haproxy}").exists(), seconds=60)
    wait_for("the row is gone", lambda: NAME not in service.console.get("/gateways/").text, seconds=60)
    wait_for("the service has ended for good", lambda: shown("ActiveState") == "inactive", seconds=30)
    assert service.answers() == 0

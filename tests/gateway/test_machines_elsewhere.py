"""A gateway on another machine, for real: a network namespace, its agent as a process there, HAProxy, a broker between."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import uvicorn
from django.conf import settings
from django.db import connections

from console import env
from console.access.models import User
from console.asgi import application
from console.common import broker as console_broker
from console.common.secrets import encrypt
from console.deployments.models import Attempt, Deployment, Instance
from console.fleet.models import Host
from console.gateway import keys, machines, names, plan, routes
from console.gateway.machine_rounds import MachineRounds
from console.gateway.models import GatewayMachine, GatewayRequest, Key, Route, UsageDay
from console.gateway.routes import Share
from tests.conftest import start_broker
from tests.factories import Fleet
from tests.gateway.backend import Engine, serving, wait_until
from tests.live.namespaces import NamespaceHost, bare_environment, can_make_namespaces
from tests.ports import free_port
from workers.gateway.runtime_api import RuntimeApi
from workers.gateway_machine.haproxy_process import HAProxyProcess

pytestmark = [
    pytest.mark.long,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not can_make_namespaces(), reason="network namespaces need root and ip(8)"),
]
ROOT = Path(__file__).parents[2]
ASK = """
import sys, urllib.error, urllib.request as r
body = b'{"model": "chat", "messages": [{"role": "user", "content": "hi"}]}'
asked = r.Request(sys.argv[1], body, {"Authorization": "Bearer " + sys.argv[2]})
for _number in range(int(sys.argv[3])):
    try:
        print(r.urlopen(asked, timeout=10).status)
    except urllib.error.HTTPError as error:
        print(error.code)
    except OSError as error:
        print(error)
"""


class Console:
    """The controller's part, round by round, until it is told to be away."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def work(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._rounds, daemon=True)
        self._thread.start()

    def _rounds(self) -> None:
        rounds = MachineRounds(self._directory, ())
        while not self._stop.is_set():
            rounds.round(plan.read())
            time.sleep(0.3)
        connections.close_all()

    def is_away(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(20)


@pytest.fixture
def cable(tmp_path: Path) -> Iterator[NamespaceHost]:
    """The other machine."""
    one = NamespaceHost("edge", 77, tmp_path)
    yield one
    one.remove()


@pytest.fixture
def address(cable: NamespaceHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The console and its broker, as the other machine reaches them."""
    port, web = free_port(), free_port()
    process = start_broker(port, tmp_path, "--bind", "127.0.0.1", cable.gateway, "--protected-mode", "no")
    link = redis.Redis(port=port, decode_responses=True)
    wait_until(lambda: _answers(link), seconds=10)
    monkeypatch.setattr(console_broker, "connection", lambda: link)
    monkeypatch.setattr(env, "hosts_redis_url", lambda: f"redis://{cable.gateway}:{port}/0")
    monkeypatch.setattr(env, "hosts_url", lambda: f"http://{cable.gateway}:{web}")
    monkeypatch.setattr(settings, "ALLOWED_HOSTS", [cable.gateway])
    config = uvicorn.Config(application, host=cable.gateway, port=web, lifespan="off", log_level="error", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, seconds=20)
    yield f"http://{cable.gateway}:{web}"
    server.should_exit = server.force_exit = True
    thread.join(20)
    process.terminate()
    process.wait(10)


def _answers(link: "redis.Redis") -> bool:
    try:
        return bool(link.ping())
    except redis.RedisError:
        return False


@pytest.fixture
def secret(fleet: Fleet, cable: NamespaceHost) -> Iterator[str]:
    """A key for the route `chat`, behind which an engine answers that the other machine can reach."""
    with serving(Engine(address=cable.gateway)) as engine:
        fleet.deploy(name="chat-a")
        Deployment.objects.update(state="serving", api_key=encrypt("sk-engine"))
        Host.objects.update(facts={"address": cable.gateway})
        instance = Instance.objects.get()
        Instance.objects.update(state="ready", port=engine.port, run=True, ordered=True)
        argv = ["vllm", "serve", "/m", names.FLAG, "chat-a", "chat"]
        Attempt.objects.create(instance=instance, number=1, argv=argv, started_at=instance.state_since)
        routes.save(Route(name="chat"), aliases=[], shares=[Share(Deployment.objects.get())], actor=None)
        yield keys.create(name="app", owner=None, routes=None, expires_at=None, actor=None, team_id=1)[1]


class Machine:
    """What is done on the other machine."""

    def __init__(self, cable: NamespaceHost) -> None:
        self._cable = cable
        self._inside = ["ip", "netns", "exec", cable.namespace]
        self._environment = bare_environment(cable.home) | {"PYTHONPATH": str(ROOT)}
        self.state = cable.slipway_home / "gateways/edge-01/state"
        self.agent: subprocess.Popen[bytes] | None = None

    def slipway(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [*self._inside, sys.executable, "-m", "workers.cli", "gateway", *words]
        return subprocess.run(
            argv, env=self._environment, cwd=self._cable.home, capture_output=True, text=True, timeout=60, check=False
        )

    def start(self) -> None:
        argv = [*self._inside, sys.executable, "-m", "workers.cli", "gateway", "run", "--name", "edge-01"]
        with (self._cable.home / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(argv, env=self._environment, cwd=self._cable.home, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self.agent
        self.agent.send_signal(signal.SIGKILL)
        self.agent.wait(10)

    def ask(self, secret: str, times: int = 1) -> list[str]:
        argv = [*self._inside, sys.executable, "-I", "-S", "-c", ASK, "http://127.0.0.1:8480/v1/chat/completions"]
        done = subprocess.run([*argv, secret, str(times)], capture_output=True, text=True, timeout=60, check=False)
        return done.stdout.split("\n")[:-1]

    def serves(self, secret: str) -> bool:
        return self.ask(secret) == ["200"]

    def haproxy(self) -> int | None:
        return HAProxyProcess("", self.state).pid()


def counted() -> int:
    return sum(UsageDay.objects.values_list("requests", flat=True))


def answered() -> int:
    return GatewayRequest.objects.filter(gateway="edge-01", status=200).count()


def test_it_joins_serves_survives_and_ends(
    cable: NamespaceHost, address: str, secret: str, admin: User, tmp_path: Path
) -> None:
    console, there = Console(tmp_path), Machine(cable)
    machine, token = machines.add(name="edge-01", actor=admin)
    said = there.slipway("join", address, "--token", token, "--haproxy", "/no/such", "--no-start")
    assert (said.returncode, "/no/such" in said.stderr) == (1, True)
    said = there.slipway("join", address, "--token", token, "--bind", "127.0.0.1", "--no-start")
    assert said.returncode == 0, said.stderr
    config = json.loads((there.state.parent / "gateway.json").read_text())
    assert oct((there.state.parent / "gateway.json").stat().st_mode)[-3:] == "600"
    console.work()
    there.start()
    try:
        wait_until(lambda: there.serves(secret), seconds=60)
        wait_until(lambda: (told := _told(machine)) is not None and told.digest != "", seconds=20)
        assert machines.live_servers() is not None

        # Drift is repaired.
        RuntimeApi(there.state).ask(f"clear map {there.state}/maps/keys.map")
        wait_until(lambda: (told := _told(machine)) is not None and told.status.repaired_at > 0, seconds=20)
        assert there.serves(secret)

        # The console is away, and the agent dies: clients notice nothing, and every request is counted once.
        wait_until(lambda: answered() == counted() > 0, seconds=20)
        console.is_away()
        haproxy, before = there.haproxy(), _in_log(there)
        there.kill()
        assert there.ask(secret, 30) == ["200"] * 30
        there.start()
        assert there.ask(secret, 30) == ["200"] * 30
        console.work()
        wait_until(lambda: answered() == before + 60 == _in_log(there), seconds=60)
        assert there.haproxy() == haproxy
        order = list(GatewayRequest.objects.filter(gateway="edge-01").order_by("pk").values_list("at", flat=True))
        assert order == sorted(order)

        # New credentials, and a new key pair.
        machines.rotate(GatewayMachine.objects.get(), new_key=True, actor=admin, reason="yearly")
        wait_until(lambda: GatewayMachine.objects.get().next_password == "", seconds=60)
        assert json.loads((there.state.parent / "gateway.json").read_text())["private_key"] != config["private_key"]
        with pytest.raises(redis.RedisError):
            redis.Redis.from_url(config["redis_url"].replace(cable.gateway, "127.0.0.1")).ping()
        assert (there.serves(secret), there.haproxy()) == (True, haproxy)

        # A key that is revoked is refused there, too.
        wait_until(lambda: (told := _told(machine)) is not None and told.credentials == 1, seconds=30)
        wait_until(lambda: machines.live_servers() is not None, seconds=30)
        keys.revoke(Key.objects.get(), actor=admin, reason="leaked")
        assert wait_until(lambda: there.ask(secret) == ["401"], seconds=20) < 4

        # Removed: nothing of it is left, and what went through is here.
        machines.remove(GatewayMachine.objects.get(), actor=admin, reason="moved")
        assert there.agent
        assert there.agent.wait(60) == 0
        assert there.haproxy() is None
        wait_until(lambda: not GatewayMachine.objects.exists(), seconds=30)
        assert answered() == _in_log(there)
    finally:
        console.is_away()
        if there.agent and there.agent.poll() is None:
            there.kill()
        HAProxyProcess("", there.state).stop(1)
        sys.stdout.write((cable.home / "agent.log").read_text()[-3000:])


def _told(machine: GatewayMachine) -> Any:
    return machines.told_by(machine)


def _in_log(there: Machine) -> int:
    """Answers that HAProxy there wrote into its log."""
    lines = (there.state / "access.log").read_text().splitlines()
    return sum(json.loads(one)["status"] == "200" for one in lines if one.startswith("{"))

"""The controller with a real HAProxy, a real broker and a stand-in engine: from a row to an answer, and back into rows."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import redis
from django.db import connections
from django.utils import timezone

from console.common.secrets import encrypt
from console.deployments.models import Attempt, Deployment, Instance
from console.gateway import controller, keys, machine_rounds, names, plan, routes
from console.gateway.models import GatewayMachine, GatewayRequest, Key, Route, UsageDay
from console.gateway.routes import Share
from tests.factories import Fleet
from tests.gateway.backend import BINARY, wait_until
from tests.ports import free_port
from workers.gateway import program
from workers.gateway.applying import Applier
from workers.sealing import generate_key_pair

ENGINE = Path(__file__).parents[1] / "standin" / "engine.py"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A gateway of its own: its URL."""
    listener = replace(plan.listener(), directory=str(tmp_path), port=free_port(), peer_port=free_port())
    monkeypatch.setattr(plan, "listener", lambda: listener)
    monkeypatch.setattr(plan, "directory", lambda: tmp_path)
    assert Applier(tmp_path, BINARY).prepare(plan.read()) == ""
    log = os.open(tmp_path / program.ACCESS_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    program.hand_down(log, listener.log_descriptors)
    process = subprocess.Popen(program.command(BINARY, tmp_path), pass_fds=tuple(listener.log_descriptors))
    os.close(log)
    wait_until(lambda: (tmp_path / program.ADMIN_SOCKET).exists(), seconds=10)
    yield f"http://127.0.0.1:{listener.port}"
    process.terminate()
    process.wait(10)


@pytest.fixture
def controlled(place: str) -> Iterator[str]:
    """The gateway with its controller at work."""
    one = controller.Controller()

    def work() -> None:
        one.run()
        connections.close_all()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield place
    one.stopping = True
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., int]]:
    """Starts stand-in engines; returns their ports."""
    started = []
    model = str(tmp_path_factory.mktemp("model"))

    def start(*served: str, key: str) -> int:
        port = free_port()
        command = [
            sys.executable,
            "-I",
            "-S",
            str(ENGINE),
            "serve",
            model,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        command += ["--enable-force-include-usage", names.FLAG, *served]
        started.append(subprocess.Popen(command, env={"VLLM_API_KEY": key}, stdout=subprocess.DEVNULL))
        wait_until(lambda: _healthy(port), seconds=20)
        return port

    yield start
    for process in started:
        process.terminate()
        process.wait(10)


def _healthy(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/health", timeout=1, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


def serving(fleet: Fleet, name: str, port: int, *served: str) -> Instance:
    """A deployment whose instance is ready at `port`."""
    fleet.deploy(name=name)
    Deployment.objects.filter(name=name).update(api_key=encrypt("sk-engine"))
    instance = Instance.objects.get(deployment__name=name)
    Instance.objects.filter(pk=instance.pk).update(state="ready", port=port, run=True, ordered=True)
    argv = ["vllm", "serve", "/m", names.FLAG, *served]
    Attempt.objects.create(instance=instance, number=1, argv=argv, started_at=timezone.now())
    return instance


def ask(url: str, secret: str, **body: Any) -> Any:
    content = {"model": "chat", "messages": [{"role": "user", "content": "What is the capital of France?"}], **body}
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx2.post(f"{url}/v1/chat/completions", json=content, headers=headers, timeout=20, trust_env=False)


def test_from_a_route_to_an_answer_to_usage_and_the_end_of_a_key(
    controlled: str, fleet: Fleet, engine: Callable[..., int]
) -> None:
    instance = serving(fleet, "chat-a", engine("chat-a", "chat", key="sk-engine"), "chat-a", "chat")
    key, secret = keys.create(name="app", owner=None, routes=None, expires_at=None, actor=None, team_id=1)
    shares = [Share(Deployment.objects.get(name="chat-a"))]
    routes.save(Route(name="chat"), aliases=[], shares=shares, actor=None)
    wait_until(lambda: ask(controlled, secret).status_code == 200, seconds=15)
    whole = ask(controlled, secret)
    assert whole.json()["choices"][0]["message"]["content"] == "The capital of France is Paris."
    streamed = ask(controlled, secret, stream=True)
    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert all(chunk["choices"] for chunk in chunks)
    wait_until(lambda: GatewayRequest.objects.filter(request_id=streamed.headers["x-request-id"]).exists(), seconds=10)
    stored = GatewayRequest.objects.get(request_id=streamed.headers["x-request-id"])
    assert (stored.route, stored.deployment, stored.instance) == ("chat", "chat-a", instance.pk)
    assert (stored.output_tokens, stored.finish_reason) == (whole.json()["usage"]["completion_tokens"], "stop")
    assert UsageDay.objects.filter(key=key, route="chat").exists()
    wait_until(lambda: Key.objects.get().last_used_at, seconds=5)
    keys.revoke(key, actor=None, reason="leaked")
    assert wait_until(lambda: ask(controlled, secret).status_code == 401, seconds=10) < 3
    told = controller.status()
    assert told
    assert told.up


def test_an_instance_that_is_no_longer_ready_gets_nothing(
    controlled: str, fleet: Fleet, engine: Callable[..., int]
) -> None:
    instance = serving(fleet, "chat-a", engine("chat-a", "chat", key="sk-engine"), "chat-a", "chat")
    _key, secret = keys.create(name="app", owner=None, routes=None, expires_at=None, actor=None, team_id=1)
    shares = [Share(Deployment.objects.get(name="chat-a"))]
    routes.save(Route(name="chat"), aliases=[], shares=shares, actor=None)
    wait_until(lambda: ask(controlled, secret).status_code == 200, seconds=15)
    Instance.objects.filter(pk=instance.pk).update(state="unhealthy")
    assert wait_until(lambda: ask(controlled, secret).status_code == 503, seconds=10) < 3
    Instance.objects.filter(pk=instance.pk).update(state="ready")
    wait_until(lambda: ask(controlled, secret).status_code == 200, seconds=10)


def test_what_gateways_elsewhere_need_keeps_no_instance_in_the_one_here(
    monkeypatch: pytest.MonkeyPatch, place: str, fleet: Fleet, engine: Callable[..., int]
) -> None:
    instance = serving(fleet, "chat-a", engine("chat-a", "chat", key="sk-engine"), "chat-a", "chat")
    _key, secret = keys.create(name="app", owner=None, routes=None, expires_at=None, actor=None, team_id=1)
    shares = [Share(Deployment.objects.get(name="chat-a"))]
    routes.save(Route(name="chat"), aliases=[], shares=shares, actor=None)
    GatewayMachine.objects.create(name="edge-01", redis_password_sha256="x", public_key=generate_key_pair()[1])
    away = redis.Redis(port=free_port())  # nobody listens there
    monkeypatch.setattr(machine_rounds, "broker", SimpleNamespace(connection=lambda: away))
    one = controller.Controller()
    for state, status in (("ready", 200), ("unhealthy", 503), ("ready", 200)):
        Instance.objects.filter(pk=instance.pk).update(state=state)
        with pytest.raises(redis.RedisError):
            one.round()
        wait_until(lambda: ask(place, secret).status_code == status, seconds=10)  # noqa: B023 - waited for in this turn


def test_a_controller_that_was_away_counts_what_it_missed(place: str, fleet: Fleet, engine: Callable[..., int]) -> None:
    serving(fleet, "chat-a", engine("chat-a", "chat", key="sk-engine"), "chat-a", "chat")
    _key, secret = keys.create(name="app", owner=None, routes=None, expires_at=None, actor=None, team_id=1)
    shares = [Share(Deployment.objects.get(name="chat-a"))]
    routes.save(Route(name="chat"), aliases=[], shares=shares, actor=None)
    first = controller.Controller()
    first.round()
    wait_until(lambda: ask(place, secret).status_code == 200, seconds=10)
    before = GatewayRequest.objects.count()
    ids = {ask(place, secret).headers["x-request-id"] for _number in range(5)}
    time.sleep(0.2)
    second = controller.Controller()
    second.round()
    assert GatewayRequest.objects.filter(request_id__in=ids).count() == 5
    assert GatewayRequest.objects.count() > before

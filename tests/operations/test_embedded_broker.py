"""The embedded broker, with each server program that may run it."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from console import env
from console.operations import embedded_broker
from console.operations.embedded_broker import Server
from tests.conftest import broker_binary
from tests.ports import free_port
from tests.tools import missing_text

MISSING = missing_text("redis-server")


@pytest.fixture(params=["valkey", "redis"])
def broker(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], redis.Redis]]:
    """Starts (again) the broker with what it has on disk; returns a connection of the console's user."""
    path = broker_binary() if request.param == "valkey" else shutil.which("redis-server")
    if path is None:
        pytest.skip(MISSING)
    monkeypatch.setattr(env.environment(), "slipway_home", tmp_path)
    monkeypatch.setattr(embedded_broker, "find_server", lambda: Server(path, request.param))
    (tmp_path / "console").mkdir()
    port = free_port()
    running: list[subprocess.Popen[bytes]] = []

    def start() -> redis.Redis:
        for process in running:
            process.kill()
            process.wait()
        program = embedded_broker.program(port, dict(os.environ))
        running.append(subprocess.Popen(program.argv, stdout=subprocess.DEVNULL))
        password = env.generated_secrets()["broker_password"]
        connection = redis.Redis(port=port, username="console", password=password, decode_responses=True)
        for _attempt in range(100):
            with suppress(redis.ConnectionError):
                connection.ping()
                return connection
            time.sleep(0.05)
        raise AssertionError("the broker does not answer")

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_transactions_survive_a_kill(broker: Callable[[], redis.Redis]) -> None:
    connection = broker()
    pipe = connection.pipeline(transaction=True)
    pipe.set("one", 1)
    pipe.hset("two", mapping={"a": "b"})
    pipe.execute()
    time.sleep(1.2)  # the append-only file is synced every second
    connection = broker()
    assert connection.get("one") == "1"
    assert connection.hgetall("two") == {"a": "b"}


def test_hosts_users_survive_a_restart_and_nobody_comes_in_without_a_password(
    broker: Callable[[], redis.Redis],
) -> None:
    connection = broker()
    connection.execute_command("ACL", "SETUSER", "host_a", "on", ">secret", "~h:a:*", "+@all")
    connection.execute_command("ACL", "SAVE")
    connection = broker()
    port = connection.connection_pool.connection_kwargs["port"]
    assert redis.Redis(port=port, username="host_a", password="secret").ping()
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=port).ping()
    users = embedded_broker.directory() / "users.acl"
    assert users.stat().st_mode & 0o077 == 0
    assert env.generated_secrets()["broker_password"] not in users.read_text()

"""A host's Redis user against the keys of another host, on Valkey and, where it is installed, on Redis."""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError

from console import env
from console.common import broker as console_broker
from console.fleet import broker_users
from console.fleet.models import Host
from tests.conftest import broker_binary
from workers.app import host_app
from workers.contracts import host_queue, key_prefix

pytestmark = pytest.mark.django_db

BINARIES = {"valkey": broker_binary(), "redis": shutil.which("redis-server")}


@pytest.fixture(params=list(BINARIES))
def port(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A broker of its own, with the users of hosts `a` and `b`."""
    binary = BINARIES[request.param]
    if not binary:
        pytest.skip("redis-server is not installed; `apt-get install redis-server` brings it (make test does, as root)")
    from tests.ports import free_port

    number = free_port()
    process = subprocess.Popen(
        [binary, "--port", str(number), "--bind", "127.0.0.1", "--dir", str(tmp_path), "--save", ""],
        stdout=subprocess.DEVNULL,
    )
    client = redis.Redis(port=number, decode_responses=True)
    for _attempt in range(200):
        try:
            client.ping()
            break
        except redis.RedisError:
            time.sleep(0.02)
    monkeypatch.setattr(console_broker, "connection", lambda: client)
    for name in "ab":
        host = Host.objects.create(name=name, redis_password_sha256=broker_users.digest(f"password of {name}"))
        broker_users.ensure(host)
    client.rpush("h:b:host.b", "a step")
    client.set("h:b:desired", "secret")
    yield number
    process.terminate()
    process.wait(10)


def user(port: int, name: str) -> redis.Redis:
    return redis.Redis(port=port, username=f"host_{name}", password=f"password of {name}", decode_responses=True)


COMMANDS = (
    """
LPUSH h:b:host.b x|LRANGE h:b:host.b 0 -1|BRPOP h:b:host.b 1|GET h:b:desired|SET h:b:desired y|HGETALL h:b:unacked
PUBLISH h:b:/0.celery.pidbox x|PUBLISH h:b:doorbell x|COPY h:b:host.b h:a:steal|RENAME h:b:host.b h:a:steal
LMOVE h:b:host.b h:a:steal LEFT LEFT|SUNIONSTORE h:a:steal h:b:set|EVAL return(redis.call('get','h:b:desired')) 0
EVAL_RO return(1) 0|FUNCTION LIST|FCALL f 0|KEYS *|SCAN 0|RANDOMKEY|DBSIZE|MONITOR|CONFIG GET *|CLIENT LIST
CLIENT KILL TYPE normal|ACL LIST|ACL WHOAMI|ACL SETUSER host_a ~*|FLUSHALL|FLUSHDB|DEBUG SLEEP 0|SHUTDOWN|PUBSUB CHANNELS
SWAPDB 0 1|SCRIPT FLUSH|SCRIPT KILL|FUNCTION FLUSH|SLOWLOG GET|MEMORY USAGE h:b:desired|OBJECT ENCODING h:b:host.b
TYPE h:b:host.b|EXISTS h:b:host.b|XREAD STREAMS h:b:reports 0|XADD h:b:reports * json {}|SORT h:a:x BY h:b:* GET h:b:*
TOUCH h:b:desired|MIGRATE 127.0.0.1 1 h:b:desired 0 100|RESTORE h:b:z 0 x|LATENCY RESET|REPLICAOF NO ONE|MODULE LIST
SUBSCRIBE h:b:doorbell|PSUBSCRIBE *|PSUBSCRIBE h:*|SELECT 1|MOVE h:a:steal 1|MOVE h:b:host.b 1
""".replace("\n", "|")
    .strip("|")
    .split("|")
)


def test_a_host_can_touch_nothing_outside_its_prefix(port: int) -> None:
    not_refused = {}
    for command in filter(None, COMMANDS):
        try:
            not_refused[command] = user(port, "a").execute_command(*command.split(" "))
        except NoPermissionError:
            continue
        except redis.RedisError as error:
            if not re.search("unknown command|not allowed", str(error), re.IGNORECASE):
                not_refused[command] = str(error)
    assert not_refused == {}
    assert len(COMMANDS) > 50


def refused(client: redis.Redis, command: str) -> bool:
    try:
        client.execute_command(*command.split(" "))
    except (NoPermissionError, redis.AuthenticationError):
        return True
    except redis.ResponseError as error:
        return "NOAUTH" in str(error)
    return False


@pytest.mark.parametrize("allowed", ["INFO clients", "HELLO 3", "RESET"])
def test_what_is_allowed_leads_to_no_key_of_another_host(port: int, allowed: str) -> None:
    # As in an installation, where nobody is let in without a password.
    console_broker.connection().execute_command("ACL", "SETUSER", "default", "resetpass")
    mine = redis.Redis(
        port=port, username="host_a", password="password of a", decode_responses=True, single_connection_client=True
    )
    assert "h:b:" not in str(mine.execute_command(*allowed.split(" ")))
    for command in ("GET h:b:desired", "LRANGE h:b:host.b 0 -1", "SELECT 1", "KEYS *", "CLIENT LIST"):
        assert refused(mine, command), command


def test_a_broker_s_other_database_is_the_hosts_and_the_prefix_holds_there_too(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env, "hosts_redis_url", lambda: f"redis://127.0.0.1:{port}/3")
    broker_users.ensure(Host.objects.get(name="a"))
    mine = redis.Redis(
        port=port,
        db=3,
        username="host_a",
        password="password of a",
        decode_responses=True,
        single_connection_client=True,
    )
    assert mine.set("h:a:x", "1")
    for database in range(4):
        assert mine.execute_command("SELECT", database)
        assert refused(mine, "GET h:b:desired")


def test_a_loaded_script_reaches_no_key_of_another_host(port: int) -> None:
    mine = user(port, "a")
    sha = mine.script_load("return redis.call('lrange', 'h:b:host.b', 0, -1)")
    with pytest.raises(redis.ResponseError, match=r"(?i)permission|can't access"):
        mine.evalsha(sha, 0)


def test_a_host_can_do_its_own_work(port: int) -> None:
    mine = user(port, "a")
    assert mine.set("h:a:x", "1")
    assert mine.xadd("h:a:reports", {"json": "{}"})
    assert mine.hget("h:a:acknowledged", "x") is None
    assert mine.publish("h:a:doorbell", "x") == 0
    assert mine.ping()


def test_a_removed_hosts_user_is_gone_at_once(port: int) -> None:
    mine = user(port, "a")
    mine.ping()
    broker_users.remove(Host.objects.get(name="a"))
    with pytest.raises(redis.RedisError):
        mine.get("h:a:desired")


def test_the_consoles_steps_reach_a_host_through_its_own_user(port: int) -> None:
    app = host_app("a", f"redis://127.0.0.1:{port}/0")
    app.send_task("workers.host.run_step", args=[{}], queue=host_queue("a"), retry=False)
    assert user(port, "a").llen(key_prefix("a") + host_queue("a")) == 1


def test_a_user_that_the_broker_forgot_is_missed(port: int) -> None:
    hosts = list(Host.objects.order_by("name"))
    assert broker_users.unsettled(hosts) == []
    console_broker.connection().execute_command("ACL", "DELUSER", "host_b")
    assert [host.name for host in broker_users.unsettled(hosts)] == ["b"]


def test_what_was_read_before_a_removal_does_not_bring_its_user_back(port: int) -> None:
    read = list(Host.objects.order_by("name"))
    mine = user(port, "a")
    for host in read:
        broker_users.remove(host)
    Host.objects.filter(name="a").update(redis_password_sha256="")
    assert broker_users.unsettled(read) == read
    for host in read:
        broker_users.settle(host)
    assert user(port, "b").ping()
    with pytest.raises(redis.RedisError):
        mine.get("h:a:desired")


def test_a_user_of_a_host_that_may_not_come_in_is_found_and_removed(port: int) -> None:
    Host.objects.filter(name="a").update(redis_password_sha256="")
    found = broker_users.unsettled(list(Host.objects.all()))
    assert [host.name for host in found] == ["a"]
    broker_users.settle(found[0])
    with pytest.raises(redis.RedisError):
        user(port, "a").ping()
    assert broker_users.unsettled(list(Host.objects.all())) == []

"""One agent for one host, on two machines; and new credentials for an agent that works."""

import json
import shutil
import socket
from pathlib import Path

import pytest
import redis

from tests.host.conftest import PATIENCE, Console, HostUnderTest, wait_for
from workers.contracts import CredentialsOrder, DesiredState, Generation, agent_seat_key, desired_key
from workers.host.credentials import with_password
from workers.host_config import HostConfig
from workers.sealing import public_key_of, seal


def clone(host: HostUnderTest, tmp_path: Path) -> HostUnderTest:
    """The same host on another machine, as a copied disk has it."""
    state = tmp_path / "clone"
    shutil.copytree(host.config.state_dir, state)
    config = host.config.model_copy(update={"state_dir": state})
    path = tmp_path / "clone.json"
    config.save(path)
    found = HostUnderTest(config, path)
    found.log = tmp_path / "clone.log"
    return found


def boots(console: Console) -> set[str]:
    return {beat["agent_boot"] for beat in console.heartbeats()}


def test_a_second_machine_is_refused_by_name_and_the_first_one_tells(
    host: HostUnderTest, console: Console, tmp_path: Path
) -> None:
    first = host.start_agent()
    wait_for(console.heartbeats, what="a heartbeat")
    second = clone(host, tmp_path)
    try:
        agent = second.start_agent()
        assert agent.wait(PATIENCE) == 1
        said = second.log.read_text()
        assert f"process {first.pid} on machine {socket.gethostname()!r}" in said
        told = wait_for(lambda: console.heartbeats()[-1]["vitals"]["refused_agent"], what="the first agent's word")
        assert told["pid"] == agent.pid
        assert len(boots(console)) == 1
    finally:
        second.end()


@pytest.mark.long
def test_an_agent_follows_on_itself_at_once_and_another_machine_once_it_is_silent(
    host: HostUnderTest, console: Console, tmp_path: Path
) -> None:
    agent = host.start_agent()
    wait_for(console.heartbeats, what="a heartbeat")
    agent.kill()
    agent.wait()
    assert console.redis.exists(agent_seat_key(console.host))
    again = host.start_agent()
    wait_for(lambda: len(boots(console)) == 2, what="the next agent's heartbeat")
    again.kill()
    again.wait()
    console.redis.delete(agent_seat_key(console.host))  # what 15 s do
    second = clone(host, tmp_path)
    try:
        second.start_agent()
        wait_for(lambda: len(boots(console)) == 3, what="the replacement's heartbeat")
        assert host.start_agent().wait(PATIENCE) == 1
    finally:
        second.end()


def test_an_agent_that_ends_in_order_leaves_its_seat(host: HostUnderTest, console: Console) -> None:
    agent = host.start_agent()
    wait_for(lambda: console.redis.exists(agent_seat_key(console.host)), what="the seat")
    held = json.loads(console.redis.get(agent_seat_key(console.host)))
    assert held["pid"] == agent.pid
    assert 0 < console.redis.pttl(agent_seat_key(console.host)) <= 15_000
    agent.terminate()
    agent.wait(PATIENCE)
    assert not console.redis.exists(agent_seat_key(console.host))


def test_new_credentials_are_taken_over_without_losing_a_report_or_an_engine(
    host: HostUnderTest, console: Console
) -> None:
    agent = host.start_agent()
    order = host.order()
    console.want(order)
    console.wait_phase(order.instance, "ready")
    serving = sorted(host.processes(order))
    old_public = public_key_of(host.config.private_key)
    console.redis.execute_command("ACL", "SETUSER", f"host_{console.host}", ">new password")
    ordered = CredentialsOrder(number=1, sealed_password=seal(old_public, "new password"), new_key=True)
    console._generation = 9
    state = DesiredState(generation=Generation(epoch=1, number=9), instances=[order], credentials=ordered)
    console.redis.set(desired_key(console.host), state.model_dump_json())
    console.ring()
    beat = wait_for(
        lambda: next((beat for beat in console.heartbeats() if beat["credentials"] == 1), None), what="the switch"
    )
    assert beat["agent_pid"] == agent.pid  # it started itself anew in place
    config = HostConfig.load(host.path)
    assert beat["public_key"] == public_key_of(config.private_key) != old_public
    assert config.redis_url == with_password(host.config.redis_url, "new password")
    # What the console does next: the old password dies, with whatever is connected by it.
    console.redis.execute_command("ACL", "SETUSER", f"host_{console.host}", "<pw")
    console.redis.execute_command("CLIENT", "KILL", "USER", f"host_{console.host}")
    seen = len(console.heartbeats())
    wait_for(lambda: len(console.heartbeats()) > seen, what="a heartbeat with the new password")
    assert sorted(host.processes(order)) == serving
    # Its secrets were sealed to the old key: the host can still restart it.
    console.want(order.model_copy(update={"start": 2}))
    wait_for(lambda: console.bodies("attempt.started", number=2), what="a restart with a secret of before")
    console.take()
    numbers = [report["number"] for report in console.reports]
    assert numbers == list(range(1, numbers[-1] + 1))


@pytest.mark.long
def test_a_password_that_the_broker_does_not_take_changes_nothing(host: HostUnderTest, console: Console) -> None:
    host.start_agent()
    wait_for(console.heartbeats, what="a heartbeat")
    ordered = CredentialsOrder(
        number=1, sealed_password=seal(public_key_of(host.config.private_key), "unknown to the broker")
    )
    state = DesiredState(generation=Generation(epoch=1, number=1), credentials=ordered)
    console.redis.set(desired_key(console.host), state.model_dump_json())
    console.ring()
    wait_for(lambda: "does not take the new password" in host.log.read_text(), what="its refusal")
    assert HostConfig.load(host.path).credentials == 0
    seen = len(console.heartbeats())
    wait_for(lambda: len(console.heartbeats()) > seen, what="a heartbeat")
    with redis.Redis.from_url(host.config.redis_url) as client:
        assert client.ping()

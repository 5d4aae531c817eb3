"""Gateways on other machines: how they get in, what they may touch in the broker, and who may do what with them."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import Client
from django.utils import timezone
from redis.exceptions import NoPermissionError

from console.access.models import AuditEntry, User
from console.common import broker
from console.common.errors import Refused
from console.deployments.models import Deployment
from console.fleet import host_wheel
from console.gateway import keys, machines, plan, routes
from console.gateway.machine_rounds import MachineRounds
from console.gateway.models import GatewayMachine, GatewayRequest, LogCursor, Route, UsageDay
from console.gateway.routes import Share
from tests.factories import Fleet
from tests.fleet.test_broker_users import COMMANDS
from tests.gateway.test_access_log import line
from workers.contracts import CONTRACT
from workers.gateway import messages
from workers.gateway.description import Gateway, Key, Listener, Server, Target
from workers.gateway.description import Route as RouteOf
from workers.gateway.log_file import LogFile
from workers.gateway.messages import Order, Told
from workers.gateway_machine.agent import Agent
from workers.gateway_machine.log_shipping import LogShipping
from workers.host_config import GatewayConfig
from workers.sealing import generate_key_pair, unseal

pytestmark = pytest.mark.django_db(transaction=True)
PRIVATE, PUBLIC = generate_key_pair()


def ask_to_join(token: str, public_key: str = PUBLIC) -> Any:
    body = {"token": token, "public_key": public_key}
    return Client().post("/api/gateways/join", body, content_type="application/json")


@pytest.fixture
def joined(admin: User) -> tuple[GatewayMachine, "redis.Redis"]:
    """A gateway that has joined, and its own connection to the broker."""
    machine, token = machines.add(name="edge-01", actor=admin)
    answer = ask_to_join(token)
    assert answer.status_code == 200, answer.content
    machine.refresh_from_db()
    return machine, redis.Redis.from_url(answer.json()["redis_url"], decode_responses=True)


def tell(link: "redis.Redis", **changes: Any) -> Told:
    given: dict[str, Any] = {"contract": CONTRACT, "agent_version": "1", "public_key": PUBLIC, "status": {"up": True}}
    told = Told(**given | changes)
    link.set(messages.told_key("edge-01"), told.model_dump_json(), ex=messages.FRESH_SECONDS)
    return told


def test_a_token_is_good_once_for_an_hour_and_stored_hashed(admin: User) -> None:
    machine, token = machines.add(name="edge-01", actor=admin)
    assert token not in str(GatewayMachine.objects.filter(pk=machine.pk).values())
    GatewayMachine.objects.update(join_token_expires_at=timezone.now() - timedelta(seconds=1))
    assert "expired" in ask_to_join(token).json()["error"]
    GatewayMachine.objects.update(join_token_expires_at=timezone.now() + timedelta(hours=1))
    assert ask_to_join(token, "no key").status_code == 403
    assert ask_to_join(token).json()["gateway"] == "edge-01"
    again = ask_to_join(token)
    assert (again.status_code, "used already" in again.json()["error"]) == (403, True)
    assert ask_to_join("").status_code == 403
    assert AuditEntry.objects.filter(action="gateway.join", target="edge-01").exists()
    with pytest.raises(Refused, match="a gateway with this name already"):
        machines.add(name="edge-01", actor=admin)
    with pytest.raises(Refused, match="lower-case letters"):
        machines.add(name="../x", actor=admin)


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"token": "x"}', "{" * 3000])
def test_nonsense_is_answered_plainly(body: str) -> None:
    assert Client().post("/api/gateways/join", body, content_type="application/json").status_code == 400


def test_it_can_touch_nothing_outside_its_prefix(joined: tuple[GatewayMachine, "redis.Redis"]) -> None:
    """The attacks that a host's user is tried with, on another gateway, on a host, and on the console itself."""
    _machine, mine = joined
    for prefix in ("g:edge-02:", "h:b:", "console:"):
        broker.connection().set(f"{prefix}desired", "secret")
        broker.connection().rpush(f"{prefix}host.b", "a step")
        not_refused = {}
        for command in filter(None, COMMANDS):
            words = command.replace("h:b:", prefix).replace("h:a:", "g:edge-01:").replace("host_a", "gateway_edge-01")
            try:
                not_refused[words] = mine.execute_command(*words.split(" "))
            except NoPermissionError:
                continue
            except redis.RedisError as error:
                if "unknown command" not in str(error).lower() and "not allowed" not in str(error).lower():
                    not_refused[words] = str(error)
        assert not_refused == {}
    assert mine.set("g:edge-01:told", "x")
    assert mine.publish("g:edge-01:doorbell", "x") == 0


def test_what_it_gets_is_sealed_to_it_and_holds_no_server_that_answers_on_loopback(
    joined: tuple[GatewayMachine, "redis.Redis"], tmp_path: Path
) -> None:
    _machine, mine = joined
    target = Target(1, "chat-a", "sk-engine", 100, servers=(Server(1, "127.0.0.1", 9000), Server(2, "10.0.0.7", 9000)))
    key = Key(1, "ab" * 32, 1, frozenset({1}))
    wanted = Gateway(Listener("/g", "/l", certificate="/c"), routes=(RouteOf(1, ("chat",), (target,)),), keys=(key,))
    rounds = MachineRounds(tmp_path, ())
    rounds.round(wanted)
    text = mine.get(messages.order_key("edge-01"))
    assert "sk-engine" not in text
    order = Order.model_validate_json(text)
    got = messages.read_content(unseal(PRIVATE, order.sealed))
    assert messages.digest_of(replace(got, corrections={"k1": 7})) == order.digest
    assert [one.address for one in got.routes[0].targets[0].servers] == ["10.0.0.7"]
    assert (got.keys, got.listener.certificate, got.listener.directory) == ((key,), "", "")
    # Nothing new, nothing written; what the broker lost is written again.
    mine.delete(messages.order_key("edge-01"))
    rounds.round(wanted)
    assert Order.model_validate_json(mine.get(messages.order_key("edge-01"))) == order
    assert machines.unreachable(wanted) == 1


@pytest.fixture
def log(fleet: Fleet, tmp_path: Path) -> Path:
    fleet.deploy(name="chat-a")
    routes.save(Route(name="chat"), aliases=[], shares=[Share(Deployment.objects.get(name="chat-a"))], actor=None)
    keys.create(name="app", owner=None, routes=None, expires_at=None, actor=None, team_id=1)
    (tmp_path / "there").mkdir()
    return tmp_path / "there/access.log"


def test_every_line_is_counted_once_and_in_order_whatever_is_lost_or_comes_twice(
    joined: tuple[GatewayMachine, "redis.Redis"], log: Path, tmp_path: Path
) -> None:
    _machine, mine = joined
    rounds, wanted = MachineRounds(tmp_path, ()), Gateway(Listener("/g", "/l"))
    log.write_text("".join(line(number) for number in range(3)))
    shipping = LogShipping("edge-01", LogFile(log))
    assert shipping.ship(mine)
    assert not shipping.ship(mine), "one piece at a time"
    first = mine.get(messages.piece_key("edge-01"))
    rounds.round(wanted)
    assert not shipping.ship(mine)
    assert shipping.waiting_bytes == 0
    # It comes again, and is stored no second time.
    mine.set(messages.piece_key("edge-01"), first)
    MachineRounds(tmp_path, ()).round(wanted)
    with log.open("a") as file:
        file.write(line(3) + line(4)[:30])
    # The broker loses everything; the agent starts anew.
    mine.delete(messages.stored_key("edge-01"))
    assert LogShipping("edge-01", LogFile(log)).ship(mine)
    rounds.round(wanted)
    assert LogShipping("edge-01", LogFile(log)).ship(mine)
    rounds.round(wanted)
    with log.open("a") as file:
        file.write(line(4)[30:])
    shipping.ship(mine)
    mine.delete(messages.piece_key("edge-01"))
    assert shipping.ship(mine), "a piece that was lost is written again"
    rounds.round(wanted)
    found = GatewayRequest.objects.order_by("pk").values_list("request_id", "gateway")
    assert list(found) == [(f"req-{number}", "edge-01") for number in range(5)]
    assert UsageDay.objects.get().requests == 5
    # A log that was begun anew has another name, and is read from its beginning.
    log.unlink()
    log.write_text(line(5))
    assert shipping.ship(mine)
    rounds.round(wanted)
    assert GatewayRequest.objects.count() == 6
    assert LogCursor.objects.filter(file__startswith="edge-01/").count() == 2


def test_a_piece_that_is_none_harms_nobody(
    joined: tuple[GatewayMachine, "redis.Redis"], log: Path, tmp_path: Path
) -> None:
    _machine, mine = joined
    del log
    for text in ("nonsense", '{"file": "../../x", "offset": 0, "end": 1, "text": "x"}'):
        mine.set(messages.piece_key("edge-01"), text)
        MachineRounds(tmp_path, ()).round(Gateway(Listener("/g", "/l")))
        assert not mine.exists(messages.piece_key("edge-01"))
    assert not GatewayRequest.objects.exists()


def test_a_log_whose_beginning_was_given_back_goes_on_behind_it(tmp_path: Path) -> None:
    """A database that was restored to a time before asks for what is not there any more."""
    path = tmp_path / "access.log"
    path.write_bytes((b"x" * 1023 + b"\n") * 9000)
    LogFile(path).forget(9000 * 1024 - 2048)
    data, begin, end = LogFile(path).read(0, 1_000_000)
    assert begin > 8_000_000
    assert (len(data), end) == (9000 * 1024 - begin, 9000 * 1024)


def test_credentials_are_rotated_and_the_old_ones_die(
    joined: tuple[GatewayMachine, "redis.Redis"], admin: User, tmp_path: Path
) -> None:
    machine, mine = joined
    machines.rotate(machine, new_key=True, actor=admin, reason="yearly")
    with pytest.raises(Refused, match="not switched"):
        machines.rotate(machine, new_key=False, actor=admin, reason="again")
    rounds, wanted = MachineRounds(tmp_path, ()), Gateway(Listener("/g", "/l"))
    rounds.round(wanted)
    order = Order.model_validate_json(mine.get(messages.order_key("edge-01")))
    assert order.credentials
    password = unseal(PRIVATE, order.credentials.sealed_password)
    port = broker.connection().connection_pool.connection_kwargs["port"]
    new = redis.Redis(port=port, username="gateway_edge-01", password=password, decode_responses=True)
    _other, public = generate_key_pair()
    tell(new, credentials=1, public_key=public)
    rounds._looked_at = 0
    rounds.round(wanted)
    machine.refresh_from_db()
    assert (machine.next_password, machine.public_key) == ("", public)
    with pytest.raises(redis.RedisError):
        mine.get(messages.order_key("edge-01"))
    rounds.round(wanted)
    assert Order.model_validate_json(new.get(messages.order_key("edge-01"))).credentials is None


def test_one_that_is_heard_of_is_told_to_end_and_one_that_is_not_is_forgotten_at_once(
    joined: tuple[GatewayMachine, "redis.Redis"], admin: User, tmp_path: Path
) -> None:
    machine, mine = joined
    rounds, wanted = MachineRounds(tmp_path, ()), Gateway(Listener("/g", "/l"))
    tell(mine)
    machines.remove(machine, actor=admin, reason="moved")
    rounds.round(wanted)
    assert Order.model_validate_json(mine.get(messages.order_key("edge-01"))).ends
    tell(mine, ended=True)
    rounds._looked_at = 0
    rounds.round(wanted)
    assert not GatewayMachine.objects.exists()
    with pytest.raises(redis.RedisError):
        mine.ping()
    silent, token = machines.add(name="edge-02", actor=admin)
    ask_to_join(token)
    machines.remove(GatewayMachine.objects.get(pk=silent.pk), actor=admin, reason="gone")
    assert not GatewayMachine.objects.exists()


def test_the_page_says_what_each_is_and_whether_it_follows(
    client: Client, viewer: User, joined: tuple[GatewayMachine, "redis.Redis"], tmp_path: Path
) -> None:
    _machine, mine = joined
    client.force_login(viewer)

    def page() -> str:
        return " ".join(client.get("/gateways/").content.decode().split())

    assert "It is not heard of." in page()
    MachineRounds(tmp_path, ()).round(plan.read())
    order = Order.model_validate_json(mine.get(messages.order_key("edge-01")))
    tell(mine, status={"up": True, "version": "2.8.25", "routes": 3}, address="0.0.0.0:8480", waiting_bytes=2048)
    assert "the last change is on its way" in page()
    tell(mine, status={"up": True, "version": "2.8.25", "routes": 3, "of_later": 1}, digest=order.digest)
    assert "It serves the same routes and keys as here." in page()
    assert f"An upgrade is ready (1 → {host_wheel.current().version})" in page()
    tell(mine, status={"up": True}, digest=order.digest, agent_version=host_wheel.current().version)
    assert "An upgrade is ready" not in page()
    tell(mine, status={"up": False})
    assert "HAProxy does not answer there" in page()
    tell(mine, status={"up": True, "problem": "no such file"})
    assert "The last change is not in force: no such file" in page()
    tell(mine, status={"up": True, "repaired_at": 1e300, "servers": [{}]})
    assert "Add a gateway" not in page()
    mine.set(messages.told_key("edge-01"), '{"status": {"servers": 7}}')
    assert "It is not heard of." in page()


@pytest.mark.parametrize(("role", "may"), [("viewer", False), ("operator", False), ("admin", True)])
def test_only_admins_add_change_and_remove(
    client: Client, request: pytest.FixtureRequest, role: str, may: bool, joined: tuple[GatewayMachine, "redis.Redis"]
) -> None:
    machine, _mine = joined
    client.force_login(request.getfixturevalue(role))
    assert client.get("/gateways/").status_code == 200
    for path in ("new/", f"{machine.pk}/token/", f"{machine.pk}/credentials/", f"{machine.pk}/remove/"):
        assert client.get(f"/gateways/{path}").status_code == (200 if may else 403), path
    posted = client.post("/gateways/new/", {"name": "edge-07"})
    assert posted.status_code == (200 if may else 403)
    assert ("slipway gateway join" in posted.content.decode()) == may
    assert client.post(f"/gateways/{machine.pk}/remove/", {"reason": "x"}).status_code == (302 if may else 403)
    assert GatewayMachine.objects.filter(pk=machine.pk).exists() != may


def test_a_name_that_can_not_be_is_said_at_its_field(client: Client, admin: User) -> None:
    client.force_login(admin)
    page = client.post("/gateways/new/", {"name": "Edge 1"})
    assert (page.status_code, "lower-case letters" in page.content.decode()) == (400, True)


def test_an_order_that_could_not_be_understood_is_no_trouble_once_one_can(
    joined: tuple[GatewayMachine, "redis.Redis"], tmp_path: Path
) -> None:
    machine, link = joined
    address = link.connection_pool.connection_kwargs
    url = f"redis://{address['username']}:{address['password']}@{address['host']}:{address['port']}"
    config = GatewayConfig(
        name=machine.name, redis_url=url, console_url="http://127.0.0.1:9", private_key=PRIVATE, state_dir=tmp_path
    )
    agent = Agent(config, tmp_path / "gateway.json")

    def problem_after(text: str) -> str:
        # The console's side writes it; the gateway's own user may write its keys, too.
        link.set(messages.order_key(machine.name), text)
        agent._ask()
        agent._tell(now=True)
        return str(Told.model_validate_json(str(link.get(messages.told_key(machine.name)))).problem)

    good = Order(digest="a", sealed="x").model_dump_json()
    assert problem_after(good) == ""
    assert "can't be understood" in problem_after('{"digest": 5}')
    assert problem_after(good) == ""

"""New credentials for a host: both passwords hold until it has switched, then the old one is dead."""

from uuid import uuid4

import pytest
import redis
from django.test import Client
from django.urls import reverse
from redis.backoff import NoBackoff
from redis.retry import Retry

from console.access.models import User
from console.common import broker
from console.common.errors import Refused
from console.fleet import broker_users, credentials, desired, services
from console.fleet.models import Host
from console.jobs import reconcile
from workers.contracts import DesiredState, Heartbeat, desired_key
from workers.host.credentials import with_password
from workers.sealing import generate_key_pair, unseal

pytestmark = pytest.mark.django_db(transaction=True)


class Joined:
    """A host that has joined, seen from its own side."""

    def __init__(self, name: str, admin: User) -> None:
        self.private, public = generate_key_pair()
        _host, token = services.add_host(name=name, actor=admin)
        self.name = name
        self.url = services.join(token=token, public_key=public).redis_url

    @property
    def host(self) -> Host:
        return Host.objects.get(name=self.name)

    def works(self, url: str) -> bool:
        try:
            with redis.Redis.from_url(url) as mine:
                return bool(mine.set(f"h:{self.name}:x", 1))
        except redis.AuthenticationError:
            return False

    def ordered_url(self) -> str:
        text = broker.connection().get(desired_key(self.name))
        order = DesiredState.model_validate_json(text).credentials
        assert order
        return with_password(self.url, unseal(self.private, order.sealed_password))

    def heartbeat(self, number: int, public_key: str = "") -> None:
        heartbeat = Heartbeat(
            agent_version="1", agent_pid=1, agent_boot=uuid4(), at=0, generation=None,
            credentials=number, public_key=public_key,
        )  # fmt: skip
        services.heard(self.host, heartbeat)


@pytest.fixture
def joined(admin: User) -> Joined:
    return Joined(f"rot-{uuid4().hex[:6]}", admin)


def test_the_old_password_dies_when_the_host_was_heard_of_with_the_new_one(joined: Joined, admin: User) -> None:
    connected = redis.Redis.from_url(joined.url, single_connection_client=True, retry=Retry(NoBackoff(), 0))
    connected.ping()
    credentials.rotate(joined.host, new_key=False, actor=admin, reason="leak")
    new = joined.ordered_url()
    assert joined.works(joined.url)
    assert joined.works(new)
    joined.heartbeat(0)  # one that was sent before the switch
    assert joined.works(joined.url)
    joined.heartbeat(1)
    assert not joined.works(joined.url)
    assert joined.works(new)
    with pytest.raises(redis.ConnectionError):
        connected.ping()
    assert DesiredState.model_validate_json(broker.connection().get(desired_key(joined.name))).credentials is None


def test_a_new_key_counts_from_the_heartbeat_that_tells_it(joined: Joined, admin: User) -> None:
    before = joined.host.public_key
    credentials.rotate(joined.host, new_key=True, actor=admin, reason="copied")
    new_public = generate_key_pair()[1]
    joined.heartbeat(1, "no key")
    assert joined.host.public_key == before
    joined.heartbeat(1, new_public)
    assert (joined.host.public_key, joined.host.next_password, joined.host.next_key) == (new_public, "", False)


def test_an_unasked_key_in_a_heartbeat_changes_nothing(joined: Joined, admin: User) -> None:
    before = joined.host.public_key
    joined.heartbeat(0, generate_key_pair()[1])
    credentials.rotate(joined.host, new_key=False, actor=admin, reason="x")
    joined.heartbeat(1, generate_key_pair()[1])
    assert joined.host.public_key == before


def test_a_second_rotation_waits_for_the_first(joined: Joined, admin: User) -> None:
    credentials.rotate(joined.host, new_key=False, actor=admin, reason="x")
    with pytest.raises(Refused, match="has not switched"):
        credentials.rotate(joined.host, new_key=False, actor=admin, reason="x")


def test_the_new_password_is_stored_readable_nowhere(joined: Joined, admin: User) -> None:
    credentials.rotate(joined.host, new_key=False, actor=admin, reason="x")
    password = joined.ordered_url().split(":")[2].split("@")[0]
    stored = str(Host.objects.filter(name=joined.name).values())
    assert password not in stored
    assert password not in str(broker.connection().get(desired_key(joined.name)))


@pytest.mark.parametrize("waiting", [False, True])
def test_reconcile_makes_a_user_again_that_the_broker_forgot_or_knows_by_another_password(
    joined: Joined, admin: User, waiting: bool
) -> None:
    new = joined.url
    if waiting:
        credentials.rotate(joined.host, new_key=False, actor=admin, reason="x")
        new = joined.ordered_url()
    user = joined.host.broker_user
    broker.command("ACL", "DELUSER", user)
    reconcile.reconcile()
    assert joined.works(joined.url)
    assert joined.works(new)
    broker.command("ACL", "SETUSER", user, "resetpass", ">other")
    reconcile.reconcile()
    assert joined.works(joined.url)
    assert broker_users.unsettled([joined.host]) == []


def test_the_page_asks_for_a_reason_and_says_that_both_hold(joined: Joined, admin: User) -> None:
    client = Client()
    client.force_login(admin)
    page = reverse("host_credentials", args=[joined.host.pk])
    assert client.post(page, {"reason": ""}).status_code == 400
    assert client.post(page, {"reason": "yearly", "new_key": "on"}).status_code == 302
    assert joined.host.next_key
    assert "both passwords hold" in client.get(reverse("host_detail", args=[joined.host.pk])).content.decode()


def test_a_host_that_joins_anew_is_not_asked_for_older_rotations(joined: Joined, admin: User) -> None:
    credentials.rotate(joined.host, new_key=True, actor=admin, reason="x")
    token = services.renew_join_token(joined.host, actor=admin)
    services.join(token=token, public_key=generate_key_pair()[1])
    assert joined.host.next_password == ""
    assert desired.compose(joined.host).credentials is None

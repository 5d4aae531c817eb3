"""How a host gets in: with a token that is good once and for one hour."""

from datetime import timedelta

import pytest
import redis
from django.test import Client
from django.utils import timezone

from console.access.models import AuditEntry, User
from console.common.errors import Refused
from console.fleet import services
from console.fleet.models import Host
from workers.contracts import key_prefix
from workers.sealing import generate_key_pair

pytestmark = pytest.mark.django_db(transaction=True)

PUBLIC_KEY = generate_key_pair()[1]


def ask(token: str, public_key: str = PUBLIC_KEY) -> object:
    return Client().post("/api/hosts/join", {"token": token, "public_key": public_key}, content_type="application/json")


def test_a_host_that_joins_can_use_its_own_keys_and_nothing_else(admin: User) -> None:
    _host, token = services.add_host(name="gpu-01", actor=admin)
    answer = ask(token)
    assert answer.status_code == 200
    url = answer.json()["redis_url"]
    mine = redis.Redis.from_url(url)
    assert mine.set(f"{key_prefix('gpu-01')}x", 1)
    with pytest.raises(redis.exceptions.NoPermissionError):
        mine.get("h:other:desired")
    host = Host.objects.get(name="gpu-01")
    assert host.public_key == PUBLIC_KEY
    assert host.presence == "waiting"
    assert AuditEntry.objects.filter(action="host.join", target="gpu-01").exists()


def test_a_token_is_good_once_and_stored_hashed(admin: User) -> None:
    host, token = services.add_host(name="gpu-02", actor=admin)
    assert token not in str(Host.objects.filter(pk=host.pk).values())
    assert ask(token).status_code == 200
    again = ask(token)
    assert again.status_code == 403
    assert "used already" in again.json()["error"]


def test_a_token_expires_after_an_hour(admin: User) -> None:
    host, token = services.add_host(name="gpu-03", actor=admin)
    Host.objects.filter(pk=host.pk).update(join_token_expires_at=timezone.now() - timedelta(seconds=1))
    answer = ask(token)
    assert answer.status_code == 403
    assert "expired" in answer.json()["error"]
    assert ask(services.renew_join_token(Host.objects.get(pk=host.pk), actor=admin)).status_code == 200


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"token": "x"}', "{" * 3000])
def test_nonsense_is_answered_plainly(body: str) -> None:
    answer = Client().post("/api/hosts/join", body, content_type="application/json")
    assert answer.status_code == 400
    assert "error" in answer.json()


def test_a_key_that_is_none_is_refused_and_the_token_stays_good(admin: User) -> None:
    _host, token = services.add_host(name="gpu-04", actor=admin)
    assert ask(token, "not a key").status_code == 403
    assert ask(token).status_code == 200


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "a-", "a*", "a:b", "x" * 33])
def test_a_name_that_could_widen_a_key_pattern_is_refused(admin: User, name: str) -> None:
    with pytest.raises(Refused) as refused:
        services.add_host(name=name, actor=admin)
    assert refused.value.field == "name"


def test_a_removed_host_is_locked_out_at_once(admin: User) -> None:
    host, token = services.add_host(name="gpu-05", actor=admin)
    mine = redis.Redis.from_url(ask(token).json()["redis_url"])
    mine.ping()
    services.remove_host(Host.objects.get(pk=host.pk), actor=admin, reason="sold")
    with pytest.raises(redis.RedisError):
        mine.get(f"{key_prefix('gpu-05')}desired")
    assert not Host.objects.filter(name="gpu-05").exists()

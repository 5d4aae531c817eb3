"""This machine as a host: what `up` registers, keeps and repairs."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from django.conf import settings

from console import env
from console.fleet import broker_users
from console.fleet.models import Host
from console.operations import local_host
from workers.host_config import HostConfig
from workers.sealing import public_key_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(env.environment(), "slipway_home", tmp_path)
    yield
    for host in Host.objects.all():
        broker_users.remove(host)


def stored() -> HostConfig:
    return HostConfig.load(local_host.config_path())


def test_the_first_start_registers_this_machine_and_its_credentials_work() -> None:
    path = local_host.register()
    host = Host.objects.get(name="local")
    assert path.stat().st_mode & 0o777 == 0o600
    assert host.public_key == public_key_of(stored().private_key)
    assert stored().port_range == (host.port_first, host.port_last)
    with redis.Redis.from_url(stored().redis_url) as as_host:
        assert as_host.set("h:local:x", "1")
        with pytest.raises(redis.exceptions.NoPermissionError):
            as_host.set("h:other:x", "1")


def test_a_second_start_changes_nothing() -> None:
    before = local_host.register().read_bytes()
    stamp = local_host.config_path().stat().st_mtime_ns
    local_host.register()
    assert local_host.config_path().read_bytes() == before
    assert local_host.config_path().stat().st_mtime_ns == stamp
    assert Host.objects.count() == 1


def test_a_new_port_of_the_broker_is_written_and_the_password_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    local_host.register()
    before = stored()
    monkeypatch.setattr(env.environment(), "redis_url", "redis://console:x@127.0.0.1:16999/0")
    local_host.register()
    now = stored()
    assert urlsplit(now.redis_url).port == 16999
    assert urlsplit(now.redis_url).password == urlsplit(before.redis_url).password
    assert now.private_key == before.private_key


def test_a_lost_configuration_is_made_anew_and_the_old_password_is_void() -> None:
    local_host.register()
    before = stored()
    local_host.config_path().unlink()
    local_host.register()
    assert stored().redis_url != before.redis_url
    with redis.Redis.from_url(before.redis_url) as as_before, pytest.raises(redis.exceptions.AuthenticationError):
        as_before.ping()


def test_a_user_that_the_broker_forgot_is_made_again() -> None:
    local_host.register()
    broker_users.remove(Host.objects.get(name="local"))
    local_host.register()
    with redis.Redis.from_url(stored().redis_url) as as_host:
        assert as_host.ping()
    assert settings.REDIS_URL not in stored().redis_url


def test_another_database_is_joined_with_the_same_key_pair() -> None:
    local_host.register()
    key = stored().private_key
    Host.objects.all().delete()
    local_host.register()
    assert stored().private_key == key
    assert Host.objects.get(name="local").public_key == public_key_of(key)

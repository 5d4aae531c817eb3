"""Lines and matches of a log over HTTP, two logs side by side, and what retention leaves."""

import struct
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.access.models import User
from console.deployments import log_keeping, observations
from console.deployments.models import Attempt, Deployment, Instance
from tests.factories import Fleet
from workers.contracts import LogChunk

pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt(fleet: Fleet, admin: User) -> Attempt:
    instance = Instance.objects.get(pk=fleet.deploy(admin).payload["instance"])
    return logged(instance, 1, b"".join(b"%06d\n" % number for number in range(5_000)))


def logged(instance: Instance, number: int, data: bytes, **fields: Any) -> Attempt:
    fields = {"started_at": timezone.now(), "log_bytes": len(data), **fields}
    made = Attempt.objects.create(instance=instance, number=number, **fields)
    made.log_path.parent.mkdir(parents=True, exist_ok=True)
    made.log_path.write_bytes(data)
    return made


def test_lines_are_given_by_number(attempt: Attempt, viewer: User, client: Client) -> None:
    client.force_login(viewer)
    url = reverse("attempt_log_lines", args=[attempt.pk])
    assert client.get(url, {"from": "4998", "count": "10"}).json() == {"lines": ["004998", "004999"], "whole": 5000}
    assert client.get(url, {"at": "7,4000,8"}).json()["lines"] == ["000007", "000008", "004000"]
    for wrong in ({"from": "-1"}, {"from": "0", "count": "1001"}, {"at": "1,x"}):
        answer = client.get(url, wrong)
        assert answer.status_code == 400
        assert "1000 lines at most" in answer.json()["error"]


@pytest.mark.django_db(transaction=True)
async def test_matches_are_numbers_of_four_bytes(attempt: Attempt, viewer: User, async_client: Any) -> None:
    await async_client.aforce_login(viewer)
    response = await async_client.get(reverse("attempt_log_matches", args=[attempt.pk]), {"text": "0499"})
    data = b"".join([part async for part in response.streaming_content])
    assert list(struct.unpack(f"<{len(data) // 4}I", data)) == [499, *range(4990, 5000)]


def test_two_attempts_stand_side_by_side(attempt: Attempt, viewer: User, client: Client) -> None:
    other = logged(attempt.instance, 2, b"other\n")
    client.force_login(viewer)
    url = reverse("deployment_logs", args=[attempt.instance.deployment_id])
    page = client.get(url, {"attempt": str(attempt.pk), "beside": str(other.pk)}).content.decode()
    assert page.count("<log-view") == 2
    assert f'data-attempt="{attempt.pk}"' in page
    assert f'data-attempt="{other.pk}"' in page
    assert client.get(url).content.decode().count("<log-view") == 1


def test_a_log_of_a_silent_host_is_there_and_says_as_of_when(
    attempt: Attempt, fleet: Fleet, viewer: User, client: Client
) -> None:
    fleet.host.last_seen_at = timezone.now() - timedelta(hours=1)
    fleet.host.save()
    client.force_login(viewer)
    page = client.get(reverse("instance_detail", args=[attempt.instance_id])).content.decode()
    assert "<log-view" in page
    assert "These are the lines that came before" in page


def test_old_logs_go_and_the_page_says_so(attempt: Attempt, viewer: User, client: Client, settings: Any) -> None:
    now = timezone.now()
    old = logged(attempt.instance, 2, b"x" * 100, ended_at=now - timedelta(days=31))
    kept = logged(attempt.instance, 3, b"y" * 100, ended_at=now - timedelta(days=29))
    assert log_keeping.prune(now=now) == log_keeping.Pruned(1, 100)
    assert not old.log_path.exists()
    assert kept.log_path.exists()
    client.force_login(viewer)
    url = reverse("instance_detail", args=[attempt.instance_id])
    page = client.get(url, {"attempt": "2"}).content.decode()
    assert "This log was removed on" in page
    assert "SLIPWAY_LOGS_KEEP_DAYS" in page
    settings.LOGS_KEEP_BYTES = 1
    log_keeping.prune(now=now)
    assert not kept.log_path.exists()
    assert attempt.log_path.exists(), "a running attempt's log stays"
    assert log_keeping.prune(now=now) == log_keeping.Pruned()


def test_the_rest_of_a_removed_log_is_taken_and_not_kept(attempt: Attempt) -> None:
    Attempt.objects.filter(pk=attempt.pk).update(log_removed_at=timezone.now(), log_host_offset=35_000)
    attempt.log_path.unlink()
    chunk = LogChunk(instance=attempt.instance.uuid, attempt=1, offset=35_000, data="", gap=0, final=True)
    stored = observations.store_log(attempt.instance, chunk, b"more\n")
    assert stored.log_host_offset == 35_005
    assert not attempt.log_path.exists()


def test_logs_of_other_teams_are_invisible(attempt: Attempt, client: Client, viewer: User) -> None:
    from console.access.models import Team

    Deployment.objects.update(team=Team.objects.create(name="others"))
    client.force_login(viewer)
    for name in ("attempt_log_lines", "attempt_log_matches", "attempt_log_file"):
        assert client.get(reverse(name, args=[attempt.pk])).status_code == 404

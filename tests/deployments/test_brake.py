"""The brake: much of the fleet turning bad at once stops automatic actions, and people let go of it."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.access.models import AuditEntry, User
from console.common.errors import Refused
from console.common.states import move
from console.deployments import brake
from console.deployments.models import Brake, Instance
from console.fleet import desired
from console.fleet.models import Host
from tests.factories import Fleet

pytestmark = pytest.mark.django_db


@pytest.fixture
def instances() -> list[Instance]:
    """Six that serve, on three hosts."""
    made = []
    for fleet in (Fleet.make(), Fleet.make(), Fleet.make()):
        for _number in range(2):
            job = fleet.deploy()
            instance = Instance.objects.get(pk=job.payload["instance"])
            Instance.objects.filter(pk=instance.pk).update(run=True, ordered=True, bring_up="agent", state="ready")
            made.append(Instance.objects.get(pk=instance.pk))
    return made


def turn_bad(instances: list[Instance], to: str = "unhealthy") -> None:
    for instance in instances:
        move(instance, to=to, reason="test")


def test_a_third_is_not_too_many_and_more_than_a_third_is(instances: list[Instance]) -> None:
    turn_bad(instances[:2])
    brake.watch()
    assert brake.engaged() is None
    turn_bad(instances[2:3], "restarting")
    brake.watch()
    engaged = brake.engaged()
    assert engaged
    assert (engaged.bad, engaged.total) == (3, 6)
    assert "3 of 6 instances turned bad" in engaged.reason
    assert AuditEntry.objects.filter(action="brake.engage").count() == 1


def test_hosts_are_told_to_hold_and_told_again_when_it_lets_go(instances: list[Instance], operator: User) -> None:
    host = instances[0].host
    generation = Host.objects.get(pk=host.pk).generation
    turn_bad(instances[:3])
    brake.watch()
    host.refresh_from_db()
    assert host.generation > generation
    assert "3 of 6" in desired.compose(host).hold
    with pytest.raises(Refused, match="3 of 6"):
        brake.refuse_automatic("Rolling back")
    brake.release(actor=operator, reason="the switch is back")
    assert desired.compose(host).hold == ""
    brake.refuse_automatic("Rolling back")


def test_silent_hosts_count_as_bad_at_the_moment_they_fell_silent(instances: list[Instance]) -> None:
    Host.objects.filter(pk__in=[instances[0].host_id, instances[2].host_id]).update(
        last_seen_at=timezone.now() - timedelta(seconds=30)
    )
    brake.watch()
    engaged = brake.engaged()
    assert engaged
    assert instances[0].host.name in engaged.reason


def test_what_was_bad_for_long_is_no_sudden_change(instances: list[Instance]) -> None:
    turn_bad(instances[:4])
    Instance.objects.filter(state="unhealthy").update(state_since=timezone.now() - timedelta(minutes=10))
    Host.objects.filter(pk=instances[4].host_id).update(last_seen_at=timezone.now() - timedelta(days=1))
    brake.watch()
    assert brake.engaged() is None


def test_what_people_restart_and_what_was_never_ready_does_not_count(instances: list[Instance]) -> None:
    turn_bad(instances[:4], "restarting")
    Instance.objects.update(bring_up="job")
    brake.watch()
    assert brake.engaged() is None


def test_two_instances_are_no_fleet(instances: list[Instance]) -> None:
    Instance.objects.exclude(pk__in=[one.pk for one in instances[:2]]).update(run=False)
    turn_bad(instances[:2])
    brake.watch()
    assert brake.engaged() is None


def test_it_lets_go_by_itself_after_two_calm_minutes(instances: list[Instance]) -> None:
    turn_bad(instances[:3])
    brake.watch()
    for instance in instances[:3]:
        move(instance, to="ready", reason="test")
    brake.watch()
    assert brake.engaged()
    Brake.objects.update(over_at=timezone.now() - timedelta(seconds=brake.CALM_SECONDS + 1))
    brake.watch()
    assert brake.engaged() is None
    assert "calm" in Brake.objects.get().close_reason


def test_after_a_person_let_go_it_stays_open_for_a_while(instances: list[Instance], operator: User) -> None:
    turn_bad(instances[:3])
    brake.watch()
    brake.release(actor=operator, reason="known")
    brake.watch()
    assert brake.engaged() is None
    Brake.objects.update(closed_at=timezone.now() - timedelta(seconds=brake.QUIET_AFTER_RELEASE_SECONDS + 1))
    brake.watch()
    assert brake.engaged()
    brake.release(actor=operator, reason="again")
    with pytest.raises(Refused):
        brake.release(actor=operator, reason="and again")


def test_one_banner_on_every_page_and_who_may_release_it(
    instances: list[Instance], viewer: User, operator: User, client: Client
) -> None:
    turn_bad(instances[:3])
    brake.watch()
    client.force_login(viewer)
    assert client.get("/jobs/").content.decode().count('hx-get="/brake/"') == 1
    banner = client.get("/brake/").content.decode()
    assert "Automatic actions are on hold." in banner
    assert "brake/release" not in banner
    assert client.get("/brake/release/").status_code == 403
    assert client.post("/brake/release/", {"reason": "x"}).status_code == 403
    client.force_login(operator)
    assert "brake/release" in client.get("/brake/").content.decode()
    assert client.post("/brake/release/", {"reason": ""}).status_code == 400
    assert client.post("/brake/release/", {"reason": "it was the switch"}).status_code == 302
    assert "Automatic actions are on hold." not in client.get("/brake/").content.decode()
    assert Brake.objects.get().closed_by == operator

"""Draining a host: what placement put there moves, new ready before old ends; the rest stops."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from console.access.models import AuditEntry, User
from console.catalog.models import Copy
from console.deployments import draining
from console.deployments.models import Claim, Deployment, Instance
from console.fleet.models import Device, Engine
from console.jobs.models import Job
from tests.deployments.test_claims import give_gpus
from tests.deployments.test_services import current, fail, serve, succeed
from tests.factories import Fleet

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def other(fleet: Fleet) -> Fleet:
    """A second host with the same files and engine; both have one GPU."""
    give_gpus(fleet, 79)
    found = Fleet.make()
    Engine.objects.filter(pk=found.engine.pk).update(platform="cuda", distribution="vllm")
    give_gpus(found, 79)
    Copy.objects.create(revision=fleet.copy.revision, host=found.host, path="/models/twin", state="verified")
    return found


def served(broker: Any, fleet: Fleet, other: Fleet, *, at: int = 18000, **given: Any) -> Instance:
    """A deployment that serves on the first host, because the second was full when it was placed."""
    Device.objects.filter(host=other.host).update(memory_free=0)
    instance = serve(broker, fleet, fleet.deploy(**given), at)
    Device.objects.filter(host=other.host).update(memory_free=Device.objects.get(host=other.host).memory_total)
    assert (instance.host, instance.state) == (fleet.host, "ready")
    return instance


@pytest.mark.parametrize("strategy", ["pack", "spread"])
def test_what_placement_chose_moves_and_the_old_engine_ends_only_when_the_new_one_is_ready(
    broker: Any, fleet: Fleet, other: Fleet, admin: User, client: Client, strategy: str
) -> None:
    old = served(broker, fleet, other, placement={"strategy": strategy})
    client.force_login(admin)
    url = reverse("host_drain", args=[fleet.host.pk])
    assert f"{old} → {other.host.name}: moves" in client.get(url).content.decode()
    assert client.post(url, {"reason": "new memory"}).status_code == 302
    job = Job.objects.get(kind="change")
    new = Instance.objects.exclude(pk=old.pk).get()
    assert (new.host, Claim.objects.get(instance=new).device.host) == (other.host, other.host)
    assert [(step.kind, step.host) for step in job.steps.all()][-1] == ("stop", fleet.host)
    serve(broker, other, job)
    old.refresh_from_db()
    assert not old.run
    succeed(broker, fleet, job)
    for one in (old, new, job):
        one.refresh_from_db()
    assert (job.state, old.state, old.ordered, new.state) == ("succeeded", "stopped", False, "ready")
    assert Deployment.objects.get().state == "serving"
    assert AuditEntry.objects.filter(action="deployment.move", actor=admin).exists()
    fleet.host.refresh_from_db()
    assert draining.stopped_by_drain(fleet.host) == []


def test_an_old_engine_serves_on_where_the_new_one_does_not_come_up(
    broker: Any, fleet: Fleet, other: Fleet, admin: User
) -> None:
    old = served(broker, fleet, other, placement={"strategy": "pack"})
    (job,) = draining.drain(fleet.host, actor=admin, reason="new memory")
    assert current(job).host == other.host
    fail(broker, other, job, "host.disk_full", "The disk is full.")
    for one in (old, job):
        one.refresh_from_db()
    assert (job.state, old.state, old.run) == ("failed", "ready", True)
    assert Deployment.objects.get().state == "serving"
    assert not Instance.objects.exclude(pk=old.pk).get().holds_claims


@pytest.mark.parametrize("why", ["no room", "chosen host", "fixed port", "silent"])
def test_what_can_not_move_stops(
    broker: Any, fleet: Fleet, other: Fleet, admin: User, client: Client, why: str
) -> None:
    given: dict[str, Any] = {} if why == "chosen host" else {"placement": {"strategy": "spread"}}
    old = served(broker, fleet, other, **given, **({"port": 18000} if why == "fixed port" else {}))
    if why == "no room":
        Device.objects.filter(host=other.host).update(memory_free=0)
    if why == "silent":
        fleet.host.last_seen_at = None
        fleet.host.save()
    client.force_login(admin)
    page = client.get(reverse("host_drain", args=[fleet.host.pk])).content.decode()
    assert f"{old.deployment} is stopped." in page
    (job,) = draining.drain(fleet.host, actor=admin, reason="new memory")
    assert (job.kind, Instance.objects.count()) == ("stop", 1)
    assert Deployment.objects.get().state == "stopping"


def test_of_two_that_want_the_last_room_one_moves_and_one_stops(
    broker: Any, fleet: Fleet, other: Fleet, admin: User
) -> None:
    Device.objects.update(memory_total=160 * 2**30, memory_free=159 * 2**30)
    half = ["--gpu-memory-utilization", "0.45"]
    for port, name in ((18000, "first"), (18001, "second")):
        served(broker, fleet, other, at=port, name=name, arguments=half, placement={"strategy": "spread"})
    Device.objects.filter(host=other.host).update(memory_free=100 * 2**30)
    jobs = draining.drain(fleet.host, actor=admin, reason="new memory")
    assert sorted(job.kind for job in jobs) == ["change", "stop"]

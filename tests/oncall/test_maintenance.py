"""Maintenance of a host from the on-call page: drain, keep, bring back."""

import pytest
from django.test import Client
from django.urls import reverse

from console.access.models import AuditEntry, User
from console.common.states import move
from console.deployments import draining
from console.deployments.models import Deployment, Instance, Spec
from console.fleet.models import Host
from console.jobs.models import Job
from tests.factories import Fleet
from tests.oncall.test_board import serving

pytestmark = pytest.mark.django_db


def drained(fleet: Fleet, admin: User) -> Instance:
    instance = serving(fleet, admin)
    draining.drain(fleet.host, actor=admin, reason="new memory")
    Job.objects.update(state="succeeded")
    Instance.objects.filter(pk=instance.pk).update(ordered=False, run=False, state="stopped")
    deployment = Deployment.objects.get(pk=instance.deployment_id)
    move(deployment, to="stopped", reason="stopped")
    fleet.host.refresh_from_db()
    return instance


def test_the_page_offers_drain_keep_and_silence_and_then_bringing_back(
    fleet: Fleet, operator: User, viewer: User, admin: User, client: Client
) -> None:
    serving(fleet, admin)
    client.force_login(operator)
    page = client.get("/oncall/").content.decode()
    for name in ("host_pause", "host_drain"):
        assert reverse(name, args=[fleet.host.pk]) in page
    client.post(reverse("host_pause", args=[fleet.host.pk]), {"reason": "new memory"})
    page = client.get("/oncall/").content.decode()
    assert reverse("host_bring_back", args=[fleet.host.pk]) in page
    client.force_login(viewer)
    assert "Maintenance of a host" not in client.get("/oncall/").content.decode()
    assert client.post(reverse("host_bring_back", args=[fleet.host.pk]), {"reason": "x"}).status_code == 403


def test_bringing_back_starts_what_the_drain_stopped(fleet: Fleet, admin: User, operator: User, client: Client) -> None:
    instance = drained(fleet, admin)
    assert draining.stopped_by_drain(fleet.host) == [instance.deployment]
    client.force_login(operator)
    assert "drained" in client.get("/oncall/").content.decode()
    url = reverse("host_bring_back", args=[fleet.host.pk])
    assert f"Start {instance.deployment} again" in client.get(url).content.decode()
    assert client.post(url, {"reason": ""}).status_code == 400
    assert client.post(url, {"reason": "memory is in", "start": "on"}).status_code == 302
    assert Host.objects.get(pk=fleet.host.pk).state == "accepting"
    assert Deployment.objects.get(pk=instance.deployment_id).state == "deploying"
    assert AuditEntry.objects.filter(action="host.resume", actor=operator, reason="memory is in").exists()


def test_bringing_back_without_starting_leaves_it_stopped(
    fleet: Fleet, admin: User, operator: User, client: Client
) -> None:
    instance = drained(fleet, admin)
    client.force_login(operator)
    client.post(reverse("host_bring_back", args=[fleet.host.pk]), {"reason": "memory is in"})
    assert Deployment.objects.get(pk=instance.deployment_id).state == "stopped"


def test_a_drain_leaves_replicas_on_other_hosts_alone(fleet: Fleet, admin: User, client: Client) -> None:
    here = serving(fleet, admin)
    other = Fleet.make()
    there = Instance.objects.create(
        deployment=here.deployment, spec=here.spec, host=other.host, number=2, state="ready", ordered=True, run=True,
        bring_up="agent", port=18001,
    )  # fmt: skip
    client.force_login(admin)
    page = client.get(reverse("host_drain", args=[fleet.host.pk])).content.decode()
    assert "goes on serving on other hosts" in page
    (job,) = draining.drain(fleet.host, actor=admin, reason="new memory")
    assert [step.host_id for step in job.steps.all()] == [fleet.host.pk]
    assert (Instance.objects.get(pk=here.pk).run, Instance.objects.get(pk=there.pk).run) == (False, True)
    assert Deployment.objects.get(pk=here.deployment_id).state == "serving"
    # Its replica has ended: bringing the host back adds it again, and leaves the other one alone.
    job.state = "succeeded"
    job.save()
    Instance.objects.filter(pk=here.pk).update(ordered=False, state="stopped")
    Spec.objects.filter(deployment=here.deployment).update(replicas=2)
    fleet.host.refresh_from_db()
    assert draining.stopped_by_drain(fleet.host) == [here.deployment]
    (again,) = draining.bring_back(fleet.host, start=True, actor=admin, reason="memory is in")
    assert again.steps.first().kind == "preflight"
    assert sorted(Instance.objects.filter(deployment=here.deployment).values_list("number", flat=True)) == [1, 2, 3]
    assert Instance.objects.get(pk=there.pk).run
    assert here.deployment.specs.count() == 2

"""What a host's page says of its agent, and whether it can be upgraded from there."""

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.access.models import AuditEntry, User
from console.common.errors import Refused
from console.fleet import agent_card, host_wheel, intake
from console.fleet.models import Host
from console.jobs import agent_jobs
from console.jobs.models import Job
from tests.factories import Fleet
from workers.step_payloads import UpgradeAgentPayload

pytestmark = pytest.mark.django_db


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def with_agent(fleet: Fleet, version: str, *, kept: bool, contract: int = 1) -> Host:
    Host.objects.filter(pk=fleet.host.pk).update(
        agent_version=version, contract=contract, vitals={"kept": kept}, last_seen_at=timezone.now()
    )
    return Host.objects.get(pk=fleet.host.pk)


def test_an_older_agent_can_be_upgraded_by_an_admin_and_the_order_pins_the_wheel(fleet: Fleet, admin: User) -> None:
    host = with_agent(fleet, "0.0.9+hold", kept=True)
    page = signed_in(admin).get(reverse("host_detail", args=[host.pk])).content.decode()
    assert f"An upgrade is ready: {host_wheel.current().version}." in page
    answer = signed_in(admin).post(reverse("host_upgrade", args=[host.pk]), {"reason": "new version"})
    job = Job.objects.get()
    assert answer.headers["Location"] == reverse("job_detail", args=[job.pk])
    payload = UpgradeAgentPayload.model_validate(job.steps.get().payload)
    assert (payload.version, payload.sha256) == (host_wheel.current().version, host_wheel.current().sha256)
    assert AuditEntry.objects.get(action="host.upgrade_agent").details == {
        "before": "0.0.9+hold",
        "after": payload.version,
    }
    again = signed_in(admin).post(reverse("host_upgrade", args=[host.pk]), {"reason": "again"})
    assert "still runs" in again.content.decode()


def test_a_paused_host_can_be_upgraded(fleet: Fleet, admin: User) -> None:
    host = with_agent(fleet, "0.0.9+hold", kept=True)
    intake.pause(host, actor=admin, reason="x")
    assert agent_jobs.upgrade_agent(host, actor=admin, reason="x").kind == "upgrade_agent"


@pytest.mark.parametrize(
    ("version", "kept", "sentence"),
    [
        ("current", True, "It is the version that this console comes with."),
        ("base", False, "upgraded together with it"),
        ("0.0.1", False, "started by hand"),
        ("", True, "has not been heard of yet"),
    ],
)
def test_what_can_not_be_upgraded_from_the_page_says_why(
    fleet: Fleet, admin: User, version: str, kept: bool, sentence: str
) -> None:
    offered = host_wheel.current().version
    names = {"current": offered, "base": offered.partition("+")[0]}
    host = with_agent(fleet, names.get(version, version), kept=kept)
    card = agent_card.describe(host)
    assert sentence in card.text
    assert not card.can_upgrade
    assert (
        reverse("host_upgrade", args=[host.pk])
        not in signed_in(admin).get(reverse("host_detail", args=[host.pk])).content.decode()
    )
    with pytest.raises(Refused):
        agent_jobs.upgrade_agent(host, actor=admin, reason="x")


def test_an_agent_of_an_old_contract_is_marked(fleet: Fleet, viewer: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "OLDEST_CONTRACT", 2)
    host = with_agent(fleet, "0.0.9+hold", kept=True, contract=1)
    page = signed_in(viewer).get(reverse("host_detail", args=[host.pk])).content.decode()
    assert "upgrade needed" in page
    assert "New orders are refused until then." in page


def test_a_second_agent_that_was_refused_is_told_on_the_page(fleet: Fleet, viewer: User) -> None:
    told = {"refused_agent": {"machine": "gpu-clone", "pid": 4242, "at": 0}}
    Host.objects.filter(pk=fleet.host.pk).update(vitals=told)
    page = signed_in(viewer).get(reverse("host_detail", args=[fleet.host.pk])).content.decode()
    assert "process 4242 on machine gpu-clone" in page

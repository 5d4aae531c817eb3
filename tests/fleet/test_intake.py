"""Paused and draining hosts take no new work, and say so; what runs is treated as the words promise."""

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.access.models import AuditEntry, User
from console.common.errors import Refused
from console.deployments import services as deployments
from console.deployments.models import Deployment, Instance
from console.fleet import intake, services
from console.fleet.models import Host
from console.jobs import engine_jobs
from console.jobs.engine_jobs import EngineWish
from console.jobs.models import Job
from tests.factories import Fleet
from workers.contracts import CONTRACT
from workers.sealing import generate_key_pair

pytestmark = pytest.mark.django_db

WISH = EngineWish(distribution="vllm", version="0.32.0")


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def serving(fleet: Fleet, admin: User) -> Instance:
    """A deployment whose instance is ready, as if its job had ended."""
    job = fleet.deploy(admin)
    job.steps.update(state="succeeded")
    Job.objects.filter(pk=job.pk).update(state="succeeded")
    Deployment.objects.filter(pk=job.subject_id).update(state="serving")
    Instance.objects.filter(deployment_id=job.subject_id).update(state="ready", ordered=True, run=True, port=18001)
    return Instance.objects.get(deployment_id=job.subject_id)


def reread(host: Host) -> Host:
    return Host.objects.get(pk=host.pk)


def test_a_paused_host_refuses_deploys_and_installs_by_name(fleet: Fleet, admin: User) -> None:
    intake.pause(reread(fleet.host), actor=admin, reason="new driver")
    fleet.copy.refresh_from_db()
    fleet.copy.host.refresh_from_db()
    with pytest.raises(Refused, match=rf"{fleet.host.name} is paused \(new driver\) and takes no new work"):
        fleet.deploy(admin)
    assert not Deployment.objects.exists()
    with pytest.raises(Refused, match="paused"):
        engine_jobs.install(reread(fleet.host), WISH, actor=admin)
    assert not Job.objects.exists()


def test_what_runs_on_a_paused_host_may_be_restarted_and_stopped(fleet: Fleet, admin: User) -> None:
    instance = serving(fleet, admin)
    intake.pause(reread(fleet.host), actor=admin, reason="x")
    assert deployments.restart(Instance.objects.get(pk=instance.pk), actor=admin, reason="x").kind == "restart"
    assert deployments.stop(Deployment.objects.get(), actor=admin, reason="x").kind == "stop"


def test_a_resumed_host_takes_work_again(fleet: Fleet, admin: User) -> None:
    intake.pause(reread(fleet.host), actor=admin, reason="x")
    intake.resume(reread(fleet.host), actor=admin, reason="done")
    fleet.host.refresh_from_db()
    fleet.copy.host.refresh_from_db()
    assert fleet.deploy(admin).kind == "deploy"
    assert list(AuditEntry.objects.filter(target=fleet.host.name).values_list("action", "reason").order_by("pk")) == [
        ("host.pause", "x"),
        ("host.resume", "done"),
    ]


def test_draining_stops_what_runs_and_refuses_even_a_restart(fleet: Fleet, operator: User, admin: User) -> None:
    instance = serving(fleet, admin)
    page = signed_in(operator).get(reverse("host_drain", args=[fleet.host.pk])).content.decode()
    assert f"{instance.deployment.name} is stopped." in page
    answer = signed_in(operator).post(reverse("host_drain", args=[fleet.host.pk]), {"reason": "retired"})
    assert answer.status_code == 302
    assert reread(fleet.host).state == "draining"
    job = Job.objects.get(kind="stop")
    assert job.reason == f"{fleet.host.name} is drained: retired"
    instance.refresh_from_db()
    assert not instance.run
    with pytest.raises(Refused, match="is being drained"):
        intake.refuse_new_work(reread(fleet.host), "restart")


def test_an_agent_of_before_the_last_contract_gets_no_new_orders_but_may_stop_and_upgrade(fleet: Fleet) -> None:
    host = reread(fleet.host)
    host.contract = CONTRACT - 2
    for kind in ("deploy", "verify", "restart", "install_engine"):
        with pytest.raises(Refused, match="Upgrade needed"):
            intake.refuse_new_work(host, kind)
    for kind in ("stop", "upgrade_agent"):
        intake.refuse_new_work(host, kind)
    host.contract = CONTRACT - 1
    intake.refuse_new_work(host, "deploy")


@pytest.mark.parametrize("name", ["host_pause", "host_resume", "host_drain"])
def test_on_call_people_may_pause_and_viewers_may_not(
    fleet: Fleet, admin: User, operator: User, viewer: User, name: str
) -> None:
    page = reverse(name, args=[fleet.host.pk])
    for user in (admin, operator):
        assert signed_in(user).get(page).status_code == 200
        assert signed_in(user).post(page, {"reason": ""}).status_code == 400
        assert signed_in(user).post(page, {"reason": "x"}).status_code == 302
    assert signed_in(viewer).get(page).status_code == 403
    assert signed_in(viewer).post(page, {"reason": "x"}).status_code == 403
    assert "/pause/" not in signed_in(viewer).get(reverse("host_detail", args=[fleet.host.pk])).content.decode()


def test_a_host_with_instances_is_removed_by_force_only_and_nobody_waits_for_it_afterwards(
    fleet: Fleet, admin: User
) -> None:
    instance = serving(fleet, admin)
    waiting = engine_jobs.install(reread(fleet.host), WISH, actor=admin)
    page = reverse("host_remove", args=[fleet.host.pk])
    assert "1 instance runs there" in signed_in(admin).get(page).content.decode()
    refused = signed_in(admin).post(page, {"reason": "burnt down"})
    assert "Drain it first" in refused.content.decode()
    assert signed_in(admin).post(page, {"reason": "burnt down", "force": "on"}).status_code == 302
    instance.refresh_from_db()
    assert (instance.state, instance.ordered) == ("stopped", False)
    assert "may still run there" in instance.state_reason
    waiting.refresh_from_db()
    assert (waiting.state, waiting.failure["code"]) == ("failed", "host.removed")
    deployment = Deployment.objects.get()
    assert deployment.state == "failed"
    assert "was removed from the console" in deployment.state_reason
    assert reread(fleet.host).public_key == ""
    assert AuditEntry.objects.get(action="host.remove").details == {"force": True, "instances": 1}


def test_what_stays_on_a_removed_machine_is_said(fleet: Fleet, admin: User) -> None:
    facts, vitals = {"engines_dir": "/srv/engines", "models_dir": "/srv/models"}, {"kept": True}
    Host.objects.filter(pk=fleet.host.pk).update(facts=facts, vitals=vitals)
    page = signed_in(admin).get(reverse("host_remove", args=[fleet.host.pk])).content.decode()
    assert "engines and models stay in /srv/engines, /srv/models" in page
    assert f"slipway-host-{fleet.host.name}.service" in page
    services.remove_host(reread(fleet.host), actor=admin, reason="sold")


def test_what_a_removed_host_had_is_offered_no_more_until_it_joins_again(fleet: Fleet, admin: User) -> None:
    serving(fleet, admin)
    services.remove_host(reread(fleet.host), actor=admin, reason="sold", force=True)
    fleet.copy.refresh_from_db()
    fleet.engine.refresh_from_db()
    assert (fleet.copy.state, fleet.engine.present) == ("removed", False)
    form = signed_in(admin).get(reverse("deployment_add")).context["form"]
    assert list(form.fields["copy"].queryset) == list(form.fields["engine"].queryset) == []
    page = signed_in(admin).get(reverse("host_detail", args=[fleet.host.pk])).content.decode()
    assert f" by {admin}: sold. 1 instance was given up" in page
    assert "Devices" not in page
    with pytest.raises(Refused, match="was removed from the console"):
        engine_jobs.install(reread(fleet.host), WISH, actor=admin)
    token = services.renew_join_token(reread(fleet.host), actor=admin)
    services.join(token=token, public_key=generate_key_pair()[1])
    fleet.copy.refresh_from_db()
    assert (fleet.copy.state, fleet.copy.state_reason) == ("unverified", f"{fleet.host} has joined again")
    assert "left_with_host" not in fleet.copy.verification


def test_the_page_says_first_that_a_host_takes_no_new_work_and_why(fleet: Fleet, admin: User) -> None:
    instance = serving(fleet, admin)
    Host.objects.filter(pk=fleet.host.pk).update(last_seen_at=timezone.now())

    def page() -> str:
        return signed_in(admin).get(reverse("host_detail", args=[fleet.host.pk])).content.decode()

    intake.pause(reread(fleet.host), actor=admin, reason="new memory")
    assert "It is paused (new memory): what runs goes on, and it takes no new work." in page()
    assert reverse("engine_install") + "?host" not in page()
    intake.begin_draining(reread(fleet.host), actor=admin, reason="power")
    assert "It is being drained (power)" in page()
    Instance.objects.filter(pk=instance.pk).update(state="stopped", ordered=False, run=False)
    assert "It is drained (power) and takes no new work until someone brings it back." in page()
    assert "drained" in signed_in(admin).get(reverse("host_list")).content.decode()
    assert reverse("host_bring_back", args=[fleet.host.pk]) in page()
    intake.resume(reread(fleet.host), actor=admin, reason="done")
    assert "done" not in page()

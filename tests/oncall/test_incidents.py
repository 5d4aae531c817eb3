"""Incidents: one for each cause and thing, opened and closed by themselves, with a timeline that tells everything."""

import json
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.access import services as access
from console.access.models import AuditEntry, Team, User
from console.common.states import move
from console.deployments.models import Attempt, Deployment, Instance
from console.fleet.models import Host
from console.oncall import incidents
from console.oncall.models import Incident, Note
from tests.factories import Fleet
from tests.oncall.test_board import break_, serving

pytestmark = pytest.mark.django_db

DIED = {
    "code": "engine.died",
    "title": "The engine process died",
    "message": "EngineCore was killed",
    "evidence": [{"line": 7, "text": "ERROR EngineCore has ended"}],
}


def heal(instance: Instance) -> None:
    instance.refresh_from_db()
    move(instance, to="starting" if instance.state == "crashed" else "ready", reason="probe passed")
    if instance.state != "ready":
        move(instance, to="ready", reason="probe passed")
    Instance.objects.filter(pk=instance.pk).update(failure=None)
    deployment = Deployment.objects.get(pk=instance.deployment_id)
    if deployment.state != "serving":
        move(deployment, to="serving", reason="all instances are ready")


def test_an_incident_opens_once_and_closes_when_all_has_been_well_for_a_while(fleet: Fleet, admin: User) -> None:
    instance = serving(fleet, admin)
    now = timezone.now()
    incidents.watch(now=now)
    assert not Incident.objects.exists()
    break_(instance, "failed")
    for seconds in (0, 5, 10):
        incidents.watch(now=now + timedelta(seconds=seconds))
    incident = Incident.objects.get()
    assert (incident.code, incident.state, incident.served) == ("memory.out_of_memory", "open", False)
    assert incident.cause == "CUDA out of memory"
    heal(instance)
    incidents.watch(now=now + timedelta(seconds=20))
    incident.refresh_from_db()
    assert (incident.state, incident.word) == ("open", "well again")
    incidents.watch(now=now + timedelta(seconds=81))
    incident.refresh_from_db()
    assert (incident.state, incident.state_reason) == ("closed", "It serves again.")
    assert incident.closed_at == now + timedelta(seconds=20)


def test_what_breaks_again_within_the_calm_is_the_same_incident(fleet: Fleet, admin: User) -> None:
    instance = serving(fleet, admin)
    now = timezone.now()
    break_(instance, "failed")
    incidents.watch(now=now)
    heal(instance)
    incidents.watch(now=now + timedelta(seconds=10))
    instance.refresh_from_db()
    break_(instance, "failed")
    incidents.watch(now=now + timedelta(seconds=30))
    incidents.watch(now=now + timedelta(seconds=75))
    incident = Incident.objects.get()
    assert incident.state == "open"
    assert incident.well_since is None


def test_another_cause_of_the_same_deployment_is_another_incident(fleet: Fleet, admin: User) -> None:
    instance = serving(fleet, admin)
    break_(instance, "failed")
    incidents.watch()
    Instance.objects.filter(pk=instance.pk).update(failure={"code": "port.in_use", "message": "port 18000 is held"})
    incidents.watch()
    assert set(Incident.objects.values_list("code", flat=True)) == {"memory.out_of_memory", "port.in_use"}


def test_a_crash_that_was_answered_between_two_rounds_has_its_incident(fleet: Fleet, admin: User) -> None:
    instance = serving(fleet, admin)
    incidents.watch()
    now = timezone.now()
    Attempt.objects.filter(instance=instance).update(ended_at=now, exit_code=-9, diagnosis=DIED)
    move(instance, to="restarting", reason="The engine process died")
    move(instance, to="ready", reason="back")
    incidents.watch(now=now)
    incident = Incident.objects.get()
    assert (incident.code, incident.title) == ("engine.died", "The engine process died")
    incidents.watch(now=now + timedelta(seconds=61))
    assert Incident.objects.get().state == "closed"


def test_a_restart_that_somebody_asked_for_is_no_incident(fleet: Fleet, admin: User) -> None:
    instance = serving(fleet, admin)
    incidents.watch()
    Instance.objects.filter(pk=instance.pk).update(bring_up="job")
    Attempt.objects.filter(instance=instance).update(ended_at=timezone.now(), exit_code=0, asked=True)
    instance.refresh_from_db()
    move(instance, to="restarting", reason="newer driver", actor=admin)
    Deployment.objects.filter(pk=instance.deployment_id).update(state="deploying")
    incidents.watch()
    assert not Incident.objects.exists()


def test_a_silent_host_is_one_incident_and_its_deployments_are_none(fleet: Fleet, admin: User) -> None:
    instance = serving(fleet, admin)
    now = timezone.now()
    Host.objects.filter(pk=fleet.host.pk).update(last_seen_at=now - timedelta(minutes=5))
    incidents.watch(now=now)
    incident = Incident.objects.get()
    assert (incident.name, incident.code) == (fleet.host.name, "host.offline")
    assert instance.deployment.name in incident.impact
    Host.objects.filter(pk=fleet.host.pk).update(last_seen_at=timezone.now())
    incidents.watch(now=now)
    incidents.watch(now=now + timedelta(seconds=61))
    incident.refresh_from_db()
    assert (incident.state, incident.state_reason) == ("closed", "The host is heard of again.")


def test_a_deployment_that_is_stopped_or_deleted_ends_its_incident(fleet: Fleet, admin: User) -> None:
    instance = serving(fleet, admin)
    now = timezone.now()
    break_(instance, "failed")
    incidents.watch(now=now)
    Deployment.objects.update(state="stopped")
    incidents.watch(now=now)
    Instance.objects.all().delete()
    Deployment.objects.update(current_spec=None)
    Deployment.objects.get().specs.all().delete()
    Deployment.objects.all().delete()
    incidents.watch(now=now + timedelta(seconds=61))
    incident = Incident.objects.get()
    assert (incident.state, incident.state_reason) == ("closed", "The deployment was deleted.")
    assert incident.name == instance.deployment.name


@pytest.fixture
def incident(fleet: Fleet, admin: User) -> Incident:
    instance = serving(fleet, admin)
    break_(instance, "failed")
    Attempt.objects.filter(instance=instance).update(ended_at=timezone.now(), exit_code=1, diagnosis=DIED)
    access.record(
        actor=admin, action="instance.restart", target=str(instance), target_url=f"/instances/{instance.pk}/",
        reason="try | again",
    )  # fmt: skip
    incidents.watch()
    return Incident.objects.get()


def test_the_timeline_has_states_ends_actions_with_author_and_reason_and_notes(
    incident: Incident, admin: User, client: Client
) -> None:
    client.force_login(admin)
    assert client.post(reverse("incident_note", args=[incident.pk]), {"text": "called the DC"}).status_code == 302
    page = client.get(reverse("incident_detail", args=[incident.pk])).content.decode()
    for text in (
        "The incident begins.",
        "crashed",
        "EngineCore was killed",
        "instance.restart",
        "try | again",
        "called the DC",
    ):
        assert text in page
    assert AuditEntry.objects.filter(action="incident.note", actor=admin).exists()
    assert client.post(reverse("incident_note", args=[incident.pk]), {"text": ""}).status_code == 400


def test_an_incident_is_exported_for_systems_and_for_people(incident: Incident, viewer: User, client: Client) -> None:
    client.force_login(viewer)
    answer = client.get(reverse("incident_json", args=[incident.pk]))
    assert answer["Content-Disposition"] == f'attachment; filename="incident-{incident.pk}.json"'
    told = json.loads(answer.content)
    assert told["code"] == "memory.out_of_memory"
    times = [entry["at"] for entry in told["timeline"]]
    assert times == sorted(times)
    action = next(entry for entry in told["timeline"] if "instance.restart" in entry["text"])
    assert action["reason"] == "try | again"
    text = client.get(reverse("incident_markdown", args=[incident.pk])).content.decode()
    assert text.startswith(f"# Incident {incident.pk}: {incident.name}")
    assert "try \\| again" in text
    assert "CUDA out of memory" in text


def test_the_list_shows_open_and_past_ones_and_the_on_call_page_leads_there(
    incident: Incident, viewer: User, client: Client, django_assert_max_num_queries: object
) -> None:
    client.force_login(viewer)
    page = client.get("/oncall/").content.decode()
    assert reverse("incident_detail", args=[incident.pk]) in page
    assert reverse("incident_list") in page
    Incident.objects.bulk_create(
        Incident(team=incident.team, name=f"old-{number}", state="closed", closed_at=timezone.now())
        for number in range(40)
    )
    with django_assert_max_num_queries(12):  # type: ignore[operator]
        page = client.get(reverse("incident_list")).content.decode()
    assert incident.name in page
    assert "old-39" in page
    assert "Page 1 of 2" in page
    assert "old-7" in client.get(reverse("incident_list"), {"q": "old-7"}).content.decode()


def test_who_may_do_what(incident: Incident, viewer: User, operator: User, client: Client) -> None:
    urls = [reverse(name, args=[incident.pk]) for name in ("incident_detail", "incident_json", "incident_markdown")]
    note = reverse("incident_note", args=[incident.pk])
    for person, status in ((viewer, 403), (operator, 302)):
        client.force_login(person)
        assert [client.get(url).status_code for url in urls] == [200, 200, 200]
        assert client.post(note, {"text": "seen"}).status_code == status
    assert Note.objects.get().author == operator
    Incident.objects.update(team=Team.objects.create(name="others"))
    assert [client.get(url).status_code for url in urls] == [404, 404, 404]
    assert client.post(note, {"text": "seen"}).status_code == 404

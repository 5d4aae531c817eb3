"""The on-call page: what is broken, the worst first, and the buttons for whoever may press them."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.access.models import AuditEntry, User
from console.alerts.models import Silence
from console.common.states import LOOKS, move
from console.deployments.models import Attempt, Deployment, Instance
from console.fleet.models import Host
from console.gateway.models import GatewayRequest, Key, Route, Target
from console.jobs.models import Job
from console.oncall import board
from tests.factories import Fleet

pytestmark = pytest.mark.django_db

MEMORY = {"code": "memory.out_of_memory", "message": "CUDA out of memory", "next": "", "evidence": []}


def serving(fleet: Fleet, admin: User) -> Instance:
    """A deployment that serves, of a host of its own."""
    job = fleet.deploy(admin)
    Instance.objects.filter(pk=job.payload["instance"]).update(
        state="ready", ordered=True, run=True, bring_up="agent", port=18000
    )
    Job.objects.update(state="succeeded")
    instance = Instance.objects.select_related("deployment", "host").get(pk=job.payload["instance"])
    Deployment.objects.filter(pk=instance.deployment_id).update(state="serving")
    Attempt.objects.create(instance=instance, number=1, started_at=timezone.now(), validation={"sound": True})
    instance.deployment.refresh_from_db()
    return instance


def break_(instance: Instance, deployment: str, *, to: str = "crashed") -> None:
    Instance.objects.filter(pk=instance.pk).update(failure=MEMORY, restarts=3)
    move(instance, to=to, reason="CUDA out of memory")
    move(instance.deployment, to=deployment, reason="CUDA out of memory")


def test_an_empty_board_is_calm_and_shows_no_buttons(fleet: Fleet, admin: User, client: Client) -> None:
    serving(fleet, admin)
    client.force_login(admin)
    page = client.get("/oncall/").content.decode()
    assert "Nothing is broken." in page
    assert "All is calm" in page
    assert "data-key=" not in page


def test_the_worst_comes_first_with_impact_cause_and_what_slipway_did(admin: User, client: Client) -> None:
    dead, silent, fine = (serving(Fleet.make(), admin) for _number in range(3))
    route = Route.objects.create(name="assistant", team=dead.deployment.team)
    shared = Route.objects.create(name="shared", team=dead.deployment.team)
    Target.objects.create(route=route, deployment=dead.deployment)
    Target.objects.create(route=shared, deployment=dead.deployment)
    Target.objects.create(route=shared, deployment=fine.deployment)
    Key.objects.create(name="k", shown="sk-1", sha256="0" * 64, team=dead.deployment.team)
    name, team = dead.deployment.name, dead.deployment.team
    for status, minutes in ((503, 1), (502, 2), (200, 1), (503, 60)):
        at = timezone.now() - timedelta(minutes=minutes)
        GatewayRequest.objects.create(
            request_id="r", at=at, path="/", status=status, deployment=name, team=team, route="assistant"
        )
    Host.objects.filter(pk=silent.host_id).update(last_seen_at=timezone.now() - timedelta(hours=2))
    break_(dead, "failed")
    found = board.problems(admin)
    assert [one.ident for one in found] == [f"deployment-{dead.deployment_id}", f"host-{silent.host_id}"]
    first = found[0]
    assert (first.impact.routes, first.impact.weaker_routes) == (("assistant",), ("shared",))
    assert (first.impact.keys, first.impact.failed_requests, first.restarts) == (1, 2, 3)
    assert [change.after for change in first.deeds] == ["failed"] or first.deeds[0].after == "failed"
    assert found[1].hit == f"unknown while it is silent: {silent.deployment.name}"
    # It was told to end, but its host has not said that it did.
    Instance.objects.filter(pk=silent.pk).update(run=False)
    assert silent.deployment.name in board.problems(admin)[1].hit
    Instance.objects.filter(pk=silent.pk).update(state="stopped")
    assert board.problems(admin)[1].hit == "nothing runs there"
    client.force_login(admin)
    page = client.get("/oncall/").content.decode()
    assert "2 things are broken; 1 doesn&#x27;t serve at all; 1 route is down." in page
    assert "CUDA out of memory" in page
    assert "Set --gpu-memory-utilization to 0.85 and redeploy" in page
    assert "Slipway restarted it 3 times." in page
    assert "The route assistant has no engine left; the route shared is served by what is left" in page


def test_starting_again_is_offered_once_and_stands_out(fleet: Fleet, admin: User) -> None:
    instance = serving(fleet, admin)
    break_(instance, "failed")
    failure = {"code": "process.killed_by_oom", "message": "killed", "evidence": []}
    Instance.objects.filter(pk=instance.pk).update(failure=failure)
    (found,) = board.problems(admin)
    assert [fix.label for fix in found.fixes if "Start" in fix.label] == []
    assert [act.key for act in found.acts if act.is_advised] == ["r"]


def test_an_alert_that_outlives_its_outage_is_not_counted_as_one(admin: User) -> None:
    look = LOOKS["failed"]
    alert = board.Problem(ident="alert-1", name="x", url="", look=look, rank=0, since=None, cause="")
    assert board.truth([alert]) == "Nothing is down; 1 alert is open."
    dead = replace(alert, ident="deployment-1")
    assert board.truth([alert, dead]) == "2 things are broken; 1 doesn't serve at all."


def test_viewers_see_what_is_broken_and_nothing_to_press(
    fleet: Fleet, admin: User, viewer: User, operator: User, client: Client
) -> None:
    instance = serving(fleet, admin)
    break_(instance, "failed")
    addresses = (f"/oncall/roll-back/{instance.deployment_id}/", "/oncall/restart/",
                 f"/oncall/silence/?deployment={instance.deployment_id}")  # fmt: skip
    client.force_login(viewer)
    page = client.get("/oncall/").content.decode()
    assert instance.deployment.name in page
    assert "problem-acts" not in page
    assert [client.post(there, {"reason": "x"}).status_code for there in addresses] == [403, 403, 403]
    client.force_login(operator)
    page = client.get("/oncall/").content.decode()
    assert [f'data-key="{key}"' in page for key in "rsdm"] == [True] * 4
    assert [client.get(there).status_code for there in addresses] == [200, 200, 200]
    client.logout()
    assert client.get("/oncall/").status_code == 302


def test_rolling_back_brings_the_last_good_spec_and_silence_is_kept_with_its_reason(
    fleet: Fleet, admin: User, operator: User, client: Client
) -> None:
    instance = serving(fleet, admin)
    deployment, good = instance.deployment, instance.deployment.current_spec
    assert good
    Attempt.objects.update(surroundings={"spec": 1})
    wrong = deployment.specs.create(number=2, copy=good.copy, engine=good.engine, host=good.host, arguments=["--bad"],
                                    probe=good.probe, restart=good.restart)  # fmt: skip
    Deployment.objects.filter(pk=deployment.pk).update(current_spec=wrong)
    Instance.objects.filter(pk=instance.pk).update(ordered=False, run=False)
    deployment.refresh_from_db()
    break_(Instance.objects.select_related("deployment").get(pk=instance.pk), "failed")
    client.force_login(operator)
    assert "/oncall/roll-back/" in client.get("/oncall/").content.decode()
    assert client.post(f"/oncall/roll-back/{deployment.pk}/", {"reason": "bad flag"}).status_code == 302
    deployment.refresh_from_db()
    assert deployment.current_spec
    assert (deployment.current_spec.number, deployment.current_spec.arguments) == (3, good.arguments)
    assert deployment.state == "deploying"
    there = f"/oncall/silence/?deployment={deployment.pk}"
    assert client.post(there, {"reason": "", "hours": "1"}).status_code == 400
    assert client.post(there, {"reason": "known", "hours": "1"}).status_code == 302
    assert Silence.objects.get().deployment == deployment
    assert AuditEntry.objects.get(action="alert.silence").reason == "known"
    assert client.post("/oncall/silence/?deployment=x", {"reason": "known", "hours": "1"}).status_code == 404


def test_a_change_that_started_well_and_failed_later_is_rolled_back_once(
    fleet: Fleet, admin: User, operator: User, client: Client
) -> None:
    instance = serving(fleet, admin)
    deployment, good = instance.deployment, instance.deployment.current_spec
    assert good
    Attempt.objects.update(surroundings={"spec": 1})
    deployment.specs.create(number=2, copy=good.copy, engine=good.engine, host=good.host, arguments=["--bad"],
                            probe=good.probe, restart=good.restart)  # fmt: skip
    in_force(instance, 2)
    client.force_login(operator)
    there = f"/oncall/roll-back/{deployment.pk}/"
    assert there in client.get("/oncall/").content.decode()
    asked = client.get(there).content.decode()
    assert "back to spec 1" in asked
    assert "Spec 2 started well, too" in asked
    assert client.post(there, {"reason": "worse answers"}).status_code == 302
    deployment.refresh_from_db()
    assert deployment.current_spec
    assert (deployment.current_spec.number, deployment.current_spec.arguments) == (3, good.arguments)
    in_force(instance, 3)
    assert there not in client.get("/oncall/").content.decode()


def in_force(instance: Instance, number: int) -> None:
    """As if its last good start had been by this spec, and it had failed since."""
    deployment = instance.deployment
    Attempt.objects.create(instance=instance, number=number, started_at=timezone.now(),
                           validation={"sound": True}, surroundings={"spec": number})  # fmt: skip
    spec = deployment.specs.get(number=number)
    Deployment.objects.filter(pk=deployment.pk).update(current_spec=spec, state="serving")
    Instance.objects.filter(pk=instance.pk).update(ordered=False, run=False, state="ready")
    break_(Instance.objects.select_related("deployment").get(pk=instance.pk), "failed")


def test_restarting_all_asks_twice_only_where_requests_are_served(admin: User, operator: User, client: Client) -> None:
    first, second = (serving(Fleet.make(), admin) for _number in range(2))
    break_(first, "failed")
    break_(second, "degraded", to="unhealthy")
    client.force_login(operator)
    assert "I know that requests" not in client.get("/oncall/restart/").content.decode()
    other = Instance.objects.create(deployment=second.deployment, spec=second.spec, host=second.host, number=2,
                                    state="ready", run=True, ordered=True)  # fmt: skip
    assert client.post("/oncall/restart/", {"reason": "all of it"}).status_code == 400
    assert client.post("/oncall/restart/", {"reason": "all of it", "sure": "on"}).status_code == 302
    assert sorted(Job.objects.filter(kind="restart").values_list("subject_id", flat=True)) == [
        first.deployment_id, second.deployment_id
    ]  # fmt: skip
    assert other.state == "ready"


def test_a_host_that_is_drained_is_shown_with_the_way_back(fleet: Fleet, operator: User, client: Client) -> None:
    Host.objects.update(state="draining", state_reason="new power supply")
    client.force_login(operator)
    page = client.get("/oncall/").content.decode()
    assert "new power supply" in page
    assert f"/hosts/{fleet.host.pk}/bring-back/" in page
    assert "Nothing is broken." in page

"""Pages of rollouts, by role; and what is said before anything starts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client

from console.access.models import AuditEntry, User
from console.common.errors import Refused
from console.deployments import services as deployments
from console.deployments.changes import Wish
from console.deployments.models import Deployment, Instance
from console.gateway.models import Canary, Route
from console.jobs.models import Job
from console.rollouts import presets, services
from console.rollouts.models import Rollout
from console.rollouts.plans import Plan
from workers.vllm.arguments import schema_for

pytestmark = pytest.mark.django_db


@pytest.fixture
def rollout(deployment: Deployment) -> Rollout:
    return services.start(deployment, wish(deployment), Plan(), actor=None, reason="a test")


def wish(deployment: Deployment, **changes: Any) -> Wish:
    assert deployment.current_spec
    return replace(Wish.of_spec(deployment.current_spec), arguments=["--max-num-seqs", "8"], **changes)


def sent(**changes: Any) -> dict[str, Any]:
    given = {
        "arguments": "--max-num-seqs 8", "features_off": "patch", "weights": "1, 5, 100", "hold_minutes": "5",
        "patience_minutes": "60", "version": "next", "ttft": "20", "pace": "20", "failures": "1", "finish": "10",
        "top_up": "on", "reason": "faster",
    }  # fmt: skip
    return {**given, **changes}


def begun(rollout: Rollout) -> Rollout:
    Job.objects.update(state="succeeded")
    Instance.objects.update(state="ready")
    services.advance(services.locked(rollout), by="verdict")
    return services.locked(rollout)


def test_what_will_be_done_is_said_before_and_started_after(
    client: Client, admin: User, deployment: Deployment
) -> None:
    client.force_login(admin)
    address = f"/deployments/{deployment.pk}/roll-out/"
    assert client.get(address).status_code == 200
    spec = deployment.current_spec
    assert spec
    fields = sent(engine=spec.engine_id, copy=spec.copy_id)
    page = client.post(address, fields)
    assert "shift in steps: 1 %, 5 %, 100 %" in page.content.decode()
    assert not Rollout.objects.exists()
    assert client.post(address, fields | {"start": "1"}).status_code == 302
    rollout = Rollout.objects.get()
    assert [stage.weight for stage in rollout.chosen.stages] == [1, 5, 100]
    assert rollout.new_spec.arguments == ["--max-num-seqs", "8"]
    assert set(Canary.objects.values_list("share", "version")) == {(0, "next")}
    entry = AuditEntry.objects.get(action="rollout.start")
    assert (entry.actor, entry.reason) == (admin, "faster")
    page = client.get(f"/rollouts/{rollout.pk}/")
    assert "being brought up beside" in page.content.decode()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("weights", "5, 1, 100", "Rising from 1"),
        ("weights", "1, 50", "ending with 100"),
        ("weights", "1, x, 100", "Whole per cents"),
        ("arguments", "--a 'b", "be taken apart"),
        ("arguments", "--enforce-eager", "Nothing that an engine runs by"),
        ("hold_minutes", "5, 6", "2 times for 3 steps"),
        ("hold_minutes", "soon", "Minutes from 0"),
        ("hold_minutes", "nan", "Minutes from 0"),
        ("ttft", "0", "greater than or equal"),
        ("version", "a b", "Use letters"),
    ],
)
def test_what_can_not_be_is_said_at_its_field(
    client: Client, admin: User, deployment: Deployment, field: str, value: str, said: str
) -> None:
    client.force_login(admin)
    spec = deployment.current_spec
    assert spec
    page = client.post(
        f"/deployments/{deployment.pk}/roll-out/", sent(engine=spec.engine_id, copy=spec.copy_id, **{field: value})
    )
    assert page.status_code == 400
    assert said in page.content.decode().replace("&#x27;", "'")


@pytest.mark.parametrize(
    ("role", "statuses"),
    [
        ("viewer", {"view": 200, "new": 403, "hold": 403, "skip": 403, "abort": 403}),
        ("operator", {"view": 200, "new": 403, "hold": 200, "skip": 403, "abort": 200}),
        ("admin", {"view": 200, "new": 302, "hold": 200, "skip": 200, "abort": 200}),
    ],
)
def test_each_role_may_what_its_policy_says(
    client: Client, request: pytest.FixtureRequest, rollout: Rollout, role: str, statuses: dict[str, int]
) -> None:
    client.force_login(request.getfixturevalue(role))
    begun(rollout)
    assert client.get("/rollouts/").status_code == 200
    assert client.get(f"/rollouts/{rollout.pk}/").status_code == statuses["view"]
    assert client.get(f"/deployments/{rollout.deployment_id}/roll-out/").status_code == statuses["new"]
    for name in ("hold", "skip", "abort"):
        assert client.get(f"/rollouts/{rollout.pk}/{name}/").status_code == statuses[name]


def test_hold_go_on_skip_and_abort_stand_in_the_audit_with_their_reasons(
    client: Client, admin: User, rollout: Rollout
) -> None:
    client.force_login(admin)
    begun(rollout)

    def press(name: str) -> Rollout:
        assert client.post(f"/rollouts/{rollout.pk}/{name}/", {"reason": f"because {name}"}).status_code == 302
        rollout.refresh_from_db()
        return rollout

    assert press("hold").state == "held"
    assert press("go-on").state == "shifting"
    assert press("skip").state == "shifting"
    assert [(one.weight, one.passed_by) for one in rollout.steps.all()] == [(1, "person"), (5, "")]
    assert Canary.objects.get().share == 5
    assert press("abort").state == "rolling_back"
    assert Canary.objects.get().share == 0
    written = AuditEntry.objects.filter(action__startswith="rollout.").values_list("action", "reason")
    assert {
        (f"rollout.{name.replace('-', '_')}", f"because {name}") for name in ("hold", "go-on", "skip", "abort")
    } < set(written)
    late = client.post(f"/rollouts/{rollout.pk}/hold/", {"reason": "too late"})
    assert late.status_code == 400


def test_a_rollout_of_another_team_is_not_there(client: Client, admin: User, rollout: Rollout) -> None:
    from console.access.models import Team

    client.force_login(admin)
    Rollout.objects.update(team=Team.objects.create(name="others"))
    assert client.get(f"/rollouts/{rollout.pk}/").status_code == 404


def test_meanwhile_the_deployment_stays_as_it_is(rollout: Rollout, admin: User) -> None:
    with pytest.raises(Refused, match="being rolled out"):
        deployments.restart_all(rollout.deployment, actor=admin, reason="x")
    with pytest.raises(Refused, match="being rolled out"):
        services.start(rollout.deployment, wish(rollout.deployment), Plan(), actor=admin, reason="x")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda one: Route.objects.all().delete(), "No route leads"),
        (lambda one: Deployment.objects.update(state="stopped"), "Only what serves"),
    ],
)
def test_without_a_route_or_what_serves_there_is_nothing_to_roll_over(
    deployment: Deployment, spoil: Callable[[Deployment], Any], said: str
) -> None:
    spoil(deployment)
    deployment.refresh_from_db()
    with pytest.raises(Refused, match=said):
        services.preview(deployment, wish(deployment), Plan())


def test_two_on_one_port_are_refused_beforehand(deployment: Deployment) -> None:
    with pytest.raises(Refused, match="share port 9001"):
        services.preview(deployment, wish(deployment, port=9001), Plan())


def test_the_list_runs_as_many_queries_for_many_as_for_one(
    client: Client, admin: User, rollout: Rollout, django_assert_max_num_queries: Any
) -> None:
    client.force_login(admin)
    Rollout.objects.update(state="rolled_back")
    Job.objects.update(state="succeeded")
    for _number in range(10):
        services.start(rollout.deployment, wish(rollout.deployment), Plan(), actor=None, reason="again")
        Job.objects.update(state="failed")
        Rollout.objects.update(state="failed")
    with django_assert_max_num_queries(20):
        assert client.get("/rollouts/").status_code == 200


def test_each_step_holds_for_its_own_time(client: Client, admin: User, deployment: Deployment) -> None:
    client.force_login(admin)
    spec = deployment.current_spec
    assert spec
    fields = sent(engine=spec.engine_id, copy=spec.copy_id, hold_minutes="5, 0.5, 60", start="1")
    client.post(f"/deployments/{deployment.pk}/roll-out/", fields)
    rollout = Rollout.objects.get()
    assert [stage.hold_seconds for stage in rollout.chosen.stages] == [300, 30, 3600]
    page = client.get(f"/rollouts/{rollout.pk}/").content.decode()
    assert [page.count(f"<small>{words}</small>") for words in ("5 min", "30 s", "1 h")] == [1, 1, 1]


@pytest.fixture
def stuck(rollout: Rollout) -> Rollout:
    """It went back, and the new engine could not be stopped."""
    begun(rollout)
    Instance.objects.update(run=True, ordered=True)
    services.go_back(services.locked(rollout), "It hangs.", code="hung")
    services.stop_side(services.locked(rollout), "new")
    found = services.locked(rollout)
    assert found.stop_job
    Instance.objects.filter(spec=found.new_spec).update(run=False, ordered=True)
    Job.objects.filter(pk=found.stop_job.pk).update(state="failed", state_reason="the host was silent.")
    return services.locked(rollout)


def test_engines_that_can_not_be_stopped_are_shown_and_stopped_once_more(
    client: Client, operator: User, stuck: Rollout
) -> None:
    client.force_login(operator)
    page = client.get(f"/rollouts/{stuck.pk}/").content.decode()
    assert "could not be stopped: the host was silent." in page
    assert f'href="/jobs/{stuck.stop_job_id}/"' in page
    assert client.post(f"/rollouts/{stuck.pk}/stop-again/", {"reason": "it is back"}).status_code == 302
    again = services.locked(stuck)
    assert again.stop_job_id != stuck.stop_job_id
    assert (again.state, again.stop_job and again.stop_job.state in ("queued", "running")) == ("rolling_back", True)
    assert again.stop_job
    assert [step.kind for step in again.stop_job.steps.all()] == ["stop"]
    late = client.post(f"/rollouts/{stuck.pk}/let-go/", {"reason": "too late"})
    assert late.status_code == 400


def test_a_rollout_can_end_without_engines_that_can_not_be_stopped(
    client: Client, operator: User, stuck: Rollout
) -> None:
    client.force_login(operator)
    assert client.post(f"/rollouts/{stuck.pk}/let-go/", {"reason": "that host burnt"}).status_code == 302
    stuck.refresh_from_db()
    assert (stuck.state, stuck.is_live) == ("rolled_back", False)
    assert not Canary.objects.exists()
    assert Deployment.objects.get().current_spec == stuck.old_spec
    assert AuditEntry.objects.get(action="rollout.let_go").reason == "that host burnt"
    assert client.get(f"/rollouts/{stuck.pk}/").status_code == 200


def test_a_viewer_may_not_end_it(client: Client, viewer: User, stuck: Rollout) -> None:
    client.force_login(viewer)
    for name in ("stop-again", "let-go"):
        assert client.post(f"/rollouts/{stuck.pk}/{name}/", {"reason": "x"}).status_code == 403
    assert "Stop them again" not in client.get(f"/rollouts/{stuck.pk}/").content.decode()


def test_a_patch_upgrade_keeps_new_features_off() -> None:
    assert presets.is_patch("0.20.0", "0.20.2")
    assert not presets.is_patch("0.20.2", "0.32.0")
    assert not presets.is_patch("0.20.2", "0.20.0")
    old, new = schema_for("0.10.0"), schema_for("0.32.0")
    found = presets.newly_on(old, new, [])
    assert found
    assert all(word.startswith("--no-") for word in found)
    kept = "--" + found[0].removeprefix("--no-")
    assert found[0] not in presets.newly_on(old, new, [kept])
    assert presets.newly_on(new, new, []) == []


def test_one_that_was_rolled_back_and_one_that_waits_raise_alerts(rollout: Rollout) -> None:
    from console.alerts import rollouts
    from console.alerts.readings import Scene
    from console.telemetry.baselines import Baselines

    begun(rollout)
    scene = Scene.of(1, Baselines())
    assert [one.value for one in rollouts.rolled_back(scene)] == [one.value for one in rollouts.waiting(scene)] == [0.0]
    services.hold(rollout, actor=None, reason="no verdict")
    assert [(one.value, one.cause) for one in rollouts.waiting(scene)] == [(1.0, "no verdict")]
    services.go_back(services.locked(rollout), "It hangs.", code="hung")
    assert [(one.value, one.cause) for one in rollouts.rolled_back(scene)] == [(1.0, "It hangs.")]
    assert [one.url for one in rollouts.rolled_back(scene)] == [f"/rollouts/{rollout.pk}/"]

"""The step before the first share: requests are only copied, and both sides are compared all the same."""

from dataclasses import replace
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.access.models import User
from console.common.errors import Refused
from console.deployments.changes import Wish
from console.deployments.models import Attempt, Deployment, Instance
from console.gateway import names, routes
from console.gateway import plan as gateway_plan
from console.gateway.models import Canary, GatewayRequest, Route
from console.jobs.models import Job
from console.rollouts import services
from console.rollouts.driver import Driver
from console.rollouts.models import Rollout, RolloutStep
from console.rollouts.plans import Plan, Stage
from console.rollouts.probing import Prober
from tests.rollouts.test_driver import requests
from tests.rollouts.test_pages import sent
from workers.gateway import maps

pytestmark = pytest.mark.django_db
PLAN = Plan(stages=(Stage(0, 0, shadow_percent=10), Stage(10, 0), Stage(100, 0)))


@pytest.fixture(autouse=True)
def _nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engines here are rows: what the console asks real ones is tested with real ones."""
    monkeypatch.setattr(Prober, "poke", lambda *_, **__: None)


def wish(deployment: Deployment) -> Wish:
    assert deployment.current_spec
    return replace(Wish.of_spec(deployment.current_spec), arguments=["--max-num-seqs", "8"])


@pytest.fixture
def route(deployment: Deployment, admin: User) -> Route:
    """It allows copies."""
    route = deployment.route_targets.get().route
    routes.allow_shadows(route, actor=admin, reason="tests")
    return Route.objects.get(pk=route.pk)


@pytest.fixture
def rollout(deployment: Deployment, route: Route) -> Rollout:
    """It copies."""
    del route
    one = services.start(deployment, wish(deployment), PLAN, actor=None, reason="a test")
    Job.objects.update(state="succeeded")
    Instance.objects.filter(spec=one.new_spec).update(
        state="ready", port=9002, run=True, ordered=True, bring_up="agent"
    )
    Driver().round()
    one.refresh_from_db()
    return one


def copies(rollout: Rollout, count: int, **changes: Any) -> None:
    requests(rollout, "old", count, shadow="original")
    requests(rollout, "new", count, **{"shadow": "copy", **changes})


def now(rollout: Rollout) -> tuple[str, int, int]:
    rollout.refresh_from_db()
    canary = Canary.objects.get()
    return rollout.state, canary.share, canary.shadow


def test_good_copies_lead_to_the_first_share_and_end_then(rollout: Rollout) -> None:
    assert now(rollout) == ("shadowing", 0, 10)
    copies(rollout, 1300)
    requests(rollout, "old", 3, shadow="busy")
    requests(rollout, "old", 2, shadow="large")
    Driver().round()
    assert now(rollout) == ("shifting", 10, 0)
    step = RolloutStep.objects.get(position=1)
    assert (step.verdict, step.passed_by) == ("better_or_equal", "verdict")
    facts = {name: step.figure["shadow"][name] for name in ("copied", "ended", "failed", "busy", "large")}
    assert facts == {"copied": 1300, "ended": 1300, "failed": 0, "busy": 3, "large": 2}
    measures = {one["name"]: one for one in step.measures}
    # What could not be copied has no like on the other side, so it is not compared.
    assert (measures["ttft"]["old_count"], measures["ttft"]["new_count"]) == (1300, 1300)


def test_slow_copies_send_it_back_before_anybody_was_sent_there(rollout: Rollout) -> None:
    copies(rollout, 80, ttft_ms=200)
    Driver().round()
    rollout.refresh_from_db()
    assert (rollout.state, rollout.finding["code"]) == ("rolling_back", "ttft")
    assert now(rollout)[1:] == (0, 0)
    assert not rollout.steps.filter(weight__gt=0).exists()


def test_copies_that_found_no_engine_count_as_failed_ones(rollout: Rollout) -> None:
    requests(rollout, "old", 20, shadow="original")
    GatewayRequest.objects.bulk_create(
        GatewayRequest(request_id="r", at=timezone.now(), path="/v1/completions", route="chat", instance=None, status=503,
                       deployment="chat-a", shadow="copy", end="SC")
        for _number in range(5)
    )  # fmt: skip
    Driver().round()
    rollout.refresh_from_db()
    assert (rollout.state, rollout.finding["code"]) == ("rolling_back", "errors")
    assert rollout.steps.get().figure["shadow"]["failed"] == 5


def test_a_copy_that_was_cut_off_counts_for_how_it_began(rollout: Rollout) -> None:
    copies(rollout, 60, end="CD", finish_reason="")
    requests(rollout, "new", 7, shadow="copy", end="CD", ttft_ms=None)
    Driver().round()
    measures = {one["name"]: one for one in rollout.steps.get().measures}
    assert (measures["ttft"]["new_count"], measures["errors"]["new"]) == (60, 0)


def test_it_is_held_goes_on_copying_and_is_skipped(rollout: Rollout, admin: User) -> None:
    services.hold(rollout, actor=admin, reason="lunch")
    assert now(rollout) == ("held", 0, 10)
    services.go_on(rollout, actor=admin, reason="back")
    assert now(rollout) == ("shadowing", 0, 10)
    services.skip(rollout, actor=admin, reason="enough")
    assert now(rollout) == ("shifting", 10, 0)


def test_an_abort_ends_the_copies(rollout: Rollout, admin: User) -> None:
    services.abort(rollout, actor=admin, reason="no")
    assert now(rollout) == ("rolling_back", 0, 0)


def test_a_consent_that_is_taken_back_ends_the_copies_at_once_and_asks(
    rollout: Rollout, route: Route, operator: User
) -> None:
    # Ports that no other instance of the scene has, whatever the keys are: two never share one on a host.
    for port, instance in enumerate(Instance.objects.order_by("pk"), start=9101):
        Instance.objects.filter(pk=instance.pk).update(port=port)
        argv = ["vllm", "serve", "/m", names.FLAG, "chat-a", "chat"]
        Attempt.objects.create(instance=instance, number=1, argv=argv, started_at=timezone.now())
    target = route.targets.get().pk
    assert maps.build(gateway_plan.read())["shadows"] == {f"r{route.pk}@b{target}": f"b{target}n;10"}
    routes.forbid_shadows(route, actor=operator, reason="a customer asked")
    assert maps.build(gateway_plan.read())["shadows"] == {}
    Driver().round()
    assert now(rollout)[0] == "held"
    assert "No route allows" in rollout.state_reason


def test_without_a_routes_consent_nothing_begins(deployment: Deployment) -> None:
    with pytest.raises(Refused, match="None of the routes chat allows") as refused:
        services.start(deployment, wish(deployment), PLAN, actor=None, reason="a test")
    assert refused.value.field == "shadow_percent"
    assert not Rollout.objects.exists()


def test_the_form_says_who_allows_what_is_copied_and_for_how_long(
    client: Client, admin: User, deployment: Deployment
) -> None:
    client.force_login(admin)
    address, spec = f"/deployments/{deployment.pk}/roll-out/", deployment.current_spec
    assert spec
    fields = sent(engine=spec.engine_id, copy=spec.copy_id, shadow_percent="20", shadow_minutes="15")
    assert "chat does not allow copies of its requests." in client.get(address).content.decode()
    refused = client.post(address, fields)
    assert refused.status_code == 400
    assert "None of the routes chat allows" in refused.content.decode()
    routes.allow_shadows(Route.objects.get(), actor=admin, reason="tests")
    shown = client.post(address, fields).content.decode()
    assert "First 20 % of the requests of chat are also sent to it for 15" in shown
    assert client.post(address, fields | {"start": "1"}).status_code == 302
    stages = Rollout.objects.get().chosen.stages
    assert stages[0] == Stage(0, 900, shadow_percent=20)
    assert [stage.weight for stage in stages] == [0, 1, 5, 100]


@pytest.mark.parametrize("value", ["0", "101", "some"])
def test_a_share_that_is_none_is_refused(client: Client, admin: User, deployment: Deployment, value: str) -> None:
    client.force_login(admin)
    spec = deployment.current_spec
    assert spec
    page = client.post(
        f"/deployments/{deployment.pk}/roll-out/",
        sent(engine=spec.engine_id, copy=spec.copy_id, shadow_percent=value),
    )
    assert page.status_code == 400


def test_the_page_shows_the_copies_and_both_sides_numbers(client: Client, viewer: User, rollout: Rollout) -> None:
    copies(rollout, 60, latency_ms=1100)
    Driver().round()
    client.force_login(viewer)
    page = " ".join(client.get(f"/rollouts/{rollout.pk}/").content.decode().split())
    assert "10 % of the requests are also sent to spec" in page
    assert "<dt>Requests copied</dt><dd>60</dd>" in page
    assert "<dt>Whole answer, p95</dt><dd>old 1.00 s, new 1.10 s</dd>" in page
    assert "<b>shadow, 10 %</b>" in page
    assert "copying requests" in client.get("/rollouts/").content.decode()


@pytest.mark.parametrize(
    ("role", "allow", "forbid"), [("viewer", 403, 403), ("operator", 403, 302), ("admin", 302, 302)]
)
def test_consent_is_an_admins_and_is_taken_back_by_who_operates(
    client: Client,
    request: pytest.FixtureRequest,
    deployment: Deployment,
    role: str,
    allow: int,
    forbid: int,
    admin: User,
) -> None:
    route = deployment.route_targets.get().route
    user = request.getfixturevalue(role)
    client.force_login(user)
    said = client.post(f"/routes/{route.pk}/allow-shadows/", {"reason": "agreed"})
    route.refresh_from_db()
    assert (said.status_code, route.shadow_allowed_by) == (allow, user if allow == 302 else None)
    routes.allow_shadows(route, actor=admin, reason="agreed")
    assert f"{admin}" in client.get(f"/routes/{route.pk}/").content.decode()
    assert client.post(f"/routes/{route.pk}/forbid-shadows/", {"reason": "no more"}).status_code == forbid
    route.refresh_from_db()
    assert (route.shadow_allowed_at is None) == (forbid == 302)


def test_what_was_planned_before_there_were_shadows_is_still_read() -> None:
    old = Plan().as_json()
    for stage in old["stages"]:
        del stage["shadow_percent"]
    assert Plan.of_json(old) == Plan()
    assert Plan.of_json(old).shadow is None

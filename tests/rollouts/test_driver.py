"""The driver against rows: what the gateway stored decides, and any driver goes on where another one stopped."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.access.models import User
from console.deployments.changes import Wish
from console.deployments.models import Deployment, Instance
from console.gateway.models import Canary, GatewayRequest
from console.jobs.models import Job
from console.rollouts import services
from console.rollouts.driver import Driver
from console.rollouts.models import Probe, Rollout, RolloutStep
from console.rollouts.plans import Plan, Stage
from console.rollouts.probing import Prober

pytestmark = pytest.mark.django_db
PLAN = Plan(stages=(Stage(10, 0), Stage(50, 0), Stage(100, 0)))


@pytest.fixture(autouse=True)
def _nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engines here are rows: what the console asks real ones is tested with real ones."""
    monkeypatch.setattr(Prober, "poke", lambda *_, **__: None)


@pytest.fixture
def rollout(deployment: Deployment) -> Rollout:
    """In its first step."""
    assert deployment.current_spec
    wish = replace(Wish.of_spec(deployment.current_spec), arguments=["--max-num-seqs", "8"])
    one = services.start(deployment, wish, PLAN, actor=None, reason="a test")
    Job.objects.update(state="succeeded")
    Instance.objects.filter(spec=one.new_spec).update(
        state="ready", port=9002, run=True, ordered=True, bring_up="agent"
    )
    Driver().round()
    return one


def requests(rollout: Rollout, side: str, count: int, **changes: Any) -> None:
    instance = services.instances_of(rollout, side)[0]
    given = {
        "status": 200,
        "ttft_ms": 100,
        "latency_ms": 1000,
        "output_tokens": 46,
        "finish_reason": "stop",
        "end": "--",
        "path": "/v1/chat/completions",
    }
    GatewayRequest.objects.bulk_create(
        GatewayRequest(request_id="r", at=timezone.now(), route="chat", instance=instance.pk,
                       deployment="chat-a", **given | changes)
        for _number in range(count)
    )  # fmt: skip


def weights(rollout: Rollout) -> list[tuple[int, str]]:
    return list(rollout.steps.values_list("weight", "verdict"))


def test_a_good_step_leads_to_the_next_one_and_a_driver_that_is_new_goes_on(rollout: Rollout) -> None:
    assert (weights(rollout), Canary.objects.get().share) == ([(10, "undecided")], 10)
    requests(rollout, "old", 1000)
    requests(rollout, "new", 1300, ttft_ms=95)
    Driver().round()
    assert weights(rollout) == [(10, "better_or_equal"), (50, "undecided")]
    assert Canary.objects.get().share == 50
    measures = {one["name"]: one for one in RolloutStep.objects.get(position=1).measures}
    assert (measures["ttft"]["old"], measures["ttft"]["new"], measures["ttft"]["new_count"]) == (100, 95, 1300)


def test_vectors_are_judged_by_their_time_and_failures(rollout: Rollout) -> None:
    of_a_vector = {"path": "/v1/embeddings", "output_tokens": 0, "finish_reason": "", "latency_ms": 100}
    requests(rollout, "old", 1000, **of_a_vector)
    requests(rollout, "new", 1300, ttft_ms=95, **of_a_vector)
    Driver().round()
    assert weights(rollout) == [(10, "better_or_equal"), (50, "undecided")]
    assert [one["name"] for one in RolloutStep.objects.get(position=1).measures] == ["ttft", "errors"]


def test_a_doubled_time_to_the_first_token_sends_everything_back(rollout: Rollout) -> None:
    requests(rollout, "old", 200)
    requests(rollout, "new", 60, ttft_ms=200)
    Driver().round()
    rollout.refresh_from_db()
    assert (rollout.state, rollout.finding["code"]) == ("rolling_back", "ttft")
    assert "200 ms" in rollout.finding["text"]
    assert (Canary.objects.get().share, Canary.objects.get().version) == (0, "")
    assert rollout.steps.get().verdict == "worse"


def test_three_errors_in_the_first_ten_need_no_statistics_but_clients_that_leave_are_no_errors(
    rollout: Rollout,
) -> None:
    requests(rollout, "old", 50)
    requests(rollout, "new", 5, status=499, end="CD")
    requests(rollout, "new", 2, status=503)
    requests(rollout, "new", 5)
    Driver().round()
    rollout.refresh_from_db()
    assert rollout.state == "shifting"
    requests(rollout, "new", 1, end="SD")
    Driver().round()
    rollout.refresh_from_db()
    assert (rollout.state, rollout.finding["code"]) == ("rolling_back", "errors")


def test_one_that_its_host_says_is_restarting_goes_back_even_on_hold(rollout: Rollout) -> None:
    services.hold(rollout, actor=None, reason="lunch")
    Instance.objects.filter(spec=rollout.new_spec).update(state="restarting", state_reason="out of memory")
    Driver().round()
    rollout.refresh_from_db()
    assert (rollout.state, rollout.finding["code"]) == ("rolling_back", "died")
    assert "out of memory" in rollout.finding["text"]


def test_nonsense_goes_back_unless_the_old_side_talks_nonsense_too(rollout: Rollout) -> None:
    def answered(side: str, trouble: str) -> None:
        Probe.objects.create(
            rollout=rollout, side=side, instance=services.instances_of(rollout, side)[0], is_validation=True,
            at=timezone.now(), trouble=trouble, detail="'!' is repeated 30 times",
        )  # fmt: skip

    answered("old", "garbage")
    answered("new", "garbage")
    Driver().round()
    rollout.refresh_from_db()
    assert rollout.state == "shifting"
    answered("old", "")
    Driver().round()
    rollout.refresh_from_db()
    assert (rollout.state, rollout.finding["code"]) == ("rolling_back", "garbage")


def test_without_a_verdict_in_time_it_is_held_and_asks(rollout: Rollout) -> None:
    rollout.steps.update(patient_since=timezone.now() - timedelta(seconds=PLAN.patience_seconds + 1))
    Driver().round()
    rollout.refresh_from_db()
    assert rollout.state == "held"
    assert "No verdict in time" in rollout.state_reason
    assert Canary.objects.get().share == 10


def test_a_deployment_that_is_stopped_ends_it(rollout: Rollout) -> None:
    Deployment.objects.update(state="stopping")
    Driver().round()
    rollout.refresh_from_db()
    assert (rollout.state, rollout.finding["code"]) == ("rolling_back", "gone")


def test_new_engines_that_do_not_come_up_never_get_a_request(rollout: Rollout) -> None:
    Rollout.objects.update(state="preparing")
    Job.objects.filter(pk=rollout.job_id or 0).update(state="failed", state_reason="out of memory")
    Driver().round()
    rollout.refresh_from_db()
    assert rollout.state == "failed"
    assert not Canary.objects.exists()
    assert Deployment.objects.get().current_spec == rollout.old_spec


def test_the_page_shows_both_sides_numbers_and_why_it_went_back(client: Client, viewer: User, rollout: Rollout) -> None:
    requests(rollout, "old", 200)
    requests(rollout, "new", 60, ttft_ms=200)
    Driver().round()
    client.force_login(viewer)
    page = client.get(f"/rollouts/{rollout.pk}/").content.decode()
    assert "The first token takes 200 ms (p95), the old engines need 100 ms." in page
    assert "200 / 60" in page
    assert 'id="rollout-figure"' in page
    assert "Abort…" not in page

"""Rollouts with a real HAProxy, its controller and the driver, and stand-in engines: the good one arrives, bad ones go back.

The stand-ins are servers in this process, and the test plays the host: it says that engines came up and were stopped.
Margins are wide and steps few, so that a minute suffices; that the usual ones hold is shown by `test_inference`.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from django.utils import timezone

from console.access.models import User
from console.common.secrets import encrypt
from console.deployments.changes import Wish
from console.deployments.models import Attempt, Deployment, Instance
from console.gateway import keys, names, plan, routes
from console.gateway.models import Canary, GatewayRequest, Route
from console.gateway.routes import Share
from console.jobs.models import Job
from console.rollouts import services
from console.rollouts.models import Probe, Rollout
from console.rollouts.plans import Margins, Plan, Stage
from tests.factories import Fleet
from tests.gateway.backend import Engine, serving, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.long]
QUICK = Plan(
    stages=(Stage(50, 1), Stage(100, 1)), margins=Margins(ttft=9, pace=9, errors=0.2, finish=0.5), probe_seconds=1,
    hang_seconds=3, drain_seconds=5,
)  # fmt: skip


class Sensible(Engine):
    """Answers the question of the probe, at once or as slowly as it is told."""

    word = "The capital of France is Paris."

    def events(self, words: Any = ()) -> list[bytes]:
        return super().events([f"{word} " for word in self.word.split()])


def engine_at(name: str) -> Sensible:
    return Sensible(name=name, key="sk-engine")


def ready_at(instance: Instance, port: int, *served: str) -> None:
    Instance.objects.filter(pk=instance.pk).update(
        state="ready", port=port, run=True, ordered=True, bring_up="agent", observed_at=timezone.now()
    )
    argv = ["vllm", "serve", "/m", names.FLAG, *served]
    Attempt.objects.create(instance=instance, number=1, argv=argv, started_at=timezone.now())


@pytest.fixture
def old(fleet: Fleet) -> Iterator[Sensible]:
    """`chat-a`, serving behind the route `chat`."""
    with serving(engine_at("old")) as one:
        fleet.deploy(name="chat-a")
        Deployment.objects.filter(name="chat-a").update(state="serving", api_key=encrypt("sk-engine"))
        Job.objects.update(state="succeeded")
        ready_at(Instance.objects.get(), one.port, "chat-a", "chat")
        routes.save(Route(name="chat"), aliases=[], shares=[Share(Deployment.objects.get())], actor=None)
        yield one  # type: ignore[misc]


@pytest.fixture
def secret(old: Sensible) -> str:
    del old
    return keys.create(name="app", owner=None, routes=None, expires_at=None, actor=None, team_id=1)[1]


def begin(new: Sensible, plan: Plan = QUICK) -> Rollout:
    """Start one, and be the host that brings its engine up."""
    deployment = Deployment.objects.get()
    assert deployment.current_spec
    wish = replace(Wish.of_spec(deployment.current_spec), arguments=["--enforce-eager", "--max-num-seqs", "8"])
    rollout = services.start(deployment, wish, plan, actor=None, reason="a test")
    ready_at(Instance.objects.get(spec=rollout.new_spec), new.port, "chat-a", "chat")
    Job.objects.filter(pk=rollout.job_id or 0).update(state="succeeded")
    return rollout


def state(rollout: Rollout) -> str:
    rollout.refresh_from_db()
    if rollout.state in ("draining", "rolling_back") and rollout.stop_job_id:
        side = Instance.objects.filter(spec=rollout.new_spec_id)
        if rollout.state == "draining":
            side = Instance.objects.exclude(spec=rollout.new_spec_id)
        # The host has stopped it.
        side.update(run=False, ordered=False, state="stopped")
        Job.objects.filter(pk=rollout.stop_job_id).update(state="succeeded")
    return str(rollout.state)


@contextmanager
def client(url: str, secret: str) -> Iterator[list[str]]:
    """A client that streams one answer after the other; what went wrong."""
    wrong: list[str] = []
    stop = threading.Event()

    def work() -> None:
        headers = {"Authorization": f"Bearer {secret}"}
        body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        with httpx2.Client(base_url=url, headers=headers, timeout=20, trust_env=False) as link:
            while not stop.is_set():
                try:
                    with link.stream("POST", "/v1/chat/completions", json=body) as answer:
                        text = answer.read().decode()
                    if answer.status_code != 200 or not text.endswith("data: [DONE]\n\n"):
                        wrong.append(f"{answer.status_code}: {text[-200:]}")
                except httpx2.HTTPError as error:
                    wrong.append(repr(error))
                time.sleep(0.005)

    threads = [threading.Thread(target=work, daemon=True) for _number in range(2)]
    for thread in threads:
        thread.start()
    yield wrong
    stop.set()
    for thread in threads:
        thread.join(20)


def answers(url: str, secret: str) -> bool:
    body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"Authorization": f"Bearer {secret}"}
    return (
        httpx2.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=20, trust_env=False).status_code
        == 200
    )


def test_a_good_one_arrives_and_nobody_notices(controlled: str, old: Sensible, secret: str) -> None:
    wait_until(lambda: answers(controlled, secret), seconds=20)
    with serving(engine_at("new")) as new, client(controlled, secret) as wrong:
        rollout = begin(new)  # type: ignore[arg-type]
        wait_until(lambda: state(rollout) in ("succeeded", "rolled_back", "held"), seconds=150)
    assert (rollout.state, rollout.finding) == ("succeeded", {})
    assert wrong == []
    assert [(one.weight, one.verdict, one.passed_by) for one in rollout.steps.all()] == [
        (50, "better_or_equal", "verdict"), (100, "better_or_equal", "verdict"),
    ]  # fmt: skip
    assert Deployment.objects.get().current_spec == rollout.new_spec
    assert not Canary.objects.exists()


def bad(controlled: str, secret: str, new: Sensible, harm: Callable[[], None], course: Plan = QUICK) -> Rollout:
    """Roll out, harm the new one in its first step, and wait until it is rolled back."""
    wait_until(lambda: answers(controlled, secret), seconds=20)
    rollout = begin(new, course)
    wait_until(lambda: state(rollout) == "shifting", seconds=30)
    harm()
    wait_until(lambda: state(rollout) != "shifting", seconds=120)
    assert rollout.state == "rolling_back"
    assert set(Canary.objects.values_list("share", "version")) == {(0, "")}
    slots = plan.directory() / "maps/slots.map"
    assert wait_until(lambda: "b1n" not in slots.read_text().replace("\n", " ").split(), seconds=10) < 2
    wait_until(lambda: state(rollout) == "rolled_back", seconds=40)
    assert not Canary.objects.exists()
    assert Deployment.objects.get().current_spec == rollout.old_spec
    assert answers(controlled, secret)
    return rollout


def test_one_that_answers_nonsense_goes_back_though_no_answer_of_a_user_is_read(
    controlled: str, old: Sensible, secret: str
) -> None:
    with serving(engine_at("new")) as new:
        rollout = bad(controlled, secret, new, lambda: setattr(new, "word", "!!!! " * 30))  # type: ignore[arg-type]
    assert rollout.finding["code"] == "garbage"
    assert Probe.objects.filter(side="new", trouble="garbage", is_validation=True).exists()


def test_one_that_hangs_goes_back(controlled: str, old: Sensible, secret: str) -> None:
    with serving(engine_at("new")) as new:
        rollout = bad(controlled, secret, new, lambda: setattr(new, "waits", True))  # type: ignore[arg-type]
    assert rollout.finding["code"] == "hung"


def test_one_that_is_slower_than_its_margin_goes_back(controlled: str, old: Sensible, secret: str) -> None:
    course = replace(QUICK, margins=Margins(ttft=1, pace=1, errors=0.2, finish=0.5), stages=(Stage(50, 60),))
    wait_until(lambda: answers(controlled, secret), seconds=20)
    with serving(engine_at("new")) as new, client(controlled, secret) as wrong:
        rollout = bad(controlled, secret, new, lambda: setattr(new, "pause_seconds", 0.05), course)  # type: ignore[arg-type]
    assert rollout.finding["code"] == "pace"
    assert wrong == []
    assert json.loads(json.dumps(rollout.steps.get().figure))["new"]


def test_one_that_dies_goes_back(
    controlled: str, old: Sensible, secret: str, engine: Callable[..., int], fleet: Fleet
) -> None:
    """Its port refuses connections; what its host may say later isn't waited for."""
    new = engine_at("new")
    with serving(new):
        wait_until(lambda: answers(controlled, secret), seconds=20)
        rollout = begin(new)
        wait_until(lambda: state(rollout) == "shifting", seconds=30)
    # The server is gone now.
    wait_until(lambda: state(rollout) != "shifting", seconds=30)
    assert (rollout.state, rollout.finding["code"]) == ("rolling_back", "died")


def shadow_first(pause_seconds: float = 0) -> Plan:
    """Requests are copied for two seconds at least, before any is shifted."""
    margins = Margins(ttft=9, pace=1 if pause_seconds else 9, errors=0.2, finish=0.5)
    return replace(QUICK, margins=margins, stages=(Stage(0, 2, shadow_percent=100), *QUICK.stages))


def test_what_was_only_copied_first_arrives_too(controlled: str, old: Sensible, secret: str) -> None:
    routes.allow_shadows(Route.objects.get(), actor=User.objects.create(username="ada"), reason="tests")
    wait_until(lambda: answers(controlled, secret), seconds=20)
    with serving(engine_at("new")) as new, client(controlled, secret) as wrong:
        rollout = begin(new, shadow_first())  # type: ignore[arg-type]
        wait_until(lambda: state(rollout) == "shadowing", seconds=30)
        wait_until(lambda: GatewayRequest.objects.filter(shadow="copy").count() > 5, seconds=30)
        assert (
            not GatewayRequest.objects.of_clients()
            .filter(instance__in=Instance.objects.filter(spec=rollout.new_spec))
            .exists()
        )
        wait_until(lambda: state(rollout) in ("succeeded", "rolled_back", "held"), seconds=150)
    assert (rollout.state, rollout.finding, wrong) == ("succeeded", {}, [])
    assert [one.passed_by for one in rollout.steps.all()] == ["verdict"] * 3
    facts = rollout.steps.get(position=1).figure["shadow"]
    assert facts["ended"] > 0
    assert facts["failed"] == 0


def test_copies_that_are_slow_send_it_back_and_no_client_ever_met_it(
    controlled: str, old: Sensible, secret: str
) -> None:
    routes.allow_shadows(Route.objects.get(), actor=User.objects.create(username="ada"), reason="tests")
    wait_until(lambda: answers(controlled, secret), seconds=20)
    with serving(engine_at("new")) as new, client(controlled, secret) as wrong:
        new.pause_seconds = 0.05
        rollout = begin(new, shadow_first(new.pause_seconds))  # type: ignore[arg-type]
        wait_until(lambda: state(rollout) == "shadowing", seconds=30)
        wait_until(lambda: state(rollout) != "shadowing", seconds=120)
        wait_until(lambda: state(rollout) == "rolled_back", seconds=40)
    assert (rollout.finding["code"], wrong) == ("pace", [])
    met = GatewayRequest.objects.filter(instance__in=Instance.objects.filter(spec=rollout.new_spec))
    assert set(met.values_list("shadow", flat=True)) == {"copy"}

"""Every rule that Slipway brings fires when it should, and clears when it is over."""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, timedelta
from typing import Any

import pytest
from django.utils import timezone, translation

from console import env
from console.alerts.conditions import CONDITIONS, DEFAULTS
from console.alerts.models import Alert, Channel, Rule
from console.common import authority
from console.common.models import StateChange
from console.common.states import move
from console.deployments.models import Attempt, Brake, Deployment, Instance, Launch
from console.fleet.models import Host
from console.gateway import controller
from console.gateway.models import GatewayMachine, Key, Route, UsageDay
from console.jobs.models import Step
from console.jobs.reconcile import INGEST_PULSE
from console.rollouts.models import Rollout
from console.rollouts.plans import Plan
from tests.alerts.conftest import Stage
from workers.gateway import messages
from workers.gateway.keeping import Status
from workers.gateway.messages import Told
from workers.vllm.histograms import Histogram

pytestmark = pytest.mark.django_db(transaction=True)

Act = Callable[[Stage], None]
GIB = 1 << 30


def tell(**numbers: Any) -> Act:
    return lambda stage: stage.tell(**numbers)


def instance_is(state: str, **more: Any) -> Act:
    return lambda stage: Instance.objects.filter(pk=stage.instance.pk).update(state=state, **more)  # type: ignore[return-value]


def vitals(**numbers: Any) -> Act:
    def act(stage: Stage) -> None:
        Host.objects.filter(pk=stage.fleet.host.pk).update(vitals=numbers, last_seen_at=timezone.now())

    return act


def gpu_is(**numbers: Any) -> Act:
    gpu = {"index": 0, "uuid": "a", "name": "H100", "memory_total": 80 * GIB, **numbers}
    return vitals(live={"gpus": {"source": "nvml", "gpus": [gpu]}})


def xids(number: int) -> Act:
    def act(stage: Stage) -> None:
        event = {"at": stage.at.timestamp(), "bus_id": "0000:3b:00", "code": 79, "text": "GPU has fallen off the bus."}
        facts = {"host": {"xid": {"events": [event] * number}}}
        Host.objects.filter(pk=stage.fleet.host.pk).update(facts=facts, last_seen_at=timezone.now())

    return act


def heard(seconds_ago: float) -> Act:
    def act(stage: Stage) -> None:
        Host.objects.update(last_seen_at=stage.at + timedelta(seconds=10 - seconds_ago))

    return act


def restarted(times: int) -> Act:
    def act(stage: Stage) -> None:
        StateChange.objects.all().delete()
        for _ in range(times):
            StateChange.objects.create(
                kind="deployments.instance",
                object_id=stage.instance.pk,
                before="ready",
                after="restarting",
                at=stage.at,
            )

    return act


def downloads_at(rate: float) -> Act:
    def act(stage: Stage) -> None:
        step = Step.objects.filter(host=stage.fleet.host).first()
        Step.objects.filter(pk=step.pk).update(kind="download", state="running", progress={"done": 5, "rate": rate})
        Host.objects.update(last_seen_at=timezone.now())

    return act


def usual_ttft(stage: Stage) -> None:
    stage.baselines._found[stage.instance.deployment_id] = (time.monotonic(), 0.2)


def ttft(value: float) -> Act:
    def act(stage: Stage) -> None:
        usual_ttft(stage)
        bounds = (0.1, 0.25, 1.0, 2.5, math.inf)
        counts = tuple(100.0 if bound >= value else 0.0 for bound in bounds)
        stage.tell(ttft=Histogram(bounds, counts, 100 * value))

    return act


def channel_fails(since: float | None) -> Act:
    def act(stage: Stage) -> None:
        channel, _made = Channel.objects.get_or_create(team_id=1, name="pager", kind="webhook")
        channel.failing_since = stage.at - timedelta(seconds=since) if since is not None else None
        channel.last_error = "connection refused"
        channel.save()

    return act


def key_ends_in(days: float) -> Act:
    def act(stage: Stage) -> None:
        ends = stage.at + timedelta(days=days)
        Key.objects.update_or_create(name="app", team_id=1, defaults={"sha256": "a" * 64, "expires_at": ends})

    return act


def certificate_ends_in(days: int) -> Act:
    """The console's own, as the front for other machines shows it."""

    def act(stage: Stage) -> None:
        authority.certificate_path().unlink(missing_ok=True)
        began = stage.at + timedelta(days=days - authority.CERTIFICATE_DAYS)
        authority.certificate_for(["127.0.0.1"], now=began)

    return act


def tokens_used(today: int) -> Act:
    def act(stage: Stage) -> None:
        key, _made = Key.objects.get_or_create(name="app", team_id=1, sha256="a" * 64, daily_tokens=1000)
        UsageDay.objects.update_or_create(
            day=stage.at.astimezone(UTC).date(), key=key, team_id=1, route="chat",
            defaults={"prompt_tokens": today // 2, "output_tokens": today // 2},
        )  # fmt: skip

    return act


def planned_tokens(planned: int) -> Act:
    def act(stage: Stage) -> None:
        attempt, _made = Attempt.objects.get_or_create(instance=stage.instance, number=1)
        Launch.objects.update_or_create(
            attempt=attempt,
            defaults={
                "revision": stage.fleet.copy.revision, "deployment_name": "demo", "spec_number": 1, "device": "cpu",
                "platform": "cpu", "engine_version": "0.32.0", "batched_tokens": 512,
                "prediction": {"kv_cache_tokens": planned}, "truth": {"kv_cache_tokens": 10_000},
            },
        )  # fmt: skip

    return act


def rolled_out(state: str) -> Act:
    def act(stage: Stage) -> None:
        deployment = stage.instance.deployment
        assert deployment.current_spec
        spec = deployment.current_spec
        given = {"old_spec": spec, "new_spec": spec, "plan": Plan().as_json(), "team_id": deployment.team_id}
        Rollout.objects.update_or_create(deployment=deployment, defaults={**given, "state": state})

    return act


def gateway_says(**told: Any) -> Act:
    """The console's own, as its controller says."""

    def act(stage: Stage) -> None:
        Route.objects.get_or_create(name="chat", team_id=1)
        stage.broker.set(controller.STATUS_KEY, json.dumps(asdict(Status(at=time.time(), **told))))

    return act


def brake_is(*, engaged: bool) -> Act:
    def act(_stage: Stage) -> None:
        Brake.objects.all().delete()
        if engaged:
            Brake.objects.create(reason="5 of 6 instances turned bad within two minutes", bad=5, total=6)

    return act


TROUBLES: dict[str, tuple[Act, Act]] = {
    "kv-high": (tell(kv_usage=0.93), tell(kv_usage=0.5)),
    "kv-full": (tell(kv_usage=0.99), tell(kv_usage=0.5)),
    "waiting": (tell(waiting=130.0), tell(waiting=3.0)),
    "queue-wait": (tell(queue_p95=9.0), tell(queue_p95=0.1)),
    "preemptions": (tell(preemptions=0.5), tell(preemptions=0.0)),
    "kv-offload": (tell(kv_offload=0.2), tell(kv_offload=0.0)),
    "acceptance": (tell(acceptance=0.1), tell(acceptance=0.7)),
    "ttft-baseline": (ttft(1.0), ttft(0.1)),
    "errors": (tell(requests=10.0, errors=2.0), tell(requests=10.0, errors=0.0)),
    "hung": (instance_is("unhealthy", failure={"message": "no tokens for 60 s"}), instance_is("ready", failure=None)),
    "crashed": (instance_is("crashed", failure={"message": "CUDA out of memory"}), instance_is("ready", failure=None)),
    "down": (
        lambda stage: Deployment.objects.update(state="failed", state_reason="no memory left"),  # type: ignore[dict-item, return-value]
        lambda stage: Deployment.objects.update(state="serving"),  # type: ignore[dict-item, return-value]
    ),
    "restarts": (restarted(4), restarted(0)),
    "offline": (heard(120), heard(1)),
    "disk": (vitals(disk_total=100 * GIB, disk_free=4 * GIB), vitals(disk_total=100 * GIB, disk_free=50 * GIB)),
    "hot": (gpu_is(temperature_c=92), gpu_is(temperature_c=60)),
    "strangers": (gpu_is(processes=[{"pid": 9, "name": "train.py", "memory": 20 * GIB}]), gpu_is(processes=[])),
    "xid": (xids(1), xids(0)),
    "stalled": (downloads_at(0), downloads_at(5e6)),
    "key-ends": (key_ends_in(3), key_ends_in(90)),
    "certificate-ends": (certificate_ends_in(5), certificate_ends_in(80)),
    "budget": (tokens_used(950), tokens_used(200)),
    "prediction": (planned_tokens(14_000), planned_tokens(10_000)),
    "rolled-back": (rolled_out("rolled_back"), rolled_out("succeeded")),
    "rollout-held": (rolled_out("held"), rolled_out("shifting")),
    "gateway": (gateway_says(up=False), gateway_says(up=True)),
    "brake": (brake_is(engaged=True), brake_is(engaged=False)),
    "channel": (channel_fails(30), channel_fails(None)),
}


@pytest.fixture
def other_machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This console is reached by other machines."""
    with monkeypatch.context() as changed:
        changed.setenv("SLIPWAY_HOSTS_ADDRESS", "127.0.0.1")
        env.environment.cache_clear()
        yield
    env.environment.cache_clear()


def test_every_rule_is_tested_here_and_every_condition_has_a_rule() -> None:
    assert set(TROUBLES) == {default.key for default in DEFAULTS}
    assert {default.condition for default in DEFAULTS} == set(CONDITIONS)


def test_a_gateway_elsewhere_that_is_not_heard_of_or_lags_is_told_by_name(stage: Stage) -> None:
    stage.only("gateway")
    machine = GatewayMachine.objects.create(name="edge-01", team_id=1, public_key="x")
    key = messages.told_key(machine.name)

    def says(**told: Any) -> None:
        stage.broker.set(key, Told(contract=1, agent_version="1", **told).model_dump_json())
        stage.rounds(200)

    stage.broker.delete(key)
    stage.rounds(120)
    (alert,) = stage.living("gateway")
    assert (alert.name, "not heard of" in alert.summary) == ("edge-01", True)
    says(status=Status(up=True))
    assert not stage.living("gateway")
    says(status=Status(up=True), problem="no such certificate")
    assert "no such certificate" in stage.living("gateway")[0].summary
    GatewayMachine.objects.update(leaving_since=timezone.now())
    stage.rounds(200)
    assert not stage.living("gateway")


def test_the_parts_of_a_divided_gpu_are_told_apart(stage: Stage) -> None:
    def parts(*taken: int) -> list[dict[str, Any]]:
        return [
            {
                "index": 0, "uuid": f"MIG-{number}", "name": "A100 MIG", "memory_total": 20 * GIB,
                "mig": {"parent": "GPU-a", "gpu_instance": number, "compute_instance": 0},
                "processes": [{"pid": 9, "name": "train.py", "memory": memory}] if memory else [],
            }
            for number, memory in enumerate(taken)
        ]  # fmt: skip

    stage.only("strangers")
    for taken, living in (((0, 18 * GIB, 18 * GIB, 0), 2), ((18 * GIB, 0, 0, 0), 1)):
        for _ in range(120):
            vitals(live={"gpus": {"source": "nvml", "gpus": parts(*taken)}})(stage)
            stage.round()
        assert len(stage.living("strangers")) == living
    assert stage.living("strangers")[0].subject.endswith(":gpu0.0.0")


@pytest.mark.parametrize("key", list(TROUBLES))
def test_a_rule_fires_after_its_time_and_clears_when_it_is_over(stage: Stage, other_machines: None, key: str) -> None:
    trouble, relief = TROUBLES[key]
    rule = stage.only(key)
    relief(stage)
    stage.round()
    assert not stage.living(key)
    waited = 0
    while not stage.living(key):
        trouble(stage)
        stage.round()
        waited += 10
        assert waited <= rule.for_seconds + 20
    assert waited >= rule.for_seconds
    (alert,) = stage.living(key)
    assert alert.severity == rule.severity
    assert alert.summary
    assert alert.url
    for _ in range(rule.clear_seconds // 10 + 2):
        relief(stage)
        stage.round()
    alert.refresh_from_db()
    assert alert.state == "closed"
    assert alert.closed_at is not None


def test_a_routes_budget_is_told_by_its_name(stage: Stage) -> None:
    stage.only("budget")
    route = Route.objects.create(name="chat", team_id=1, daily_tokens=1000)
    tokens_used(950)(stage)
    Key.objects.update(daily_tokens=None)
    stage.rounds(30)
    (alert,) = stage.living("budget")
    assert (alert.name, alert.url) == ("chat", f"/routes/{route.pk}/")
    UsageDay.objects.update(prompt_tokens=100)
    stage.rounds(200)
    assert not stage.living("budget")


def test_a_short_peak_raises_nothing(stage: Stage) -> None:
    stage.only("kv-full")
    for _ in range(5):
        for _ in range(6):
            stage.tell(kv_usage=0.99)
            stage.round()
        stage.tell(kv_usage=0.4)
        stage.round()
        stage.round()
    assert not Alert.objects.exists()


def test_a_value_that_flutters_around_the_threshold_is_one_alert(stage: Stage) -> None:
    stage.only("kv-high")
    for turn in range(60):
        stage.tell(kv_usage=0.93 if turn % 2 else 0.87)
        stage.round()
    assert Alert.objects.count() == 1
    assert stage.living("kv-high")


def test_an_alert_keeps_the_worst_value_and_the_cause(stage: Stage) -> None:
    stage.only("crashed")
    instance_is("crashed", failure={"message": "CUDA out of memory"})(stage)
    stage.round()
    (alert,) = stage.living("crashed")
    assert alert.cause == "CUDA out of memory"
    assert alert.deployment == stage.instance.deployment


def test_how_long_something_lasts_survives_a_restart_of_the_console(stage: Stage) -> None:
    stage.only("kv-full")
    stage.tell(kv_usage=0.99)
    stage.round()
    # A new process reads everything from the database: a new scene, new baselines.
    stage.baselines = type(stage.baselines)()
    stage.tell(kv_usage=0.99)
    stage.round(130)
    assert len(stage.living("kv-full")) == 1


def test_what_is_gone_altogether_is_over_after_a_while(stage: Stage) -> None:
    stage.only("kv-high")
    stage.tell(kv_usage=0.95)
    stage.rounds(50)
    assert stage.living("kv-high")
    stage.be_silent()
    stage.rounds(100)
    assert not stage.living("kv-high")


def test_a_deployments_own_rule_replaces_the_one_for_all(stage: Stage) -> None:
    general = stage.only("kv-high")
    own = Rule.objects.create(
        team_id=1, name="relaxed", condition="kv_usage", threshold=0.99, severity="warning", for_seconds=0,
        deployment=stage.instance.deployment,
    )  # fmt: skip
    stage.tell(kv_usage=0.95)
    stage.rounds(60)
    assert not Alert.objects.exists()
    stage.tell(kv_usage=0.995)
    stage.rounds(20)
    assert [alert.rule for alert in Alert.objects.all()] == [own]
    assert general.enabled


def test_changes_of_default_rules_stay(stage: Stage) -> None:
    from console.access.models import Team
    from console.alerts.evaluation import ensure_defaults

    Rule.objects.filter(key="kv-high").update(threshold=0.5, enabled=False)
    ensure_defaults(Team.objects.get(pk=1))
    rule = Rule.objects.get(key="kv-high")
    assert (rule.threshold, rule.enabled) == (0.5, False)


def test_slipways_rules_are_read_in_each_language_and_a_persons_own_as_written() -> None:
    with translation.override("zh-hans"):
        assert Rule(key="disk", name="Disk nearly full").title == "磁盘即将用满"
        assert Rule(name="Disk nearly full").title == "Disk nearly full"
        assert str(CONDITIONS["waiting"].unit) == "个请求"


def test_an_instance_of_a_silent_host_is_not_called_crashed(stage: Stage) -> None:
    stage.only("hung")
    instance_is("unhealthy")(stage)
    Host.objects.update(last_seen_at=timezone.now() - timedelta(minutes=5))
    stage.rounds(30)
    assert not Alert.objects.exists()


def test_no_host_is_called_silent_for_the_time_in_which_nobody_listened(stage: Stage) -> None:
    stage.only("offline")
    Host.objects.update(last_seen_at=timezone.now() - timedelta(minutes=30))
    stage.broker.hset(INGEST_PULSE, mapping={"at": time.time(), "started_at": time.time()})
    stage.rounds(50)
    assert not Alert.objects.exists()
    stage.rounds(30)
    assert stage.living("offline")
    stage.broker.delete(INGEST_PULSE)


def test_a_closed_alert_can_open_again_as_a_new_one(stage: Stage) -> None:
    stage.only("crashed")
    for _ in range(2):
        instance_is("crashed")(stage)
        stage.rounds(20)
        instance_is("ready")(stage)
        stage.rounds(90)
    assert [alert.state for alert in Alert.objects.all()] == ["closed", "closed"]


def test_a_crashed_instance_that_was_replaced_is_no_trouble_any_more(stage: Stage) -> None:
    stage.only("crashed")
    instance_is("crashed")(stage)
    stage.round()
    assert stage.living("crashed")
    instance_is("crashed", ordered=False, run=False)(stage)
    stage.rounds(90)
    assert not stage.living("crashed")


def test_a_move_of_an_alert_leaves_its_row(stage: Stage) -> None:
    stage.only("crashed")
    instance_is("crashed")(stage)
    stage.round()
    (alert,) = stage.living("crashed")
    move(alert, to="acknowledged", reason="on it")
    assert StateChange.objects.filter(kind="alerts.alert", object_id=alert.pk, after="acknowledged").exists()

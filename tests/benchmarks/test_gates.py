"""Gates: what is admitted, what is not, and what happens to the engines meanwhile."""

from typing import Any

import pytest
from django.test import Client

from console.access.models import User
from console.benchmarks import gates
from console.benchmarks.curves import points
from console.benchmarks.gates import Gate, Limits, judge
from console.benchmarks.models import Baseline, Benchmark
from console.common.errors import Refused
from console.deployments import changes
from console.deployments.changes import Wish
from console.deployments.models import Deployment, Instance, Spec
from console.jobs import services as jobs
from console.jobs.models import Job, Step
from tests.benchmarks.conftest import Stage
from workers.benchmark_payloads import LoadPlan, Targets, Workload
from workers.contracts import StepFinished, StepPart


def gate(**limits: Any) -> Gate:
    return Gate(
        profile="chat", workload=Workload(), loads=LoadPlan(values=[4], requests=20, repeats=2),
        targets=Targets(ttft_ms=500), limits=Limits(**limits),
    )  # fmt: skip


def succeed(job: Job, kind: str, **result: Any) -> Step:
    step = job.steps.select_related("job", "host").get(kind=kind, state__in=("queued", "running"))
    jobs.started(step)
    jobs.finished(step, StepFinished.model_validate(
        {"step": step.pk, "fence": step.fence, "outcome": "succeeded", "result": result}))  # fmt: skip
    return Step.objects.get(pk=step.pk)


def bring_to_gate(job: Job) -> Step:
    """All steps up to the one that measures, which has begun."""
    succeed(job, "preflight", port=20100 + job.pk)
    succeed(job, "verify", model_path="/m", files=1, size_bytes=1, seconds=1)
    for kind in ("launch", "listening", "validate", "warmup"):
        succeed(job, kind)
    return job.steps.get(kind="benchmark")


def report(step: Step, **numbers: Any) -> None:
    from tests.benchmarks.conftest import numbers as made

    for repeat in (1, 2):
        content = {"key": f"concurrency-4-{repeat}", "by": "concurrency", "load": 4, "repeat": repeat, "prompts": 20,
                   "numbers": made(**numbers)}  # fmt: skip
        fresh = Step.objects.select_related("job", "host").get(pk=step.pk)
        jobs.took_part(fresh, StepPart(step=step.pk, fence=fresh.fence, name=content["key"], content=content))  # type: ignore[arg-type]


def settle(job: Job, step: Step) -> Step:
    return succeed(job, "benchmark", runs=2, loads=[4])


@pytest.fixture
def gated(stage: Stage, admin: User) -> Stage:
    """The deployment has a gate, and what serves was measured for it."""
    deployment = stage.instance.deployment
    assert deployment.current_spec
    wish = Wish.of_spec(deployment.current_spec)
    made = changes.change(
        deployment, Wish(**{**wish.__dict__, "gate": gate().model_dump(mode="json")}), reason="x", actor=admin
    )
    assert made is None, "a gate alone restarts nothing"
    stage.instance.refresh_from_db()
    return stage


def changed(stage: Stage, admin: User, arguments: list[str]) -> Job:
    deployment = Deployment.objects.get(pk=stage.instance.deployment_id)
    assert deployment.current_spec
    wish = Wish.of_spec(deployment.current_spec)
    job = changes.change(deployment, Wish(**{**wish.__dict__, "arguments": arguments}), reason="try", actor=admin)
    assert job
    return job


def admit_first(stage: Stage, admin: User, **numbers: Any) -> Instance:
    job = changed(stage, admin, ["--enforce-eager", "--max-num-seqs", "8"])
    step = bring_to_gate(job)
    report(step, **numbers)
    settle(job, step)
    succeed(job, "stop", was_running=True)
    job.refresh_from_db()
    assert job.state == "succeeded", job.failure
    return Instance.objects.get(deployment=stage.instance.deployment, state="ready")


def test_a_warm_engine_is_not_ready_before_its_gate(gated: Stage, admin: User) -> None:
    job = changed(gated, admin, ["--enforce-eager", "--max-num-seqs", "8"])
    step = bring_to_gate(job)
    fresh = Instance.objects.exclude(pk=gated.instance.pk).get()
    assert fresh.state != "ready"
    assert (step.state, Benchmark.objects.get(step=step.pk).origin) == ("queued", "gate")
    gated.instance.refresh_from_db()
    assert gated.instance.state == "ready", "the old one goes on serving"


def test_the_first_measurement_passes_and_becomes_the_baseline(gated: Stage, admin: User) -> None:
    fresh = admit_first(gated, admin)
    assert fresh.spec.number == 3
    baseline = Baseline.objects.get()
    assert baseline.benchmark.is_whole
    assert (baseline.engine_version, baseline.device) == ("0.32.0", "A CPU")


def test_a_spec_that_has_become_slow_is_not_admitted_and_the_old_one_stays(gated: Stage, admin: User) -> None:
    served = admit_first(gated, admin, ttft=80.0)
    job = changed(gated, admin, ["--enforce-eager", "--max-num-seqs", "1"])
    step = bring_to_gate(job)
    report(step, ttft=1200.0)
    settle(job, step)
    job.refresh_from_db()
    assert job.state == "failed"
    assert job.failure["code"] == "gate.not_passed"
    assert "baseline 120 ms" in job.failure["message"]
    assert "/benchmarks/compare/" in job.failure["next"]
    served.refresh_from_db()
    assert (served.state, served.run) == ("ready", True)
    deployment = Deployment.objects.get(pk=served.deployment_id)
    assert (deployment.state, deployment.current_spec_id) == ("serving", served.spec_id)
    refused = Benchmark.objects.get(step=step.pk)
    assert refused.failure["code"] == "gate.not_passed"
    assert Baseline.objects.count() == 1
    new = Instance.objects.exclude(pk__in=[served.pk, gated.instance.pk]).order_by("-pk").first()
    assert new is None or new.run is False


def test_an_upgrade_that_keeps_up_is_admitted_and_is_the_baseline_of_its_own_kind(gated: Stage, admin: User) -> None:
    admit_first(gated, admin, ttft=100.0)
    job = changed(gated, admin, ["--enforce-eager", "--max-num-seqs", "16"])
    step = bring_to_gate(job)
    report(step, ttft=110.0)
    settle(job, step)
    succeed(job, "stop", was_running=True)
    job.refresh_from_db()
    assert job.state == "succeeded"
    assert Baseline.objects.count() == 2


def test_a_gate_that_can_not_measure_admits_nothing(gated: Stage, admin: User) -> None:
    job = changed(gated, admin, ["--enforce-eager", "--max-num-seqs", "8"])
    step = bring_to_gate(job)
    fresh = Step.objects.select_related("job", "host").get(pk=step.pk)
    jobs.started(fresh)
    outcome = {"step": step.pk, "fence": fresh.fence, "outcome": "failed",
               "failure": {"code": "engine.exited", "message": "it died"}}  # fmt: skip
    jobs.finished(fresh, StepFinished.model_validate(outcome))
    job.refresh_from_db()
    assert (job.state, job.failure["message"]) == ("failed", "it died")
    assert Benchmark.objects.get(step=step.pk).state == "failed"
    gated.instance.refresh_from_db()
    assert gated.instance.state == "ready"


def test_a_later_change_keeps_the_gate(gated: Stage, admin: User) -> None:
    changed(gated, admin, ["--enforce-eager", "--max-num-seqs", "8"])
    newest = Spec.objects.order_by("-number")[0]
    assert Gate.model_validate(newest.gate) == gate()


@pytest.mark.parametrize(
    ("numbers", "passed"),
    [
        ({"ttft": 104.0}, True),
        ({"ttft": 130.0}, False),
        ({"output_tokens_per_second": 50.0}, False),
        ({"output_tokens_per_second": 60.0}, True),
        ({"goodput_per_second": 1.5}, False),
        ({"failed": 5}, False),
        ({"ttft": 50.0, "output_tokens_per_second": 100.0}, True),
    ],
)
def test_each_limit_is_judged(stage: Stage, numbers: dict[str, Any], passed: bool) -> None:
    before, after = stage.whole(), stage.whole(**numbers)
    rows = judge(gate(), points(after.runs.all()), points(before.runs.all()))
    assert all(row.passed for row in rows) == passed
    assert rows


def test_what_differs_by_less_than_the_repeats_do_passes(stage: Stage) -> None:
    before, after = stage.measure(), stage.measure()
    for repeat, ttft in ((1, 60.0), (2, 100.0), (3, 190.0)):
        stage.report_run(before, 4, repeat, ttft=ttft)
        stage.report_run(after, 4, repeat, ttft=1.6 * ttft)
    rows = judge(gate(), points(after.runs.all()), points(before.runs.all()))
    assert all(row.passed for row in rows)


def test_only_a_whole_benchmark_can_be_a_baseline(stage: Stage, admin: User) -> None:
    with pytest.raises(Refused, match="whole"):
        gates.make_baseline(stage.measure(), actor=admin)


def test_who_may_set_a_gate_and_who_may_look(
    stage: Stage, client: Client, admin: User, operator: User, viewer: User
) -> None:
    pk = stage.instance.deployment_id
    given = {
        "profile": "chat", "by": "concurrency", "search": "fixed", "values": "4", "requests": "20", "repeats": "2",
        "warmups": "1", "seed": "0", "ttft_worse": "25", "throughput_worse": "15", "goodput_worse": "10", "failed_most": "2",
        "reason": "no surprises",
    }  # fmt: skip
    whole = stage.whole()
    for person, may in ((viewer, False), (operator, False), (admin, True)):
        client.force_login(person)
        assert client.get(f"/deployments/{pk}/benchmarks/").status_code == 200
        assert client.get(f"/deployments/{pk}/gate/").status_code == (200 if may else 403)
        assert client.post(f"/deployments/{pk}/gate/", given).status_code == (302 if may else 403)
        assert client.post(f"/benchmarks/{whole.pk}/baseline/").status_code == (302 if may else 403)
    deployment = Deployment.objects.get(pk=pk)
    made = gates.gate_of(deployment)
    assert made
    assert made.limits.ttft_p95 == 0.25
    page = client.get(f"/deployments/{pk}/benchmarks/").content.decode()
    assert "at most 25 % slower" in page
    assert "baseline" in page
    assert client.post(f"/deployments/{pk}/gate/", given | {"remove": "1"}).status_code == 302
    assert gates.gate_of(Deployment.objects.get(pk=pk)) is None

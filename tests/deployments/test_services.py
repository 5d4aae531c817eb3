"""The life of a deployment as the console sees it; the host's part is played by its reports."""

from threading import Thread
from uuid import uuid4

import pytest
import redis
from django.db import connection

from console.access.models import AuditEntry, User
from console.common.errors import Refused
from console.common.models import StateChange
from console.deployments import services
from console.deployments.models import Deployment, Instance
from console.fleet import desired
from console.jobs import services as jobs
from console.jobs.models import Job, Step
from console.telemetry.ingest import take_reports
from tests.factories import Fleet
from workers.contracts import DesiredState, desired_key
from workers.sealing import unseal

pytestmark = pytest.mark.django_db(transaction=True)


def current(job: Job) -> Step:
    step = job.steps.exclude(state="succeeded").order_by("position").first()
    assert step
    return step


def succeed(broker: redis.Redis, fleet: Fleet, job: Job, **result: object) -> None:
    step = current(job)
    take_reports(
        broker,
        fleet.host,
        [
            fleet.report(kind="step.started", step=step.pk, fence=step.fence),
            fleet.report(kind="step.finished", step=step.pk, fence=step.fence, outcome="succeeded", result=result),
        ],
    )


def fail(broker: redis.Redis, fleet: Fleet, job: Job, code: str, message: str) -> None:
    step = current(job)
    failure = {"code": code, "message": message, "next": "Do something else."}
    take_reports(
        broker,
        fleet.host,
        [fleet.report(kind="step.finished", step=step.pk, fence=step.fence, outcome="failed", failure=failure)],
    )


def observe(broker: redis.Redis, fleet: Fleet, instance: Instance, phase: str) -> None:
    report = fleet.report(kind="instance.observed", instance=str(instance.uuid), generation=None, phase=phase)
    take_reports(broker, fleet.host, [report])


def ordered(broker: redis.Redis, fleet: Fleet) -> DesiredState:
    return DesiredState.model_validate_json(broker.get(desired_key(fleet.host.name)))


def serve(broker: redis.Redis, fleet: Fleet, job: Job, port: int = 18000) -> Instance:
    instance = Instance.objects.get(pk=job.payload["instance"])
    succeed(broker, fleet, job, port=port)
    succeed(broker, fleet, job, size_bytes=10)
    for phase in ("starting", "loading"):
        observe(broker, fleet, instance, phase)
    for _step in ("launch", "listening", "validate"):
        succeed(broker, fleet, job)
    observe(broker, fleet, instance, "warming")
    succeed(broker, fleet, job)
    instance.refresh_from_db()
    job.refresh_from_db()
    return instance


def test_a_deployment_serves_after_its_last_step(broker: redis.Redis, fleet: Fleet, admin: User) -> None:
    job = fleet.deploy(admin)
    instance = serve(broker, fleet, job)
    assert (job.state, instance.state) == ("succeeded", "ready")
    deployment = instance.deployment
    assert deployment.state == "serving"
    assert services.describe(deployment) == "Serving on 1 of 1 instances."
    endpoint = services.endpoint(deployment)
    assert endpoint
    assert endpoint.url.endswith(":18000")
    assert (
        unseal(fleet.private_key, ordered(broker, fleet).instances[0].sealed_environment["VLLM_API_KEY"])
        == endpoint.key
    )


def test_nothing_is_ordered_before_the_files_are_verified(broker: redis.Redis, fleet: Fleet) -> None:
    job = fleet.deploy()
    desired.publish(fleet.host.pk)
    assert ordered(broker, fleet).instances == []
    succeed(broker, fleet, job, port=18000)
    assert ordered(broker, fleet).instances == []
    succeed(broker, fleet, job)
    assert [one.run for one in ordered(broker, fleet).instances] == [True]


def test_damaged_files_fail_the_job_before_a_launch(broker: redis.Redis, fleet: Fleet) -> None:
    job = fleet.deploy()
    succeed(broker, fleet, job, port=18000)
    fail(broker, fleet, job, "weights.truncated", "model.safetensors lacks 4,096 bytes.")
    job.refresh_from_db()
    fleet.copy.refresh_from_db()
    deployment = Deployment.objects.get(pk=job.about)
    assert (job.state, deployment.state, fleet.copy.state) == ("failed", "failed", "damaged")
    assert "4,096" in services.describe(deployment)
    assert Instance.objects.get(deployment=deployment).state == "stopped"


def test_a_crash_during_warm_up_fails_the_job_and_frees_the_device(broker: redis.Redis, fleet: Fleet) -> None:
    job = fleet.deploy()
    instance = Instance.objects.get(pk=job.payload["instance"])
    succeed(broker, fleet, job, port=18000)
    for _step in ("verify", "launch", "listening", "validate"):
        succeed(broker, fleet, job)
    fail(broker, fleet, job, "engine.died", "The engine died during warm-up with exit code 0.")
    assert [one.run for one in ordered(broker, fleet).instances] == [False]
    observe(broker, fleet, instance, "crashed")
    assert ordered(broker, fleet).instances == []
    instance.refresh_from_db()
    assert (instance.state, instance.ordered) == ("crashed", False)
    assert Deployment.objects.get(pk=job.about).state == "failed"


def test_a_retry_after_a_failed_start_launches_anew(broker: redis.Redis, fleet: Fleet, admin: User) -> None:
    job = fleet.deploy()
    instance = Instance.objects.get(pk=job.payload["instance"])
    succeed(broker, fleet, job, port=18000)
    for _step in ("verify", "launch"):
        succeed(broker, fleet, job)
    fail(broker, fleet, job, "kv_cache.too_small", "2.1 GiB needed, 1.0 GiB there.")
    observe(broker, fleet, instance, "crashed")
    job.refresh_from_db()
    jobs.retry(job, actor=admin, reason="context lowered")
    step = current(job)
    assert (step.kind, step.state) == ("launch", "queued")
    order = ordered(broker, fleet).instances[0]
    assert (order.run, order.start) == (True, 2)
    for _step in ("launch", "listening", "validate", "warmup"):
        succeed(broker, fleet, job)
    instance.refresh_from_db()
    assert instance.state == "ready"
    assert instance.deployment.state == "serving"


def test_a_second_click_returns_the_first_job(fleet: Fleet) -> None:
    key = str(uuid4())
    first = fleet.deploy(name="twice", idempotency_key=key)
    second = fleet.deploy(name="twice", idempotency_key=key)
    assert first == second
    assert Deployment.objects.filter(name="twice").count() == 1


def test_two_clicks_at_once_make_one_deployment(fleet: Fleet) -> None:
    key, made, errors = str(uuid4()), [], []

    def click() -> None:
        try:
            made.append(fleet.deploy(name="at-once", idempotency_key=key).pk)
        except Exception as error:  # pragma: no cover - shown by the assertion
            errors.append(error)
        finally:
            connection.close()

    threads = [Thread(target=click) for _index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(set(made)) == 1
    assert Deployment.objects.filter(name="at-once").count() == 1


def test_a_name_that_is_taken_is_refused_at_its_field(fleet: Fleet) -> None:
    fleet.deploy(name="taken")
    with pytest.raises(Refused) as refused:
        fleet.deploy(name="taken")
    assert refused.value.field == "name"


def test_restart_orders_a_new_start_and_says_why(broker: redis.Redis, fleet: Fleet, admin: User) -> None:
    instance = serve(broker, fleet, fleet.deploy(admin))
    job = services.restart(instance, actor=admin, reason="answers look odd")
    assert ordered(broker, fleet).instances[0].start == 2
    for _step in range(4):
        succeed(broker, fleet, job)
    instance.refresh_from_db()
    assert (instance.state, instance.deployment.state) == ("ready", "serving")
    entry = AuditEntry.objects.get(action="instance.restart")
    assert (entry.actor, entry.reason) == (admin, "answers look odd")


def test_a_crash_later_is_degraded_and_ready_again_is_serving(broker: redis.Redis, fleet: Fleet) -> None:
    instance = serve(broker, fleet, fleet.deploy())
    observe(broker, fleet, instance, "restarting")
    assert Deployment.objects.get(pk=instance.deployment_id).state == "degraded"
    for phase in ("loading", "ready"):
        observe(broker, fleet, instance, phase)
    assert Deployment.objects.get(pk=instance.deployment_id).state == "serving"


def test_an_instance_whose_process_ended_is_not_ready_even_before_its_host_says_what_it_does_next(
    broker: redis.Redis, fleet: Fleet
) -> None:
    instance = serve(broker, fleet, fleet.deploy())
    ended = {"number": 1, "exit_code": -9, "asked": False, "ended_at": 2.0, "log_bytes": 5, "diagnosis": {}}
    take_reports(broker, fleet.host, [fleet.report(kind="attempt.ended", instance=str(instance.uuid), **ended)])
    instance.refresh_from_db()
    assert (instance.state, instance.deployment.state) == ("restarting", "degraded")
    assert services.endpoint(instance.deployment) is None
    for phase in ("loading", "ready"):
        observe(broker, fleet, instance, phase)
    instance.refresh_from_db()
    assert instance.state == "ready"
    started = {"number": 2, "pid": 9, "argv": ["vllm"], "environment": {}, "started_at": 3.0}
    take_reports(broker, fleet.host, [fleet.report(kind="attempt.started", instance=str(instance.uuid), **started)])
    instance.refresh_from_db()
    assert instance.state == "restarting"


def test_stop_is_said_only_when_the_host_has_proven_it(broker: redis.Redis, fleet: Fleet, admin: User) -> None:
    instance = serve(broker, fleet, fleet.deploy(admin))
    job = services.stop(instance.deployment, actor=admin, reason="maintenance")
    deployment = Deployment.objects.get(pk=instance.deployment_id)
    assert deployment.state == "stopping"
    observe(broker, fleet, instance, "stopping")
    succeed(broker, fleet, job, was_running=True)
    deployment.refresh_from_db()
    instance.refresh_from_db()
    assert (deployment.state, instance.state) == ("stopped", "stopped")
    assert ordered(broker, fleet).instances == []
    services.delete(deployment, actor=admin, reason="done")
    assert not Deployment.objects.exists()


def test_stop_during_a_deploy_cancels_it_first(broker: redis.Redis, fleet: Fleet, admin: User) -> None:
    deploy = fleet.deploy(admin)
    succeed(broker, fleet, deploy, port=18000)
    succeed(broker, fleet, deploy)
    launch = current(deploy)
    stop = services.stop(Deployment.objects.get(pk=deploy.about), actor=admin, reason="changed my mind")
    state = ordered(broker, fleet)
    assert [cancelled.step for cancelled in state.cancelled_steps] == [launch.pk]
    assert [one.run for one in state.instances] == [False]
    report = fleet.report(kind="step.finished", step=launch.pk, fence=launch.fence, outcome="cancelled")
    take_reports(broker, fleet.host, [report])
    deploy.refresh_from_db()
    assert deploy.state == "cancelled"
    assert ordered(broker, fleet).cancelled_steps == []
    succeed(broker, fleet, stop, was_running=True)
    assert Deployment.objects.get(pk=deploy.about).state == "stopped"


def test_two_instances_never_get_one_port(broker: redis.Redis, fleet: Fleet) -> None:
    serve(broker, fleet, fleet.deploy(), port=18000)
    job = fleet.deploy()
    succeed(broker, fleet, job, port=18000)
    step = current(job)
    assert (step.kind, step.state, step.fence) == ("preflight", "queued", 2)
    succeed(broker, fleet, job, port=18001)
    assert current(job).kind == "verify"


def test_every_move_left_a_row(broker: redis.Redis, fleet: Fleet) -> None:
    instance = serve(broker, fleet, fleet.deploy())
    moves = StateChange.objects.filter(kind="deployments.instance", object_id=instance.pk).order_by("pk")
    assert [move.after for move in moves] == ["loading", "warming", "ready"]


def test_an_engine_of_another_host_is_refused(fleet: Fleet) -> None:
    with pytest.raises(Refused) as refused:
        fleet.deploy(engine=Fleet.make().engine)
    assert refused.value.field == "engine"

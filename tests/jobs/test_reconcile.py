"""The beat that makes sure: what was sent and lost is sent again, and never while nobody could have answered."""

from datetime import timedelta

import pytest
import redis
from django.utils import timezone

from console.access.models import User
from console.common.errors import Refused
from console.fleet import desired
from console.jobs import dispatch, reconcile, services
from console.jobs.models import Job, Step
from tests.factories import Fleet
from workers.contracts import desired_key, host_queue, key_prefix

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ingest_reads(broker: redis.Redis) -> None:
    """As if ingest had been reading for ten minutes."""
    now = timezone.now().timestamp()
    broker.hset(reconcile.INGEST_PULSE, mapping={"at": now, "started_at": now - 600})


def aged(step: Step, **ages: float) -> Step:
    """Move a step's marks into the past, in seconds."""
    long_ago = timezone.now() - timedelta(seconds=600)
    type(step.host).objects.filter(pk=step.host_id).update(online_since=long_ago, last_seen_at=timezone.now())
    marks = {name: timezone.now() - timedelta(seconds=seconds) for name, seconds in ages.items()}
    Step.objects.filter(pk=step.pk).update(**marks)
    return Step.objects.select_related("host", "job").get(pk=step.pk)


def preflight(job: Job) -> Step:
    return job.steps.select_related("host", "job").get(position=1)


def queued_messages(broker: redis.Redis, step: Step) -> int:
    return broker.llen(key_prefix(step.host.name) + host_queue(step.host.name))


def test_a_step_goes_to_its_hosts_own_queue(broker: redis.Redis, fleet: Fleet) -> None:
    step = preflight(fleet.deploy())
    assert queued_messages(broker, step) == 1


@pytest.mark.usefixtures("ingest_reads")
def test_a_step_that_nobody_answered_is_sent_again(broker: redis.Redis, fleet: Fleet) -> None:
    step = aged(preflight(fleet.deploy()), sent_at=10)
    reconcile.reconcile()
    step.refresh_from_db()
    assert step.fence == 1
    aged(step, sent_at=16)
    reconcile.reconcile()
    step.refresh_from_db()
    assert step.fence == 2
    assert queued_messages(broker, step) == 2


@pytest.mark.usefixtures("ingest_reads")
def test_a_silent_running_step_is_interrupted_and_resumes(fleet: Fleet) -> None:
    step = preflight(fleet.deploy())
    services.started(step)
    aged(step, sent_at=100, heard_at=20)
    reconcile.reconcile()
    step.refresh_from_db()
    assert (step.state, step.fence) == ("running", 1)
    aged(step, sent_at=100, heard_at=31)
    reconcile.reconcile()
    step.refresh_from_db()
    assert (step.state, step.fence) == ("queued", 2)


def test_a_lease_does_not_run_while_ingest_is_away(broker: redis.Redis, fleet: Fleet) -> None:
    broker.delete(reconcile.INGEST_PULSE)
    step = preflight(fleet.deploy())
    services.started(step)
    aged(step, sent_at=900, heard_at=900)
    reconcile.reconcile()
    step.refresh_from_db()
    assert step.state == "running"


@pytest.mark.usefixtures("ingest_reads")
def test_a_lease_does_not_run_while_the_host_is_silent_and_the_job_says_so(fleet: Fleet) -> None:
    step = preflight(fleet.deploy())
    services.started(step)
    aged(step, sent_at=900, heard_at=900)
    type(fleet.host).objects.filter(pk=fleet.host.pk).update(last_seen_at=timezone.now() - timedelta(seconds=60))
    reconcile.reconcile()
    reconcile.reconcile()
    step.refresh_from_db()
    assert step.state == "running"
    assert step.job.events.filter(text__contains="has been silent since").count() == 1


@pytest.mark.usefixtures("ingest_reads")
def test_a_host_that_ignores_its_deadline_does_not_hold_the_job_for_ever(fleet: Fleet) -> None:
    job = fleet.deploy()
    step = preflight(job)
    services.started(step)
    aged(step, sent_at=1000, heard_at=1, started_at=step.deadline_seconds + 61)
    reconcile.reconcile()
    job.refresh_from_db()
    assert job.state == "failed"
    assert job.failure["code"] == "step.deadline"


def test_a_desired_state_that_redis_lost_is_published_again(broker: redis.Redis, fleet: Fleet) -> None:
    desired.publish(fleet.host.pk)
    broker.delete(desired_key(fleet.host.name))
    reconcile.reconcile()
    assert broker.get(desired_key(fleet.host.name))


def test_a_job_whose_advance_was_lost_is_advanced(fleet: Fleet) -> None:
    job = fleet.deploy()
    Step.objects.filter(job=job).update(sent_at=None)
    reconcile.reconcile()
    assert preflight(job).sent_at


def test_sending_survives_a_broker_that_is_away(
    fleet: Fleet, settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = preflight(fleet.deploy())
    dispatch.app_for.cache_clear()
    monkeypatch.setattr("django.conf.settings.REDIS_URL", "redis://127.0.0.1:1/0")
    assert dispatch.send(step.pk) is False
    dispatch.app_for.cache_clear()


def test_a_job_that_ended_can_be_neither_cancelled_nor_retried(fleet: Fleet, admin: User) -> None:
    job = fleet.deploy(admin)
    services.cancel(job, actor=admin, reason="wrong model")
    Step.objects.filter(job=job).update(state="cancelled")
    Job.objects.filter(pk=job.pk).update(state="cancelled")
    with pytest.raises(Refused):
        services.cancel(Job.objects.get(pk=job.pk), actor=admin)
    with pytest.raises(Refused):
        services.retry(Job.objects.get(pk=job.pk), actor=admin)


def test_events_count_from_one_without_holes(fleet: Fleet) -> None:
    job = fleet.deploy()
    for text in ("a", "b", "c"):
        services.note(job, text)
    assert list(job.events.values_list("seq", flat=True)) == list(range(1, job.events.count() + 1))

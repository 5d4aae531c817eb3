"""Reports from hosts: believed only from their owner, in order, once."""

import json
from uuid import UUID

import pytest
import redis
from django.db.utils import InterfaceError, OperationalError
from django.utils import timezone

from console.access.models import AuditEntry
from console.deployments.models import Attempt, Instance
from console.fleet import services
from console.fleet.models import ReportCursor, UnreadReport
from console.jobs.models import Job, Step
from console.telemetry import ingest
from console.telemetry.ingest import take_logs, take_reports, take_samples
from tests.factories import Fleet
from workers.contracts import Heartbeat, LogChunk, acknowledged_key, log_cursor_key

pytestmark = pytest.mark.django_db(transaction=True)


def first_step(job: Job) -> Step:
    return job.steps.get(position=1)


def test_a_host_that_reports_for_another_hosts_step_is_refused_and_audited(broker: redis.Redis) -> None:
    mine, other = Fleet.make(), Fleet.make()
    step = first_step(other.deploy())
    forged = mine.report(kind="step.finished", step=step.pk, fence=step.fence, outcome="succeeded", result={"port": 1})
    take_reports(broker, mine.host, [forged])
    step.refresh_from_db()
    assert step.state == "queued"
    entry = AuditEntry.objects.get(action="report.refused")
    assert mine.host.name in entry.target
    assert other.host.name in entry.target


def test_a_host_that_reports_for_another_hosts_instance_is_refused(broker: redis.Redis) -> None:
    mine, other = Fleet.make(), Fleet.make()
    other.deploy()
    instance = Instance.objects.get(host=other.host)
    take_reports(
        broker,
        mine.host,
        [mine.report(kind="instance.observed", instance=str(instance.uuid), generation=None, phase="crashed")],
    )
    instance.refresh_from_db()
    assert instance.state == "starting"
    assert AuditEntry.objects.filter(action="report.refused").count() == 1


def test_a_log_of_another_hosts_instance_is_not_stored(broker: redis.Redis) -> None:
    mine, other = Fleet.make(), Fleet.make()
    other.deploy()
    instance = Instance.objects.get(host=other.host)
    take_logs(broker, mine.host, [chunk(instance, 0, b"forged")])
    assert not Attempt.objects.exists()
    assert AuditEntry.objects.filter(action="report.refused").exists()


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_a_database_that_is_away_has_nothing_acknowledged_and_takes_it_once_it_is_back(
    broker: redis.Redis, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    step = first_step(fleet.deploy())
    report = fleet.report(kind="step.started", step=step.pk, fence=step.fence)

    def away(*_arguments: object) -> None:
        raise error("the connection is closed")

    with monkeypatch.context() as patched:
        patched.setattr(ingest, "_dispatch", away)
        with pytest.raises(error):
            take_reports(broker, fleet.host, [report])
    assert broker.hgetall(acknowledged_key(fleet.host.name)) == {}
    assert not UnreadReport.objects.exists()
    take_reports(broker, fleet.host, [report])
    step.refresh_from_db()
    assert step.state == "running"


def test_reports_that_come_twice_are_applied_once_and_acknowledged(broker: redis.Redis, fleet: Fleet) -> None:
    step = first_step(fleet.deploy())
    step.refresh_from_db()
    started = fleet.report(kind="step.started", step=step.pk, fence=step.fence)
    event = fleet.report(kind="step.event", step=step.pk, fence=step.fence, text="hello")
    take_reports(broker, fleet.host, [started, event, event, started])
    take_reports(broker, fleet.host, [event])
    assert step.job.events.filter(text="hello").count() == 1
    assert broker.hget(acknowledged_key(fleet.host.name), str(fleet.outbox)) == "2"


def test_a_report_that_is_ahead_waits_for_the_missing_one(broker: redis.Redis, fleet: Fleet) -> None:
    step = first_step(fleet.deploy())
    step.refresh_from_db()
    one, two, three = (
        fleet.report(kind="step.event", step=step.pk, fence=step.fence, text=text) for text in ("one", "two", "three")
    )
    take_reports(broker, fleet.host, [one, three])
    assert broker.hget(acknowledged_key(fleet.host.name), str(fleet.outbox)) == "1"
    take_reports(broker, fleet.host, [two, three])
    texts = list(step.job.events.filter(text__in=["one", "two", "three"]).values_list("text", flat=True))
    assert texts == ["one", "two", "three"]


def test_a_report_with_an_old_fence_is_recorded_but_not_applied(broker: redis.Redis, fleet: Fleet) -> None:
    step = first_step(fleet.deploy())
    Step.objects.filter(pk=step.pk).update(fence=5)
    take_reports(broker, fleet.host, [fleet.report(kind="step.finished", step=step.pk, fence=4, outcome="failed")])
    step.refresh_from_db()
    assert step.state == "queued"
    assert step.job.events.filter(text__contains="fence 4").exists()


def test_a_report_of_a_newer_agent_is_stored_and_does_not_hold_up_the_next(broker: redis.Redis, fleet: Fleet) -> None:
    step = first_step(fleet.deploy())
    step.refresh_from_db()
    unknown = json.loads(fleet.report(kind="step.started", step=step.pk, fence=step.fence))
    unknown["body"] = {"kind": "step.levitated", "step": step.pk}
    after = fleet.report(kind="step.event", step=step.pk, fence=step.fence, text="after")
    take_reports(broker, fleet.host, [json.dumps(unknown), after])
    assert "levitated" in UnreadReport.objects.get().content
    assert step.job.events.filter(text="after").exists()
    assert ReportCursor.objects.get(host=fleet.host).number == 2


def chunk(instance: Instance, offset: int, data: bytes, **more: object) -> str:
    import base64

    return LogChunk.model_validate(
        {
            "instance": instance.uuid,
            "attempt": 1,
            "offset": offset,
            "data": base64.b64encode(data).decode(),
            **more,
        }
    ).model_dump_json()


def test_a_log_is_neither_doubled_nor_holed(broker: redis.Redis, fleet: Fleet) -> None:
    fleet.deploy()
    instance = Instance.objects.get(host=fleet.host)
    take_logs(broker, fleet.host, [chunk(instance, 0, b"one\ntwo\n"), chunk(instance, 4, b"two\nthree\n")])
    take_logs(broker, fleet.host, [chunk(instance, 40, b"far ahead")])
    attempt = Attempt.objects.get(instance=instance)
    assert attempt.log_path.read_bytes() == b"one\ntwo\nthree\n"
    assert broker.hget(log_cursor_key(fleet.host.name), f"{instance.uuid}:1") == "14"
    take_logs(broker, fleet.host, [chunk(instance, 14, b"four\n", final=True)])
    attempt.refresh_from_db()
    assert attempt.log_path.read_bytes() == b"one\ntwo\nthree\nfour\n"
    assert attempt.log_complete


def test_what_a_crash_left_behind_the_committed_end_of_a_log_is_cut_off(broker: redis.Redis, fleet: Fleet) -> None:
    fleet.deploy()
    instance = Instance.objects.get(host=fleet.host)
    take_logs(broker, fleet.host, [chunk(instance, 0, b"one\n")])
    attempt = Attempt.objects.get(instance=instance)
    with attempt.log_path.open("ab") as file:
        file.write(b"tw")
    take_logs(broker, fleet.host, [chunk(instance, 4, b"two\n")])
    assert attempt.log_path.read_bytes() == b"one\ntwo\n"


def test_a_part_of_a_log_that_the_host_dropped_is_marked(broker: redis.Redis, fleet: Fleet) -> None:
    fleet.deploy()
    instance = Instance.objects.get(host=fleet.host)
    take_logs(broker, fleet.host, [chunk(instance, 0, b"one\n"), chunk(instance, 1004, b"end\n", gap=1000)])
    attempt = Attempt.objects.get(instance=instance)
    text = attempt.log_path.read_text()
    assert text.startswith("one\n")
    assert text.endswith("end\n")
    assert "1,000 bytes were dropped" in text
    assert attempt.log_bytes == len(text.encode())
    assert attempt.log_host_offset == 1008


def heartbeat(boot: str, **more: object) -> str:
    return Heartbeat.model_validate(
        {
            "agent_version": "0.1.0",
            "agent_pid": 7,
            "agent_boot": boot,
            "at": timezone.now().timestamp() - 90,
            "generation": {"epoch": 1, "number": 3},
            **more,
        }
    ).model_dump_json()


BOOT_A, BOOT_B = "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"


def test_a_heartbeat_makes_a_host_online_and_shows_its_clock_skew(fleet: Fleet) -> None:
    fleet.host.last_seen_at = None
    fleet.host.save()
    take_samples(fleet.host, [("1-0", heartbeat(BOOT_A))])
    fleet.host.refresh_from_db()
    assert fleet.host.is_online
    assert fleet.host.clock_skew_seconds == pytest.approx(-90, abs=2)
    assert fleet.host.reflected_generation == 3


def test_a_heartbeat_that_waited_is_no_wrong_clock_and_one_that_was_set_back_is(fleet: Fleet) -> None:
    def seen(*delays: float) -> float:
        for delay in delays:
            at = timezone.now().timestamp() - delay
            beat = Heartbeat(at=at, agent_boot=UUID(BOOT_A), agent_pid=1, agent_version="0.1.0", generation=None)
            services.heard(fleet.host, beat)
        fleet.host.refresh_from_db()
        return fleet.host.clock_skew_seconds or 0.0

    assert abs(seen(0, 30)) < 2
    assert abs(seen(0)) < 0.5
    assert seen(*[60] * 100) == pytest.approx(-60, abs=2)
    assert abs(seen(0)) < 0.5


def test_a_new_agent_has_lost_the_steps_that_it_does_not_name(broker: redis.Redis, fleet: Fleet) -> None:
    step = first_step(fleet.deploy())
    step.refresh_from_db()
    take_samples(fleet.host, [("1-0", heartbeat(BOOT_A))])
    take_reports(broker, fleet.host, [fleet.report(kind="step.started", step=step.pk, fence=step.fence)])
    take_samples(fleet.host, [("1-0", heartbeat(BOOT_A, running_steps=[step.pk]))])
    step.refresh_from_db()
    assert (step.state, step.fence) == ("running", 1)
    fleet.host.refresh_from_db()
    take_samples(fleet.host, [("1-0", heartbeat(BOOT_B))])
    step.refresh_from_db()
    assert (step.state, step.fence) == ("queued", 2)

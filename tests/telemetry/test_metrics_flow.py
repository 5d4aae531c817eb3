"""From a host's samples to rings, roll-ups and charts, through a real broker and the database."""

import time
from uuid import UUID

import pytest
import redis

from console.access.models import AuditEntry
from console.deployments import current
from console.deployments.models import Instance
from console.telemetry import history, rollups
from console.telemetry.history import Span
from console.telemetry.ingest import Ingest
from console.telemetry.intake import Intake
from console.telemetry.measures import totals
from console.telemetry.models import HOUR, MetricsHour
from console.telemetry.rings import LIVE, STORED, Rings, ring
from tests.factories import Fleet
from tests.telemetry.samples import FakeLoad
from workers.contracts import samples_stream

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def instance(broker: redis.Redis, fleet: Fleet) -> Instance:
    broker.delete(STORED, current.KEY, LIVE)
    fleet.deploy()
    return Instance.objects.get(host=fleet.host)


def entry(second: float) -> str:
    return f"{int(second * 1000)}-0"


def play(intake: Intake, instance: Instance, load: FakeLoad, first: int, seconds: int, *, each: int = 1) -> None:
    """A sample a second in each of which `each` requests were answered; the one at `first` is the first."""
    for second in range(first, first + seconds):
        if second > first:
            load.answer(each)
        intake.take(instance.host, [(entry(second), load.batch(instance.uuid, second))])


def now() -> int:
    return int(time.time())


def test_the_last_minutes_are_there_second_by_second(broker: redis.Redis, instance: Instance) -> None:
    start = now() - 100
    play(Intake(Rings(broker)), instance, FakeLoad(), start, 61, each=2)
    span = Span.last(900)
    assert span.step == 1
    columns = history.read([instance], span)[instance.pk]
    assert columns.starts == list(range(start + 1, start + 61))
    assert totals([columns]).requests == 120
    assert totals([columns]).quantile("time_to_first_token", 0.5) == pytest.approx(0.05, rel=0.2)


def test_a_restarted_ingest_counts_on_from_the_sample_that_stayed_in_the_lane(
    broker: redis.Redis, instance: Instance
) -> None:
    stream, load = samples_stream(instance.host.name), FakeLoad()
    start = now() - 50

    def send(second: int) -> None:
        broker.xadd(stream, {"json": load.batch(instance.uuid, second).model_dump_json()}, id=entry(second))

    def read_all() -> None:
        ingest = Ingest()
        for _ in range(2):
            ingest._round()

    send(start)
    load.answer(3)
    send(start + 1)
    read_all()
    assert broker.xlen(stream) == 1
    load.answer(4)
    send(start + 2)
    load.answer(5)
    send(start + 3)
    read_all()
    read_all()
    columns = history.read([instance], Span.last(900))[instance.pk]
    assert columns.starts == [start + 1, start + 2, start + 3]
    assert totals([columns]).requests == 12


def test_minutes_are_rolled_up_once_and_a_range_joins_the_database_and_the_ring(
    broker: redis.Redis, instance: Instance
) -> None:
    rings, load = Rings(broker), FakeLoad()
    minute = now() // 60 * 60
    start = minute - 240
    intake = Intake(rings)
    play(intake, instance, load, start, 230)
    assert rollups.store_due(broker, rings, now=minute - 120 + rollups.LATE_SECONDS) == 1
    assert rollups.store_due(broker, rings, now=minute - 120 + rollups.LATE_SECONDS) == 0
    for resolution in (10, 60):
        rows = MetricsHour.objects.filter(resolution_seconds=resolution)
        assert totals([rollups.unpacked(row) for row in rows]).requests == 119
    # As if Redis had forgotten what is stored: the rows themselves take nothing twice.
    broker.zadd(STORED, {str(instance.uuid): start})
    rollups.store_due(broker, rings, now=minute - 120 + rollups.LATE_SECONDS)
    span = Span.between(start - 4000, minute)
    assert span.step == 10
    assert totals([history.read([instance], span)[instance.pk]]).requests == 229
    rollups.store_due(broker, rings, now=minute + rollups.LATE_SECONDS)
    broker.delete(ring(instance.uuid))
    assert totals([history.read([instance], span)[instance.pk]]).requests == 229


@pytest.mark.parametrize("seconds", [3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600, 30 * 24 * 3600])
def test_every_range_shows_all_that_was_counted(broker: redis.Redis, instance: Instance, seconds: int) -> None:
    rings, load = Rings(broker), FakeLoad()
    minute = now() // 60 * 60
    play(Intake(rings), instance, load, minute - 600, 590)
    rollups.store_due(broker, rings, now=minute - 120)
    span = Span.last(seconds)
    columns = history.read([instance], span)[instance.pk]
    assert totals([columns]).requests == 589
    assert len(history.moments([columns], span)) <= history.MOST_POINTS + 1


def test_an_hour_that_ends_in_the_middle_is_two_rows(broker: redis.Redis, instance: Instance) -> None:
    rings = Rings(broker)
    hour = now() // HOUR * HOUR
    broker.zadd(STORED, {str(instance.uuid): hour - 60})
    play(Intake(rings), instance, FakeLoad(), hour - 60, 121)
    rollups.store_due(broker, rings, now=hour + 200)
    begins = MetricsHour.objects.filter(resolution_seconds=10).values_list("begins_at", flat=True)
    assert list(begins) == [hour - HOUR, hour]


def test_old_rows_go(instance: Instance) -> None:
    hour = now() // HOUR * HOUR
    for resolution, age in ((10, 20), (10, 40), (60, 20 * 24), (60, 31 * 24)):
        MetricsHour.objects.create(
            instance=instance, resolution_seconds=resolution, begins_at=hour - age * HOUR, packed=b""
        )
    assert rollups.prune() == 2
    kept = MetricsHour.objects.values_list("resolution_seconds", "begins_at")
    assert set(kept) == {(10, hour - 20 * HOUR), (60, hour - 20 * 24 * HOUR)}


def test_the_numbers_of_right_now_are_of_the_last_minute(broker: redis.Redis, instance: Instance) -> None:
    intake, load = Intake(Rings(broker)), FakeLoad(kv=0.25, running=3)
    play(intake, instance, load, now() - 80, 80, each=2)
    intake.tell_current(broker)
    found = current.of_instances([instance.uuid])[instance.uuid]
    assert found.requests == pytest.approx(2)
    assert found.generation_tokens == pytest.approx(40)
    assert (found.kv_usage, found.running) == (0.25, 3)
    assert found.ttft_p95 == pytest.approx(0.06, abs=0.01)
    whole = current.together([found, found])
    assert whole is not None
    assert whole.requests == pytest.approx(4)
    assert whole.ttft_p95 == found.ttft_p95


def test_numbers_that_nobody_renews_are_no_longer_shown(broker: redis.Redis, instance: Instance) -> None:
    intake = Intake(Rings(broker))
    play(intake, instance, FakeLoad(), now() - 90, 30)
    intake.tell_current(broker)
    assert current.of_instances([instance.uuid]) == {}


def test_metrics_of_another_hosts_instance_are_refused_and_audited_once(
    broker: redis.Redis, instance: Instance
) -> None:
    other, intake = Fleet.make(), Intake(Rings(broker))
    load = FakeLoad()
    for second in range(now() - 5, now()):
        load.answer()
        intake.take(other.host, [(entry(second), load.batch(instance.uuid, second))])
    assert not broker.exists(ring(instance.uuid))
    assert AuditEntry.objects.filter(action="report.refused").count() == 1


def test_metrics_of_an_instance_that_is_not_known_are_passed_over(broker: redis.Redis, instance: Instance) -> None:
    stranger, load, intake = UUID(int=7), FakeLoad(), Intake(Rings(broker))
    for second in range(now() - 5, now()):
        intake.take(instance.host, [(entry(second), load.batch(stranger, second))])
    assert not broker.exists(ring(stranger))
    assert not AuditEntry.objects.filter(action="report.refused").exists()


def test_slipways_own_requests_are_nobodys_load(broker: redis.Redis, instance: Instance) -> None:
    intake, load, start = Intake(Rings(broker)), FakeLoad(), now() - 20
    for second in range(5):
        load.answer(4)  # validation and warm-up
        load.running = 1
        batch = load.batch(instance.uuid, start + second, own_since=0)
        intake.take(instance.host, [(entry(start + second), batch)])
    (columns,) = history.read([instance], Span.last(900)).values()
    whole = totals([columns])
    assert (whole.requests, whole.generation_tokens, whole.quantile("time_to_first_token", 0.5)) == (0, 0, None)
    assert set(columns.values["now.requests_running"]) == {0}
    load.answer(3)
    intake.take(instance.host, [(entry(start + 5), load.batch(instance.uuid, start + 5))])
    assert totals(list(history.read([instance], Span.last(900)).values())).requests == 3


def test_a_persons_requests_in_a_lost_sample_count_although_a_probe_came_after(
    broker: redis.Redis, instance: Instance
) -> None:
    intake, load, start = Intake(Rings(broker)), FakeLoad(), now() - 20
    intake.take(instance.host, [(entry(start), load.batch(instance.uuid, start))])
    load.answer(7)  # told at start + 1, in a sample that never arrives
    load.answer(1, tokens=1)
    intake.take(instance.host, [(entry(start + 2), load.batch(instance.uuid, start + 2, own_since=start + 1))])
    assert totals(list(history.read([instance], Span.last(900)).values())).requests == 8

"""Reports and logs through a real broker that breaks, and a console that forgets to answer."""

import asyncio
import base64
import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.host.conftest import PATIENCE, Broker, Console, HostUnderTest, make_host
from workers.contracts import LogChunk, StepEvent, acknowledged_key, log_cursor_key, logs_stream, reports_stream
from workers.host import logs, redis_link, reports
from workers.host.instance_files import InstanceFiles
from workers.host.logs import LogSender, LogTail
from workers.host.outbox import Outbox
from workers.host.reports import ReportSender


@pytest.fixture
def outbox(host: HostUnderTest) -> Outbox:
    return Outbox(host.config.state_dir / "outbox.sqlite3")


@asynccontextmanager
async def running(lane: ReportSender | LogSender, redis_url: str) -> AsyncIterator[None]:
    task = asyncio.create_task(redis_link.keep_connected("lane", redis_link.Address(redis_url), lane.session))
    try:
        yield
    finally:
        await redis_link.end([task])


async def until(condition: Any, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "still not so"
        await asyncio.sleep(0.01)


def add(outbox: Outbox, *texts: object) -> None:
    for text in texts:
        outbox.add(StepEvent(step=1, fence=1, text=str(text)))


def sent(broker: Broker, name: str) -> list[int]:
    return [json.loads(fields[b"json"])["number"] for _id, fields in broker.admin.xrange(reports_stream(name))]


def acknowledge(broker: Broker, name: str, outbox: Outbox, number: int) -> None:
    broker.admin.hset(acknowledged_key(name), str(outbox.id), number)


async def test_reports_arrive_in_order_and_are_forgotten_once_acknowledged(
    shared_broker: Broker, host: HostUnderTest, outbox: Outbox
) -> None:
    name = host.config.name
    lane = ReportSender(name, outbox)
    add(outbox, *range(3))
    async with running(lane, host.config.redis_url):
        await until(lambda: sent(shared_broker, name) == [1, 2, 3])
        add(outbox, "more")
        await until(lambda: sent(shared_broker, name) == [1, 2, 3, 4])
        acknowledge(shared_broker, name, outbox, 3)
        lane.doorbell.set()
        await until(lambda: outbox.depth() == 1)


async def test_a_report_is_in_the_stream_within_50_ms(
    shared_broker: Broker, host: HostUnderTest, outbox: Outbox
) -> None:
    name = host.config.name
    delays = []
    async with running(ReportSender(name, outbox), host.config.redis_url):
        add(outbox, "first")
        await until(lambda: len(sent(shared_broker, name)) == 1)
        for number in range(2, 12):
            began = time.monotonic()
            add(outbox, number)
            while len(sent(shared_broker, name)) < number:
                await asyncio.sleep(0.002)
            delays.append(time.monotonic() - began)
    assert statistics.median(delays) < 0.05


async def test_what_is_not_acknowledged_is_sent_again(
    shared_broker: Broker, host: HostUnderTest, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_RESEND_AFTER_SECONDS", 0.2)
    name = host.config.name
    add(outbox, *range(3))
    acknowledge(shared_broker, name, outbox, 1)
    async with running(ReportSender(name, outbox), host.config.redis_url):
        await until(lambda: sent(shared_broker, name)[:4] == [2, 3, 2, 3])


async def test_only_so_many_are_under_way_so_that_the_stream_s_cap_drops_nothing(
    shared_broker: Broker, host: HostUnderTest, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_IN_FLIGHT", 5)
    name = host.config.name
    add(outbox, *range(12))
    async with running(ReportSender(name, outbox), host.config.redis_url):
        await until(lambda: sent(shared_broker, name) == [1, 2, 3, 4, 5])
        await asyncio.sleep(0.2)
        assert sent(shared_broker, name) == [1, 2, 3, 4, 5]
        acknowledge(shared_broker, name, outbox, 4)
        await until(lambda: sent(shared_broker, name) == list(range(1, 10)))


async def test_a_broker_that_lost_everything_gets_every_unacknowledged_report_again(
    tmp_path: Path, own_broker: Broker
) -> None:
    host = make_host(tmp_path, own_broker)
    outbox = Outbox(host.config.state_dir / "outbox.sqlite3")
    name = host.config.name
    add(outbox, *range(4))
    async with running(ReportSender(name, outbox), host.config.redis_url):
        await until(lambda: sent(own_broker, name) == [1, 2, 3, 4])
        acknowledge(own_broker, name, outbox, 2)
        await until(lambda: outbox.depth() == 2)
        own_broker.kill()
        add(outbox, "meanwhile")
        for file in (tmp_path / "broker").rglob("*.aof*"):
            file.unlink()
        own_broker.start()
        own_broker.add_host(name)
        await until(lambda: sent(own_broker, name)[:3] == [3, 4, 5])


async def test_a_frozen_broker_does_not_stop_the_loop(
    tmp_path: Path, own_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_link, "_TIMEOUT_SECONDS", 0.5)
    host = make_host(tmp_path, own_broker)
    outbox = Outbox(host.config.state_dir / "outbox.sqlite3")
    async with running(ReportSender(host.config.name, outbox), host.config.redis_url):
        add(outbox, "before")
        await until(lambda: sent(own_broker, host.config.name) == [1])
        own_broker.freeze()
        add(outbox, "during")
        longest = 0.0
        for _tick in range(40):
            began = time.monotonic()
            await asyncio.sleep(0.02)
            longest = max(longest, time.monotonic() - began)
        own_broker.thaw()
        await until(lambda: sorted(set(sent(own_broker, host.config.name))) == [1, 2])
    assert longest < 0.4


async def test_a_lane_ends_whenever_it_is_told_to(host: HostUnderTest, outbox: Outbox) -> None:
    # redis-py swallows some cancellations while it connects: an agent that trusts in one would never end.
    for number in range(40):
        async with asyncio.timeout(20):
            async with running(ReportSender(host.config.name, outbox), host.config.redis_url):
                await asyncio.sleep(number % 20 * 0.001)


# -- logs ------------------------------------------------------------------------------------------------------------


def make_log(host: HostUnderTest, content: bytes = b"") -> tuple[InstanceFiles, Path]:
    files = InstanceFiles.of(host.config.state_dir, uuid4())
    files.attempt_directory(1).mkdir(parents=True)
    files.log(1).write_bytes(content)
    return files, files.log(1)


async def test_a_log_arrives_whole_whatever_is_cut_off_in_between(
    host: HostUnderTest, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_RESEND_AFTER_SECONDS", 0.2)
    monkeypatch.setattr(logs, "CHUNK_BYTES", 100)
    files, path = make_log(host)
    key = (str(files.instance), 1)
    lane = LogSender(host.config.name)
    lane.follow(files, 1, [])
    async with running(lane, host.config.redis_url):
        with path.open("ab", buffering=0) as log:
            for number in range(60):
                log.write(f"line {number} of the log, 中文\n".encode())
                console.acknowledging = number % 20 < 10
                console.take()
                await asyncio.sleep(0.005)
        console.acknowledging = True
        await until(lambda: (console.take(), bytes(console.logs[key]) == path.read_bytes())[1])
    async with running(lane, host.config.redis_url):
        with path.open("ab") as log:
            log.write(b"the last words")
        lane.ended(files.instance, 1)
        await until(lambda: (console.take(), key in console.final)[1])
        assert bytes(console.logs[key]) == path.read_bytes()
        await until((files.attempt_directory(1) / "log-sent").exists)


async def test_a_line_is_in_the_stream_within_100_ms(shared_broker: Broker, host: HostUnderTest) -> None:
    files, path = make_log(host, b"first\n")
    lane = LogSender(host.config.name)
    lane.follow(files, 1, [])
    stream = logs_stream(host.config.name)
    delays = []
    async with running(lane, host.config.redis_url):
        await until(lambda: shared_broker.admin.xlen(stream) == 1)
        for number in range(2, 10):
            began = time.monotonic()
            with path.open("ab") as log:
                log.write(b"x\n")
            while shared_broker.admin.xlen(stream) < number:
                await asyncio.sleep(0.002)
            delays.append(time.monotonic() - began)
    assert statistics.median(delays) < 0.1


def data_of(chunk: LogChunk | None) -> bytes:
    assert chunk is not None
    return base64.b64decode(chunk.data)


def test_behind_the_head_only_the_newest_part_is_kept_and_the_gap_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "HEAD_BYTES", 10)
    monkeypatch.setattr(logs, "TAIL_BYTES", 20)
    path = tmp_path / "log"
    path.write_bytes(bytes(range(100)))
    tail = LogTail(uuid4(), 1, path, ended=True)
    head = tail.next_chunk()
    assert data_of(head) == bytes(range(10))
    rest = tail.next_chunk()
    assert rest is not None
    assert (rest.offset, rest.gap, rest.final) == (80, 70, True)
    assert data_of(rest) == bytes(range(80, 100))
    assert tail.next_chunk() is None


def test_blocks_of_the_gap_are_given_back_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HEAD_BYTES", 8192), ("TAIL_BYTES", 8192), ("_PUNCH_STEP_BYTES", 4096)):
        monkeypatch.setattr(logs, name, value)
    path = tmp_path / "log"
    path.write_bytes(b"x" * 400_000)
    before = path.stat()
    tail = LogTail(uuid4(), 1, path, punched=8192)
    tail.give_back_blocks()
    after = path.stat()
    assert after.st_size == before.st_size
    assert after.st_blocks < before.st_blocks / 4
    assert path.read_bytes()[:8192] == b"x" * 8192
    assert path.read_bytes()[-8192:] == b"x" * 8192


def test_a_log_keeps_its_cap_while_there_is_no_broker(host: HostUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HEAD_BYTES", 8192), ("TAIL_BYTES", 8192), ("_PUNCH_STEP_BYTES", 4096)):
        monkeypatch.setattr(logs, name, value)
    files, path = make_log(host, b"x" * 400_000)
    lane = LogSender(host.config.name)
    lane.follow(files, 1, [])
    for _round in range(3):
        lane.keep_caps()
        assert path.stat().st_blocks * 512 < 100_000
        with path.open("ab") as log:
            log.write(b"y" * 60_000)
    assert path.read_bytes().endswith(b"y" * 8192)


def test_a_secret_in_a_log_is_masked_and_offsets_stay(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"key=sk-12345678 end\nkey=sk-1234")
    tail = LogTail(uuid4(), 1, path, secrets=[b"sk-12345678"])
    assert data_of(tail.next_chunk()) == b"key=*********** end\n"
    with path.open("ab") as log:
        log.write(b"5678\n")
    assert data_of(tail.next_chunk()) == b"key=***********\n"


async def test_the_console_s_cursor_decides_where_sending_goes_on(shared_broker: Broker, host: HostUnderTest) -> None:
    files, _path = make_log(host, b"0123456789")
    shared_broker.admin.hset(log_cursor_key(host.config.name), f"{files.instance}:1", 4)
    lane = LogSender(host.config.name)
    lane.follow(files, 1, [])
    stream = logs_stream(host.config.name)
    async with running(lane, host.config.redis_url):
        await until(lambda: shared_broker.admin.xlen(stream) == 1)
    ((_id, fields),) = shared_broker.admin.xrange(stream)
    chunk = LogChunk.model_validate_json(fields[b"json"])
    assert (chunk.offset, data_of(chunk)) == (4, b"456789")

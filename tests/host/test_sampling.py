"""The sampler: one round a second for all engines, whatever the engines or the broker do."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.host.conftest import Broker, Console, HostUnderTest, wait_for
from tests.host.test_lanes import until
from tests.ports import free_port
from workers.contracts import MetricsBatch, samples_stream
from workers.host import redis_link
from workers.host.sampling import Sampler, Target, body_of, scrape
from workers.vllm.metrics import parse_metrics
from workers.vllm.sample_messages import from_message

REAL = (Path(__file__).parents[1] / "vllm" / "metrics" / "0.32.0-cpu.txt").read_bytes()


def whole(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def chunked(body: bytes, size: int = 1000) -> bytes:
    """As uvicorn sends it, which is what vLLM runs on."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n"


@asynccontextmanager
async def engine(answer: bytes, *, delay: float = 0) -> AsyncIterator[int]:
    """Something that answers every request with `answer`; yields its port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(delay)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("form", [whole, chunked])
async def test_a_scrape_reads_what_the_engine_says(form) -> None:
    async with engine(form(REAL)) as port:
        sample = await scrape(port)
    assert sample is not None
    expected = parse_metrics(REAL.decode(), taken_at=sample.taken_at)
    assert sample == expected


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        whole(b"", "503 Service Unavailable"),
        whole(REAL)[:-100],
        chunked(REAL)[:-500],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_half_an_answer_is_no_answer(answer: bytes) -> None:
    async with engine(answer) as port:
        assert await scrape(port) is None
    with pytest.raises(ValueError, match=r".+"):
        body_of(answer)


async def test_a_port_where_nothing_listens_is_no_answer() -> None:
    assert await scrape(free_port()) is None


async def test_a_slow_engine_costs_its_own_sample_only(shared_broker: Broker, host: HostUnderTest) -> None:
    quick, slow = uuid4(), uuid4()
    async with engine(whole(REAL)) as one, engine(whole(REAL), delay=5) as two:
        sampler = Sampler(host.config.name, lambda: [Target(quick, 1, one), Target(slow, 3, two)])
        task = asyncio.create_task(
            redis_link.keep_connected("samples", redis_link.Address(host.config.redis_url), sampler.session)
        )  # the first thing it does is to forget what is old
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await sampler.sample_all()
        assert time.monotonic() - began < 1.5
        assert set(sampler.latest) == {quick}
        await until(lambda: shared_broker.admin.xlen(samples_stream(host.config.name)) == 1)
        await redis_link.end([task])
    ((_id, fields),) = shared_broker.admin.xrange(samples_stream(host.config.name))
    batch = MetricsBatch.model_validate_json(fields[b"json"])
    assert batch.without == [slow]
    (sent,) = batch.samples
    assert (sent.instance, sent.attempt) == (quick, 1)
    # Of the pool's size, which is set at the start, the log tells; everything else arrives as it was read.
    expected = parse_metrics(REAL.decode(), taken_at=sampler.latest[quick].sample.taken_at)
    received = from_message(sent)
    for name in ("prompt_tokens", "finished", "kv_cache_usage", "time_to_first_token", "queue_wait", "asleep"):
        assert getattr(received, name) == getattr(expected, name), name


async def test_a_sample_costs_less_than_parsing_with_prometheus_client_alone(host: HostUnderTest) -> None:
    rounds, instances = 20, 5
    async with engine(chunked(REAL, 65536)) as port:
        targets = [Target(uuid4(), 1, port) for _ in range(instances)]
        sampler = Sampler(host.config.name, lambda: targets)
        await sampler.sample_all()
        began = time.process_time()
        for _ in range(rounds):
            await sampler.sample_all()
        # The little server runs in this process as well, so this is an upper bound.
        each = (time.process_time() - began) / (rounds * instances)
    assert len(sampler.latest) == instances
    began = time.process_time()
    for _ in range(rounds):
        list(text_string_to_metric_families(REAL.decode()))
    assert each < (time.process_time() - began) / rounds


async def test_without_a_broker_sampling_goes_on_and_old_batches_are_not_kept(host: HostUnderTest) -> None:
    async with engine(whole(REAL)) as port:
        sampler = Sampler(host.config.name, lambda: [Target(UUID(int=1), 1, port)])
        for _ in range(30):
            await sampler.sample_all()
    assert UUID(int=1) in sampler.latest
    assert len(sampler._waiting) <= 5


def test_an_agent_sends_a_sample_a_second_of_an_engine_that_listens(console: Console, host: HostUnderTest) -> None:
    host.start_agent()
    order = host.order()
    console.want(order)
    console.wait_phase(order.instance, "ready")
    wait_for(lambda: len(console.samples("metrics")) >= 3, what="three batches")
    sample = console.samples("metrics")[-1]["samples"][0]
    assert sample["instance"] == str(order.instance)
    assert sample["counters"]["generation_tokens"] > 0
    assert sample["now"]["requests_running"] == 0
    console.want(order.model_copy(update={"run": False}))
    console.wait_phase(order.instance, "stopped")
    time.sleep(1.2)
    count = len(console.samples("metrics"))
    time.sleep(1.5)
    assert len(console.samples("metrics")) == count

"""What the gateway adds to a request, how many it takes, and whether large bodies harm others: before a static backend.

The backend is an HAProxy of its own that returns a fixed answer, so that the numbers are the gateway's. The client is
plain sockets: a library would cost more than what is measured.
"""

import os
import selectors
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

from bench import gateway_litellm, gateway_streams
from bench.console import Bench
from bench.rows import Row
from tests.gateway.backend import BINARY, Engine, Running, key_of, route_of, target_of, wait_until
from tests.ports import free_port

ONE_BY_ONE = 2000
SECONDS = 5.0
AT_ONCE = 32
ADDED_MS = 0.3
PER_SECOND = 5000.0
LARGE_BYTES = 10 * 1024 * 1024
LARGER_PERCENT = 20.0

BODY = b'{"model":"chat","max_tokens":16,"messages":[{"role":"user","content":"What is the capital of France?"}]}'
ANSWER = (
    '{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Paris."},'
    '"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}'
)
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer secret\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
LARGE = REQUEST.split(b"\r\n\r\n")[0].replace(b"Content-Length: %d" % len(BODY), b"Content-Length: %d" % LARGE_BYTES)


def measure(bench: Bench) -> list[Row]:  # noqa: ARG001 - every measurement gets the console; this one needs none
    """All rows of the gateway."""
    with tempfile.TemporaryDirectory(prefix="slipway-bench-gateway-") as folder, static_backend(Path(folder)) as port:
        gateway = Running(Path(folder))
        try:
            gateway.start(routes=(route_of(target_of(Engine(port=port))),), keys=(key_of("secret"),))
            behind = gateway.gateway.listener.port
            wait_until(lambda: gateway.ask().status_code == 200, seconds=10)
            with plain_proxy(Path(folder), port) as plain:
                first = added(port, behind, plain)
            rows = [first, throughput(behind), harm(behind), *gateway_litellm.measure(port, REQUEST)]
        finally:
            gateway.stop()
        streaming = Running(Path(folder) / "streams")
        try:
            return rows + gateway_streams.measure(streaming)
        finally:
            streaming.stop()


@contextmanager
def static_backend(folder: Path) -> Iterator[int]:
    """A server that always returns the same completion; its port."""
    port = free_port()
    rules = f"http-request return status 200 content-type application/json string '{ANSWER}'"
    with haproxy(folder / "static.cfg", f"frontend static\n    bind 127.0.0.1:{port}\n    {rules}\n"):
        yield port


@contextmanager
def plain_proxy(folder: Path, backend: int) -> Iterator[int]:
    """An HAProxy that only passes on, to tell what this machine makes of any proxy; its port."""
    port = free_port()
    bind = f"    bind 127.0.0.1:{port}\n    server static 127.0.0.1:{backend}\n"
    with haproxy(folder / "plain.cfg", f"listen plain\n{bind}"):
        wait_until(lambda: answers(port), seconds=10)
        yield port


@contextmanager
def haproxy(config: Path, sections: str) -> Iterator[None]:
    """Run one with these sections behind common settings."""
    timeouts = "    timeout client 60s\n    timeout connect 1s\n    timeout server 60s\n"
    config.write_text(f"global\n    nbthread 1\n    maxconn 2000\ndefaults\n    mode http\n{timeouts}{sections}")
    process = subprocess.Popen([BINARY, "-db", "-f", str(config)], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


def answers(port: int) -> bool:
    """Whether a request gets its answer there."""
    try:
        with socket.create_connection(("127.0.0.1", port)) as link:
            return one_answer(link) > 0
    except OSError:
        return False


def added(direct: int, behind: int, plain: int) -> Row:
    """Median of one request after the other: by the gateway, without it, and by a plain HAProxy, in turns."""
    links = [socket.create_connection(("127.0.0.1", port)) for port in (direct, behind, plain)]
    times: list[list[float]] = [[] for _link in links]
    for _number in range(ONE_BY_ONE):
        for taken, link in zip(times, links, strict=True):
            taken.append(one_answer(link))
    for link in links:
        link.close()
    without, with_it, passed_on = (median(some[100:]) * 1000 for some in times)
    reference = (
        f"median of {ONE_BY_ONE} one by one: {with_it:.3f} ms by the gateway, {without:.3f} ms without it, "
        f"{passed_on:.3f} ms by an HAProxy that only passes on"
    )
    return Row("gateway adds", round(with_it - without, 3), "ms", ADDED_MS, "lower", reference)


def one_answer(link: socket.socket) -> float:
    """Seconds of one request on an open connection."""
    began = time.perf_counter()
    link.sendall(REQUEST)
    answer = b""
    while not answer.endswith(ANSWER[-20:].encode()):
        piece = link.recv(65536)
        if not piece:
            raise ConnectionError(answer[:200])
        answer += piece
    return time.perf_counter() - began


def throughput(port: int) -> Row:
    """Answers a second on 32 connections."""
    selector = selectors.DefaultSelector()
    for _number in range(AT_ONCE):
        link = socket.create_connection(("127.0.0.1", port))
        selector.register(link, selectors.EVENT_READ)
        link.sendall(REQUEST)
    count, end = 0, ANSWER[-20:].encode()
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        for key, _events in selector.select(1):
            link = key.fileobj  # type: ignore[assignment]
            if link.recv(65536).endswith(end):
                count += 1
                link.sendall(REQUEST)
    rate = count / (time.perf_counter() - began)
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
    reference = f"{AT_ONCE} connections for {SECONDS:.0f} s; client, gateway and backend share {os.cpu_count()} cores"
    return Row("gateway throughput", round(rate), "requests/s", PER_SECOND, "higher", reference)


def harm(port: int) -> Row:
    """The slowest hundredth of other clients' requests while one sends bodies of 10 MB, against without."""
    alone = slowest_hundredth(port)
    done = threading.Event()
    sender = threading.Thread(target=send_large, args=(port, done))
    sender.start()
    try:
        beside = slowest_hundredth(port)
    finally:
        done.set()
        sender.join(30)
    percent = 100 * (beside / alone - 1)
    reference = (
        f"p99 of {ONE_BY_ONE} requests: {alone * 1000:.2f} ms alone, {beside * 1000:.2f} ms beside bodies of 10 MB"
    )
    return Row("10 MB bodies harm others", round(percent, 1), "%", LARGER_PERCENT, "lower", reference)


def slowest_hundredth(port: int) -> float:
    """The 99th percentile of one request after the other, in seconds."""
    with socket.create_connection(("127.0.0.1", port)) as link:
        return quantiles([one_answer(link) for _number in range(ONE_BY_ONE)], n=100)[-1]


def send_large(port: int, done: threading.Event) -> None:
    """Send bodies over the limit until told to stop; each is refused."""
    while not done.is_set():
        with socket.create_connection(("127.0.0.1", port)) as link:
            link.settimeout(10)
            try:
                link.sendall(LARGE + b"\r\n\r\n")
                for _piece in range(LARGE_BYTES // 65536):
                    link.sendall(b"x" * 65536)
                link.recv(65536)
            except OSError:
                continue

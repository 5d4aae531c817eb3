"""The access log as syslog and as OpenTelemetry's logs, to real sockets; a receiver that is away holds nothing up."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from console.gateway import sending
from tests.gateway.backend import wait_until
from tests.ports import free_port

LINE = {
    "id": "abc", "at": "2026-11-30T08:00:00.123+00:00", "at_ns": 1_796_025_600_123_000_000, "key": 3,
    "path": "/v1/chat/completions", "route": "chat", "model": "chät", "deployment": "d", "instance": 7, "status": 200,
    "refusal": "", "prompt_tokens": 7, "output_tokens": None, "ttft_ms": 12,
}  # fmt: skip


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """A server that takes OpenTelemetry's logs; what it got."""
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/logs", got
    server.shutdown()
    server.server_close()


def test_each_request_is_a_message_of_syslog_by_udp() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(5)
        sender = sending.Sender(sending.Syslog(f"udp://127.0.0.1:{receiver.getsockname()[1]}"))
        sender.add([LINE, LINE | {"id": "second"}])
        first, second = (receiver.recv(65536).decode() for _number in range(2))
    head, content = first.split(" - request - ")
    assert head.startswith("<134>1 2026-11-30T08:00:00.123+00:00 ")
    assert head.endswith(" slipway-gateway")
    assert json.loads(content) == {name: value for name, value in LINE.items() if name != "at_ns"}
    assert '"id":"second"' in second


def test_by_tcp_octets_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sink = sending.Syslog(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        sink.send([LINE, LINE])
        link, _address = server.accept()
        with link:
            data = link.recv(65536)
    size, _space, rest = data.partition(b" ")
    message = rest[: int(size)]
    assert message.startswith(b"<134>1 ")
    assert json.loads(message.split(b" - request - ")[1])["model"] == "chät"
    assert rest[int(size) :].startswith(size + b" ")


def test_each_request_is_a_record_of_opentelemetry(collector: tuple[str, list[Any]]) -> None:
    address, got = collector
    sending.Sender(sending.Otlp(address)).add([LINE, LINE | {"status": 503}])
    wait_until(lambda: sum(len(_records(one)) for _path, one in got) == 2, seconds=5)
    assert got[0][0] == "/v1/logs"
    records = [record for _path, one in got for record in _records(one)]
    assert [one["severityNumber"] for one in records] == [9, 17]
    assert records[0]["timeUnixNano"] == "1796025600123000000"
    attributes = {one["key"]: one["value"] for one in records[0]["attributes"]}
    assert attributes["id"] == {"stringValue": "abc"}
    assert attributes["prompt_tokens"] == {"intValue": "7"}
    assert "output_tokens" not in attributes


def _records(content: Any) -> list[Any]:
    return list(content["resourceLogs"][0]["scopeLogs"][0]["logRecords"])


def test_a_receiver_that_is_away_holds_nothing_up_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "MOST_WAITING", 100)
    address = f"http://127.0.0.1:{free_port()}/v1/logs"
    sender = sending.Sender(sending.Otlp(address))
    began = time.monotonic()
    sender.add([LINE] * 1000)
    assert time.monotonic() - began < 1
    wait_until(lambda: sender.problem, seconds=5)
    assert sender.problem.startswith(address)
    assert sender.dropped >= 400


def test_an_address_that_is_none_is_left_out() -> None:
    assert sending.sinks(syslog="collector:514", otlp="ftp://x") == []
    assert [one.address for one in sending.sinks(syslog="udp://h", otlp="http://h/v1/logs")] == [
        "udp://h", "http://h/v1/logs",
    ]  # fmt: skip

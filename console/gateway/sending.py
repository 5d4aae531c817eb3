"""The access log on its way out: each request as a line of syslog, and as a log record of OpenTelemetry.

What can't be sent is dropped and counted; nothing waits for a receiver that is away. The rows and the daily files have all.
"""

import json
import queue
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx2
import structlog

log = structlog.get_logger(__name__)

Line = Mapping[str, Any]
"""A request as `access_log.as_json` makes it, and `at_ns`, its Unix time in nanoseconds."""

MOST_WAITING = 20_000
BATCH = 500
SECONDS = 5.0
"""How long one batch may take, and the pause after one that failed."""
INFORMATIONAL_LOCAL0 = 16 * 8 + 6
SYSLOG_PORT = 514
SEVERITY_INFO, SEVERITY_WARN, SEVERITY_ERROR = 9, 13, 17


class Sink(Protocol):
    """One receiver. `send` raises OSError or httpx2.HTTPError when it doesn't take the lines."""

    address: str

    def send(self, lines: Sequence[Line]) -> None:
        """Send all of them."""


class Syslog:
    """RFC 5424, one JSON object as the message; by UDP, or by TCP with counted octets (RFC 6587)."""

    def __init__(self, address: str) -> None:
        """`address`: udp://HOST[:PORT] or tcp://HOST[:PORT]. Raises ValueError for anything else."""
        found = urlsplit(address)
        if found.scheme not in ("udp", "tcp") or not found.hostname:
            raise ValueError(f"{address!r} is neither udp://HOST:PORT nor tcp://HOST:PORT")
        self.address = address
        self._by_tcp = found.scheme == "tcp"
        self._place = (found.hostname, found.port or SYSLOG_PORT)
        self._link: socket.socket | None = None
        self._own_name = socket.gethostname()[:255] or "-"

    def send(self, lines: Sequence[Line]) -> None:
        """Send each as a message of its own."""
        try:
            link = self._link or self._connected()
            for line in lines:
                message = self.message(line)
                link.sendall(b"%d %s" % (len(message), message) if self._by_tcp else message)
        except OSError:
            if self._link:
                self._link.close()
            self._link = None
            raise

    def _connected(self) -> socket.socket:
        if self._by_tcp:
            self._link = socket.create_connection(self._place, timeout=SECONDS)
        else:
            family, kind, protocol, _name, place = socket.getaddrinfo(*self._place, type=socket.SOCK_DGRAM)[0]
            self._link = socket.socket(family, kind, protocol)
            self._link.connect(place)
        return self._link

    def message(self, line: Line) -> bytes:
        """One message."""
        shown = {name: value for name, value in line.items() if name != "at_ns"}
        content = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
        head = f"<{INFORMATIONAL_LOCAL0}>1 {line['at']} {self._own_name} slipway-gateway - request - "
        return (head + content).encode()


class Otlp:
    """OpenTelemetry's logs by HTTP, as JSON."""

    def __init__(self, address: str) -> None:
        """`address`: the collector's full one, such as http://collector:4318/v1/logs. Raises ValueError for no such."""
        found = urlsplit(address)
        if found.scheme not in ("http", "https") or not found.hostname:
            raise ValueError(f"{address!r} is no address such as http://collector:4318/v1/logs")
        self.address = address
        self._client = httpx2.Client(timeout=SECONDS, trust_env=False)

    def send(self, lines: Sequence[Line]) -> None:
        """Send all as one request."""
        self._client.post(self.address, json=self.content(lines)).raise_for_status()

    def content(self, lines: Sequence[Line]) -> dict[str, Any]:
        """What is sent."""
        records = [_record(line) for line in lines]
        resource = {"attributes": [_attribute("service.name", "slipway-gateway")]}
        scopes = [{"scope": {"name": "slipway.gateway.access"}, "logRecords": records}]
        return {"resourceLogs": [{"resource": resource, "scopeLogs": scopes}]}


def _record(line: Line) -> dict[str, Any]:
    status = int(line["status"])
    severity = SEVERITY_ERROR if status >= 500 else SEVERITY_WARN if status >= 400 else SEVERITY_INFO
    attributes = [_attribute(name, value) for name, value in line.items() if name not in ("at", "at_ns")]
    return {
        "timeUnixNano": str(line["at_ns"]),
        "severityNumber": severity,
        "body": {"stringValue": f"{line['path']} {line['model']} {status}"},
        "attributes": [one for one in attributes if one],
    }


def _attribute(name: str, value: object) -> dict[str, Any]:
    if value is None or value == "":
        return {}
    kind = {"intValue": str(value)} if isinstance(value, int) else {"stringValue": str(value)}
    return {"key": name, "value": kind}


def sinks(*, syslog: str, otlp: str) -> list[Sink]:
    """The receivers that the settings name. One that can't be understood is said in the log and left out."""
    found: list[Sink] = []
    for make, address in ((Syslog, syslog), (Otlp, otlp)):
        try:
            found += [make(address)] if address else []
        except ValueError as error:
            log.warning("the access log is not sent there", error=str(error))
    return found


class Sender:
    """Sends to one receiver, in a thread of its own."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._waiting: queue.Queue[Line] = queue.Queue(MOST_WAITING)
        self.dropped = 0
        self.problem = ""
        """Why the receiver took nothing at the last try; empty if it did."""
        threading.Thread(target=self._work, name=f"sending to {sink.address}", daemon=True).start()

    def add(self, lines: Sequence[Line]) -> None:
        """Send these when it is their turn. Never waits."""
        for line in lines:
            try:
                self._waiting.put_nowait(line)
            except queue.Full:
                self.dropped += 1

    def _work(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while len(batch) < BATCH and not self._waiting.empty():
                batch.append(self._waiting.get())
            try:
                self._sink.send(batch)
            except (OSError, httpx2.HTTPError) as error:
                self.dropped += len(batch)
                if not self.problem:
                    log.warning("the access log was not taken", address=self._sink.address, error=str(error))
                self.problem = f"{self._sink.address}: {error}"[:300]
                time.sleep(SECONDS)
            else:
                self.problem = ""

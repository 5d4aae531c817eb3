"""A server that answers as an engine does, byte for byte as a test tells it; and an HAProxy in front of it."""

import hashlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2

from tests.ports import free_port
from workers.gateway import program
from workers.gateway.applying import Applier
from workers.gateway.description import Gateway, Key, Listener, Route, Server, Target

BINARY = program.find()


@dataclass
class Engine:
    """What the server answers and what it was asked. `pieces` are sent one by one, `pause_seconds` apart."""

    name: str = "engine"
    key: str = "sk-engine"
    status: int = 200
    healthy: bool = True
    hang: bool = False
    pause_seconds: float = 0.0
    pieces: list[bytes] | None = None
    usage: dict[str, int] = field(
        default_factory=lambda: {"prompt_tokens": 7, "total_tokens": 12, "completion_tokens": 5}
    )
    asked: list[tuple[dict[str, str], Any]] = field(default_factory=list)
    port: int = 0
    address: str = "127.0.0.1"
    gate: threading.Event = field(default_factory=threading.Event)
    waits: bool = False
    """Answers only once `gate` is set."""
    sent: int = 0
    """Pieces of streams that were sent."""
    ends_with_last_piece: bool = False
    """The end of a stream is sent in one with its last piece."""
    counts: int | None = None
    """What /tokenize says; None: it is not there."""

    def answer(self) -> bytes:
        message = {"role": "assistant", "content": f"hello from {self.name}"}
        body = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": self.usage}
        return json.dumps(body, separators=(",", ":")).encode()

    def events(self, words: Iterable[str] = ("a", "b", "c")) -> list[bytes]:
        """A stream as vLLM with --enable-force-include-usage sends it."""
        events: list[Any] = []
        for number, word in enumerate(words, start=1):
            usage = {"prompt_tokens": 7, "total_tokens": 7 + number, "completion_tokens": number}
            events.append(
                {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}], "usage": usage}
            )
        events[-1]["choices"][0]["finish_reason"] = "stop"
        events.append({"choices": [], "usage": self.usage})
        return [b"data: " + json.dumps(one, separators=(",", ":")).encode() + b"\n\n" for one in events] + [
            b"data: [DONE]\n\n"
        ]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_GET(self) -> None:
        if self.engine.hang:
            time.sleep(30)
        self._whole(200 if self.engine.healthy else 503, b"", "text/plain")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path == "/tokenize":
            self._whole(
                200 if self.engine.counts is not None else 404, b'{"count":%d}' % (self.engine.counts or 0), "a/b"
            )
            return
        self.engine.asked.append(({name.lower(): value for name, value in self.headers.items()}, body))
        if self.engine.waits:
            self.engine.gate.wait(20)
        if self.engine.pieces is not None or body.get("stream"):
            self._stream(self.engine.pieces if self.engine.pieces is not None else self.engine.events())
        else:
            self._whole(self.engine.status, self.engine.answer(), "application/json")

    def _whole(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, pieces: list[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for number, piece in enumerate(pieces, start=1):
                together = self.engine.ends_with_last_piece and number == len(pieces)
                end = b"0\r\n\r\n" if together else b""
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" + end)
                self.wfile.flush()
                self.engine.sent += 1
                time.sleep(self.engine.pause_seconds)
            if not self.engine.ends_with_last_piece:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # health checks and aborted requests hang up as they like


@contextmanager
def serving(engine: Engine) -> Iterator[Engine]:
    """Run the engine's server on a port of its own."""
    handler = type("Handler", (_Handler,), {"engine": engine})
    server = _Server((engine.address, engine.port), handler)
    engine.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        engine.gate.set()
        server.shutdown()
        server.server_close()


class Running:
    """A running HAProxy with a description, and clients for it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        port, peer = free_port(), free_port()
        self.gateway = Gateway(Listener(str(directory), str(program.LUA), port=port, peer_port=peer, threads=2))
        self.url = f"http://127.0.0.1:{port}"
        self.applier = Applier(directory, BINARY)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **changes: Any) -> None:
        self.gateway = replace(self.gateway, **changes)
        assert self.applier.prepare(self.gateway) == ""
        log = os.open(self.directory / program.ACCESS_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            program.hand_down(log, self.gateway.listener.log_descriptors)
            with (self.directory / "stderr").open("wb") as stderr:
                self.process = subprocess.Popen(
                    program.command(BINARY, self.directory),
                    pass_fds=tuple(self.gateway.listener.log_descriptors), stderr=stderr, stdout=stderr,
                    env=program.environment(),
                )  # fmt: skip
        finally:
            os.close(log)
        wait_until(lambda: (self.directory / program.ADMIN_SOCKET).exists() and self.answers(), seconds=10)
        assert self.applier.apply(self.gateway).problem == ""

    def answers(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/healthz", timeout=1, trust_env=False, verify=False).status_code == 200
        except httpx2.HTTPError:
            return False

    def change(self, **changes: Any) -> Any:
        self.gateway = replace(self.gateway, **changes)
        return self.applier.apply(self.gateway)

    def client(self, key: str = "secret", **headers: str) -> httpx2.Client:
        shown = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx2.Client(base_url=self.url, headers=shown | headers, timeout=15, trust_env=False)

    def ask(
        self, model: str = "chat", *, key: str = "secret", headers: dict[str, str] | None = None, **body: Any
    ) -> Any:
        with self.client(key) as client:
            content = {"model": model, "messages": [{"role": "user", "content": "hi"}], **body}
            return client.post("/v1/chat/completions", json=content, headers=headers or {})

    def raw(self, data: bytes, *, seconds: float = 5) -> bytes:
        """Send bytes as they are; what comes back until the connection is silent or closed."""
        with socket.create_connection(("127.0.0.1", self.gateway.listener.port), timeout=seconds) as link:
            link.sendall(data)
            link.settimeout(seconds)
            answer = b""
            try:
                while piece := link.recv(65536):
                    answer += piece
            except TimeoutError:
                pass
        return answer

    def lines(self) -> list[dict[str, str]]:
        """The access log."""
        text = (self.directory / program.ACCESS_LOG).read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def line(self, request_id: str) -> dict[str, str]:
        """The access log's line of one request, once it is there."""
        wait_until(lambda: any(line["id"] == request_id for line in self.lines()), seconds=5)
        return next(line for line in self.lines() if line["id"] == request_id)

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(10)


def server_of(engine: Engine, number: int = 1, **changes: Any) -> Server:
    return Server(instance=number, address="127.0.0.1", port=engine.port, **changes)


def target_of(engine: Engine, number: int = 1, **changes: Any) -> Target:
    given: dict[str, Any] = {"weight": 100, "servers": (server_of(engine, number),), "deployment": engine.name}
    return Target(number=number, engine_key=engine.key, **(given | changes))


def key_of(secret: str, number: int = 1, routes: Iterable[int] = (1,), **changes: Any) -> Key:
    digest = hashlib.sha256(secret.encode()).hexdigest()
    return Key(number=number, sha256=digest, team=1, routes=frozenset(routes), **changes)


def route_of(*targets: Target, number: int = 1, names: tuple[str, ...] = ("chat",), **changes: Any) -> Route:
    return Route(number=number, names=names, targets=targets, **changes)


def wait_until(condition: Any, *, seconds: float) -> float:
    """Seconds until it held."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, condition
        time.sleep(0.02)
    return time.monotonic() - began

"""How much later a stream begins behind the gateway, and whether its tokens are counted exactly, disconnects and all.

The backend speaks HTTP by plain sockets and does what the request's `user` says: how many tokens it makes, and after how
many it falls silent, as a model that thinks does.
"""

import json
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from bench.rows import Row
from tests.gateway.backend import Engine, Running, key_of, route_of, target_of, wait_until

STREAMS = 1000
FIRST_TOKEN_MS = 1.0
REQUESTS = 10_000
CLIENTS = 8
PROMPT_TOKENS = 11
SECONDS_TO_STORE = 30.0
_ASKED = re.compile(rb'"user":"(\d+) (\d+) (\w+)"')
_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")


@dataclass(frozen=True)
class Asked:
    """One request: an answer of so many tokens, of which `sent` come before silence; streamed or whole."""

    tokens: int
    sent: int
    kind: str

    def body(self) -> bytes:
        """What a client sends."""
        stream = "" if self.kind == "whole" else '"stream":true,'
        return b'{"model":"chat",%s"user":"%d %d %s","messages":[{"role":"user","content":"hi"}]}' % (
            stream.encode(), self.tokens, self.sent, self.kind.encode(),
        )  # fmt: skip


def event(tokens: int, *, last: bool = False) -> bytes:
    """One event as vLLM with --enable-force-include-usage sends it."""
    usage = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS + tokens, "completion_tokens": tokens}
    delta = {"index": 0, "delta": {"content": "a word"}, "finish_reason": "stop" if last else None}
    return b"data: " + json.dumps({"choices": [delta], "usage": usage}, separators=(",", ":")).encode() + b"\n\n"


@contextmanager
def talking_backend() -> Iterator[int]:
    """Its port."""
    server = socket.create_server(("127.0.0.1", 0), backlog=256)
    threading.Thread(target=_accept, args=(server,), daemon=True).start()
    try:
        yield server.getsockname()[1]
    finally:
        server.close()


def _accept(server: socket.socket) -> None:
    while True:
        try:
            link, _address = server.accept()
        except OSError:
            return
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_serve, args=(link,), daemon=True).start()


def _serve(link: socket.socket) -> None:
    buffered = b""
    with link:
        try:
            while True:
                while b"\r\n\r\n" not in buffered:
                    if not (piece := link.recv(65536)):
                        return
                    buffered += piece
                head, _end, buffered = buffered.partition(b"\r\n\r\n")
                found = _LENGTH.search(head)
                length = int(found[1]) if found else 0
                while len(buffered) < length:
                    buffered += link.recv(65536)
                body, buffered = buffered[:length], buffered[length:]
                if not _answer(link, body):
                    return
        except OSError:
            return


def _answer(link: socket.socket, body: bytes) -> bool:
    """Answer one request; False if its client left."""
    found = _ASKED.search(body)
    if not found:
        link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        return True
    tokens, sent, kind = int(found[1]), int(found[2]), found[3]
    if kind == b"whole":
        usage = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS + tokens, "completion_tokens": tokens}
        text = json.dumps({"choices": [{"index": 0, "finish_reason": "stop"}], "usage": usage}).encode()
        link.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)
        )
        return True
    link.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for number in range(1, sent + 1):
        _chunk(link, event(number, last=number == tokens))
    if sent < tokens:
        link.settimeout(30)
        return bool(link.recv(1))  # until its client has left
    _chunk(
        link, b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n' % (PROMPT_TOKENS, tokens)
    )
    _chunk(link, b"data: [DONE]\n\n")
    link.sendall(b"0\r\n\r\n")
    return True


def _chunk(link: socket.socket, data: bytes) -> None:
    link.sendall(b"%x\r\n%s\r\n" % (len(data), data))


def request(asked: Asked, name: str) -> bytes:
    """A whole request."""
    body = asked.body()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer secret\r\n"
        f"Content-Type: application/json\r\nX-Request-Id: {name}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def first_token(direct: int, behind: int) -> Row:
    """Median time to the first event, by the gateway and without it, in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    asked = Asked(3, 3, "stream")
    with socket.create_connection(("127.0.0.1", direct)) as one, socket.create_connection(("127.0.0.1", behind)) as two:
        for _number in range(STREAMS):
            for at, link in enumerate((one, two)):
                times[at].append(_first_event(link, request(asked, "first")))
    without, with_it = (median(some[100:]) * 1000 for some in times)
    reference = f"median of {STREAMS} streams: {with_it:.3f} ms by the gateway, {without:.3f} ms without it"
    return Row("first token comes later", round(with_it - without, 3), "ms", FIRST_TOKEN_MS, "lower", reference)


def _first_event(link: socket.socket, data: bytes) -> float:
    began = time.perf_counter()
    link.sendall(data)
    answer, first = b"", 0.0
    while not answer.endswith(b"0\r\n\r\n"):
        piece = link.recv(65536)
        if not piece:
            raise ConnectionError(answer[:200])
        answer += piece
        if not first and b"data: " in answer:
            first = time.perf_counter() - began
    return first


def exact_usage(gateway: Running) -> Row:
    """Mixed requests, a third of which leave half-way; how many were counted otherwise than they were answered."""
    chance = random.Random(9)
    wanted: dict[str, Asked] = {}
    for number in range(REQUESTS):
        tokens = chance.randint(1, 12)
        kind = ("whole", "stream", "leaves")[number % 3]
        # Who leaves does so while the model thinks about the token after these.
        sent = chance.randint(1, tokens) if kind == "leaves" else tokens
        wanted[f"mixed-{number}"] = Asked(tokens + 1 if kind == "leaves" else tokens, sent, kind)
    port = gateway.gateway.listener.port
    began = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda pair: ask(port, *pair), wanted.items()))
    seconds = time.monotonic() - began
    lines = counted(gateway, wanted.keys())
    wrong = [name for name, asked in wanted.items() if lines.get(name) != (str(PROMPT_TOKENS), str(asked.sent))]
    reference = f"{REQUESTS} requests in {seconds:.0f} s, a third whole, a third streamed, a third left half-way"
    if wrong:
        reference += f"; first: {wanted[wrong[0]]} counted as {lines.get(wrong[0])}"
    return Row("requests counted wrong", len(wrong), "requests", 0, "lower", reference)


def ask(port: int, name: str, asked: Asked) -> None:
    """Send one and read its answer, as far as its client stays."""
    end: Callable[[bytes], bool] = {
        "whole": lambda answer: answer.endswith(b"}"),
        "stream": lambda answer: answer.endswith(b"0\r\n\r\n"),
        "leaves": lambda answer: answer.count(b"data: ") >= asked.sent,
    }[asked.kind]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as link:
        link.sendall(request(asked, name))
        answer = b""
        while not end(answer):
            piece = link.recv(65536)
            if not piece:
                raise ConnectionError(answer[:300])
            answer += piece


def counted(gateway: Running, names: object) -> dict[str, tuple[str, str]]:
    """Tokens of the prompt and of the answer by request, as the access log has them."""
    assert isinstance(names, type({}.keys()))
    until = time.monotonic() + SECONDS_TO_STORE
    while True:
        found = {line["id"]: (line["prompt_tokens"], line["output_tokens"]) for line in gateway.lines()}
        if names <= found.keys() or time.monotonic() > until:
            return found
        time.sleep(0.5)


def measure(gateway: Running) -> list[Row]:
    """Rows of streams, before a backend of their own."""
    with talking_backend() as port:
        gateway.start(routes=(route_of(target_of(Engine(port=port))),), keys=(key_of("secret"),))
        wait_until(lambda: gateway.ask().status_code == 200, seconds=20)
        return [first_token(port, gateway.gateway.listener.port), exact_usage(gateway)]

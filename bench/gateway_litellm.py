"""LiteLLM's proxy before the same static backend, in the same run: what people would use otherwise."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import httpx2

from bench.rows import Row
from tests.gateway.backend import wait_until
from tests.ports import free_port

PLACE = Path(__file__).resolve().parent.parent / "build" / "litellm"
"""An environment of its own: its pins are others than ours."""
ONE_BY_ONE = 100
SECONDS = 5.0
START_SECONDS = 180.0


def measure(backend: int, request: bytes) -> list[Row]:
    """Its rows: shown, nothing promised. One that says why, where it can't be installed or doesn't start."""
    try:
        with proxy(backend) as port:
            return [added(backend, port, request), throughput(port, request)]
    except (OSError, subprocess.SubprocessError, AssertionError) as error:
        return [Row("LiteLLM adds", None, "ms", None, "lower", f"not measured: {error!r}"[:300])]


def installed() -> Path:
    """Its program, installed if it isn't."""
    program = PLACE / "bin" / "litellm"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PLACE)], check=True, timeout=120)
        words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "litellm[proxy]"]
        subprocess.run([str(PLACE / "bin" / "python"), *words], check=True, timeout=900)
    return program


@contextmanager
def proxy(backend: int) -> Iterator[int]:
    """Run it; its port."""
    program, port = installed(), free_port()
    config = PLACE / "config.yaml"
    config.write_text(
        "model_list:\n  - model_name: chat\n    litellm_params:\n      model: openai/chat\n"
        f"      api_base: http://127.0.0.1:{backend}/v1\n      api_key: sk-none\n"
    )
    # No telemetry, no price list from the network, and no key: it answers on loopback for some seconds.
    environment = os.environ | {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_DOCS": "True", "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }  # fmt: skip
    with (PLACE / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"],
            env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_until(lambda: _answers(port), seconds=START_SECONDS)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def _answers(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/health/liveliness", timeout=2, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


def added(direct: int, behind: int, request: bytes) -> Row:
    """Median of one request after the other, by LiteLLM and without it, in turns."""
    with socket.create_connection(("127.0.0.1", direct)) as one, socket.create_connection(("127.0.0.1", behind)) as two:
        pairs = [(answered(one, request), answered(two, request)) for _number in range(ONE_BY_ONE)]
    without, with_it = (median(some[10:]) * 1000 for some in zip(*pairs, strict=True))
    reference = f"median of {ONE_BY_ONE} one by one: {with_it:.1f} ms by LiteLLM, {without:.3f} ms without it"
    return Row("LiteLLM adds", round(with_it - without, 2), "ms", None, "lower", reference)


def throughput(port: int, request: bytes) -> Row:
    """Answers a second on 8 connections, one request after the other on each."""
    links = [socket.create_connection(("127.0.0.1", port)) for _number in range(8)]
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        for link in links:
            link.sendall(request)
        for link in links:
            whole_answer(link)
            count += 1
    rate = count / (time.perf_counter() - began)
    for link in links:
        link.close()
    return Row("LiteLLM throughput", round(rate, 1), "requests/s", None, "higher", f"{len(links)} at once, one worker")


def answered(link: socket.socket, request: bytes) -> float:
    """Seconds of one request on an open connection."""
    began = time.perf_counter()
    link.sendall(request)
    whole_answer(link)
    return time.perf_counter() - began


def whole_answer(link: socket.socket) -> bytes:
    """Read one answer whose head tells its length."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += _piece(link, answer)
    head, _end, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise ConnectionError(answer[:300])
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    while len(body) < length:
        body += _piece(link, body)
    return body


def _piece(link: socket.socket, so_far: bytes) -> bytes:
    piece = link.recv(65536)
    if not piece:
        raise ConnectionError(so_far[:300])
    return piece

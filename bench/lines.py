"""How long a line that an engine writes takes into the browser: through agent, broker, ingest, database and WebSocket."""

import json
import time
from statistics import median, quantiles

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from bench.console import Bench
from bench.rows import Row

LINES = 100
TARGET_MS = 300.0


def measure(bench: Bench) -> list[Row]:
    """Append lines to a serving engine's log, as the engine does, and watch them arrive on the log's WebSocket."""
    bench.deploy("lines")
    attempt, log = bench.attempt("lines")
    size = log.stat().st_size
    cookies = "; ".join(f"{name}={value}" for name, value in bench.cookies().items())
    url = f"ws://127.0.0.1:{bench.console.port}/ws/attempts/{attempt}/log/?after={size}"
    milliseconds = []
    with connect(url, additional_headers={"Cookie": cookies}, origin=bench.console.url) as socket:
        time.sleep(2)
        for number in range(LINES):
            mark = f"bench line {number} {time.monotonic_ns()}"
            with log.open("a") as file:
                file.write(f"INFO {mark}\n")
            began = time.monotonic()
            wait_for_text(socket, mark)
            milliseconds.append((time.monotonic() - began) * 1000)
            time.sleep(0.05)
    bench.stop("lines")
    tail = quantiles(milliseconds, n=20)[-1]
    reference = f"median of {LINES} lines from the engine's log file to the log's WebSocket; 95 % within {tail:.0f} ms"
    return [Row("line to browser", round(median(milliseconds), 1), "ms", TARGET_MS, "lower", reference)]


def wait_for_text(socket: object, mark: str) -> None:
    """Read messages until one holds the text."""
    seen = ""
    deadline = time.monotonic() + 10
    while mark not in seen:
        try:
            message = socket.recv(timeout=max(0.0, deadline - time.monotonic()))  # type: ignore[attr-defined]
        except (TimeoutError, WebSocketException) as error:
            raise AssertionError(f"line not seen within 10 s: {error!r}") from error
        seen = (seen + json.loads(message).get("text", ""))[-4000:]

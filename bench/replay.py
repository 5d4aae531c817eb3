"""A recorded `/metrics` of a real vLLM, served on many ports at once: every second the recorded load happens once more.

`python -m bench.replay PORT…`. What the engine counted is multiplied by the seconds since the start of the replay;
everything else stays as it was recorded. So the numbers grow as a real engine's do, and every total is known.
"""

import asyncio
import re
import sys
import time
from pathlib import Path

RECORDED = Path(__file__).resolve().parent.parent / "tests" / "vllm" / "metrics" / "0.32.0-cpu.txt"
_COUNTED = re.compile(r"vllm:\w+_(?:total|bucket|count|sum)(?:\{.*\})?")


class Replay:
    """The text of each second, made once for all who ask in it."""

    def __init__(self, text: str) -> None:
        self._lines = [line.rpartition(" ") for line in text.splitlines()]
        self._began = int(time.time())
        self._second = 0
        self._answer = b""

    def answer(self) -> bytes:
        """The answer of the second that runs."""
        second = int(time.time()) - self._began + 1
        if second != self._second:
            self._second, self._answer = second, self.at(second)
        return self._answer

    def at(self, second: int) -> bytes:
        """A whole HTTP answer, as uvicorn gives it, after so many seconds of the recorded load."""
        lines = (
            f"{series} {float(value) * second:.10g}" if _COUNTED.fullmatch(series) else f"{series}{space}{value}"
            for series, space, value in self._lines
        )
        body = "\n".join(lines).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\ncontent-type: text/plain\r\n\r\n"
        return head.encode() + body

    async def serve(self, ports: list[int]) -> None:
        """Listen on all ports until cancelled."""
        servers = [await asyncio.start_server(self._one, "127.0.0.1", port) for port in ports]
        print("listening", flush=True)
        await asyncio.gather(*(server.serve_forever() for server in servers))

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer())
        await writer.drain()
        writer.close()


if __name__ == "__main__":
    asyncio.run(Replay(RECORDED.read_text()).serve([int(port) for port in sys.argv[1:]]))

"""The logs lane: the attempt's file is the outbox, a byte offset is the cursor.

Each chunk says where its bytes lie. The console stores them and moves the cursor (`log_cursor_key`, field
`<instance>:<attempt>`); after a lost connection sending goes on from there, so nothing is lost and nothing doubled.

The first `HEAD_BYTES` of a log are always kept. Behind them, only the newest `TAIL_BYTES`: what is older and was not
sent in time is left out and marked as a gap, and its blocks are given back to the disk.
"""

import asyncio
import base64
import ctypes
import os
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from workers.contracts import LogChunk, log_cursor_key, logs_stream
from workers.host.instance_files import InstanceFiles
from workers.host.redis_link import Client
from workers.host.secret_masking import mask_bytes

HEAD_BYTES = 10 * 2**20
TAIL_BYTES = 40 * 2**20
CHUNK_BYTES = 64 * 2**10
IN_FLIGHT_BYTES = 2**20
"""How much of one log may be unacknowledged."""
STREAM_LENGTH = 1_000

_POLL_SECONDS = 0.03
_LOOKS_AT_HALF_A_LINE = 10
_CURSORS_EVERY_SECONDS = 1.0
_RESEND_AFTER_SECONDS = 5.0
_RESEND_AT_MOST_EVERY_SECONDS = 60.0
_PUNCH_STEP_BYTES = 8 * 2**20


@dataclass
class LogTail:
    """One attempt's log: how far it is acknowledged and sent, in bytes from its beginning."""

    instance: UUID
    attempt: int
    path: Path
    secrets: list[bytes] = field(default_factory=list)
    ended: bool = False
    """No process writes to it any more."""
    acknowledged: int = 0
    sent: int = 0
    final_sent: bool = False
    moved_at: float = 0.0
    patience: float = _RESEND_AFTER_SECONDS
    punched: int = 0
    held: int = 0
    """Bytes of an unfinished last line that were seen, and how often in a row they were the same."""
    looks: int = 0

    @property
    def cursor_field(self) -> str:
        """This log's field in the hash of cursors."""
        return f"{self.instance}:{self.attempt}"

    def next_chunk(self) -> LogChunk | None:
        """Read the next chunk; `None` when there is nothing new or enough is under way."""
        ended = self.ended
        size = self.path.stat().st_size if self.path.exists() else 0
        if self.final_sent or self.sent - self.acknowledged >= IN_FLIGHT_BYTES or (self.sent >= size and not ended):
            return None
        offset = self.sent
        if HEAD_BYTES <= offset < size - TAIL_BYTES:
            offset = size - TAIL_BYTES
        limit = CHUNK_BYTES if offset >= HEAD_BYTES else min(CHUNK_BYTES, HEAD_BYTES - offset)
        data = self._read(offset, limit) if size else b""
        if not data and not ended:
            return None
        gap = offset - self.sent
        self.sent = offset + len(data)
        self.final_sent = ended and self.sent >= size
        return LogChunk(
            instance=self.instance,
            attempt=self.attempt,
            offset=offset,
            data=base64.b64encode(data).decode("ascii"),
            gap=gap,
            final=self.final_sent,
        )

    def _read(self, offset: int, limit: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(offset)
            data = file.read(limit)
        return mask_bytes(self._whole(data, limit), self.secrets)

    def _whole(self, data: bytes, limit: int) -> bytes:
        """Up to the end of the last line: a secret must not be cut in two by the end of a chunk.

        What is no whole line yet (a progress bar, a line that is just being written) is sent once it has stood still.
        """
        end = data.rfind(b"\n") + 1
        if end:
            return data[:end]
        if self.ended or len(data) == limit:
            return data
        self.looks = self.looks + 1 if len(data) == self.held else 0
        self.held = len(data)
        return data if self.looks >= _LOOKS_AT_HALF_A_LINE else b""

    def set_cursor(self, acknowledged: int, now: float) -> None:
        """Take over what the console has stored; send again when it has been silent for too long."""
        if acknowledged > self.acknowledged:
            self.moved_at, self.patience = now, _RESEND_AFTER_SECONDS
        self.acknowledged = acknowledged
        self.sent = max(self.sent, acknowledged)
        if self.sent > acknowledged and now - self.moved_at > self.patience:
            self.rewind()
            self.moved_at, self.patience = now, min(self.patience * 2, _RESEND_AT_MOST_EVERY_SECONDS)

    def rewind(self) -> None:
        """Send again everything that is not acknowledged."""
        self.sent, self.final_sent = self.acknowledged, False

    @property
    def finished(self) -> bool:
        """True once the console has all of it."""
        return self.final_sent and self.acknowledged >= self.sent

    def give_back_blocks(self) -> None:
        """Free the disk blocks of the part that the cap leaves out; offsets stay what they are."""
        size = self.path.stat().st_size if self.path.exists() else 0
        end = (size - TAIL_BYTES) // 4096 * 4096
        begin = max(self.punched, HEAD_BYTES)
        if end - begin >= _PUNCH_STEP_BYTES and _punch_hole(self.path, begin, end - begin):
            self.punched = end


class LogSender:
    """Follows all logs that the console doesn't have yet. `doorbell` is set when cursors may have moved."""

    def __init__(self, host: str) -> None:
        self.doorbell = asyncio.Event()
        self._stream = logs_stream(host)
        self._cursors = log_cursor_key(host)
        self._tails: dict[tuple[UUID, int], LogTail] = {}
        self._files: dict[tuple[UUID, int], InstanceFiles] = {}

    def follow(self, files: InstanceFiles, attempt: int, secrets: list[bytes]) -> None:
        """Begin to send this attempt's log, unless the console has all of it already."""
        key = (files.instance, attempt)
        if key not in self._tails and not _sent_marker(files, attempt).exists():
            self._tails[key] = LogTail(files.instance, attempt, files.log(attempt), secrets)
            self._files[key] = files
            self.doorbell.set()

    def keep_caps(self) -> None:
        """Give back what the caps leave out of all logs. Needs no broker: logs grow while it is away, too."""
        for tail in self._tails.values():
            tail.give_back_blocks()

    def ended(self, instance: UUID, attempt: int) -> None:
        """No process writes to this log any more."""
        if tail := self._tails.get((instance, attempt)):
            tail.ended = True

    async def session(self, client: Client) -> None:
        """Send until the connection fails."""
        loop = asyncio.get_running_loop()
        next_look = 0.0
        await self._read_cursors(client, loop.time())
        for tail in self._tails.values():
            tail.rewind()
        while True:
            now = loop.time()
            if self.doorbell.is_set() or now >= next_look:
                self.doorbell.clear()
                next_look = now + _CURSORS_EVERY_SECONDS
                await self._read_cursors(client, now)
                self._drop_finished()
            if not await self._send_round(client, now):
                await asyncio.sleep(_POLL_SECONDS)

    async def _send_round(self, client: Client, now: float) -> bool:
        """Send one chunk of each log, so that a chatty one doesn't starve the others."""
        chunks = []
        for tail in list(self._tails.values()):
            if (chunk := tail.next_chunk()) is not None:
                tail.moved_at = now
                chunks.append(chunk)
        if not chunks:
            return False
        async with client.pipeline(transaction=False) as pipeline:
            for chunk in chunks:
                fields = {"json": chunk.model_dump_json()}
                pipeline.xadd(self._stream, fields, maxlen=STREAM_LENGTH, approximate=True)  # type: ignore[arg-type]
            await pipeline.execute()
        return True

    async def _read_cursors(self, client: Client, now: float) -> None:
        tails = list(self._tails.values())
        if not tails:
            return
        values = await client.hmget(self._cursors, [tail.cursor_field for tail in tails])
        for tail, value in zip(tails, values, strict=True):
            tail.set_cursor(int(value) if value else 0, now)

    def _drop_finished(self) -> None:
        for key, tail in list(self._tails.items()):
            if tail.finished:
                _sent_marker(self._files.pop(key), tail.attempt).touch()
                del self._tails[key]


def _sent_marker(files: InstanceFiles, attempt: int) -> Path:
    return files.attempt_directory(attempt) / "log-sent"


def _punch_hole(path: Path, offset: int, length: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    keep_size_and_punch = 3
    descriptor = os.open(path, os.O_WRONLY)
    try:
        return bool(libc.fallocate(descriptor, keep_size_and_punch, offset, length) == 0)
    finally:
        os.close(descriptor)

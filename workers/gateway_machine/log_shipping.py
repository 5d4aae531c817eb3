"""The access log on its way to the console: one piece at a time, each only after the one before is stored there.

The console's cursor decides. A piece that was written twice is taken once, since it names where it begins; one that was lost
is written again, since the cursor has not moved.
"""

from redis import Redis

from workers.gateway.log_file import LogFile
from workers.gateway.messages import PIECE_BYTES, Piece, piece_key, stored_key


class LogShipping:
    """Ships one file."""

    def __init__(self, name: str, file: LogFile) -> None:
        self._name = name
        self._file = file
        self._sent: tuple[str, int] | None = None
        self._forgotten = 0
        self.waiting_bytes = 0

    def ship(self, client: "Redis") -> bool:
        """Write the next piece, if the last one is stored; True if one was written. Raises RedisError."""
        identity = self._file.identity()
        raw = client.hget(stored_key(self._name), identity)
        stored = int(str(raw)) if raw else 0
        if stored > self._file.size():
            # It was removed, and what took its place has even its number in the filesystem.
            identity, stored = self._file.begin_anew(), 0
        self.waiting_bytes = max(0, self._file.size() - stored)
        if stored != self._forgotten:
            self._file.forget(stored)
            self._forgotten = stored
        if self._sent == (identity, stored) and client.exists(piece_key(self._name)):
            return False
        data, begin, end = self._file.read(stored, PIECE_BYTES)
        if not data:
            return False
        piece = Piece(file=identity, offset=begin, end=end, text=data.decode("utf-8", "replace"))
        client.set(piece_key(self._name), piece.model_dump_json())
        self._sent = (identity, stored)
        return True

"""The outbox: every report is on this disk before anything else happens to it, and stays until the console has it.

One SQLite file per host. The agent's loop and the step processes all write to it; the number that SQLite gives to a row
is the report's number. The file's own id tells the console when a disk was lost and numbering began anew.
"""

import json
import sqlite3
import threading
import time
from pathlib import Path
from uuid import UUID, uuid4

from workers.contracts import CONTRACT, Body
from workers.host.secret_masking import mask_values

_SCHEMA = """
CREATE TABLE IF NOT EXISTS identity (id TEXT NOT NULL, only INTEGER PRIMARY KEY CHECK (only = 1));
CREATE TABLE IF NOT EXISTS reports (number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, body TEXT NOT NULL);
"""

_QUOTING = frozenset({"instance.observed", "attempt.started", "attempt.ended", "step.event", "step.finished"})
"""Reports that may quote a log or a command line; in the others nobody's text stands."""


class Outbox:
    """One process's view of the outbox file; safe to use from several of its threads. Don't carry it over a fork."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        # FULL: a number must never be given twice, not even after a power cut; the console would drop the second report.
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL"):
            self._connection.execute(statement)
        self._connection.executescript(_SCHEMA)
        self._connection.execute("INSERT OR IGNORE INTO identity VALUES (?, 1)", (str(uuid4()),))
        (identity,) = self._connection.execute("SELECT id FROM identity").fetchone()
        self.id = UUID(identity)

    def add(self, body: Body) -> int:
        """Store one report and return its number; from here on it can't be lost."""
        text = body.model_dump_json()
        if body.kind in _QUOTING:
            text = json.dumps(mask_values(json.loads(text)), ensure_ascii=False)
        with self._lock:
            row = self._connection.execute("INSERT INTO reports (at, body) VALUES (?, ?)", (time.time(), text))
            return row.lastrowid or 0

    def after(self, number: int, limit: int) -> list[tuple[int, str]]:
        """Up to `limit` reports behind `number`, in order, as (number, JSON of a `Report`)."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT number, at, body FROM reports WHERE number > ? ORDER BY number LIMIT ?", (number, limit)
            ).fetchall()
        return [(found, self._as_report(found, at, body)) for found, at, body in rows]

    def delete_through(self, number: int) -> None:
        """Forget what the console has stored."""
        with self._lock:
            self._connection.execute("DELETE FROM reports WHERE number <= ?", (number,))

    def depth(self) -> int:
        """How many reports wait for the console's acknowledgement."""
        with self._lock:
            (count,) = self._connection.execute("SELECT count(*) FROM reports").fetchone()
        return int(count)

    def last_number(self) -> int:
        """The highest number ever given."""
        with self._lock:
            row = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'reports'").fetchone()
        return int(row[0]) if row else 0

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _as_report(self, number: int, at: float, body: str) -> str:
        head = json.dumps({"contract": CONTRACT, "outbox": str(self.id), "number": number, "at": at})
        return f'{head[:-1]}, "body": {body}}}'

"""Telling browsers that something new is stored. Rows and files are the truth: a message only says "new up to N"."""

import asyncio
from functools import cache
from threading import Thread
from typing import Any

import structlog
from channels.layers import get_channel_layer

from console.common.commits import after_commit

log = structlog.get_logger(__name__)

CHANGES = "changes"
"""Group of everybody who has a page open: which kinds of objects changed."""


def job_group(job_id: int) -> str:
    """Group of those who watch one job."""
    return f"job.{job_id}"


def log_group(attempt_id: int) -> str:
    """Group of those who read one attempt's log."""
    return f"log.{attempt_id}"


def announce(group: str, **content: Any) -> None:
    """Tell a group after the running transaction has committed. A lost message costs nothing but time: clients catch up."""
    after_commit(_send, group, content)


def changed(kind: str, object_id: int | None = None) -> None:
    """Tell every open page that an object of this kind (`job`, `deployment`, `instance`, `host`, …) changed."""
    announce(CHANGES, kind=kind, id=object_id)


def _send(group: str, content: dict[str, Any]) -> None:
    """Hand a message to the sending loop and go on: neither a request nor ingest waits for the broker."""
    asyncio.run_coroutine_threadsafe(_group_send(group, content), _loop())


async def _group_send(group: str, content: dict[str, Any]) -> None:
    layer = get_channel_layer()
    if layer is None:
        return
    try:
        await layer.group_send(group, {"type": "live.message", **content})
    except Exception as error:
        # The broker is away. What was announced is stored, and clients ask for it when they are back.
        log.warning("not announced", group=group, error=str(error))


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One event loop per process keeps one connection; a loop (and a connection) per message cost 10 ms each."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="live", daemon=True).start()
    return loop

"""WebSockets: what changed, an attempt's log, a job's events.

Rows and files are the truth. A message of the channel layer only wakes a reader, which then sends everything after its
own position; a slow poll does the same, so that a lost message costs two seconds and nothing else. A client that
reconnects names the position it has, so nothing is lost and nothing comes twice.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs

import structlog
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib import auth
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.utils import translation

from console.access import policies
from console.access.policies import Action
from console.common import live
from console.common.given import whole_number
from console.deployments import log_index, log_reading
from console.deployments.log_index import LogIndex
from console.deployments.models import Attempt
from console.jobs import presentation
from console.jobs.models import Event, Job

log = structlog.get_logger(__name__)

POLL_SECONDS = 2.0
TICK_SECONDS = 10.0
"""After so long without news a sign of life is sent: a client that hears nothing for 30 s knows that it is cut off."""
AUTHORISE_AGAIN_SECONDS = 30.0
"""How often an open socket asks whether the person is still signed in and may still look."""
EVENTS_AT_ONCE = 500
SORT_SECONDS = 0.2
NO_LONGER_ALLOWED = 4403
FAILED = 1011


class Watch(AsyncWebsocketConsumer):  # type: ignore[misc]
    """Base: authorise, join a group, send what is there, then send what is new whenever something wakes it."""

    async def connect(self) -> None:
        """Refuse whoever may not look (HTTP 403), before anything is joined or sent."""
        self.news = asyncio.Event()
        self.reader: asyncio.Task[None] | None = None
        if not await self.allowed():
            await self.close()
            return
        # Join first, read afterwards: what comes in between is then announced, not lost.
        await self.channel_layer.group_add(self.group(), self.channel_name)
        await self.accept()
        self.reader = asyncio.create_task(self._read_on())

    async def disconnect(self, code: int) -> None:  # noqa: ARG002
        """Leave."""
        if self.reader:
            self.reader.cancel()
            await self.channel_layer.group_discard(self.group(), self.channel_name)

    async def live_message(self, message: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Something new is stored."""
        self.news.set()

    def group(self) -> str:
        """Name of the group that announces news."""
        raise NotImplementedError

    def look(self, user: Any) -> None:
        """Find what is watched; raises Http404 or PermissionDenied. Runs in a thread, may use the database."""
        raise NotImplementedError

    async def send_news(self) -> bool:
        """Send everything after the own position; True once nothing more can come."""
        raise NotImplementedError

    @database_sync_to_async  # type: ignore[untyped-decorator]
    def allowed(self) -> bool:
        """True if the session is still valid and its owner may look at this."""
        session = self.scope.get("session")
        if session is None or not session.session_key:
            return False
        request = HttpRequest()
        # Read anew from the store: the scope's copy would outlive a sign-out, a disabled person, a changed password.
        request.session = import_module(settings.SESSION_ENGINE).SessionStore(session.session_key)
        try:
            self.look(auth.get_user(request))
        except (Http404, PermissionDenied):
            return False
        return True

    def asked_position(self) -> int | None:
        """Position of `?after=`; None if it is missing or no number."""
        value = parse_qs(self.scope["query_string"].decode("ascii", "replace")).get("after", [""])[0]
        return whole_number(value)

    async def tell(self, **content: Any) -> None:
        """Send one JSON object."""
        self.told_at = time.monotonic()
        await self.send(text_data=json.dumps(content, ensure_ascii=False))

    async def tick(self) -> None:
        """Send a sign of life."""
        await self.tell(tick=True)

    async def _read_on(self) -> None:
        try:
            self.told_at = authorised_at = time.monotonic()
            await self.tick()
            while True:
                self.news.clear()
                if await self.send_news():
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.news.wait(), POLL_SECONDS)
                if time.monotonic() - authorised_at > AUTHORISE_AGAIN_SECONDS:
                    authorised_at = time.monotonic()
                    if not await self.allowed():
                        await self.close(code=NO_LONGER_ALLOWED)
                        return
                if time.monotonic() - self.told_at > TICK_SECONDS:
                    await self.tick()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # Closing makes the client come back with its position; staying silent would look like "nothing new".
            log.warning("a socket's reader failed", socket=type(self).__name__, error=str(error))
            await self.close(code=FAILED)


class ChangesConsumer(Watch):
    """`/ws/changes/`: {kind, id} of everything that changed, for pages that refresh their parts."""

    def group(self) -> str:
        """Everybody's."""
        return live.CHANGES

    def look(self, user: Any) -> None:
        """Whoever is signed in may know that something changed; what it is stands on pages that ask again."""
        policies.require(user, Action.VIEW)

    async def live_message(self, message: Mapping[str, Any]) -> None:
        """Pass a change on."""
        await self.tell(kind=message.get("kind"), id=message.get("id"))

    async def tick(self) -> None:
        """Send a sign of life in this socket's own form."""
        await self.tell(kind="tick")

    async def send_news(self) -> bool:
        """Nothing is stored here: each change is passed on as it comes."""
        return False


class LogConsumer(Watch):
    """`/ws/attempts/<pk>/log/?after=<byte offset>`: {offset, end, line, text}, {summary}, and at last {complete}.

    Without `after` a large log begins with its last 128 KiB. `line` is the number of the line, from 0, in which the text
    begins. The summary (`LogIndex.summary`) comes once all lines are sorted, and then whenever it has changed.
    """

    attempt: Attempt
    position: int | None = None
    line = 0
    told_summary: dict[str, Any] | None = None

    def group(self) -> str:
        """Readers of this attempt's log."""
        return live.log_group(self.scope["url_route"]["kwargs"]["pk"])

    def look(self, user: Any) -> None:
        """Fetch the attempt with its log's state."""
        rows = Attempt.objects.select_related("instance")
        pk = self.scope["url_route"]["kwargs"]["pk"]
        self.attempt = policies.get(user, rows, Action.VIEW, team_path="instance__deployment__team", pk=pk)

    async def send_news(self) -> bool:
        """Send the file on from the own position, piece by piece."""
        # The row first: a log that is called complete now has all its bytes in the file.
        complete: bool = await self._complete()
        path = self.attempt.log_path
        index = log_index.index_of(path)
        if self.position is None:
            asked = self.asked_position()
            self.position = asked if asked is not None else await asyncio.to_thread(log_reading.start_of_tail, path)
            await asyncio.to_thread(index.count)
            self.line = await asyncio.to_thread(index.lines_before, self.position)
        while piece := await asyncio.to_thread(log_reading.read_piece, path, self.position, final=complete):
            await self.tell(offset=piece.offset, end=piece.end, line=self.line, text=piece.text)
            self.position = piece.end
            self.line += piece.text.count("\n")
        is_sorted = await self._tell_summary(index)
        if complete and is_sorted:
            await self.tell(complete=True, end=self.position)
        return complete and is_sorted

    async def _tell_summary(self, index: LogIndex) -> bool:
        """Sort on for a moment, so that news is not held up by a large log; True once all lines are sorted."""
        await asyncio.to_thread(index.count)
        until = time.monotonic() + SORT_SECONDS
        while not (is_sorted := await asyncio.to_thread(index.sort, pieces=8)) and time.monotonic() < until:
            pass
        if not is_sorted:
            self.news.set()
            return False
        summary = await asyncio.to_thread(index.summary)
        if summary["first"] is not None:
            summary["cause"] = "".join(await asyncio.to_thread(index.lines, summary["first"], 1))
        # Counts change with almost every line; what is told here changes rarely.
        summary = {name: summary[name] for name in ("first", "cause", "processes", "gaps") if name in summary}
        if summary != self.told_summary:
            self.told_summary = summary
            await self.tell(summary=summary)
        return True

    @database_sync_to_async  # type: ignore[untyped-decorator]
    def _complete(self) -> bool:
        return bool(Attempt.objects.filter(pk=self.attempt.pk).values_list("log_complete", flat=True).first())


class EventsConsumer(Watch):
    """`/ws/jobs/<pk>/events/?after=<seq>`: {events}, {step} and {job} as they change, until the job has ended."""

    job: Job

    def group(self) -> str:
        """Those who watch this job."""
        return live.job_group(self.scope["url_route"]["kwargs"]["pk"])

    def look(self, user: Any) -> None:
        """Fetch the job."""
        pk = self.scope["url_route"]["kwargs"]["pk"]
        self.job = policies.get(user, Job.objects.all(), Action.VIEW, pk=pk)

    async def connect(self) -> None:
        """Begin after the event that the client has."""
        self.position = self.asked_position() or 0
        self.sent: dict[int, dict[str, Any]] = {}
        self.sent_job: dict[str, Any] = {}
        await super().connect()

    async def send_news(self) -> bool:
        """Send new events, then the steps and the job as far as they differ from what was sent."""
        while True:
            job, steps, events = await self._read()
            if events:
                await self.tell(events=events)
                self.position = events[-1]["seq"]
            if len(events) < EVENTS_AT_ONCE:
                break
        for step in steps:
            if self.sent.get(step["id"]) != step:
                self.sent[step["id"]] = step
                await self.tell(step=step)
        if job != self.sent_job:
            self.sent_job = job
            await self.tell(job=job)
        return False  # a retry wakes a failed job again, and whoever watches it wants to see that

    @database_sync_to_async  # type: ignore[untyped-decorator]
    def _read(self) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
        with translation.override(self._language()):
            # The job first, its events last: whoever is told that it ended gets all events of its end as well.
            job = Job.objects.get(pk=self.job.pk)
            steps = list(job.steps.select_related("host"))
            rows = Event.objects.filter(job=job, seq__gt=self.position).order_by("seq")[:EVENTS_AT_ONCE]
            shown = [presentation.step_state(step) for step in steps]
            return presentation.job_state(job, steps), shown, [presentation.event(row) for row in rows]

    def _language(self) -> str:
        request = HttpRequest()
        request.COOKIES = self.scope.get("cookies", {})
        headers = dict(self.scope.get("headers", []))
        request.META["HTTP_ACCEPT_LANGUAGE"] = headers.get(b"accept-language", b"").decode("latin-1")
        return translation.get_language_from_request(request)

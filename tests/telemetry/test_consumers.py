"""The sockets: who may open them, and that nothing is lost or doubled whatever happens to a connection."""

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.test import Client

from console.access.models import Team, User
from console.asgi import application
from console.common import live
from console.deployments.models import Attempt, Instance
from console.jobs import services as jobs
from console.jobs.models import Job, Step
from console.telemetry import consumers
from tests.factories import Fleet
from workers.contracts import StepProgress

pytestmark = pytest.mark.django_db(transaction=True)


class Socket(ApplicationCommunicator):
    """A browser's end of a WebSocket."""

    async def connect(self) -> bool:
        await self.send_input({"type": "websocket.connect"})
        return bool((await self.receive_output(5))["type"] == "websocket.accept")

    async def read(self, timeout: float = 5) -> Any:
        output = await self.receive_output(timeout)
        assert output["type"] == "websocket.send", output
        return json.loads(output["text"])

    async def close_code(self) -> int:
        output = await self.receive_output(5)
        while output["type"] != "websocket.close":
            output = await self.receive_output(5)
        return int(output["code"])

    async def leave(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1001})
        await self.wait(5)


def communicator(path: str, user: User | None = None, *, origin: str = "http://127.0.0.1") -> Socket:
    headers = [(b"origin", origin.encode()), (b"host", b"127.0.0.1")]
    if user:
        client = Client()
        client.force_login(user)
        headers.append((b"cookie", f"sessionid={client.cookies['sessionid'].value}".encode()))
    path, _mark, query = path.partition("?")
    scope = {"type": "websocket", "path": path, "query_string": query.encode(), "headers": headers, "subprotocols": []}
    return Socket(application, scope)


@asynccontextmanager
async def opened(path: str, user: User) -> AsyncIterator[Socket]:
    socket = await sync_to_async(communicator)(path, user)
    assert await socket.connect()
    yield socket
    await socket.leave()


async def receive(socket: Socket, wanted: Callable[[dict[str, Any]], bool], timeout: float = 5) -> Any:
    """The next message that is `wanted`; signs of life are skipped."""
    until = time.monotonic() + timeout
    while True:
        message = await socket.read(until - time.monotonic())
        if wanted(message):
            return message


async def text_up_to(socket: Socket, end: int) -> str:
    """What the socket sends until byte `end`, checked to be without gaps or doubles."""
    text, at = "", None
    while at != end:
        piece = await receive(socket, lambda message: "text" in message)
        assert at in (None, piece["offset"])
        at = piece["end"]
        text += piece["text"]
    return text


@pytest.fixture
def job(fleet: Fleet, admin: User) -> Job:
    return fleet.deploy(admin)


@pytest.fixture
def attempt(job: Job) -> Attempt:
    made = Attempt.objects.create(instance=Instance.objects.get(), number=1)
    made.log_path.parent.mkdir(parents=True, exist_ok=True)
    return made


def store(attempt: Attempt, data: bytes, *, announced: bool = True, complete: bool = False) -> None:
    """Append to the log as ingest does: the file, the row, the announcement."""
    with attempt.log_path.open("ab") as file:
        file.write(data)
    size = attempt.log_path.stat().st_size
    Attempt.objects.filter(pk=attempt.pk).update(log_bytes=size, log_complete=complete)
    if announced:
        live.announce(live.log_group(attempt.pk), up_to=size, complete=complete)


@pytest.mark.parametrize("who", ["anonymous", "other team", "disabled", "foreign page"])
async def test_whoever_may_not_look_is_refused_at_the_handshake(
    who: str, attempt: Attempt, job: Job, viewer: User
) -> None:
    paths = [f"/ws/attempts/{attempt.pk}/log/", f"/ws/jobs/{job.pk}/events/"]
    if who != "other team":
        paths.append("/ws/changes/")  # carries no team's content

    def prepare(path: str) -> Socket:
        if who == "other team":
            viewer.team = Team.objects.get_or_create(name="others")[0]
            viewer.save()
        origin = "http://evil.example" if who == "foreign page" else "http://127.0.0.1"
        socket = communicator(path, None if who == "anonymous" else viewer, origin=origin)
        if who == "disabled":
            User.objects.filter(pk=viewer.pk).update(is_active=False)
        return socket

    for path in paths:
        socket = await sync_to_async(prepare)(path)
        assert not await socket.connect(), path


async def test_a_viewer_hears_that_something_changed(viewer: User) -> None:
    async with opened("/ws/changes/", viewer) as socket:
        await sync_to_async(live.changed)("deployment", 7)
        message = await receive(socket, lambda message: message["kind"] != "tick")
        assert message == {"kind": "deployment", "id": 7}


async def test_a_log_is_sent_from_its_beginning_and_goes_on_as_it_grows(attempt: Attempt, viewer: User) -> None:
    await sync_to_async(store)(attempt, "first line\nsecond é\n".encode())
    async with opened(f"/ws/attempts/{attempt.pk}/log/", viewer) as socket:
        assert await text_up_to(socket, 21) == "first line\nsecond é\n"
        started = time.monotonic()
        await sync_to_async(store)(attempt, b"third\n")
        message = await receive(socket, lambda message: "text" in message)
        assert message == {"offset": 21, "end": 27, "line": 2, "text": "third\n"}
        assert time.monotonic() - started < 1.5  # woken by the message: the poll alone takes 2 s


async def test_a_lost_announcement_costs_time_but_no_line(
    attempt: Attempt, viewer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "POLL_SECONDS", 0.2)
    async with opened(f"/ws/attempts/{attempt.pk}/log/", viewer) as socket:
        await receive(socket, lambda message: "tick" in message)
        await sync_to_async(store)(attempt, b"quiet\n", announced=False)
        assert await text_up_to(socket, 6) == "quiet\n"


async def test_a_character_is_never_split_between_two_messages(attempt: Attempt, viewer: User) -> None:
    euro = "€".encode()
    await sync_to_async(store)(attempt, b"price 5 " + euro[:2])
    async with opened(f"/ws/attempts/{attempt.pk}/log/", viewer) as socket:
        assert await text_up_to(socket, 8) == "price 5 "
        await sync_to_async(store)(attempt, euro[2:] + b"\n")
        message = await receive(socket, lambda message: "text" in message)
        assert message == {"offset": 8, "end": 12, "line": 0, "text": "€\n"}


async def test_half_a_character_at_the_end_of_a_complete_log_is_shown_as_unreadable(
    attempt: Attempt, viewer: User
) -> None:
    await sync_to_async(store)(attempt, b"cut \xe2\x82", complete=True)
    async with opened(f"/ws/attempts/{attempt.pk}/log/", viewer) as socket:
        assert await text_up_to(socket, 6) == "cut �"
        assert await receive(socket, lambda message: "complete" in message) == {"complete": True, "end": 6}


async def test_reconnecting_with_the_reached_offset_loses_and_doubles_nothing(attempt: Attempt, viewer: User) -> None:
    whole = "".join(f"line {number} – ünïcödé\n" for number in range(300)).encode()
    got, end = "", 0
    for part in range(5):
        await sync_to_async(store)(attempt, whole[part * len(whole) // 5 : (part + 1) * len(whole) // 5])
        async with opened(f"/ws/attempts/{attempt.pk}/log/?after={end}", viewer) as socket:
            piece = await receive(socket, lambda message: "text" in message)
            assert piece["offset"] == end
            got, end = got + piece["text"], piece["end"]
    assert got == whole.decode()


async def test_a_large_log_begins_near_its_end_and_says_with_which_line(attempt: Attempt, viewer: User) -> None:
    data = b"".join(b"%07d %s\n" % (number, b"x" * 91) for number in range(10_000))
    await sync_to_async(store)(attempt, data)
    async with opened(f"/ws/attempts/{attempt.pk}/log/", viewer) as socket:
        first = await receive(socket, lambda message: "text" in message)
        assert first["offset"] % 100 == 0
        assert 128 * 1024 - 100 < len(data) - first["offset"] <= 128 * 1024
        assert first["line"] == first["offset"] // 100
        assert (first["end"], first["text"].encode()) == (len(data), data[first["offset"] :])


async def test_a_log_s_summary_comes_after_its_text_and_again_when_it_changes(attempt: Attempt, viewer: User) -> None:
    await sync_to_async(store)(attempt, b"(APIServer pid=7) INFO 11-29 14:02:11 [a.py:1] hello\n")
    async with opened(f"/ws/attempts/{attempt.pk}/log/", viewer) as socket:
        message = await receive(socket, lambda message: "summary" in message)
        assert message["summary"] == {"first": None, "processes": ["APIServer"], "gaps": 0}
        await sync_to_async(store)(attempt, b"ValueError: no\n")
        message = await receive(socket, lambda message: "summary" in message)
        assert (message["summary"]["first"], message["summary"]["cause"]) == (1, "ValueError: no")


async def test_a_wrong_offset_is_taken_as_none(attempt: Attempt, viewer: User) -> None:
    await sync_to_async(store)(attempt, b"text\n")
    async with opened(f"/ws/attempts/{attempt.pk}/log/?after=-3%00", viewer) as socket:
        assert await text_up_to(socket, 5) == "text\n"


async def test_events_come_after_the_one_that_the_client_has(job: Job, viewer: User) -> None:
    for text in ("one", "two", "three"):
        await sync_to_async(jobs.note)(job, text)
    known = await Job.objects.values_list("last_event", flat=True).aget(pk=job.pk)
    async with opened(f"/ws/jobs/{job.pk}/events/?after={known - 1}", viewer) as socket:
        message = await receive(socket, lambda message: "events" in message)
        assert [event["text"] for event in message["events"]] == ["three"]
        started = time.monotonic()
        await sync_to_async(jobs.note)(job, "four")
        message = await receive(socket, lambda message: "events" in message)
        assert [(event["seq"], event["text"]) for event in message["events"]] == [(known + 1, "four")]
        assert time.monotonic() - started < 1.5  # woken by the message: the poll alone takes 2 s


async def test_a_long_history_comes_in_order_and_complete(
    job: Job, viewer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "EVENTS_AT_ONCE", 7)
    first = await Job.objects.values_list("last_event", flat=True).aget(pk=job.pk)
    for number in range(20):
        await sync_to_async(jobs.note)(job, f"event {number}")
    async with opened(f"/ws/jobs/{job.pk}/events/?after={first}", viewer) as socket:
        seen: list[int] = []
        while len(seen) < 20:
            message = await receive(socket, lambda message: "events" in message)
            seen += [event["seq"] for event in message["events"]]
    assert seen == list(range(first + 1, first + 21))


async def test_a_step_tells_its_progress_and_the_job_its_end(job: Job, viewer: User) -> None:
    step = await Step.objects.aget(job=job, position=1)
    async with opened(f"/ws/jobs/{job.pk}/events/", viewer) as socket:
        await receive(socket, lambda message: "job" in message)

        def progress() -> None:
            row = Step.objects.get(pk=step.pk)
            jobs.started(row)
            report = {"done": 1024**2, "total": 4 * 1024**2, "unit": "bytes", "rate": 1024**2}
            Step.objects.filter(pk=row.pk).update(progress=report)
            live.announce(live.job_group(job.pk), step=row.pk)

        await sync_to_async(progress)()
        message = await receive(socket, lambda message: "step" in message and message["step"]["total"])
        assert message["step"]["state"] == "running"
        assert "1 MiB of 4 MiB" in message["step"]["progress"]
        assert "3 s left" in message["step"]["progress"]
        await sync_to_async(jobs.cancel)(await Job.objects.aget(pk=job.pk), actor=None, reason="enough")
        await receive(socket, lambda message: message.get("job", {}).get("state") == "cancelling")


async def test_a_job_s_first_line_moves_while_its_step_waits(job: Job, viewer: User) -> None:
    step = await Step.objects.aget(job=job, position=1)
    await sync_to_async(jobs.started)(step)
    async with opened(f"/ws/jobs/{job.pk}/events/", viewer) as socket:
        for seconds in (12, 11):
            waiting_for = f"the hub; trying again in {seconds} s"
            report = StepProgress(step=step.pk, fence=step.fence, done=1, total=2, waiting_for=waiting_for)
            await sync_to_async(jobs.progressed)(step, report)
            message = await receive(socket, lambda said: "job" in said and "waiting" in said["job"]["sentence"])
            assert message["job"]["sentence"].endswith(f"waiting for {waiting_for}.")


async def test_markup_of_a_step_escapes_what_a_host_says(job: Job, viewer: User) -> None:
    progress = {"done": 1, "total": 2, "waiting_for": "<script>alert(1)</script>"}
    await Step.objects.filter(job=job, position=1).aupdate(state="running", progress=progress)
    async with opened(f"/ws/jobs/{job.pk}/events/", viewer) as socket:
        message = await receive(socket, lambda message: "step" in message)
        assert "<script" not in message["step"]["progress"]
        assert "&lt;script&gt;" in message["step"]["progress"]


async def test_a_person_who_is_disabled_loses_the_open_socket(
    attempt: Attempt, viewer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(consumers, "AUTHORISE_AGAIN_SECONDS", 0.1)
    socket = await sync_to_async(communicator)(f"/ws/attempts/{attempt.pk}/log/", viewer)
    assert await socket.connect()
    await User.objects.filter(pk=viewer.pk).aupdate(is_active=False)
    assert await socket.close_code() == consumers.NO_LONGER_ALLOWED
    await socket.leave()


async def test_a_reader_that_fails_closes_its_socket_so_that_the_client_comes_back(
    attempt: Attempt, viewer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(consumers.log_reading, "read_piece", broken)
    socket = await sync_to_async(communicator)(f"/ws/attempts/{attempt.pk}/log/", viewer)
    assert await socket.connect()
    assert await socket.close_code() == consumers.FAILED
    await socket.leave()

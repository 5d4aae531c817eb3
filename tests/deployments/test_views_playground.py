"""The playground: streamed through the console, in plain words when it fails."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.test import AsyncClient, Client
from django.urls import reverse
from django.utils import timezone

from console.access.models import Team, User
from console.common.secrets import decrypt
from console.deployments import chat
from console.deployments.models import Deployment, Instance
from console.deployments.services import Endpoint
from console.jobs.models import Job
from tests.factories import Fleet

ANSWER = ["The capital", " of France", " is <b>Paris</b>."]


@dataclass
class Engine:
    """A small HTTP server that answers as vLLM does, piece by piece."""

    pieces: list[str] = field(default_factory=lambda: list(ANSWER))
    status: int = 200
    body: dict[str, Any] = field(default_factory=dict)
    pause_seconds: float = 0.0
    breaks_after: int | None = None
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line[16:]) for line in head.lower().splitlines() if line.startswith("content-length:"))
        self.requests.append((head, json.loads(await reader.readexactly(length))))
        try:
            if self.status != 200:
                body = json.dumps(self.body).encode()
                writer.write(b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n" % (self.status, len(body)) + body)
            else:
                await self._stream(writer)
            await writer.drain()
        except ConnectionError:
            self.left.set()
        finally:
            writer.close()

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number, piece in enumerate(self.pieces):
            if number == self.breaks_after:
                return
            await self._send(writer, {"choices": [{"delta": {"content": piece}, "finish_reason": None}]})
            await asyncio.sleep(self.pause_seconds)
        await self._send(writer, {"choices": [{"delta": {}, "finish_reason": "stop"}]})
        await self._send(writer, {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 7}})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    async def _send(self, writer: asyncio.StreamWriter, chunk: dict[str, Any]) -> None:
        data = f"data: {json.dumps(chunk)}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()


@asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[int]:
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def conversation(text: str = "What is the capital of France?", **more: Any) -> chat.Conversation:
    return chat.Conversation.model_validate({"messages": [{"role": "user", "content": text}]} | more)


async def events(engine: Engine, asked: chat.Conversation | None = None) -> list[dict[str, Any]]:
    async with running(engine) as port:
        endpoint = Endpoint(f"http://127.0.0.1:{port}", "sk-1", "chat")
        return [event async for event in chat.stream(endpoint, asked or conversation())]


async def test_an_answer_comes_in_pieces_with_its_measures_at_the_end() -> None:
    engine = Engine(pause_seconds=0.02)
    *pieces, last = await events(engine)
    assert [piece["text"] for piece in pieces] == ANSWER
    done = last["done"]
    assert (done["finish_reason"], done["prompt_tokens"], done["completion_tokens"]) == ("stop", 12, 7)
    assert 0 < done["ttft_seconds"] < done["seconds"]
    assert done["tokens_per_second"] == pytest.approx(6 / (done["seconds"] - done["ttft_seconds"]), rel=0.1)


async def test_the_request_carries_key_model_and_parameters() -> None:
    engine = Engine()
    await events(engine, conversation(system="Be brief.", temperature=0.5, max_tokens=9))
    head, body = engine.requests[0]
    assert "Bearer sk-1" in head
    assert (body["model"], body["temperature"], body["max_tokens"], body["stream"]) == ("chat", 0.5, 9, True)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, {"error": "Unauthorized"}, "did not accept the console's key"),
        (
            400,
            {"error": {"message": "This model's maximum context length is 2048 tokens."}},
            "longer than the model's context",
        ),
        (404, {"error": {"message": "The model `chat` does not exist."}}, "does not know this model"),
        (404, {"detail": "Not Found"}, "its model gives vectors"),
        (503, {"error": {"message": "queue is full"}}, "full at the moment"),
        (400, {"message": "no chat template is allowed"}, "no chat template"),
        (500, {"error": {"message": "EngineCore died"}}, "status 500: EngineCore died"),
    ],
)
async def test_a_refusal_is_explained(status: int, body: dict[str, Any], words: str) -> None:
    (only,) = await events(Engine(status=status, body=body))
    assert words in only["error"]["message"]


async def test_an_engine_that_is_gone_is_named() -> None:
    async with running(Engine()) as port:
        pass
    found = [event async for event in chat.stream(Endpoint(f"http://127.0.0.1:{port}", "k", "m"), conversation())]
    assert f"does not answer at http://127.0.0.1:{port}" in found[0]["error"]["message"]


async def test_an_engine_that_dies_while_it_answers_leaves_what_it_said() -> None:
    *pieces, last = await events(Engine(breaks_after=2))
    assert [piece["text"] for piece in pieces] == ANSWER[:2]
    assert "broke while it answered" in last["error"]["message"]


async def test_an_error_inside_the_stream_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    line = 'data: {"error": {"message": "maximum context length exceeded", "code": 400}}'
    (only,) = chat._events(line, chat.Measured(0))
    assert "longer than the model's context" in only["error"]["message"]


async def test_stopping_ends_the_request_to_the_engine() -> None:
    engine = Engine(pieces=["word "] * 2000, pause_seconds=0.01)
    async with running(engine) as port:
        stream = chat.stream(Endpoint(f"http://127.0.0.1:{port}", "k", "m"), conversation())
        assert await anext(stream) == {"text": "word "}
        await stream.aclose()  # type: ignore[attr-defined]
        await asyncio.wait_for(engine.left.wait(), 5)


@pytest.fixture
def serving(fleet: Fleet, admin: User) -> Deployment:
    fleet.deploy(admin, name="chat")
    Job.objects.update(state="succeeded", finished_at=timezone.now())
    Instance.objects.update(state="ready", port=18001, ordered=True, run=True)
    Deployment.objects.update(state="serving")
    return Deployment.objects.get()


@pytest.mark.django_db
def test_only_operators_and_admins_may_talk(serving: Deployment, viewer: User, operator: User, client: Client) -> None:
    urls = [reverse("playground"), reverse("deployment_playground", args=[serving.pk])]
    for user, status in ((viewer, 403), (operator, 200)):
        client.force_login(user)
        assert [client.get(url).status_code for url in urls] == [status, status]
    client.force_login(viewer)
    assert reverse("playground") not in client.get(reverse("deployment_list")).content.decode()


@pytest.mark.django_db
def test_without_a_ready_deployment_the_page_says_so(operator: User, client: Client) -> None:
    client.force_login(operator)
    assert "Nothing to talk to yet" in client.get(reverse("playground")).content.decode()


async def ask(client: AsyncClient, deployment: Deployment, body: Any) -> Any:
    url = reverse("playground_chat", args=[deployment.pk])
    return await client.post(url, data=json.dumps(body), content_type="application/json")


@pytest.mark.django_db(transaction=True)
async def test_the_console_streams_the_answer_of_the_ready_instance(
    serving: Deployment, operator: User, async_client: AsyncClient
) -> None:
    engine = Engine()
    await async_client.aforce_login(operator)
    async with running(engine) as port:
        await Instance.objects.aupdate(port=port)
        response = await ask(async_client, serving, {"messages": [{"role": "user", "content": "Paris?"}]})
        assert response["content-type"] == "text/event-stream"
        lines = b"".join([part async for part in response.streaming_content]).decode().split("\n\n")
    parts = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert "".join(part.get("text", "") for part in parts) == "".join(ANSWER)
    assert "done" in parts[-1]
    assert f"Bearer {decrypt(serving.api_key)}" in engine.requests[0][0]


@pytest.mark.django_db(transaction=True)
async def test_who_may_not_gets_no_answer(
    serving: Deployment, viewer: User, operator: User, async_client: AsyncClient
) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert (await ask(async_client, serving, body)).status_code == 302
    await async_client.aforce_login(viewer)
    assert (await ask(async_client, serving, body)).status_code == 403
    operator.team = await Team.objects.acreate(name="others")
    await operator.asave()
    await async_client.aforce_login(operator)
    assert (await ask(async_client, serving, body)).status_code == 404


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": [{"role": "system", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x"}], "temperature": 9},
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": 0},
    ],
)
async def test_a_malformed_conversation_is_refused(
    serving: Deployment, operator: User, async_client: AsyncClient, body: Any
) -> None:
    await async_client.aforce_login(operator)
    response = await ask(async_client, serving, body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


@pytest.mark.django_db(transaction=True)
async def test_without_a_ready_instance_it_says_so(
    serving: Deployment, operator: User, async_client: AsyncClient
) -> None:
    await Instance.objects.aupdate(state="loading")
    await async_client.aforce_login(operator)
    response = await ask(async_client, serving, {"messages": [{"role": "user", "content": "x"}]})
    assert response.status_code == 409
    assert "No instance is ready" in response.json()["error"]["message"]

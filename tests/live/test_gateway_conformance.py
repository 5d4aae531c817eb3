"""What clients of all kinds get through the gateway is what the engine itself says, with the same flags.

A real engine, a real HAProxy before it, and clients as people use them. Only the chunk of a stream that holds usage alone
is taken out where the client did not ask for it.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.gateway.backend import Engine, Running, key_of, route_of, target_of
from tests.live.conftest import ENGINE, MODEL, engine_cache
from tests.live.harness import wait_for
from tests.ports import free_port

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(1200)]

KEY = "sk-of-the-engine"
CHAT = {
    "model": "chat",
    "temperature": 0,
    "max_tokens": 12,
    "messages": [{"role": "user", "content": "Name a colour."}],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather", "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"enum": ["Paris", "Rome"]}}, "required": ["place"]},
    },
}  # fmt: skip
# What differs between any two answers of the same engine.
OWN = ("id", "created", "created_at", "completed_at", "system_fingerprint", "response_id", "item_id")


@contextmanager
def vllm(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[int]:
    """A real engine with the flags that hosts give it, and these; its port."""
    port = free_port()
    program = engine_cache() / "engines" / ENGINE / "bin" / "vllm"
    with (folder / "engine.log").open("ab") as log:
        process = subprocess.Popen(
            [
                str(program), "serve", str(engine_cache() / "models" / MODEL), "--host", "127.0.0.1", "--port", str(port),
                "--served-model-name", "chat", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "4",
                "--enable-force-include-usage", "--enable-request-id-headers", *arguments,
            ],
            env={
                **os.environ, "VLLM_API_KEY": KEY, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
                **(environment or {}),
            },
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip

    def is_up() -> bool:
        assert process.poll() is None, (folder / "engine.log").read_text()[-4000:]
        try:
            return httpx2.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False).status_code == 200
        except httpx2.HTTPError:
            return False

    try:
        wait_for("the engine listens", is_up, seconds=600, every=0.5)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


@contextmanager
def behind_a_gateway(folder: Path, port: int) -> Iterator[Running]:
    running = Running(folder)
    try:
        target = target_of(Engine(port=port, key=KEY))
        running.start(routes=(route_of(target),), keys=(key_of("secret"),))
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("engine")
    with vllm(folder, "--enable-auto-tool-choice", "--tool-call-parser", "hermes") as port:
        yield port


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, engine: int) -> Iterator[Running]:
    with behind_a_gateway(tmp_path_factory.mktemp("gateway"), engine) as running:
        yield running


def bare(value: Any) -> Any:
    """An answer without what is new in each."""
    if isinstance(value, dict):
        return {name: bare(one) for name, one in value.items() if name not in OWN}
    return [bare(one) for one in value] if isinstance(value, list) else value


def both(gateway: Running, engine: int) -> tuple[httpx2.Client, httpx2.Client]:
    direct = httpx2.Client(
        base_url=f"http://127.0.0.1:{engine}", headers={"Authorization": f"Bearer {KEY}"}, timeout=120, trust_env=False
    )
    by_gateway = gateway.client()
    by_gateway.timeout = direct.timeout
    return by_gateway, direct


BODIES = {
    "chat": ("/v1/chat/completions", CHAT),
    "several choices": ("/v1/chat/completions", CHAT | {"n": 2, "temperature": 0.5, "seed": 7}),
    "log probabilities": ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2}),
    "a forced tool": (
        "/v1/chat/completions", CHAT | {"tools": [TOOL], "max_tokens": 40,
                                        "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    ),
    "completions": ("/v1/completions", {"model": "chat", "prompt": "One, two,", "max_tokens": 6, "temperature": 0}),
    "responses": ("/v1/responses", {"model": "chat", "input": "Name a colour.", "max_output_tokens": 12, "temperature": 0}),
    "messages": ("/v1/messages", {name: CHAT[name] for name in ("model", "messages", "max_tokens", "temperature")}),
    "tokenize": ("/tokenize", {"model": "chat", "prompt": "One, two,"}),
    "what the engine refuses": ("/v1/chat/completions", CHAT | {"temperature": -3}),
    "what this engine can't do": ("/v1/embeddings", {"model": "chat", "input": "a"}),
}  # fmt: skip


@pytest.mark.parametrize("what", BODIES)
def test_an_answer_is_the_engines_own(gateway: Running, engine: int, what: str) -> None:
    path, body = BODIES[what]
    by_gateway, direct = (client.post(path, json=body) for client in both(gateway, engine))
    assert by_gateway.status_code == direct.status_code, by_gateway.text
    assert bare(by_gateway.json()) == bare(direct.json())
    assert by_gateway.headers["content-type"] == direct.headers["content-type"]


STREAMS = {
    "chat": BODIES["chat"],
    "completions": BODIES["completions"],
    "responses": BODIES["responses"],
    "messages": BODIES["messages"],
    "a forced tool": BODIES["a forced tool"],
    "several choices": BODIES["several choices"],
}


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("what", STREAMS)
def test_a_stream_is_the_engines_own(gateway: Running, engine: int, what: str, *, usage: bool) -> None:
    path, body = STREAMS[what]
    options = {"stream_options": {"include_usage": True}} if usage and path.endswith("completions") else {}
    by_gateway, direct = (
        events(client.post(path, json=body | {"stream": True} | options).text) for client in both(gateway, engine)
    )
    if not options:
        direct = [one for one in direct if not (isinstance(one, dict) and one.get("choices") == [])]
    if "several" in what:
        # Two choices come in any order.
        by_gateway, direct = (sorted(some, key=json.dumps) for some in (by_gateway, direct))
    assert by_gateway == direct
    assert len(direct) > 3


def events(text: str) -> list[Any]:
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [one if one == "[DONE]" else bare(json.loads(one)) for one in data]


def test_openai_python_chats_streams_calls_tools_and_uses_responses(gateway: Running) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="secret", max_retries=0, timeout=120) as client:
        assert [one.id for one in client.models.list()] == ["chat"]
        whole = client.chat.completions.create(**CHAT)  # type: ignore[call-overload]
        assert whole.usage.completion_tokens > 0
        chunks = list(client.chat.completions.create(stream=True, **CHAT))  # type: ignore[call-overload]
        assert "".join(one.choices[0].delta.content or "" for one in chunks) == whole.choices[0].message.content
        chosen = {"type": "function", "function": {"name": "weather"}}
        asked = CHAT | {"max_tokens": 100, "tools": [TOOL], "tool_choice": chosen}  # a call that is cut short is none
        called = client.chat.completions.create(**asked)  # type: ignore[call-overload]
        assert called.choices[0].message.tool_calls, called
        assert called.choices[0].message.tool_calls[0].function.name == "weather"
        answer = client.responses.create(model="chat", input="Name a colour.", max_output_tokens=12, temperature=0)
        assert answer.output_text
        with client.responses.stream(model="chat", input="Name a colour.", max_output_tokens=12) as stream:
            assert [event.type for event in stream][-1] in ("response.completed", "response.incomplete")
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(**CHAT | {"model": "nope"})  # type: ignore[call-overload]
        assert unknown.value.code == "model_not_found"
    wrong = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="wrong", max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError):
        wrong.chat.completions.create(**CHAT)  # type: ignore[call-overload]


def test_curl_gets_an_answer_and_a_stream(gateway: Running) -> None:
    def curl(body: dict[str, Any]) -> str:
        headers = ["-H", "Authorization: Bearer secret", "-H", "Content-Type: application/json"]
        words = ["curl", "-sSN", "--fail", f"{gateway.url}/v1/chat/completions", *headers, "-d", json.dumps(body)]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout

    assert json.loads(curl(CHAT))["choices"][0]["message"]["content"]
    assert curl(CHAT | {"stream": True}).endswith("data: [DONE]\n\n")


OTHERS = """
import json, litellm, sys
from langchain_openai import ChatOpenAI
url = sys.argv[1]
asked = dict(model="openai/chat", api_base=url, api_key="secret", temperature=0, max_tokens=12,
             messages=[{"role": "user", "content": "Name a colour."}])
whole = litellm.completion(**asked)
stream = "".join(one.choices[0].delta.content or "" for one in litellm.completion(stream=True, **asked))
chain = ChatOpenAI(model="chat", base_url=url, api_key="secret", temperature=0, max_tokens=12)
print(json.dumps([whole.choices[0].message.content, stream, whole.usage.completion_tokens,
                  chain.invoke("Name a colour.").content, "".join(one.content for one in chain.stream("Name a colour."))]))
"""


def test_litellm_and_langchain_get_what_the_engine_says(gateway: Running, engine: int, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "litellm", "langchain-openai"]
    subprocess.run(install, check=True, timeout=600)
    done = subprocess.run(
        [python, "-c", OTHERS, f"{gateway.url}/v1"], capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGCHAIN_TRACING_V2": "false"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    whole, stream, tokens, invoked, streamed = json.loads(done.stdout.splitlines()[-1])
    _gateway, direct = both(gateway, engine)
    said = direct.post("/v1/chat/completions", json=CHAT).json()
    assert [whole, stream, invoked, streamed] == [said["choices"][0]["message"]["content"]] * 4
    assert tokens == said["usage"]["completion_tokens"]


def test_embeddings_are_the_engines_own(tmp_path: Path) -> None:
    with (
        vllm(tmp_path, "--runner", "pooling", "--convert", "embed") as port,
        behind_a_gateway(tmp_path, port) as gateway,
    ):
        body = {"model": "chat", "input": ["a cat", "a dog", "a house"]}
        by_gateway, direct = (client.post("/v1/embeddings", json=body) for client in both(gateway, port))
        assert by_gateway.status_code == 200, by_gateway.text
        assert bare(by_gateway.json()) == bare(direct.json())
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="secret", max_retries=0) as client:
            found = client.embeddings.create(model="chat", input="a cat")
        assert len(found.data[0].embedding) > 100
        assert gateway.lines()[-1]["output_tokens"] in ("-", "0")

"""Talking to one engine over HTTP, as validation and warm-up do. Blocking; every call has a timeout."""

import json
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import httpx2

from workers.host.launching import LISTEN_ADDRESS
from workers.vllm.vectors import EMBEDDINGS_PATH, POOLING_PATH, values_of

Mode = Literal["chat", "completions", "embeddings"]


class EngineError(Exception):
    """The engine refused a request or broke off. `status` is the HTTP status, or None if there was no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class ChatAnswer:
    """One answer. Times in seconds from the request; `completion_tokens` as the engine counts them."""

    text: str
    finish_reason: str | None
    completion_tokens: int | None
    seconds: float
    ttft_seconds: float | None = None
    thinking: bool = False
    """True if the text is a reasoning that has not come to an answer."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    """`{name, arguments}` of each call, as the engine gave them."""


@dataclass(frozen=True)
class VectorAnswer:
    """What a pooling model made of one text, in seconds from the request.

    `path`: where it was asked; classes and scores come as vectors of /pooling.
    """

    values: tuple[float, ...]
    seconds: float
    path: str = EMBEDDINGS_PATH


class EngineClient:
    """A client of the engine that listens on `port` of this machine."""

    def __init__(self, port: int, key: str = "", *, timeout_seconds: float = 300) -> None:
        # Proxies of the environment must not see, or swallow, what goes to our own machine.
        self._http = httpx2.Client(
            base_url=f"http://{LISTEN_ADDRESS}:{port}",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(timeout_seconds, connect=5),
            trust_env=False,
        )
        self._vector_path = EMBEDDINGS_PATH

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def is_healthy(self, *, timeout_seconds: float = 1) -> bool:
        """True if /health answers 200 within the timeout. It only says that the engine is not dead."""
        try:
            return self._http.get("/health", timeout=timeout_seconds).status_code == httpx2.codes.OK
        except httpx2.HTTPError:
            return False

    def models(self) -> dict[str, dict[str, Any]]:
        """The served names, each with what /v1/models says of it. Raises `EngineError`."""
        content = self._checked(self._send("GET", "/v1/models"))
        return {model["id"]: model for model in content.get("data", [])}

    def asked_as(self, declared: Mode) -> Mode:
        """How it can be asked: as declared, or for vectors where it makes no text. Raises `EngineError`.

        An engine has the interfaces of its model's tasks only, and it alone knows them all: arguments, architecture and
        the files of sentence-transformers decide together. Asked by GET, an interface is not allowed (405) or not there.
        """
        if declared == "embeddings" or self._send("GET", "/v1/completions").status_code != httpx2.codes.NOT_FOUND:
            return declared
        return "embeddings"

    def embed(self, model: str, text: str | list[int]) -> VectorAnswer:
        """The vector of one text, or of its token ids. Raises `EngineError`."""
        path, began = self._vector_path, time.monotonic()
        response = self._send("POST", path, {"model": model, "input": text, "encoding_format": "float"})
        if response.status_code == httpx2.codes.NOT_FOUND and path == EMBEDDINGS_PATH:
            self._vector_path = POOLING_PATH
            return self.embed(model, text)
        values = values_of(self._checked(response))
        return VectorAnswer(values, time.monotonic() - began, path)

    def chat(self, model: str, prompt: str, *, max_tokens: int, **more: Any) -> ChatAnswer:
        """One chat completion at temperature 0, as a whole; `more` goes into the request. Raises `EngineError`."""
        began = time.monotonic()
        content = self._checked(
            self._send("POST", "/v1/chat/completions", self._body(model, prompt, max_tokens, "chat") | more)
        )
        choice = (content.get("choices") or [{}])[0]
        message = choice.get("message") or {}
        return ChatAnswer(
            text=message.get("content") or message.get("reasoning") or message.get("reasoning_content") or "",
            finish_reason=choice.get("finish_reason"),
            completion_tokens=(content.get("usage") or {}).get("completion_tokens"),
            seconds=time.monotonic() - began,
            thinking=not message.get("content") and bool(message.get("reasoning") or message.get("reasoning_content")),
            tool_calls=tuple(call.get("function") or {} for call in message.get("tool_calls") or []),
        )

    def complete(self, model: str, prompt: str | list[int], *, max_tokens: int, **more: Any) -> ChatAnswer:
        """One text completion at temperature 0; `prompt` may be token ids. Raises `EngineError`."""
        began = time.monotonic()
        body = self._body(model, prompt, max_tokens, "completions") | more
        content = self._checked(self._send("POST", "/v1/completions", body))
        choice = (content.get("choices") or [{}])[0]
        return ChatAnswer(
            text=choice.get("text") or "",
            finish_reason=choice.get("finish_reason"),
            completion_tokens=(content.get("usage") or {}).get("completion_tokens"),
            seconds=time.monotonic() - began,
        )

    def ask(self, model: str, prompt: str, *, max_tokens: int, mode: Mode) -> ChatAnswer:
        """Ask as the deployment's clients do: a chat message, or a text to go on with. Raises `EngineError`."""
        work = self.chat if mode == "chat" else self.complete
        return work(model, prompt, max_tokens=max_tokens)

    def stream(self, model: str, prompt: str, *, max_tokens: int, mode: Mode = "chat") -> ChatAnswer:
        """The same at temperature 0, streamed, so that the time to the first token is known. Raises `EngineError`."""
        began = time.monotonic()
        path = "/v1/chat/completions" if mode == "chat" else "/v1/completions"
        body = self._body(model, prompt, max_tokens, mode)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        said, thought, finish, tokens, first, pieces = "", "", None, None, None, 0
        try:
            with self._http.stream("POST", path, json=body) as response:
                if response.status_code != httpx2.codes.OK:
                    response.read()
                    self._checked(response)
                for line in response.iter_lines():
                    if not line.startswith("data:") or line.endswith("[DONE]"):
                        continue
                    event = json.loads(line.removeprefix("data:"))
                    # The status was sent before anything went wrong: what did is an event of its own.
                    if isinstance(event.get("error"), dict):
                        raise EngineError(f"the engine broke off its answer: {event['error'].get('message')}")
                    tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
                    for choice in event.get("choices") or []:
                        answer, reasoning = _piece_of(choice)
                        if (answer or reasoning) and first is None:
                            first = time.monotonic() - began
                        pieces += bool(answer or reasoning)
                        said, thought = said + answer, thought + reasoning
                        finish = choice.get("finish_reason") or finish
        except (httpx2.HTTPError, ValueError) as error:
            raise EngineError(f"the engine broke off its answer: {type(error).__name__}") from error
        count = pieces if tokens is None else tokens
        thinking = bool(thought) and not said
        return ChatAnswer(said or thought, finish, count, time.monotonic() - began, first, thinking)

    def tokenize(self, model: str, text: str, *, as_chat: bool) -> list[int]:
        """Token ids of a text as it is, or of the prompt that the chat template makes of it. Raises `EngineError`."""
        what: dict[str, Any] = {"prompt": text, "add_special_tokens": False}
        if as_chat:
            what = {"messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
        tokens = self._checked(self._send("POST", "/tokenize", {"model": model, **what})).get("tokens")
        if not isinstance(tokens, list):
            raise EngineError("/tokenize answered without tokens")
        return tokens

    def detokenize(self, model: str, tokens: list[int]) -> str:
        """The text of token ids. Raises `EngineError`."""
        content = self._checked(self._send("POST", "/detokenize", {"model": model, "tokens": tokens}))
        return str(content.get("prompt", ""))

    def load_adapter(self, name: str, path: str, *, replace: bool) -> None:
        """Load a LoRA adapter under a name; `replace`: in place of the one that has it, without a moment without one.

        Raises `EngineError`, with status 400 where the name is taken and this version can't replace it.
        """
        more = {"load_inplace": True} if replace else {}
        self._accepted(self._send("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **more}))

    def unload_adapter(self, name: str) -> None:
        """Forget a LoRA adapter; requests that have begun with it end with it. Raises `EngineError`."""
        self._accepted(self._send("POST", "/v1/unload_lora_adapter", {"lora_name": name}))

    def metrics(self) -> str:
        """What /metrics says, as text. Raises `EngineError`."""
        response = self._send("GET", "/metrics")
        if response.status_code != httpx2.codes.OK:
            raise EngineError(f"/metrics answered {response.status_code}", response.status_code)
        return response.text

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx2.Response:
        try:
            return self._http.request(method, path, json=body)
        except httpx2.HTTPError as error:
            raise EngineError(f"{path} was not answered: {type(error).__name__}") from error

    def _accepted(self, response: httpx2.Response) -> None:
        # Success is a sentence here, not JSON.
        if response.status_code != httpx2.codes.OK:
            self._checked(response)

    @staticmethod
    def _checked(response: httpx2.Response) -> dict[str, Any]:
        try:
            content = response.json()
        except ValueError:
            content = None
        if response.status_code == httpx2.codes.OK and isinstance(content, dict):
            return content
        error = content.get("error") if isinstance(content, dict) else None
        said = error.get("message") if isinstance(error, dict) else error or response.text[:300]
        raise EngineError(f"{response.url.path} answered {response.status_code}: {said}", response.status_code)

    @staticmethod
    def _body(model: str, prompt: str | list[int], max_tokens: int, mode: Mode) -> dict[str, Any]:
        asked: dict[str, Any] = {"prompt": prompt}
        if mode == "chat":
            asked = {"messages": [{"role": "user", "content": prompt}]}
        return {"model": model, **asked, "temperature": 0, "max_tokens": max_tokens}


def _piece_of(choice: dict[str, Any]) -> tuple[str, str]:
    """A piece of the answer, and a piece of the reasoning before it."""
    delta = choice.get("delta") or {}
    answer = choice.get("text") or delta.get("content")
    return str(answer or ""), str(delta.get("reasoning") or delta.get("reasoning_content") or "")

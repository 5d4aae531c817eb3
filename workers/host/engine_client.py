"""Talking to one engine over HTTP, as validation and warm-up do. Blocking; every call has a timeout."""

import json
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx2

from workers.host.launching import LISTEN_ADDRESS


class EngineError(Exception):
    """The engine refused a request or broke off. `status` is the HTTP status, or None if there was no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class ChatAnswer:
    """One chat completion. Times in seconds from the request; `completion_tokens` as the engine counts them."""

    text: str
    finish_reason: str | None
    completion_tokens: int | None
    seconds: float
    ttft_seconds: float | None = None


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

    def chat(self, model: str, prompt: str, *, max_tokens: int) -> ChatAnswer:
        """One chat completion at temperature 0, as a whole. Raises `EngineError`."""
        began = time.monotonic()
        body = self._body(model, prompt, max_tokens)
        content = self._checked(self._send("POST", "/v1/chat/completions", body))
        choice = (content.get("choices") or [{}])[0]
        message = choice.get("message") or {}
        return ChatAnswer(
            text=message.get("content") or message.get("reasoning") or message.get("reasoning_content") or "",
            finish_reason=choice.get("finish_reason"),
            completion_tokens=(content.get("usage") or {}).get("completion_tokens"),
            seconds=time.monotonic() - began,
        )

    def stream_chat(self, model: str, prompt: str, *, max_tokens: int) -> ChatAnswer:
        """One chat completion at temperature 0, streamed, so that the time to the first token is known."""
        began = time.monotonic()
        body = self._body(model, prompt, max_tokens) | {"stream": True, "stream_options": {"include_usage": True}}
        text, finish, tokens, first, pieces = "", None, None, None, 0
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != httpx2.codes.OK:
                    response.read()
                    self._checked(response)
                for line in response.iter_lines():
                    if not line.startswith("data:") or line.endswith("[DONE]"):
                        continue
                    event = json.loads(line.removeprefix("data:"))
                    tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
                    for choice in event.get("choices") or []:
                        piece = _piece_of(choice.get("delta") or {})
                        if piece and first is None:
                            first = time.monotonic() - began
                        pieces += bool(piece)
                        text += piece
                        finish = choice.get("finish_reason") or finish
        except (httpx2.HTTPError, ValueError) as error:
            raise EngineError(f"the engine broke off its answer: {type(error).__name__}") from error
        return ChatAnswer(text, finish, pieces if tokens is None else tokens, time.monotonic() - began, first)

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx2.Response:
        try:
            return self._http.request(method, path, json=body)
        except httpx2.HTTPError as error:
            raise EngineError(f"{path} was not answered: {type(error).__name__}") from error

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
    def _body(model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": prompt}]
        return {"model": model, "messages": messages, "temperature": 0, "max_tokens": max_tokens}


def _piece_of(delta: dict[str, Any]) -> str:
    return delta.get("content") or delta.get("reasoning") or delta.get("reasoning_content") or ""

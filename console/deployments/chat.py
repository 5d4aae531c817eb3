"""One chat with a deployment's endpoint: the request that is sent, and what its stream tells, as plain events."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
from django.utils.translation import gettext as _
from pydantic import BaseModel, Field

from console.deployments.services import Endpoint
from workers.contracts import Message

CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 120.0
"""A long prompt may take this long before its first token; a silent engine is given up afterwards."""


class Turn(Message):
    """One message of the conversation."""

    role: str = Field(pattern="^(user|assistant)$")
    content: str = Field(max_length=400_000)


class Conversation(BaseModel):
    """What the playground's page sends."""

    messages: list[Turn] = Field(min_length=1, max_length=400)
    system: str = Field(default="", max_length=100_000)
    temperature: float = Field(default=0, ge=0, le=2)
    max_tokens: int = Field(default=512, ge=1, le=1_000_000)


@dataclass
class Measured:
    """What was seen of a stream so far. Times in seconds since the request was sent."""

    sent_at: float
    first_at: float | None = None
    pieces: int = 0
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    def as_event(self) -> dict[str, Any]:
        """The last event of a good stream."""
        now = time.monotonic()
        tokens = self.completion_tokens if self.completion_tokens is not None else self.pieces
        writing = now - self.first_at if self.first_at is not None else 0
        return {
            "done": {
                "finish_reason": self.finish_reason,
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": tokens,
                "ttft_seconds": self.first_at - self.sent_at if self.first_at is not None else None,
                "seconds": now - self.sent_at,
                # The first token's time is the prompt's; the speed counts the ones after it.
                "tokens_per_second": (tokens - 1) / writing if tokens > 1 and writing > 0 else None,
            }
        }


def request_body(endpoint: Endpoint, conversation: Conversation) -> dict[str, Any]:
    """Body for /v1/chat/completions."""
    system = [{"role": "system", "content": conversation.system}] if conversation.system.strip() else []
    return {
        "model": endpoint.model,
        "messages": system + [turn.model_dump() for turn in conversation.messages],
        "temperature": conversation.temperature,
        "max_tokens": conversation.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def stream(endpoint: Endpoint, conversation: Conversation) -> AsyncIterator[dict[str, Any]]:
    """Events of one answer: {text} or {thinking} pieces, then {done} or {error}. Closing it ends the request upstream."""
    timeout = httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    headers = {"Authorization": f"Bearer {endpoint.key}"}
    measured = Measured(sent_at=time.monotonic())
    try:
        async with (
            httpx2.AsyncClient(timeout=timeout, trust_env=False) as client,
            client.stream(
                "POST",
                f"{endpoint.url}/v1/chat/completions",
                json=request_body(endpoint, conversation),
                headers=headers,
            ) as response,
        ):
            if response.status_code != 200:
                yield error(refusal(response.status_code, (await response.aread()).decode("utf-8", "replace")))
                return
            async for line in response.aiter_lines():
                for event in _events(line, measured):
                    yield event
                    if "error" in event:
                        return
    except (httpx2.ConnectError, httpx2.ConnectTimeout):
        yield error(_("The engine does not answer at %(url)s. It may just be restarting.") % {"url": endpoint.url})
    except httpx2.TimeoutException:
        yield error(_("The engine sent nothing for %(seconds)d s.") % {"seconds": SILENCE_SECONDS})
    except httpx2.HTTPError:
        yield error(_("The connection to the engine broke while it answered. It may have stopped or crashed."))
    else:
        yield measured.as_event()


def content_of(line: str) -> str:
    """The JSON that a line of a stream carries; empty for the other lines, the last one among them."""
    content = line.removeprefix("data:").strip() if line.startswith("data:") else ""
    return "" if content == "[DONE]" else content


def _events(line: str, measured: Measured) -> list[dict[str, Any]]:
    if not (content := content_of(line)):
        return []
    try:
        chunk = json.loads(content)
    except ValueError:
        return []
    if "error" in chunk:
        return [error(refusal(int((chunk["error"] or {}).get("code") or 500), content))]
    if usage := chunk.get("usage"):
        measured.prompt_tokens = usage.get("prompt_tokens")
        measured.completion_tokens = usage.get("completion_tokens")
    events: list[dict[str, Any]] = []
    for choice in chunk.get("choices", []):
        delta = choice.get("delta") or {}
        thinking = delta.get("reasoning") or delta.get("reasoning_content")
        if thinking or delta.get("content"):
            measured.pieces += 1
            measured.first_at = measured.first_at or time.monotonic()
        if thinking:
            events.append({"thinking": thinking})
        if delta.get("content"):
            events.append({"text": delta["content"]})
        measured.finish_reason = choice.get("finish_reason") or measured.finish_reason
    return events


def error(message: str) -> dict[str, Any]:
    """The last event of a stream that failed."""
    return {"error": {"message": message}}


def refusal(status: int, body: str) -> str:
    """Why the engine refused, in plain words."""
    said = _said(body)
    lower = said.lower()
    if status in (401, 403):
        return _("The engine did not accept the console's key. Restart the instance, so that it gets the current one.")
    if "maximum context length" in lower or "max_model_len" in lower or "longer than the maximum" in lower:
        return (
            _(
                "The conversation is longer than the model's context. Clear it or lower “max tokens”. The engine said: %s"
            )
            % said
        )
    if status == 404 and lower == "not found":  # the interface, not the model: it has those of its model's tasks only
        return _("The engine makes no text: its model gives vectors. Ask it at /v1/embeddings, or at /pooling.")
    if status == 404:
        return _("The engine does not know this model: another process may have its port. It said: %s") % said
    if status in (429, 503):
        return _("The engine is full at the moment. Try again shortly. It said: %s") % said
    if "chat template" in lower:
        return _("The model has no chat template, so it can't chat. It said: %s") % said
    return _("The engine answered with status %(status)d: %(said)s") % {"status": status, "said": said or "–"}


def _said(body: str) -> str:
    try:
        content = json.loads(body)
    except ValueError:
        return body.strip()[:500]
    found = content.get("error", content) if isinstance(content, dict) else content
    message = (found.get("message") or found.get("detail")) if isinstance(found, dict) else found
    return str(message or body).strip()[:500]

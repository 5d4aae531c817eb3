"""The interfaces that clients use: completions, streaming, and tools and JSON where they are declared."""

import json
from typing import Any

from workers.host.engine_client import ChatAnswer, EngineError
from workers.host.validation import CheckFailedError, Found, Subject
from workers.vllm.answer_comparison import compare_answers
from workers.vllm.sanity import judge_answer

PLAIN_PROMPT = "One, two, three,"
_TOKENS = 64
_SHORT_TOKENS = 8
_DECLARED_TOKENS = 256

_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 40}, "country": {"type": "string", "maxLength": 40}},
    "required": ["city", "country"],
    "additionalProperties": False,
}


def completions(subject: Subject) -> Found:
    """The plain interface works beside chat."""
    client, model = subject.client, subject.model
    answer = subject.completion or subject.call(
        lambda: client.complete(model, PLAIN_PROMPT, max_tokens=_SHORT_TOKENS), "a text completion"
    )
    if not answer.completion_tokens:
        raise CheckFailedError(
            "validate.no_completion",
            "/v1/completions answered without a token",
            points_at=("engine", "tokenizer"),
            next_step="Ask it by hand with the command on the deployment's page, and read the engine's log.",
        )
    return Found(f"“{PLAIN_PROMPT}” goes on with {answer.text[:60]!r}")


def streaming(subject: Subject) -> Found:
    """The question's answer came in pieces, which add up to what it is as a whole."""
    streamed, whole = subject.answer, subject.whole
    if streamed is None or streamed.ttft_seconds is None:
        streamed = _streamed_again(subject)
    timing = f"first piece after {1000 * (streamed.ttft_seconds or 0):.0f} ms, {streamed.completion_tokens} tokens"
    if whole is None:
        return Found(f"{timing}; as a whole, an answer is asked for by the warm-up, as this engine is slow")
    # The question may have been given more room than the answer as a whole.
    if compare_answers(whole.text, streamed.text).same or streamed.text.startswith(whole.text):
        return Found(f"{timing}, the same text as the whole answer")
    broken = [code for code in judge_answer(streamed.text).codes if code in ("replacement_characters", "mojibake")]
    if broken:
        raise CheckFailedError(
            f"answer.{broken[0]}",
            f"the streamed text has broken characters, the whole one has not: {streamed.text[:120]!r}",
            points_at=("tokenizer", "engine"),
            next_step="A detokenizer that cuts characters in two: try --tokenizer-mode slow, then another engine version.",
        )
    return Found(f"{timing}; another wording than the whole answer: {streamed.text[:80]!r}", warning=True)


def _streamed_again(subject: Subject) -> ChatAnswer:
    """The question needed more room, or gave no piece: ask in pieces now."""
    answer = subject.ask(_TOKENS, "a streamed answer", in_pieces=True)
    if answer.text and answer.ttft_seconds is not None:
        return answer
    raise CheckFailedError(
        "validate.stream_empty",
        "a streamed answer ended without text, although a whole one has some",
        points_at=("engine",),
        next_step="Ask with and without a reasoning or tool parser: a parser that doesn't fit swallows the pieces.",
    )


def declared_tools(subject: Subject) -> Found:
    """A forced call of a tool comes back as one."""
    declared = "tools" in subject.order.probe.declares
    if subject.mode != "chat" or not (declared or "--enable-auto-tool-choice" in subject.order.arguments):
        return Found("not declared", skipped=True)
    choice = {"type": "function", "function": {"name": "get_weather"}}
    request = {"tools": [_TOOL], "tool_choice": choice}
    client, model = subject.client, subject.model
    try:
        answer = subject.call(
            lambda: client.chat(model, "What is the weather in Paris?", max_tokens=_DECLARED_TOKENS, **request),
            "a tool call",
        )
        arguments = json.loads(answer.tool_calls[0]["arguments"])
    except (EngineError, ValueError, LookupError, TypeError) as error:
        raise _declared_fails("tools", "a tool call", error) from error
    if not isinstance(arguments, dict) or "city" not in arguments:
        raise _declared_fails("tools", "a tool call", f"its arguments are {str(arguments)[:120]}")
    return Found(f"get_weather was called with {json.dumps(arguments, ensure_ascii=False)[:120]}")


def declared_json(subject: Subject) -> Found:
    """An answer under a schema is JSON of that schema."""
    if "json" not in subject.order.probe.declares or subject.mode != "chat":
        return Found("not declared", skipped=True)
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": _SCHEMA}}
    client, model = subject.client, subject.model
    prompt = "Paris lies in France. Write city and country as JSON."
    try:
        answer = subject.call(
            lambda: client.chat(model, prompt, max_tokens=_DECLARED_TOKENS, response_format=form), "an answer as JSON"
        )
        value = json.loads(answer.text)
    except (EngineError, ValueError) as error:
        raise _declared_fails("json", "an answer by a JSON schema", error) from error
    if not isinstance(value, dict) or set(value) != {"city", "country"}:
        raise _declared_fails("json", "an answer by a JSON schema", f"it is {answer.text[:120]}")
    return Found(f"{answer.text[:120]}")


def _declared_fails(name: str, what: str, why: object) -> CheckFailedError:
    return CheckFailedError(
        f"validate.{name}_fails",
        f"{what} is declared, but doesn't work: {why}",
        points_at=("template", "engine"),
        next_step="Check --tool-call-parser and the chat template against the model's card, or don't declare it."
        if name == "tools"
        else "Check the structured output backend in the engine's log, or don't declare it.",
    )

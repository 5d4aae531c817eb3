"""Usage is read from answers while they pass, whole or in pieces; what the client did not ask for is taken out."""

import json
import time
from typing import Any

import pytest

from tests.gateway.backend import Engine, Running, wait_until

BODY = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True}


def stream(gateway: Running, name: str, **extra: object) -> bytes:
    with (
        gateway.client() as client,
        client.stream("POST", "/v1/chat/completions", json=BODY | extra, headers={"X-Request-Id": name}) as answer,
    ):
        assert answer.status_code == 200
        return answer.read()


def usage(gateway: Running, name: str) -> tuple[str, str, str]:
    line = gateway.line(name)
    return line["prompt_tokens"], line["output_tokens"], line["finish_reason"]


def test_a_whole_answer_is_counted_and_left_as_it_is(gateway: Running, engine: Engine) -> None:
    answer = gateway.ask(headers={"X-Request-Id": "whole"})
    assert answer.content == engine.answer()
    assert usage(gateway, "whole") == ("7", "5", "stop")
    line = gateway.line("whole")
    assert (line["key"], line["route"], line["backend"], line["server"]) == ("k1", "r1", "b1", "i1")
    assert (line["status"], line["model"], line["end"]) == ("200", "chat", "--")
    assert 0 <= int(line["first_ms"]) <= int(line["latency_ms"]) + 1


def test_the_chunk_with_usage_alone_reaches_only_who_asked_for_it(gateway: Running, engine: Engine) -> None:
    events = engine.events()
    assert stream(gateway, "not-asked") == b"".join(events[:-2] + events[-1:])
    assert stream(gateway, "asked", stream_options={"include_usage": True}) == b"".join(events)
    assert usage(gateway, "not-asked") == usage(gateway, "asked") == ("7", "5", "stop")


@pytest.mark.parametrize("size", [1, 7, 50, 4096])
def test_events_that_are_split_anywhere_are_read_and_cut_all_the_same(
    gateway: Running, engine: Engine, size: int
) -> None:
    whole = b"".join(engine.events())
    engine.pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    engine.pause_seconds = 0.001 if size < 50 else 0
    events = engine.events()
    assert stream(gateway, f"split-{size}") == b"".join(events[:-2] + events[-1:])
    assert stream(gateway, f"split-all-{size}", stream_options={"include_usage": True}) == whole
    assert usage(gateway, f"split-{size}") == usage(gateway, f"split-all-{size}") == ("7", "5", "stop")


def test_several_choices_and_tool_calls_end_with_their_reason(gateway: Running, engine: Engine) -> None:
    call = {"index": 0, "function": {"name": "f", "arguments": '{"usage":{"prompt_tokens":999},"choices":[]}'}}
    chunks = [
        {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]},
        {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"prompt_tokens": 30, "total_tokens": 50, "completion_tokens": 20}},
    ]
    engine.pieces = [b"data: " + json.dumps(one, separators=(",", ":")).encode() + b"\n\n" for one in chunks]
    wanted = b"".join(engine.pieces[:-1])
    # One empty line more, where the end came with what is taken out: it means nothing in an event stream.
    assert stream(gateway, "tools") in (wanted, wanted + b"\n")
    assert usage(gateway, "tools") == ("30", "20", "tool_calls")


def test_an_answer_ends_when_what_came_with_its_end_is_taken_out(gateway: Running, engine: Engine) -> None:
    engine.pieces = engine.events()[:-1]  # usage alone comes last: no [DONE]
    engine.pause_seconds = 0.2
    engine.ends_with_last_piece = True
    assert stream(gateway, "ends") == b"".join(engine.pieces[:-1]) + b"\n"
    assert usage(gateway, "ends") == ("7", "5", "stop")


def test_an_answer_can_not_forge_its_usage(gateway: Running, engine: Engine) -> None:
    engine.name = '","usage":{"prompt_tokens":1,"completion_tokens":1},"finish_reason":"forged'
    gateway.ask(headers={"X-Request-Id": "forged"})
    assert usage(gateway, "forged") == ("7", "5", "stop")


def test_a_stream_comes_as_it_is_made_and_a_client_that_leaves_is_counted_so_far(
    gateway: Running, engine: Engine
) -> None:
    engine.pieces = engine.events([f"w{number}" for number in range(200)])
    engine.pause_seconds = 0.05
    with (
        gateway.client() as client,
        client.stream("POST", "/v1/chat/completions", json=BODY, headers={"X-Request-Id": "left"}) as answer,
    ):
        seen = b""
        for piece in answer.iter_raw():
            seen += piece
            if seen.count(b"data: ") >= 5:
                break
    line = gateway.line("left")
    assert 4 <= int(line["output_tokens"]) <= 40
    assert line["prompt_tokens"] == "7"
    assert line["end"].startswith("C")
    assert int(line["first_ms"]) < int(line["latency_ms"])


def test_an_engine_that_dies_in_a_stream_ends_it_visibly(gateway: Running, engine: Engine) -> None:
    engine.pieces = [*engine.events()[:2], b""]  # an empty chunk ends the body before [DONE]
    assert b"[DONE]" not in stream(gateway, "died")
    assert usage(gateway, "died")[:2] == ("7", "2")


def test_responses_and_messages_are_counted_by_their_own_names(gateway: Running, engine: Engine) -> None:
    engine.usage = {"input_tokens": 11, "output_tokens": 22, "total_tokens": 33}
    with gateway.client() as client:
        for path in ("/v1/responses", "/v1/messages"):
            name = path.rpartition("/")[2]
            client.post(path, json={"model": "chat", "input": "x"}, headers={"X-Request-Id": name})
            assert usage(gateway, name)[:2] == ("11", "22")


def named(*events: dict[str, Any]) -> list[bytes]:
    """Events as vLLM sends them for responses and messages: each with its type before it."""
    return [
        f"event: {one['type']}\ndata: {json.dumps(one, separators=(',', ':'))}\n\n".encode()
        for one in events
    ]  # fmt: skip


def responded(status: str = "completed", usage: Any = None, reason: str = "") -> dict[str, Any]:
    # What a client sent along stands in it as it is.
    asked = {"usage": {"input_tokens": 1, "output_tokens": 1}, "status": "incomplete"}
    details = {"reason": reason} if reason else None
    said = [{"type": "message", "status": "completed", "content": []}]
    return {
        "id": "r",
        "incomplete_details": details,
        "metadata": asked,
        "output": said,
        "status": status,
        "usage": usage,
    }


def response_events(words: int, **last: Any) -> list[bytes]:
    delta = {"type": "response.output_text.delta", "delta": "\nevent: response.completed\n"}
    return named(
        {"type": "response.created", "response": responded("in_progress")},
        *[delta] * words,
        {"type": "response.completed", "response": responded(**last)},
    )


def message_events(words: int, reason: str = "end_turn") -> list[bytes]:
    began = {"id": "m", "content": [], "stop_reason": None, "usage": {"input_tokens": 11, "output_tokens": 0}}
    return named(
        {"type": "message_start", "message": began},
        *[{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}] * words,
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"input_tokens": 11, "output_tokens": 22},
        },
        {"type": "message_stop"},
    )


def ask_for(gateway: Running, path: str, *, pieces: int | None = None) -> dict[str, str]:
    """The access log's line of a stream that was read to its end, or left after so many pieces."""
    name = f"{path.rpartition('/')[2]}-{time.monotonic_ns()}"
    with (
        gateway.client() as client,
        client.stream("POST", path, json=BODY | {"max_tokens": 400}, headers={"X-Request-Id": name}) as answer,
    ):
        for number, _piece in enumerate(answer.iter_raw(), start=1):
            if number == pieces:
                break
    return gateway.line(name)


@pytest.mark.parametrize(
    ("path", "events", "prompt"),
    [("/v1/responses", response_events(200), "-"), ("/v1/messages", message_events(200), "11")],
)
def test_who_leaves_before_the_usage_is_told_does_not_count_as_nothing(
    gateway: Running, engine: Engine, path: str, events: list[bytes], prompt: str
) -> None:
    engine.pieces, engine.pause_seconds = events, 0.05
    line = ask_for(gateway, path, pieces=5)
    assert (line["prompt_tokens"], line["output_tokens"], line["status"], line["end"][0]) == (prompt, "-", "200", "C")
    assert int(line["cost"]) == int(line["estimate"]) + 400
    assert 4 * len(events[1]) <= int(line["answer_bytes"]) < len(b"".join(events)) / 2


def test_the_usage_of_responses_is_that_of_their_last_event(gateway: Running, engine: Engine) -> None:
    told = {"input_tokens": 11, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 22}
    engine.pieces = response_events(3, usage=told)
    assert (line := ask_for(gateway, "/v1/responses"))["prompt_tokens"] == "11"
    assert line["output_tokens"] == "22"
    whole = b"".join(engine.pieces)
    engine.pieces = [whole[at : at + 7] for at in range(0, len(whole), 7)]
    assert ask_for(gateway, "/v1/responses")["output_tokens"] == "22"


def test_a_string_that_stopped_an_answer_is_not_why_it_ended(gateway: Running, engine: Engine) -> None:
    events = engine.events()
    engine.pieces = [
        *events[:2],
        events[2].replace(b'"finish_reason":"stop"', b'"finish_reason":"stop","stop_reason":"never"'),
        *events[3:],
    ]
    stream(gateway, "stop-string", stop=["never"])
    assert usage(gateway, "stop-string") == ("7", "5", "stop")


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "refusal"),
    ],
)
def test_messages_end_in_the_words_of_chat_completions(
    gateway: Running, engine: Engine, told: str, reason: str
) -> None:
    engine.pieces = message_events(3, told)
    line = ask_for(gateway, "/v1/messages")
    assert (line["prompt_tokens"], line["output_tokens"], line["finish_reason"]) == ("11", "22", reason)


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ({"status": "completed"}, "stop"),
        ({"status": "incomplete", "reason": "max_output_tokens"}, "length"),
        ({"status": "incomplete", "reason": "content_filter"}, "content_filter"),
    ],
)
def test_responses_end_in_the_words_of_chat_completions(
    gateway: Running, engine: Engine, last: dict[str, str], reason: str
) -> None:
    told = {"input_tokens": 11, "output_tokens": 22}
    engine.pieces = response_events(3, usage=told, **last)
    assert ask_for(gateway, "/v1/responses")["finish_reason"] == reason
    whole = b"".join(engine.pieces)
    engine.pieces = [whole[at : at + 50] for at in range(0, len(whole), 50)]
    engine.pause_seconds = 0.002
    assert ask_for(gateway, "/v1/responses")["finish_reason"] == reason
    engine.pieces = [json.dumps(responded(usage=told, **last), separators=(",", ":")).encode()]
    assert ask_for(gateway, "/v1/responses")["finish_reason"] == reason
    engine.pieces = response_events(200, **last)
    engine.pause_seconds = 0.05
    assert ask_for(gateway, "/v1/responses", pieces=3)["finish_reason"] == "-"


def test_ten_thousand_bytes_of_escapes_do_not_slow_the_gateway_down(gateway: Running) -> None:
    seconds = wait_until(lambda: gateway.ask(user='\\"{}[]' * 100_000).status_code == 200, seconds=10)
    assert seconds < 3

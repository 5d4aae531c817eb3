"""What only some routes ask for: prompts counted by the engine, control characters, a deadline; and a second try."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.gateway.backend import Engine, Running, key_of, route_of, server_of, target_of

KEYS = (key_of("secret"),)


def started(haproxy: Running, engine: Engine, **changes: Any) -> Running:
    haproxy.start(routes=(route_of(target_of(engine), **changes),), keys=KEYS)
    return haproxy


def refusal(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_prompt_is_counted_by_the_engine_where_the_route_asks_for_it(haproxy: Running, engine: Engine) -> None:
    started(haproxy, engine, is_exact=True, context_tokens=500)
    engine.counts = 80
    # By its bytes it would be refused.
    answer = haproxy.ask(user="x" * 3000, max_tokens=400)
    assert (answer.status_code, answer.headers["x-token-cost"]) == (200, "480")
    engine.counts = 101
    refused = haproxy.ask(max_tokens=400)
    assert refusal(refused) == (413, "context_exceeded")
    assert "needs 501 tokens (101 of prompt, as the engine counts them)" in refused.json()["error"]["message"]
    assert len(engine.asked) == 1


def test_without_a_count_the_estimate_decides(haproxy: Running, engine: Engine) -> None:
    started(haproxy, engine, is_exact=True, context_tokens=500)
    assert refusal(haproxy.ask(user="x" * 3000)) == (413, "context_exceeded")
    assert haproxy.ask(max_tokens=10).status_code == 200


SAID = "a\x00b\x1b[2Jc\x7fd\u0085e\tf\ng"


@pytest.mark.parametrize("plain", [True, False])
def test_control_characters_pass_become_blanks_or_are_refused(haproxy: Running, engine: Engine, plain: bool) -> None:
    def ask(controls: str) -> Any:
        route = replace(haproxy.gateway.routes[0], control_characters=controls)
        assert haproxy.change(routes=(route,)).way in ("runtime", "nothing")
        content = {"model": "chat", "messages": [{"role": "user", "content": SAID}], "user": "C:\\u0000"}
        with haproxy.client() as client:
            body = json.dumps(content, ensure_ascii=plain).encode()
            return client.post("/v1/chat/completions", content=body)

    started(haproxy, engine)
    assert ask("pass").status_code == 200
    assert engine.asked[-1][1]["messages"][0]["content"] == SAID
    assert ask("blank").status_code == 200
    seen = engine.asked[-1][1]
    assert seen["messages"][0]["content"].split() == ["a", "b", "[2Jc", "d", "e", "f", "g"]
    assert "\tf\ng" in seen["messages"][0]["content"]
    assert seen["user"] == "C:\\u0000"  # a backslash and four digits, no control character
    asked = len(engine.asked)
    assert refusal(ask("refuse")) == (400, "control_characters")
    assert len(engine.asked) == asked


def test_a_plain_request_is_never_refused_for_its_tabs_and_line_ends(haproxy: Running, engine: Engine) -> None:
    started(haproxy, engine, control_characters="refuse")
    assert haproxy.ask(user="a\tb\r\nc é 中").status_code == 200


def test_a_large_request_with_blanks_for_control_characters_arrives_whole(haproxy: Running, engine: Engine) -> None:
    started(haproxy, engine, control_characters="blank")
    assert haproxy.ask(user="\x00" + "x" * 1_500_000).status_code == 200
    assert engine.asked[0][1]["user"] == " " * 6 + "x" * 1_500_000


def test_a_stream_that_is_not_complete_by_its_deadline_is_ended_and_says_so(haproxy: Running, engine: Engine) -> None:
    started(haproxy, engine, deadline_seconds=1)
    engine.pieces = engine.events([f"w{number}" for number in range(200)])
    engine.pause_seconds = 0.05
    began, text = time.monotonic(), b""
    body = {"model": "chat", "messages": [], "stream": True}
    with (
        haproxy.client() as client,
        client.stream("POST", "/v1/chat/completions", json=body, headers={"X-Request-Id": "late"}) as answer,
    ):
        for piece in answer.iter_raw():
            text += piece
    assert 0.9 < time.monotonic() - began < 3
    assert b'"code":"deadline_exceeded"' in text
    assert b"[DONE]" not in text
    line = haproxy.line("late")
    assert 10 <= int(line["output_tokens"]) <= 40
    assert line["refusal"] == "deadline_exceeded"
    # The engine is let go, too.
    sent = engine.sent
    time.sleep(0.5)
    assert engine.sent <= sent + 2 < 60


def test_a_whole_answer_that_is_late_is_given_up(haproxy: Running, engine: Engine) -> None:
    started(haproxy, engine, deadline_seconds=1)
    engine.waits = True
    assert refusal(haproxy.ask()) == (504, "engine_timeout")


def test_an_error_before_the_first_byte_is_tried_again_elsewhere(
    haproxy: Running, engine: Engine, second: Engine
) -> None:
    target = replace(target_of(engine, 1), servers=(server_of(engine, 1), server_of(second, 2)))
    haproxy.start(routes=(route_of(target),), keys=KEYS)
    engine.status = 500
    assert [haproxy.ask().status_code for _number in range(4)] == [200] * 4
    assert engine.asked

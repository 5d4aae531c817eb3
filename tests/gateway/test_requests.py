"""What the gateway lets through, what it refuses and how it says so: a real HAProxy in front of a scripted engine."""

import json
import re
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from console import env
from console.gateway import plan
from tests.gateway.backend import Engine, Running, key_of, route_of, target_of, wait_until
from workers.gateway.description import Limits


def error(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_request_reaches_the_engine_with_its_own_key_and_an_id(gateway: Running, engine: Engine) -> None:
    answer = gateway.ask("org/chat", headers={"X-Request-Id": "my-id-1"})
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "hello from engine"
    headers, body = engine.asked[0]
    assert headers["authorization"] == "Bearer sk-engine"
    assert headers["x-request-id"] == answer.headers["x-request-id"] == "my-id-1"
    assert body["model"] == "org/chat"


def test_an_id_that_could_break_a_log_is_replaced(gateway: Running) -> None:
    answer = gateway.ask(headers={"X-Request-Id": 'x"},{'})
    assert len(answer.headers["x-request-id"]) == 36


@pytest.mark.parametrize(
    ("key", "model", "expected"),
    [
        ("", "chat", (401, "missing_api_key")),
        ("wrong", "chat", (401, "invalid_api_key")),
        ("other", "chat", (403, "model_not_allowed")),
        ("secret", "nope", (404, "model_not_found")),
    ],
)
def test_who_may_not_is_told_so_in_openais_form(
    gateway: Running, engine: Engine, key: str, model: str, expected: tuple[int, str]
) -> None:
    answer = gateway.ask(model, key=key)
    assert error(answer) == expected
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    assert not engine.asked


def test_the_list_of_models_is_what_the_key_may_use(gateway: Running) -> None:
    for key, names in (("secret", ["chat", "org/chat"]), ("other", [])):
        with gateway.client(key) as client:
            assert [one["id"] for one in client.get("/v1/models").json()["data"]] == names
    with gateway.client() as client:
        assert client.get("/v1/models/org/chat").json()["id"] == "org/chat"
        assert error(client.get("/v1/models/other")) == (404, "model_not_found")
        assert error(client.get("/v1/files")) == (404, "unknown_path")
        assert error(client.get("/metrics")) == (404, "unknown_path")
        assert error(client.get("/v1/chat/completions")) == (405, "method_not_allowed")


def test_a_key_may_also_come_as_anthropics_clients_send_it(gateway: Running) -> None:
    with gateway.client("") as client:
        body = {"model": "chat", "max_tokens": 4, "messages": []}
        assert client.post("/v1/messages", json=body, headers={"x-api-key": "secret"}).status_code == 200


BROKEN = [
    b"", b"{", b"[]", b'"chat"', b"null", b'{"messages":[]}', b'{"model":5}', b'{"model":""}', b'{"model":null}',
    b'{"model":"chat","model":"nope"}', b'{"model":"chat","max_tokens":1,"max_tokens":100000}',
    b'{"mod\\u0065l":"chat"}', b'{"model":"ch\\u0061t"}', b'{"x":{"model":"chat"}}', b'{"messages":[{"model":"chat"}]}',
    b'{"model":"chat"} {"model":"nope"}', b'{"model":"chat"', b'{"model":"chat",}', b'{"model":"chat","a":}',
    b'{"model":"chat","max_tokens":-1}', b'{"model":"chat","max_tokens":1e9}', b'{"model":"chat","max_tokens":"5"}',
    b'{"model":"chat","max_tokens":99999999999999999999}', b'{"model":"chat\\n"}', b'{"model":"chat\x00"}',
    b'{"model":"chat","' + b"a" * 300 + b'":1}', b'{"model" 1:"chat"}', b'{"model":"chat","a"}', b'{"a\\":"b","model":"chat"}',
    "{\"model\":\"chat\"}".encode("utf-16"), b'\xef\xbb\xbf{"model":"chat"}', b"model=chat",
]  # fmt: skip


def test_a_body_that_could_be_read_in_two_ways_never_reaches_an_engine(gateway: Running, engine: Engine) -> None:
    with gateway.client() as client:
        for body in BROKEN:
            answer = client.post("/v1/chat/completions", content=body)
            assert error(answer) == (400, "invalid_request"), body
            assert len(answer.json()["error"]["message"]) > 10
    assert not engine.asked


def test_names_in_strings_and_below_the_top_confuse_nobody(gateway: Running, engine: Engine) -> None:
    said = 'quote " brace } "model":"nope" \\" and "usage":{"prompt_tokens":1}'
    body = {"metadata": {"model": "nope", "max_tokens": 9}, "stop": ["}", "]"], "model": "chat", "user": said}
    with gateway.client() as client:
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        pretty = json.dumps(body, indent=4).encode()
        assert client.post("/v1/chat/completions", content=pretty).status_code == 200
        assert client.post("/v1/chat/completions", content=b'{"model":"org\\/chat"}').status_code == 200
    assert engine.asked[0][1] == body


def test_a_body_over_the_limit_is_refused_before_it_is_read(gateway: Running, engine: Engine) -> None:
    limit = gateway.gateway.listener.body_limit_bytes
    head = HEAD + f"Content-Length: {limit + 1}\r\n\r\n".encode()
    answer = gateway.raw(head, seconds=2)
    assert b"413" in answer.split(b"\r\n")[0]
    assert b"body_too_large" in answer

    def pieces() -> Any:
        yield b'{"model":"chat","x":"'
        for _number in range(40):
            yield b"a" * 65536

    # It may close while we are still sending.
    with gateway.client() as client, suppress(httpx2.TransportError):
        assert error(client.post("/v1/chat/completions", content=pieces())) == (413, "body_too_large")
    assert not engine.asked
    big = gateway.ask(user="x" * (limit - 200))
    assert big.status_code == 200
    assert len(engine.asked[0][1]["user"]) == limit - 200


@pytest.mark.parametrize("limit", [64 * 1024, 64 * 1024 * 1024])
def test_the_limit_of_bodies_can_be_set(
    haproxy: Running, engine: Engine, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env, "environment", lambda: env.Environment(slipway_gateway_body_bytes=limit))
    set_to = replace(haproxy.gateway.listener, body_limit_bytes=plan.listener().body_limit_bytes)
    haproxy.start(listener=set_to, routes=(route_of(target_of(engine)),), keys=(key_of("secret"),))
    answer = haproxy.raw(HEAD + f"Content-Length: {limit + 1}\r\n\r\n".encode(), seconds=2)
    assert f"larger than {limit:,} bytes".encode() in answer
    assert not engine.asked
    fits = min(limit, 5_000_000) - 200
    assert haproxy.ask(user="x" * fits).status_code == 200
    assert len(engine.asked[0][1]["user"]) == fits


@pytest.mark.parametrize("limit", ["65535", "67108865", "2 MiB"])
def test_a_limit_of_bodies_that_can_not_be_stops_the_start_and_says_why(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setenv("SLIPWAY_GATEWAY_BODY_BYTES", limit)
    with pytest.raises(SystemExit, match=f"SLIPWAY_GATEWAY_BODY_BYTES={limit}: .* from 65536 to 67108864"):
        env.environment.__wrapped__()


def test_limits_of_a_route_are_checked_before_an_engine_is_touched(haproxy: Running, engine: Engine) -> None:
    haproxy.start(routes=(route_of(target_of(engine), output_cap=100, context_tokens=500),), keys=(key_of("secret"),))
    assert error(haproxy.ask(max_tokens=101)) == (400, "max_tokens_over_cap")
    assert error(haproxy.ask(user="x" * 1600)) == (413, "context_exceeded")
    assert not engine.asked
    assert haproxy.ask(max_tokens=100).status_code == 200


def test_requests_a_minute_are_counted_for_the_key_alone(haproxy: Running, engine: Engine) -> None:
    haproxy.start(
        routes=(route_of(target_of(engine)),),
        keys=(key_of("few", limits=Limits(requests_per_minute=3)), key_of("secret", 2)),
    )
    answers = [haproxy.ask(key="few") for _number in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert error(answers[-1]) == (429, "key_requests_per_minute")
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
    assert haproxy.ask().status_code == 200
    assert len(engine.asked) == 4


@pytest.mark.parametrize("whose", ["key", "team", "route"])
def test_tokens_are_charged_by_bytes_and_max_tokens(haproxy: Running, engine: Engine, whose: str) -> None:
    limits = Limits(tokens_per_minute=600)  # 1,000 at once
    by_key = {"limits": limits} if whose == "key" else {"team_limits": limits} if whose == "team" else {}
    haproxy.start(
        routes=(route_of(target_of(engine), limits=limits if whose == "route" else Limits()),),
        keys=(key_of("secret", **by_key),),
    )
    first = haproxy.ask(max_tokens=700)
    assert first.status_code == 200
    assert 720 <= int(first.headers["x-token-cost"]) <= 740
    second = haproxy.ask(max_tokens=700)
    assert error(second) == (429, f"{whose}_tokens_per_minute")
    assert 40 <= int(second.headers["retry-after"]) <= 60
    assert haproxy.ask(max_tokens=200).status_code == 200
    # What really was used comes back a little later, and counts from then on.
    haproxy.change(corrections={"k1": -900, "t1": -900, "r1": -900})
    assert haproxy.ask(max_tokens=700).status_code == 200


def test_several_choices_cost_several_answers(gateway: Running) -> None:
    assert int(gateway.ask(max_tokens=100, n=3).headers["x-token-cost"]) >= 300
    with gateway.client() as client:
        answer = client.post("/v1/embeddings", json={"model": "chat", "input": "x" * 300})
    assert 100 <= int(answer.headers["x-token-cost"]) < 130


def test_concurrency_is_limited_and_freed(haproxy: Running, engine: Engine) -> None:
    haproxy.start(routes=(route_of(target_of(engine)),), keys=(key_of("secret", limits=Limits(concurrency=2)),))
    engine.waits = True
    threads = [threading.Thread(target=haproxy.ask) for _number in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(engine.asked) == 2, seconds=5)
    assert error(haproxy.ask()) == (429, "key_concurrency")
    engine.gate.set()
    for thread in threads:
        thread.join(10)
    assert haproxy.ask().status_code == 200


def test_a_full_queue_says_how_many_wait_and_a_free_place_ends_it(haproxy: Running, engine: Engine) -> None:
    haproxy.start(
        routes=(route_of(target_of(engine, in_flight_each=1), queue_limit=2, queue_seconds=20),),
        keys=(key_of("secret"),),
    )
    engine.waits = True
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(haproxy.ask())) for _number in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: _queued(haproxy) == 2, seconds=5)
    full = haproxy.ask()
    assert error(full) == (429, "queue_full")
    assert "2 requests wait" in full.json()["error"]["message"]
    assert full.headers["retry-after"] == "5"
    engine.gate.set()
    for thread in threads:
        thread.join(15)
    assert [answer.status_code for answer in answers] == [200, 200, 200]


def _queued(haproxy: Running) -> int:
    for line in haproxy.applier.api.ask("show stat").splitlines():
        fields = line.split(",")
        if fields[:2] == ["b1", "BACKEND"]:
            return int(fields[2])
    return -1


def test_a_spent_budget_is_refused_until_the_day_ends(haproxy: Running, engine: Engine) -> None:
    until = int(time.time()) + 500
    haproxy.start(routes=(route_of(target_of(engine)),), keys=(key_of("secret"),))
    assert haproxy.ask().status_code == 200
    haproxy.change(spent={"k1": until})
    answer = haproxy.ask()
    assert error(answer) == (429, "key_daily_budget")
    assert 400 < int(answer.headers["retry-after"]) <= 500
    haproxy.change(spent={"k1": int(time.time()) - 1})
    assert haproxy.ask().status_code == 200


def test_a_spent_budget_of_a_route_is_refused_for_all_its_keys_and_for_no_other_route(
    haproxy: Running, engine: Engine
) -> None:
    routes = (route_of(target_of(engine)), route_of(target_of(engine, 2), number=2, names=("other",)))
    keys = (key_of("secret", routes=(1, 2)), key_of("second", 2))
    haproxy.start(routes=routes, keys=keys, spent={"r1": int(time.time()) + 500})
    for key in ("secret", "second"):
        answer = haproxy.ask(key=key)
        assert error(answer) == (429, "route_daily_budget")
        assert 400 < int(answer.headers["retry-after"]) <= 500
    assert haproxy.ask("other").status_code == 200
    assert haproxy.change(spent={}).way == "runtime"
    assert haproxy.ask(key="second").status_code == 200


def test_a_key_past_its_expiry_is_refused_even_if_nobody_removes_it(haproxy: Running, engine: Engine) -> None:
    haproxy.start(routes=(route_of(target_of(engine)),), keys=(key_of("secret", expires=int(time.time()) - 1),))
    assert error(haproxy.ask()) == (401, "expired_api_key")


# -- attacks ------------------------------------------------------------------------------------------------------------

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\r\n"
GOOD = b'{"model":"chat","messages":[]}'


def test_huge_headers_are_refused(gateway: Running, engine: Engine) -> None:
    many = b"".join(b"X-A%d: b\r\n" % number for number in range(200))
    answer = gateway.raw(HEAD + many + b"Content-Length: 2\r\n\r\n{}", seconds=2)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
    assert not engine.asked


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 30\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: xchunked\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 3 0\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Content-Length : 30\r\n",
    ],
)
def test_ambiguous_framing_is_refused(gateway: Running, engine: Engine, framing: bytes) -> None:
    answer = gateway.raw(HEAD + framing + b"\r\n" + GOOD + b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n", seconds=2)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 422", b"HTTP/1.1 501")), answer[:200]
    assert not engine.asked


def test_chunked_wins_over_a_length_and_nothing_is_smuggled(gateway: Running, engine: Engine) -> None:
    smuggled = b"GET /v1/secret HTTP/1.1\r\nHost: a\r\n\r\n"
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)
    framing = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % len(body + smuggled)
    answer = gateway.raw(HEAD + framing + body + smuggled, seconds=2)
    # Either the pair is refused, or the chunked one counts and the rest is a request of its own, which has no key.
    assert b" 400 " in answer.split(b"\r\n")[0] or answer.count(b"HTTP/1.1 ") <= 2
    assert all(headers.get("authorization") == "Bearer sk-engine" for headers, _body in engine.asked)
    assert len(engine.asked) <= 1


def test_requests_in_one_pipeline_are_each_judged_by_their_own_key(gateway: Running, engine: Engine) -> None:
    good = HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(GOOD), GOOD)
    bad = good.replace(b"Bearer secret", b"Bearer wrong").replace(b"Host: a", b"Host: a\r\nConnection: close")
    answer = gateway.raw(good + good + bad, seconds=4)
    statuses = re.findall(rb"HTTP/1\.1 (\d+) ", answer)
    assert statuses == [b"200", b"200", b"401"]
    assert len(engine.asked) == 2


def test_a_head_that_never_ends_is_cut_off(gateway: Running) -> None:
    began = time.monotonic()
    answer = gateway.raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n", seconds=20)
    assert b" 408 " in answer.split(b"\r\n")[0]
    assert 8 < time.monotonic() - began < 15


def test_a_client_can_not_pose_as_the_gateway_before_the_engine(gateway: Running, engine: Engine) -> None:
    gateway.ask(headers={"x-api-key": "sk-engine", "Accept-Encoding": "gzip"})
    headers, _body = engine.asked[0]
    assert headers["authorization"] == "Bearer sk-engine"
    assert "x-api-key" not in headers
    assert "accept-encoding" not in headers

"""Requests that try to be two things at once, or to hold a place for ever: none reaches an engine unjudged."""

import re
import socket
import time

import pytest

from tests.gateway.backend import Engine, Running, key_of, route_of, target_of
from tests.gateway.test_requests import GOOD, HEAD

LENGTH = b"Content-Length: %d\r\n\r\n" % len(GOOD)
PATH = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
KEYED = b"Authorization: Bearer secret\r\n"


def statuses(answer: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.[01] (\d+) ", answer)


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/../metrics", b"/v1/chat/completions/../../../metrics", b"//v1/chat/completions", b"/v1/chat/completions/",
        b"/v1/%2e%2e/metrics", b"/v1/chat%2fcompletions", b"/metrics", b"/v1/load_lora_adapter", b"/reset_prefix_cache",
        b"/v1/chat/completions%00", b"*", b"/v1\\chat\\completions",
    ],
)  # fmt: skip
def test_only_the_paths_of_models_lead_to_an_engine(gateway: Running, engine: Engine, path: bytes) -> None:
    head = b"POST %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n%s" % (path, KEYED)
    assert statuses(gateway.raw(head + LENGTH + GOOD, seconds=2))[0] in (b"400", b"404", b"405")
    assert not engine.asked


def test_a_path_with_a_query_and_an_absolute_address_are_read_as_what_they_are(
    gateway: Running, engine: Engine
) -> None:
    for target in (b"/v1/chat/completions?model=nope", b"http://elsewhere/v1/chat/completions"):
        head = b"POST %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n%s" % (target, KEYED)
        if target.startswith(b"http"):
            head = head.replace(b"Host: a", b"Host: elsewhere")
        assert statuses(gateway.raw(head + LENGTH + GOOD, seconds=4)) == [b"200"], target
    assert [body["model"] for _headers, body in engine.asked] == ["chat", "chat"]


def test_of_two_keys_none_is_believed(gateway: Running, engine: Engine) -> None:
    head = PATH + b"Connection: close\r\nAuthorization: Bearer wrong\r\n" + KEYED
    other = PATH + b"Connection: close\r\n" + KEYED + b"Authorization: Bearer wrong\r\n"
    for one in (head, other):
        assert statuses(gateway.raw(one + LENGTH + GOOD, seconds=4)) == [b"401"]
    assert not engine.asked


@pytest.mark.parametrize(
    "secret", [b"Bearer", b"Bearer ", b"bearer\tsecret", b"Basic c2VjcmV0", b"secret", b"Bearer secret,secret"]
)
def test_a_key_in_another_form_is_no_key(gateway: Running, engine: Engine, secret: bytes) -> None:
    head = PATH + b"Connection: close\r\nAuthorization: " + secret + b"\r\n"
    assert statuses(gateway.raw(head + LENGTH + GOOD, seconds=4)) == [b"401"]
    assert not engine.asked


@pytest.mark.parametrize(
    "framing",
    [
        b"Transfer-Encoding: chunked\r\n\r\n-5\r\n" + GOOD + b"\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0x1d\r\n" + GOOD + b"\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + GOOD,
        b"Transfer-Encoding: chunked, identity\r\n\r\n" + GOOD,
        b"Transfer-Encoding: identity\r\n" + LENGTH + GOOD,
        b"Content-Length: +29\r\n\r\n" + GOOD,
        b"Content-Length: 29, 30\r\n\r\n" + GOOD,
        b"X-A: b\r\n Content-Length: 5\r\n folded: c\r\nX\x00Y: z\r\n\r\n",
    ],
)
def test_framing_that_two_readers_could_read_differently_is_refused(
    gateway: Running, engine: Engine, framing: bytes
) -> None:
    answer = gateway.raw(HEAD + b"Connection: close\r\n" + framing, seconds=3)
    assert statuses(answer)[:1] in ([b"400"], [b"413"], [b"422"], [b"501"], [b"408"]), answer[:300]
    assert not engine.asked


def test_a_huge_header_is_refused_and_a_large_one_is_not_passed_on_in_pieces(gateway: Running, engine: Engine) -> None:
    answer = gateway.raw(HEAD + b"X-Big: " + b"a" * 3_000_000 + b"\r\n" + LENGTH + GOOD, seconds=3)
    assert statuses(answer)[:1] in ([b"400"], [b"431"], [])
    assert not engine.asked


def test_a_body_that_trickles_in_is_given_up_and_others_are_served_meanwhile(haproxy: Running, engine: Engine) -> None:
    haproxy.start(routes=(route_of(target_of(engine)),), keys=(key_of("secret"),))
    links = [socket.create_connection(("127.0.0.1", haproxy.gateway.listener.port), timeout=5) for _number in range(40)]
    try:
        for link in links:
            link.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
        for _second in range(3):
            for link in links:
                link.sendall(b" ")
            began = time.monotonic()
            assert haproxy.ask().status_code == 200
            assert time.monotonic() - began < 4
    finally:
        for link in links:
            link.close()
    assert len(engine.asked) == 3


def test_what_follows_a_refused_request_is_judged_for_itself(gateway: Running, engine: Engine) -> None:
    refused = HEAD + b"Content-Length: %d\r\n\r\n" % (len(GOOD) + 4) + GOOD.replace(b"chat", b"nope....")
    hidden = PATH + LENGTH + GOOD  # without a key
    answer = gateway.raw(refused + hidden.replace(b"Host: a", b"Host: a\r\nConnection: close"), seconds=3)
    assert set(statuses(answer)) <= {b"404", b"400", b"401"}
    assert not engine.asked


def test_a_header_can_not_name_an_instance_or_a_backend(gateway: Running, engine: Engine) -> None:
    answer = gateway.ask(headers={"X-Slipway-Fallback": "b2", "X-Forwarded-Host": "b2", "X-Token-Cost": "0"})
    assert answer.status_code == 200
    assert "x-slipway-fallback" not in answer.headers
    assert int(answer.headers["x-token-cost"]) > 100

"""Copies of requests to engines that are being tried out: nobody who asked notices, whatever becomes of the copies."""

import time
from dataclasses import replace
from typing import Any

import pytest

from tests.gateway.backend import Engine, Running, key_of, route_of, server_of, target_of, wait_until
from tests.ports import free_port
from workers.gateway import maps
from workers.gateway.description import Gateway, Limits, Listener, Route, Server, Target, within


@pytest.fixture
def new(second: Engine) -> Engine:
    """The engine that is tried out: it has the deployment's key, as all of its engines."""
    second.key = "sk-engine"
    return second


def canary_of(whole: Target, *servers: Server, percent: int = 100) -> Target:
    return replace(whole, weight=0, servers=servers, is_canary=True, shadow_percent=percent)


def shadowed(haproxy: Running, engine: Engine, *servers: Server, percent: int = 100, **key: Any) -> Running:
    """Route `chat` to `engine`, with copies to the servers."""
    whole = target_of(engine)
    haproxy.start(
        routes=(route_of(whole, canary_of(whole, *servers, percent=percent)),), keys=(key_of("secret", **key),)
    )
    return haproxy


def described(*routes: Route) -> Gateway:
    return Gateway(Listener("/g", "/l"), routes=routes)


def lines(gateway: Running, kind: str) -> list[dict[str, str]]:
    """Lines of `copy`, `original`, `busy` or `large` requests."""
    return [line for line in gateway.lines() if line["shadow"] == kind]


def wait_for(gateway: Running, kind: str, count: int = 1) -> list[dict[str, str]]:
    wait_until(lambda: len(lines(gateway, kind)) >= count, seconds=10)
    return lines(gateway, kind)


def test_a_request_reaches_both_and_its_answer_comes_from_the_old_one(
    haproxy: Running, engine: Engine, new: Engine
) -> None:
    gateway = shadowed(haproxy, engine, server_of(new, 2))
    answer = gateway.ask(temperature=0.5, headers={"X-Request-Id": "one"})
    assert answer.json()["choices"][0]["message"]["content"] == "hello from engine"
    copy, original = wait_for(gateway, "copy")[0], wait_for(gateway, "original")[0]
    headers, body = new.asked[0]
    assert body == engine.asked[0][1]
    assert (headers["authorization"], headers["x-request-id"]) == ("Bearer sk-engine", "one")
    assert not [name for name in headers if name.startswith("x-slipway")]
    assert (original["backend"], copy["backend"], copy["server"]) == ("b1", "b1n", "i2")
    for name in ("id", "path", "key", "route", "model", "prompt_tokens", "output_tokens", "finish_reason"):
        assert copy[name] == original[name], name
    assert copy["first_ms"].isdigit()
    assert copy["cost"] == "-"


def test_answers_are_the_same_bytes_with_and_without(haproxy: Running, engine: Engine, new: Engine) -> None:
    gateway = shadowed(haproxy, engine, server_of(new, 2))
    whole = gateway.gateway.routes[0].targets[0]

    def answers() -> list[tuple[int, bytes, dict[str, str]]]:
        given = [
            gateway.ask(),
            gateway.ask(stream=True),
            gateway.ask(stream=True, stream_options={"include_usage": True}),
        ]
        given += [gateway.ask(max_tokens="x"), gateway.ask("foreign")]
        varying = ("x-request-id", "date")
        return [
            (one.status_code, one.content, {k: v for k, v in one.headers.items() if k not in varying}) for one in given
        ]

    with_copies = answers()
    wait_for(gateway, "copy", 3)
    gateway.change(routes=(route_of(whole, canary_of(whole, server_of(new, 2), percent=0)),))
    assert answers() == with_copies
    time.sleep(0.2)
    # Neither the refused ones nor those after the end were copied.
    assert (len(new.asked), len(lines(gateway, "original"))) == (3, 3)


def test_a_copy_takes_nothing_of_any_limit_and_a_refused_request_is_not_copied(
    haproxy: Running, engine: Engine, new: Engine
) -> None:
    limits = Limits(requests_per_minute=2, concurrency=1)
    gateway = shadowed(haproxy, engine, server_of(new, 2), limits=limits)
    new.waits = True
    assert [gateway.ask().status_code for _number in range(3)] == [200, 200, 429]
    new.gate.set()
    wait_for(gateway, "copy", 2)
    assert len(new.asked) == 2


def test_one_that_hangs_delays_nobody_and_gets_a_bounded_number(haproxy: Running, engine: Engine, new: Engine) -> None:
    gateway = shadowed(haproxy, engine, server_of(new, 2))
    new.waits = True
    slowest = 0.0
    with gateway.client() as client:
        for _number in range(40):
            began = time.monotonic()
            answer = client.post("/v1/chat/completions", json={"model": "chat", "messages": []})
            slowest = max(slowest, time.monotonic() - began)
            assert answer.status_code == 200
    assert slowest < 2
    wait_until(lambda: len(lines(gateway, "original")) + len(lines(gateway, "busy")) == 40, seconds=5)
    # Eight for each of two threads.
    assert len(new.asked) <= 16
    assert len(lines(gateway, "busy")) >= 24
    new.gate.set()
    before = len(wait_for(gateway, "copy", len(new.asked)))
    gateway.ask()
    wait_for(gateway, "copy", before + 1)


def test_one_that_is_dead_fails_only_its_copies(haproxy: Running, engine: Engine) -> None:
    gateway = shadowed(haproxy, engine, Server(2, "127.0.0.1", free_port()))
    assert [gateway.ask().status_code for _number in range(5)] == [200] * 5
    assert {line["status"] for line in wait_for(gateway, "copy", 5)} == {"503"}
    assert {line["status"] for line in lines(gateway, "original")} == {"200"}


def test_an_answer_without_end_is_cut_off(haproxy: Running, engine: Engine, new: Engine) -> None:
    gateway = shadowed(haproxy, engine, server_of(new, 2))
    new.pieces = [b"data: " + b"x" * 65_536 + b"\n\n"] * 2000
    new.pause_seconds = 0.002
    assert gateway.ask().status_code == 200
    copy = wait_for(gateway, "copy")[0]
    assert copy["end"] != "--"
    # 8 MiB of some 125, and what lay in buffers on the way.
    assert new.sent < 500


def test_what_is_too_large_is_not_copied(haproxy: Running, engine: Engine, new: Engine) -> None:
    gateway = shadowed(haproxy, engine, server_of(new, 2))
    assert gateway.ask(messages=[{"role": "user", "content": "x" * 300_000}]).status_code == 200
    wait_for(gateway, "large")
    assert gateway.ask(messages=[{"role": "user", "content": "x" * 200_000}]).status_code == 200
    wait_for(gateway, "copy")
    assert len(new.asked) == 1


def test_only_a_sample_is_copied_and_the_share_changes_without_a_reload(
    haproxy: Running, engine: Engine, new: Engine
) -> None:
    gateway = shadowed(haproxy, engine, server_of(new, 2), percent=40)
    with gateway.client() as client:
        for _number in range(100):
            client.post("/v1/chat/completions", json={"model": "chat", "messages": []})
    wait_until(lambda: sum(line["path"] != "/healthz" for line in gateway.lines()) > 100, seconds=5)
    assert 15 < len(lines(gateway, "original")) + len(lines(gateway, "busy")) < 70
    whole = gateway.gateway.routes[0].targets[0]
    outcome = gateway.change(routes=(route_of(whole, canary_of(whole, server_of(new, 2), percent=100)),))
    assert outcome.way == "runtime"


def test_only_the_route_that_consents_is_copied() -> None:
    """Another route whose requests come to the same deployment, or fall back to it, is not."""
    engine = Engine()
    first, second = target_of(engine, 1), target_of(engine, 2)
    to = canary_of(first, server_of(engine, 9), percent=30)
    silent = canary_of(second, server_of(engine, 9), percent=0)
    draining = replace(to, number=3, servers=(server_of(engine, 9, draining=True),))
    gateway = described(
        route_of(first, to, number=1),
        route_of(second, silent, number=2, fallback=1),
        route_of(replace(first, number=3), draining, number=3),
    )
    assert maps.build(gateway)["shadows"] == {"r1@b1": "b1n;30"}
    # While other rules wait for a reload, copies end at once where they are no longer wanted.
    ended = described(route_of(first, replace(to, shadow_percent=0), number=1))
    assert maps.build(within(gateway, ended))["shadows"] == {}
    assert maps.build(within(ended, gateway))["shadows"] == {"r1@b1": "b1n;30"}

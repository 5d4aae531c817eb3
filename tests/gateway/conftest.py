"""Engines that tests can tell what to answer, and a real HAProxy in front of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.backend import Engine, Running, key_of, route_of, serving, target_of


@pytest.fixture
def engine() -> Iterator[Engine]:
    with serving(Engine()) as one:
        yield one


@pytest.fixture
def second() -> Iterator[Engine]:
    with serving(Engine(name="second", key="sk-second")) as one:
        yield one


@pytest.fixture
def haproxy(tmp_path: Path) -> Iterator[Running]:
    """Not started yet."""
    one = Running(tmp_path)
    yield one
    one.stop()


@pytest.fixture
def gateway(haproxy: Running, engine: Engine) -> Running:
    """One route `chat` (alias `org/chat`) to one engine; key `secret` may use it, key `other` may not."""
    haproxy.start(
        routes=(route_of(target_of(engine), names=("chat", "org/chat")),),
        keys=(key_of("secret"), key_of("other", 2, routes=())),
    )
    return haproxy

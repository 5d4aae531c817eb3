import os
import socket
from collections.abc import Iterator

import psutil
import pytest

from console.operations import ports


@pytest.fixture
def held() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        yield server.getsockname()[1]


def test_a_port_that_is_held_is_not_free(held: int) -> None:
    assert not ports.is_free("127.0.0.1", held)


def test_the_holder_is_named_by_pid_and_command_line(held: int) -> None:
    assert ports.holder(held).startswith(f"pid {os.getpid()}: ")
    assert psutil.Process().cmdline()[0] in ports.holder(held)


def test_the_next_free_port_is_taken(held: int) -> None:
    assert held < ports.choose("127.0.0.1", [held]) <= held + 100


def test_the_first_free_candidate_is_taken(held: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    assert ports.choose("127.0.0.1", [held, free]) == free


def test_no_free_port_says_which_and_who(held: int) -> None:
    with pytest.raises(OSError, match=rf"No port is free from {held} to {held}.*held by pid {os.getpid()}"):
        ports.choose("127.0.0.1", [held], tries=0)


def test_only_the_process_that_listens_holds_a_port(held: int) -> None:
    assert ports.is_held_by(os.getpid(), held)
    assert not ports.is_held_by(os.getppid(), held)

"""The supervisor with real processes: order, readiness, restarts, logs, and that nothing is left."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from console.operations import supervisor as supervising
from console.operations.supervisor import Program, StartFailed, Supervisor

ROOT = Path(__file__).resolve().parents[2]


class Watched:
    """A supervisor whose log is kept."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[str] = []
        self.supervisor = Supervisor(directory=folder, write=self.lines.append)

    def run_until(self, condition: Callable[[], Any], *, seconds: float = 10) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "\n".join(self.lines)
            self.supervisor._step(0.05)

    def pid(self, name: str) -> int:
        return self.supervisor.pids().get(name, 0)

    def text(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    one = Watched(tmp_path)
    yield one
    one.supervisor.stop()


def shell(name: str, script: str, **more: Any) -> Program:
    return Program(name, ["/bin/sh", "-c", script], dict(os.environ), **more)


def sleeper(name: str) -> Program:
    return Program(name, ["sleep", "300"], dict(os.environ))


def test_lines_carry_the_name_of_their_process_and_are_never_cut(watched: Watched) -> None:
    watched.supervisor.start(
        shell("web", "printf 'one\\ntw'; sleep 0.3; printf 'o\\n'; printf 'last without end'; sleep 0.1")
    )
    watched.run_until(lambda: "ended" in watched.text())
    assert [line for line in watched.lines if line.startswith("web")] == [
        "web     | one",
        "web     | two",
        "web     | last without end",
    ]


def test_start_waits_until_a_program_is_ready(watched: Watched, tmp_path: Path) -> None:
    mark = tmp_path / "ready"
    began = time.monotonic()
    watched.supervisor.start(shell("broker", f"sleep 0.4; touch {mark}; sleep 300", ready=mark.exists))
    assert mark.exists()
    assert 0.3 < time.monotonic() - began < 5


def test_a_program_that_is_not_ready_in_time_fails_with_what_it_said(watched: Watched) -> None:
    with pytest.raises(StartFailed, match=r"(?s)web was not ready after 1 s.*port is taken"):
        watched.supervisor.start(shell("web", "echo port is taken; sleep 300", ready=lambda: False, ready_seconds=0.6))


def test_a_program_that_ends_again_and_again_before_it_is_ready_is_given_up(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "FIRST_PAUSE_SECONDS", 0.05)
    with pytest.raises(StartFailed, match=r"(?s)ended 3 times.*no such option"):
        watched.supervisor.start(shell("web", "echo no such option; exit 2", ready=lambda: False))


def test_a_crashed_program_starts_again_within_a_second_and_says_how_it_ended(watched: Watched) -> None:
    watched.supervisor.start(sleeper("ingest"))
    first = watched.pid("ingest")
    began = time.monotonic()
    os.kill(first, signal.SIGKILL)
    watched.run_until(lambda: watched.pid("ingest") not in (0, first))
    assert 0.4 < time.monotonic() - began < 2
    assert re.search(r"ingest ended after [\d.]+ s with signal SIGKILL; it starts again in 0\.5 s", watched.text())


def test_the_pause_between_restarts_grows(watched: Watched) -> None:
    watched.supervisor.start(shell("web", "exit 3"))
    watched.run_until(lambda: watched.text().count("exit code 3") == 3)
    assert re.findall(r"again in ([\d.]+) s", watched.text()) == ["0.5", "1.0", "2.0"]


def test_what_a_crashed_program_had_started_ends_with_it(watched: Watched, tmp_path: Path) -> None:
    note = tmp_path / "grandchild"
    watched.supervisor.start(shell("worker", f"sleep 300 & echo $! > {note}; wait", ready=lambda: note.exists()))
    grandchild = int(note.read_text())
    os.kill(watched.pid("worker"), signal.SIGKILL)
    watched.run_until(lambda: "ended" in watched.text())
    watched.run_until(lambda: not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == "zombie")


def test_stop_goes_backwards_and_kills_what_ignores_it(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "STOP_SECONDS", 0.5)
    say = "trap 'echo stopping; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    watched.supervisor.start(
        shell("broker", say, ready=lambda: "broker  | up" in watched.lines),
    )
    watched.supervisor.start(
        shell(
            "web", "trap '' TERM; echo up; while :; do sleep 0.05; done", ready=lambda: "web     | up" in watched.lines
        )
    )
    pids = watched.supervisor.pids()
    watched.supervisor.stop()
    assert watched.lines.index("up      | web did not stop within 0 s and is killed") < watched.lines.index(
        "broker  | stopping"
    )
    assert not any(psutil.pid_exists(pid) for pid in pids.values())
    assert watched.supervisor.pids() == {}


def test_run_ends_when_another_thread_asks(watched: Watched) -> None:
    watched.supervisor.start(sleeper("web"))
    threading.Timer(0.2, watched.supervisor.ask_to_stop).start()
    began = time.monotonic()
    watched.supervisor.run()
    assert time.monotonic() - began < 5


def test_a_killed_supervisor_takes_its_programs_with_it(tmp_path: Path) -> None:
    script = (
        "import os\nfrom pathlib import Path\n"
        "from console.operations.supervisor import Program, Supervisor\n"
        f"one = Supervisor(directory=Path({str(tmp_path)!r}))\n"
        "one.start(Program('a', ['sleep', '300'], dict(os.environ)), Program('b', ['sleep', '300'], dict(os.environ)))\n"
        "print(*one.pids().values(), flush=True)\none.run()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(children) == 2
    parent.kill()
    parent.wait(10)
    _gone, alive = psutil.wait_procs(children, timeout=5)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


def test_a_removed_program_is_gone_and_does_not_come_back(watched: Watched) -> None:
    watched.supervisor.start(sleeper("web"))
    pid = watched.pid("web")
    watched.supervisor.remove("web")
    assert not psutil.pid_exists(pid)
    watched.supervisor._step(0.1)
    assert watched.supervisor.pids() == {}

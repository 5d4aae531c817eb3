"""The parent of one engine: starts it, restarts it by policy, ends all of it. Run as `python -m workers.host.shim DIR`.

One shim per instance. It outlives the agent, needs nothing but the files in its directory, and imports the standard
library only (about 12 MB resident). Its environment *is* the engine's environment, so that secrets never lie in a file.

    DIR/spec.json            what to run (written by the agent)
    DIR/state.json           what is going on (written by the shim alone)
    DIR/lock                 held while a shim lives: one per instance, freed by the kernel on any death
    DIR/ready                written by bring-up: the `start` number that once was ready
    DIR/stop.json            grace of the stop that is asked for by SIGTERM
    DIR/fail.json            attempt and cause of the failure that is asked for by SIGUSR1
    DIR/attempts/0001/       one directory per engine process: attempt.json and log, never overwritten

SIGTERM stops the engine: TERM to its main process, after the grace time KILL to all of it. SIGUSR1 fails the running
attempt (the agent found it hung). With `--stop` nothing is started: what is left of a lost shim's engine is ended. With
`--adopt` only what an earlier shim left unfinished is gone on with.

The engine writes its log itself (O_APPEND), so no line is lost or late because of the shim. Exit code 0 that nobody
asked for is a crash: an engine whose worker was killed ends with 0.
"""

import fcntl
import json
import os
import random
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from workers.host.files import insist, read_json, write_json
from workers.host.processes import (
    all_processes,
    become_subreaper,
    boot_id,
    descendants_of,
    facts_of,
    family_of,
    is_alive,
)

UNFINISHED = ("running", "backoff", "stopping")
"""Values of `state` that only stand while a shim is (or was) at work; the others are `stopped` and `crashed`."""

_EXIT_SECONDS = 10.0


class Shim:
    """State of one shim process; `run` returns when the instance is stopped or has crashed for good."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.spec: dict[str, Any] = json.loads((directory / "spec.json").read_bytes())
        self.instance: str = self.spec["instance"]
        self.engine: int | None = None
        self.exit_code: int | None = None
        self.adopted: int | None = None
        """pidfd of an engine that another shim had started: it can be watched but not waited for."""
        self.stop_asked = False
        self.fail_asked = False
        self.stop_at: float | None = None
        """When the grace time ends, on the monotonic clock; `None` while nobody asked to stop."""
        self.killed = False
        self.attempt: dict[str, Any] = {}
        self.state: dict[str, Any] = {}
        self.selector = selectors.DefaultSelector()

    # -- the whole life ---------------------------------------------------------------------------------------------

    def run(self, *, stop_only: bool, adopt_only: bool = False) -> None:
        """Live until the instance is stopped or its restart budget is spent."""
        self._listen_to_signals()
        before = read_json(self.directory / "state.json") or {}
        if adopt_only and before.get("state") not in UNFINISHED:
            return  # the shim that seemed to be gone had just said its last word
        found = self._take_over(before)
        self.stop_asked = self.stop_asked or stop_only
        if found == "ended" and not self._restart_or_give_up():
            return
        if found != "running":
            if self.stop_asked:
                self._save(state="stopped", asked=True)
                return
            self._spawn()
        while True:
            self._watch()
            self._end_family()
            self._record_end()
            if not self._restart_or_give_up():
                return
            self._spawn()

    def _take_over(self, before: dict[str, Any]) -> str:
        """Continue what an earlier shim left: `running` (adopted), `ended` (died unwatched), or `nothing`."""
        same_boot = before.get("boot_id") == boot_id()
        same_start = before.get("start") == self.spec["start"]
        carried = before if same_boot and same_start else {}
        self.state = {
            "instance": self.instance,
            "start": self.spec["start"],
            "boot_id": boot_id(),
            "shim_pid": os.getpid(),
            "shim_start": _own_start(),
            "attempt": before.get("attempt", 0),
            "pid": before.get("pid"),
            "pid_start": before.get("pid_start"),
            "exit_code": before.get("exit_code"),
            "restarts": carried.get("restarts", 0),
            "restart_times": carried.get("restart_times", []),
        }
        if before.get("state") not in UNFINISHED:
            return "nothing"
        self.attempt = read_json(self._attempt_directory() / "attempt.json") or {}
        if same_boot and is_alive(before.get("pid"), before.get("pid_start")):
            self._adopt(before)
            return "running"
        self._end_family()
        if self.attempt and "ended_at" not in self.attempt:
            self._record_end(reason="" if same_boot else "the host was restarted")
        return "ended" if carried else "nothing"

    def _adopt(self, before: dict[str, Any]) -> None:
        self.engine = before["pid"]
        self.adopted = os.pidfd_open(before["pid"])
        self.selector.register(self.adopted, selectors.EVENT_READ)
        self._save(state="running", reason="taken over from a shim that was killed")

    def _spawn(self) -> None:
        number = self.state["attempt"] + 1
        directory = self._attempt_directory(number)
        insist(lambda: directory.mkdir(parents=True, mode=0o700, exist_ok=True))
        self.exit_code, self.killed, self.fail_asked = None, False, False
        self.attempt = {
            "number": number,
            "start": self.spec["start"],
            "argv": self.spec["argv"],
            "environment": self.spec["environment"],
            "started_at": time.time(),
        }
        os.chdir(directory)
        log = directory / "log"
        try:
            self.engine = _spawn_process(self.spec["argv"], log)
        except OSError as error:
            log.write_text(f"cannot start {self.spec['argv'][0]}: {error.strerror}\n", encoding="utf-8")
            self.engine, self.exit_code = None, 127
        facts = facts_of(self.engine) if self.engine else None
        self.attempt["pid"] = self.engine or 0
        insist(lambda: write_json(directory / "attempt.json", self.attempt))
        self._save(
            state="running",
            attempt=number,
            pid=self.engine,
            pid_start=facts.start if facts else None,
            exit_code=None,
            reason="",
        )

    # -- watching ---------------------------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        reader, writer = socket.socketpair()
        reader.setblocking(False)  # noqa: FBT003 - the standard library's signature
        writer.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._wake_reader, self._wake_writer = reader, writer
        self.selector.register(reader, selectors.EVENT_READ)
        signal.set_wakeup_fd(writer.fileno())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, _wake_only)
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGUSR1, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Only note what is asked: files are written by the main flow alone, never by a handler in its middle."""
        if number == signal.SIGTERM:
            self.stop_asked = True
        else:
            self.fail_asked = True

    def _wait(self, timeout: float | None) -> None:
        """Sleep until a signal arrives, an adopted engine ends, or `timeout` seconds have passed."""
        for key, _events in self.selector.select(timeout):
            if key.fileobj is self._wake_reader:
                try:
                    self._wake_reader.recv(4096)
                except BlockingIOError:
                    continue
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.engine:
                self.exit_code = os.waitstatus_to_exitcode(status)
                self.engine = None

    def _watch(self) -> None:
        """Return when the engine's main process has ended."""
        while self.engine is not None:
            if self.adopted is not None and not is_alive(self.state["pid"], self.state["pid_start"]):
                self.selector.unregister(self.adopted)
                os.close(self.adopted)
                self.adopted, self.engine = None, None
                return
            if self.stop_asked and self.stop_at is None:
                self._begin_to_stop(self.engine)
            if self.fail_asked:
                self._note_failure()
                _kill(self.engine, signal.SIGKILL)
            left = None if self.stop_at is None else self.stop_at - time.monotonic()
            if left is not None and left <= 0:
                self.killed = True
                self._end_family()
                left = 0.2
            self._wait(left)

    def _note_failure(self) -> None:
        request = read_json(self.directory / "fail.json") or {}
        if request.get("attempt") == self.attempt.get("number"):
            self.attempt["failure"] = request.get("failure")

    def _begin_to_stop(self, engine: int) -> None:
        request = read_json(self.directory / "stop.json") or {}
        self.stop_at = time.monotonic() + float(request.get("grace_seconds", self.spec["grace_seconds"]))
        self._save(state="stopping")
        # Only the main process: it ends its own children in order. Told all at once, they die noisily.
        _kill(engine, signal.SIGTERM)

    # -- the end of an attempt --------------------------------------------------------------------------------------

    def _end_family(self) -> None:
        """Kill what is left of the engine, and return only when no process of it exists."""
        pause = 0.002
        while True:
            # First those that are surely ours and cheap to find; a look at every process' environment comes last.
            pids = descendants_of(os.getpid(), [process for process in all_processes() if not process.zombie])
            if not pids:
                family = family_of(self.instance, self.directory, self.state.get("pid"))
                pids = {process.pid for process in family}
            if not pids:
                break
            for pid in pids:
                _kill(pid, signal.SIGKILL)
            time.sleep(pause)
            pause = min(pause * 2, 0.2)
            self._reap()
        self._reap()

    def _record_end(self, reason: str = "") -> None:
        log = self._attempt_directory() / "log"
        self.attempt.update(
            ended_at=time.time(),
            exit_code=self.exit_code,
            asked=self.stop_asked,
            killed=self.killed,
            log_bytes=log.stat().st_size if log.exists() else 0,
            reason=reason,
        )
        insist(lambda: write_json(self._attempt_directory() / "attempt.json", self.attempt))
        self.state.update(exit_code=self.exit_code, pid=None, pid_start=None)

    def _restart_or_give_up(self) -> bool:
        """After an end: wait for the next attempt and return True, or record the final state and return False."""
        if self.stop_asked:
            self._save(state="stopped", asked=True, reason="")
            return False
        policy = self.spec["restart"]
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        recent = [moment for moment in self.state["restart_times"] if now - moment < policy["window_seconds"]]
        reason = self._why_no_restart(recent, policy)
        if reason:
            self._save(state="crashed", asked=False, reason=reason)
            return False
        # The first restart is immediate: most deaths are single, and every second is an outage.
        delay = 0.0
        if recent:
            delay = min(policy["backoff_seconds"] * 2 ** (len(recent) - 1), policy["backoff_max_seconds"])
            delay *= random.uniform(0.5, 1.0)  # noqa: S311 - spreads restarts, guards nothing
        self._save(state="backoff", restarts=self.state["restarts"] + 1, restart_times=[*recent, now], reason="")
        deadline = time.monotonic() + delay
        while not self.stop_asked and (left := deadline - time.monotonic()) > 0:
            self._wait(left)
        if self.stop_asked:
            self._save(state="stopped", asked=True, reason="")
            return False
        return True

    def _why_no_restart(self, recent: list[float], policy: dict[str, Any]) -> str:
        ready = read_json(self.directory / "ready") or {}
        if ready.get("start") != self.spec["start"]:
            return "it ended before it was ever ready, so starting it again would fail again"
        if len(recent) >= policy["budget"]:
            return f"it was restarted {len(recent)} times within {policy['window_seconds']:.0f} s; the budget is spent"
        return ""

    # -- files ------------------------------------------------------------------------------------------------------

    def _attempt_directory(self, number: int | None = None) -> Path:
        return self.directory / "attempts" / f"{self.state['attempt'] if number is None else number:04d}"

    def _save(self, **changes: object) -> None:
        self.state.update(changes, updated=time.time())
        insist(lambda: write_json(self.directory / "state.json", self.state))


def _spawn_process(argv: list[str], log: Path) -> int:
    """Start `argv` in a session of its own, output appended to `log`; all signals at their defaults."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        argv[0],
        argv,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD],
    )


def _own_start() -> int:
    facts = facts_of(os.getpid())
    if facts is None:
        raise RuntimeError("/proc is not readable")
    return facts.start


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _wake_only(_number: int, _frame: FrameType | None) -> None:
    """Let the wake-up descriptor do the work."""


def _detach(directory: Path) -> Path | None:
    """Fork a process that nobody waits for; return None in the parent, once the child has got the instance's lock."""
    reader, writer = os.pipe()
    starter = os.getpid()
    if os.fork() != 0:
        os.close(writer)
        answer = os.read(reader, 200).decode()
        if answer != "ok":
            raise SystemExit(answer or "the shim ended at once")
        return None
    os.close(reader)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    if not _lock(lock, directory):
        os.write(writer, b"another shim has this instance")
        os._exit(1)
    os.write(writer, b"ok")
    os.close(writer)
    # It carries the instance's mark as we do: while it lives, it would be taken for a part of the engine.
    while os.getppid() == starter:
        time.sleep(0.001)
    return directory


def _lock(descriptor: int, directory: Path) -> bool:
    """Take the instance's lock; a shim that has written its final state is given a moment to be gone."""
    deadline = time.monotonic() + _EXIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            state = (read_json(directory / "state.json") or {}).get("state")
            if state in UNFINISHED or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def main(arguments: list[str]) -> None:
    """Detach from the caller (which is told once the lock is held), then look after the instance."""
    directory = Path(next(argument for argument in arguments if not argument.startswith("--"))).resolve()
    if _detach(directory) is None:
        return
    become_subreaper()
    Shim(directory).run(stop_only="--stop" in arguments, adopt_only="--adopt" in arguments)


if __name__ == "__main__":
    main(sys.argv[1:])

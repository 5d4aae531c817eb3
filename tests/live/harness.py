"""A whole console of its own for live tests: `manage.py up` with a real broker, a real agent and real engines.

Tests act on it as people do, by HTTP with a session, and look at the truth in its database file. What it started is found
again by SLIPWAY_HOME in the environment of its processes, and ended by pid.
"""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx2

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct horse battery"


def wait_for(what: str, condition: Callable[[], Any], *, seconds: float, every: float = 0.1) -> Any:
    """Wait until `condition` returns something true and return it; fail with `what` otherwise."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(every)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def processes_of(home: Path) -> list[int]:
    """All processes whose SLIPWAY_HOME this is."""
    mark = f"SLIPWAY_HOME={home}".encode()
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and int(directory.name) != os.getpid():
            with suppress(OSError):
                if mark in (directory / "environ").read_bytes().split(b"\0"):
                    found.append(int(directory.name))
    return found


@dataclass
class LiveConsole:
    """One console with its own SLIPWAY_HOME; engines and models are shared with the cache by links."""

    home: Path
    port: int = field(default_factory=free_port)
    root: Path = ROOT
    """The code that it runs."""
    options: tuple[str, ...] = ()
    """Of `manage.py up`."""
    process: subprocess.Popen[bytes] | None = None
    client: httpx2.Client | None = None

    @property
    def url(self) -> str:
        """Where it answers: `up` takes another port when ours was taken meanwhile."""
        try:
            return str(json.loads((self.home / "console" / "runtime.json").read_text())["console_url"])
        except (OSError, ValueError, KeyError):
            return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "DATABASE_URL")}
        return {
            **kept,
            "SLIPWAY_HOME": str(self.home),
            "SLIPWAY_PORT": str(self.port),
            "SLIPWAY_INSTANCE_PORTS": f"{self.port + 1000}-65535",
            "DJANGO_SETTINGS_MODULE": "console.settings",
            # Nothing listens there, so that no test asks a real hub.
            "HF_ENDPOINT": "http://127.0.0.1:9",
        }

    def up(self) -> None:
        """Start the console and wait until it answers and its own host, if it has one, is online."""
        self.home.mkdir(parents=True, exist_ok=True)
        log = (self.home / "up.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, str(self.root / "manage.py"), "up", *self.options],
            cwd=self.root,
            env=self.environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        log.close()
        wait_for("the console answers", self._answers, seconds=300)
        if "--no-host" not in self.options:
            wait_for("host local is online", self.host_is_online, seconds=120)

    def _answers(self) -> bool:
        if self.process and self.process.poll() is not None:
            raise AssertionError(f"manage.py up ended: {self.log()[-3000:]}")
        with suppress(httpx2.HTTPError):
            return httpx2.get(f"{self.url}/account/login/", timeout=5).status_code == 200
        return False

    def host_is_online(self) -> bool:
        age = "(julianday('now') - julianday(last_seen_at)) * 86400"
        return bool(self.rows(f"select 1 from fleet_host where name = 'local' and {age} < 10"))

    def log(self) -> str:
        return (self.home / "up.log").read_text(errors="replace")

    def manage(self, *arguments: str) -> str:
        """Run a management command."""
        done = subprocess.run(
            [sys.executable, str(self.root / "manage.py"), *arguments],
            cwd=self.root, env=self.environment(), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def add_person(self, name: str, role: str) -> None:
        """Add a person with the tests' password."""
        code = (
            "from console.access import services;"
            f"services.add_person(username={name!r}, role={role!r}, actor=None, password={PASSWORD!r})"
        )
        self.manage("shell", "-v", "0", "-c", code)

    def sign_in(self, name: str) -> None:
        """Sign in by the form; later requests carry the session."""
        self.client = httpx2.Client(base_url=self.url, follow_redirects=True, timeout=120)
        answer = self.post("/account/login/", {"login": name, "password": PASSWORD})
        assert "account/login" not in str(answer.url), answer.text[:2000]

    def get(self, path: str) -> httpx2.Response:
        assert self.client
        return self.client.get(path)

    def post(self, path: str, data: dict[str, Any]) -> httpx2.Response:
        """Fetch the form at `path` for its token and hidden fields, then send it."""
        assert self.client
        page = self.client.get(path)
        hidden = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page.text))
        token = self.client.cookies.get("csrftoken", "")
        return self.client.post(
            path, data={**hidden, **data, "csrfmiddlewaretoken": token}, headers={"Referer": f"{self.url}{path}"}
        )

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Read from the console's database."""
        path = self.home / "console" / "db.sqlite3"
        try:
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as database:
                return database.execute(query, values).fetchall()
        except sqlite3.OperationalError:
            return []

    def one(self, query: str, *values: Any) -> Any:
        """First value of the first row, or None."""
        rows = self.rows(query, *values)
        return rows[0][0] if rows else None

    def wait_job(self, job: int, *, to: str = "succeeded", seconds: float = 240) -> None:
        """Wait until a job has ended; it must have ended as `to`."""
        ended = wait_for(
            f"job {job} ends",
            lambda: self.one(
                "select state from jobs_job where id = ? and state in ('succeeded', 'failed', 'cancelled')", job
            ),
            seconds=seconds,
        )
        events = "\n".join(
            row[0] for row in self.rows("select text from jobs_event where job_id = ? order by seq", job)
        )
        assert ended == to, f"job {job} {ended}\n{events}"

    def processes(self) -> list[int]:
        """All processes of this SLIPWAY_HOME: console, agent, shims and engines."""
        return processes_of(self.home)

    def instance_processes(self, instance: str) -> list[int]:
        """Processes of an instance, its shim among them: by the ownership token, or by what they write to.

        vLLM's EngineCore and Worker set a process title, which overwrites the environment with the token in it.
        """
        mark = f"SLIPWAY_INSTANCE={instance}".encode()
        folder = str(self.home / "hosts" / "local" / "state" / "instances" / instance)
        found = []
        for directory in Path("/proc").iterdir():
            if not directory.name.isdigit() or int(directory.name) == os.getpid():
                continue
            with suppress(OSError):
                links = [str((directory / link).readlink()) for link in ("cwd", "fd/1", "fd/2")]
                marked = mark in (directory / "environ").read_bytes().split(b"\0")
                if marked or any(link.startswith(folder) for link in links):
                    found.append(int(directory.name))
        return found

    def children(self) -> dict[str, int]:
        """The processes that `up` started, by what they are."""
        names = {"uvicorn": "web", "ingest": "ingest", "valkey-server": "broker", "redis-server": "broker"}
        found: dict[str, int] = {}
        assert self.process
        # By parent, not by SLIPWAY_HOME: a broker writes its title over its environment.
        for directory in Path("/proc").iterdir():
            if not directory.name.isdigit():
                continue
            with suppress(OSError):
                if int((directory / "stat").read_text().rpartition(")")[2].split()[1]) != self.process.pid:
                    continue
                pid = int(directory.name)
                words = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
                line = " ".join(words)
                if "host run" in line:
                    found["agent"] = pid
                elif " worker" in line:
                    found["worker"] = pid
                else:
                    for part, name in names.items():
                        if part in line:
                            found[name] = pid
        return found

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Up, with ada, an admin, signed in; and everything that it started ends with the block."""
        try:
            self.up()
            self.add_person("ada", "admin")
            self.sign_in("ada")
            yield self
        finally:
            self.down()

    def down(self) -> None:
        """End the console and everything that it started."""
        if self.client:
            self.client.close()
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(40)
        for pid in self.processes() + self.engine_processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def engine_processes(self) -> list[int]:
        """Processes of all engines that this console's host ever started."""
        instances = (self.home / "hosts" / "local" / "state" / "instances").glob("*")
        return [pid for folder in instances for pid in self.instance_processes(folder.name)]

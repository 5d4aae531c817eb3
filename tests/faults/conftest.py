"""One served instance on which faults are tried one after the other: with the stand-in engine, or with a real vLLM."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import API_KEY, Broker, Console, HostUnderTest, make_host, wait_for
from tests.live.conftest import ENGINE, MODEL, engine_cache
from workers.contracts import InstanceOrder
from workers.host.instance_files import ShimState
from workers.host.processes import facts_of, family_of, is_alive
from workers.host.stacks import process_name

NOTICE_SECONDS = 2.0
"""A death is told within this time."""

HANG_SECONDS = {"standin": 2.0, "vllm": 15.0}
RESTART_SECONDS = {"standin": 60.0, "vllm": 400.0}


_ASK = """
import sys, urllib.request
_, url, body, key = sys.argv
headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
    urllib.request.Request(url, body.encode(), headers), timeout=60
).read()
"""


class Scene:
    """A host with an agent, and one instance that is ready whenever a test begins."""

    def __init__(
        self, directory: Path, engine: str, *, around: tuple[str, ...] = (), address: str = "", **policy: float
    ) -> None:
        """`around`: words in front of the agent's command; `address`: where it reaches the broker, if elsewhere."""
        self.engine = engine
        self.around = around
        broker_directory = directory / "broker"
        broker_directory.mkdir()
        self.broker = Broker(broker_directory)
        self.broker.start()
        self.host: HostUnderTest = make_host(directory, self.broker)
        self.console = Console(self.broker, self.host.config)
        self.order = self._order(policy)
        if address:
            self.broker.listen_also_on(address)
            url = self.host.config.redis_url.replace("127.0.0.1", address)
            self.host.config.model_copy(update={"redis_url": url}).save(self.host.path)
        self.agent = self.host.start_agent(*around)
        self.console.want(self.order)
        self.wait_ready(1)

    def _order(self, changes: dict[str, float]) -> InstanceOrder:
        policy: dict[str, float] = {
            "budget": 100, "backoff_seconds": 0.1, "backoff_max_seconds": 0.5, "probe_seconds": 1,
            "hang_seconds": HANG_SECONDS[self.engine], **changes,
        }  # fmt: skip
        if self.engine == "standin":
            return self.host.order(restart=policy)
        (self.host.config.engines_dir / ENGINE).symlink_to(engine_cache() / "engines" / ENGINE)
        model = self.host.config.models_dir / "real"
        model.mkdir()
        for file in (engine_cache() / "models" / MODEL).iterdir():
            (model / file.name).symlink_to(file)
        return self.host.order(
            engine=ENGINE, model_path=str(model), restart=policy,
            arguments=["--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "4"],
        )  # fmt: skip

    # -- what is there ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ShimState:
        found = self.host.files(self.order).state()
        assert found
        return found

    def family(self) -> list[int]:
        """API server, EngineCore, Worker and what else the engine started; not the shim."""
        state = self.state
        family = family_of(str(self.order.instance), self.host.files(self.order).directory, state.pid)
        return [process.pid for process in family if process.pid != state.shim_pid]

    def member(self, name: str) -> int:
        """Pid of EngineCore or of a Worker."""
        return int(
            wait_for(lambda: next((pid for pid in self.family() if process_name(pid).startswith(name)), 0), what=name)
        )

    def api_server(self) -> int:
        pid = self.state.pid
        assert pid
        return pid

    def answers(self) -> bool:
        """A chat is answered, asked from where the agent is."""
        body = {"model": "demo", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
        url = f"http://127.0.0.1:{self.order.port}/v1/chat/completions"
        argv = [*self.around, sys.executable, "-c", _ASK, url, json.dumps({**body, "max_tokens": 8}), API_KEY]
        return subprocess.run(argv, capture_output=True, timeout=120, check=False).returncode == 0

    def ask_in_background(self) -> None:
        threading.Thread(target=self.answers, daemon=True).start()

    # -- breaking it --------------------------------------------------------------------------------------------------

    def hit(self, pid: int, number: int = signal.SIGKILL) -> float:
        """Send a signal; return the moment, seconds since the epoch."""
        os.kill(pid, number)
        return time.time()

    # -- what must follow -----------------------------------------------------------------------------------------------

    def wait_ready(self, attempt: int) -> None:
        self.console.wait(
            "instance.observed", RESTART_SECONDS[self.engine], instance=str(self.order.instance), phase="ready",
            attempt=attempt,
        )  # fmt: skip

    def bad_news(self, attempt: int) -> dict[str, Any]:
        """The first report that this attempt is not well."""

        def found() -> dict[str, Any] | None:
            self.console.take()
            mine = [r for r in self.console.reports if r["body"].get("instance") == str(self.order.instance)]
            for report in mine:
                body = report["body"]
                unwell = body["kind"] == "instance.observed" and body["phase"] in ("unhealthy", "restarting", "crashed")
                ended = body["kind"] == "attempt.ended" and body["number"] == attempt
                if ended or (unwell and body["attempt"] == attempt):
                    return dict(report)
            return None

        return dict(wait_for(found, what=f"news of attempt {attempt}"))

    def assert_noticed(self, since: float, attempt: int, *, seconds: float = NOTICE_SECONDS) -> None:
        took = self.bad_news(attempt)["at"] - since
        print(f"noticed after {took:.2f} s")
        # A second of patience with a machine that runs other tests beside this one.
        assert took < seconds + 1.0, f"told after {took:.1f} s"

    def assert_recovered(self, attempt: int) -> None:
        """Ready again with the next process; nothing lost, nothing doubled, nothing left over."""
        self.wait_ready(attempt + 1)
        assert self.answers()
        self.assert_told_in_order(attempt + 1)
        self.assert_no_orphan()

    def assert_told_in_order(self, attempts: int) -> None:
        self.console.take()
        numbers = [report["number"] for report in self.console.reports]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        mine = {"instance": str(self.order.instance)}
        assert [body["number"] for body in self.console.bodies("attempt.started", **mine)] == list(
            range(1, attempts + 1)
        )
        assert [body["number"] for body in self.console.bodies("attempt.ended", **mine)] == list(range(1, attempts))

    def assert_told_in_order_to_the_end(self) -> None:
        """The same for an instance that has given up: the last attempt's end was told, too."""
        last = self.state.attempt
        self.ended(last)
        numbers = [report["number"] for report in self.console.reports]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        for kind in ("attempt.started", "attempt.ended"):
            assert [body["number"] for body in self.console.bodies(kind)] == list(range(1, last + 1))

    def assert_no_orphan(self) -> None:
        """All processes of the instance belong to the running attempt."""
        state = self.state
        for pid in self.family():
            facts = facts_of(pid)
            assert facts is None or facts.session == state.pid, process_name(pid)

    def ended(self, attempt: int) -> dict[str, Any]:
        return self.console.wait("attempt.ended", instance=str(self.order.instance), number=attempt)

    def alive(self, pid: int) -> bool:
        facts = facts_of(pid)
        return facts is not None and is_alive(pid, facts.start)

    def end(self) -> None:
        self.broker.thaw()
        self.host.end()
        self.broker.kill()


@pytest.fixture(
    scope="module",
    params=["standin", pytest.param("vllm", marks=[pytest.mark.live, pytest.mark.long, pytest.mark.timeout(1800)])],
)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp(f"scene-{request.param}"), request.param)
    yield made
    made.end()


@pytest.fixture(
    params=["standin", pytest.param("vllm", marks=[pytest.mark.live, pytest.mark.long, pytest.mark.timeout(1800)])]
)
def engine(request: pytest.FixtureRequest) -> str:
    """For faults that need a scene of their own."""
    return str(request.param)

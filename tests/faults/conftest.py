"""One served instance on which faults are tried one after the other: with the stand-in engine, or with a real vLLM."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
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


class Scene:
    """A host with an agent, and one instance that is ready whenever a test begins."""

    def __init__(self, directory: Path, engine: str) -> None:
        self.engine = engine
        broker_directory = directory / "broker"
        broker_directory.mkdir()
        self.broker = Broker(broker_directory)
        self.broker.start()
        self.host: HostUnderTest = make_host(directory, self.broker)
        self.console = Console(self.broker, self.host.config)
        self.order = self._order()
        self.agent = self.host.start_agent()
        self.console.want(self.order)
        self.wait_ready(1)

    def _order(self) -> InstanceOrder:
        policy = {
            "budget": 100, "backoff_seconds": 0.1, "backoff_max_seconds": 0.5, "probe_seconds": 1,
            "hang_seconds": HANG_SECONDS[self.engine],
        }  # fmt: skip
        if self.engine == "standin":
            return self.host.order(restart=policy)
        (self.host.config.engines_dir / ENGINE).symlink_to(engine_cache() / "engines" / ENGINE)
        return self.host.order(
            engine=ENGINE, model_path=str(engine_cache() / "models" / MODEL), restart=policy,
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
        body = {"model": "demo", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
        with httpx2.Client(trust_env=False, timeout=60) as client:
            try:
                answer = client.post(
                    f"http://127.0.0.1:{self.order.port}/v1/chat/completions", json={**body, "max_tokens": 8},
                    headers={"Authorization": f"Bearer {API_KEY}"},
                )  # fmt: skip
            except httpx2.HTTPError:
                return False
        return answer.status_code == 200

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

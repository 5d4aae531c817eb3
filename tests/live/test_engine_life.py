"""What must never happen to a serving model: each test breaks something real and looks at what is left.

The tests of this module run in order on one deployment, since each start of a real engine takes half a minute.
"""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.live.harness import LiveConsole, wait_for
from workers.vllm.metrics import MetricsSample, parse_metrics
from workers.vllm.rates import growth_between

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]


PROBE_SECONDS = 30
REQUESTS = 9
"""Few enough to be answered between two of the agent's own requests, on a busy machine, too."""


class Served:
    """The deployment that the tests of this module share."""

    def __init__(self, console: LiveConsole, name: str) -> None:
        self.console = console
        self.name = name
        self.key = ""

    def value(self, column: str) -> object:
        return self.console.one(
            f"select i.{column} from deployments_instance i join deployments_deployment d on d.id = i.deployment_id"
            " where d.name = ?",
            self.name,
        )

    @property
    def instance(self) -> str:
        text = str(self.value("uuid")).replace("-", "")
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def state(self) -> str:
        return str(self.value("state"))

    def attempts(self) -> int:
        return int(
            self.console.one("select count(*) from deployments_attempt where instance_id = ?", self.value("id")) or 0
        )

    def engine_pid(self) -> int:
        return int(
            self.console.one(
                "select pid from deployments_attempt where instance_id = ? order by number desc limit 1",
                self.value("id"),
            )
        )

    def answers(self) -> bool:
        with httpx2.Client(timeout=30) as client:
            try:
                return client.get(f"http://127.0.0.1:{self.value('port')}/health").status_code == 200
            except httpx2.HTTPError:
                return False


@pytest.fixture(scope="module")
def served(live_console: LiveConsole, copy_of_the_model: int) -> Served:
    console = live_console
    console.sign_in("ada")
    engine = wait_for(
        "the engine is known", lambda: console.one("select id from fleet_engine where present"), seconds=30
    )
    answer = console.post(
        "/deployments/new/",
        {
            "name": "life", "copy": copy_of_the_model, "engine": engine, "arg_max_model_len": "1024",
            "arguments": "--enforce-eager --max-num-seqs 4", "expected": "Paris", "reason": "live test",
            "probe_seconds": PROBE_SECONDS,
        },
    )  # fmt: skip
    job = wait_for(
        f"the deploy job stands: {answer.text[-1500:]}",
        lambda: console.one("select id from jobs_job where kind = 'deploy' order by id desc"),
        seconds=10,
    )
    console.wait_job(job)
    return Served(console, "life")


def test_a_deployment_answers_with_the_truth(served: Served) -> None:
    result = served.console.one("select result from jobs_step where kind = 'validate' order by id desc")
    assert "Paris" in result
    assert served.state() == "ready"
    assert served.console.one("select state from deployments_deployment where name = 'life'") == "serving"


def engine_metrics(served: Served) -> MetricsSample:
    """The engine's own counters, read from it and not from the console."""
    text = httpx2.get(f"http://127.0.0.1:{served.value('port')}/metrics", timeout=10).text
    return parse_metrics(text, taken_at=time.monotonic())


def ask(served: Served, number: int) -> int:
    """One request to the engine itself, with its key; returns how many tokens it generated."""
    if not served.key:
        code = (
            "from console.deployments.models import Deployment;from console.common.secrets import decrypt;"
            f"print(decrypt(Deployment.objects.get(name={served.name!r}).api_key))"
        )
        served.key = served.console.manage("shell", "-v", "0", "-c", code).split()[-1]
    answer = httpx2.post(
        f"http://127.0.0.1:{served.value('port')}/v1/chat/completions",
        headers={"Authorization": f"Bearer {served.key}"},
        json={
            "model": served.name, "max_tokens": 12 + number % 5, "temperature": 0,
            "messages": [{"role": "user", "content": f"Count to {number + 3}, please."}],
        },
        timeout=120,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["completion_tokens"])


def board_of(served: Served, began: float) -> dict[str, Any]:
    """The board from a moment, in ms since the epoch, until now."""
    key = served.console.one("select id from deployments_deployment where name = ?", served.name)
    path = f"/deployments/{key}/metrics/series/?from={began:.0f}&to={time.time() * 1000:.0f}"
    board: dict[str, Any] = served.console.get(path).json()
    return board | {"shown": {figure["key"]: figure["number"] for figure in board["totals"]}}


def wait_for_a_probe(served: Served) -> None:
    """Return when the agent has just asked the idle engine for its token: it will not again for `PROBE_SECONDS`."""
    before = sum(engine_metrics(served).finished.values())
    wait_for(
        "the agent has asked for its token",
        lambda: sum(engine_metrics(served).finished.values()) > before,
        seconds=PROBE_SECONDS + 15,
    )


@pytest.mark.long
def test_an_idle_deployment_shows_no_requests_although_the_agent_asks_it_now_and_then(served: Served) -> None:
    board = board_of(served, (time.time() - 880) * 1000)
    assert board["shown"]["requests"] == 0, "validation and warm-up are nobody's load"
    began = time.time() * 1000
    wait_for_a_probe(served)
    time.sleep(2.5)
    board = board_of(served, began)
    assert (board["shown"]["requests"], board["shown"]["generation_tokens"]) == (0, 0)
    assert board["empty"]["time_to_first_token"] == "No requests in this range yet."
    assert "load" not in board["empty"]


@pytest.mark.long
def test_every_number_on_the_board_is_what_the_engine_itself_counted(served: Served) -> None:
    for _attempt in range(5):
        wait_for_a_probe(served)
        time.sleep(2)
        began, before = time.time() * 1000, engine_metrics(served)
        time.sleep(2)  # a sample of the quiet engine lies before the load
        with ThreadPoolExecutor(3) as people:
            tokens = sum(people.map(lambda number: ask(served, number), range(REQUESTS)))
        time.sleep(3)  # the engine counts a little after it has answered
        growth = growth_between(before, engine_metrics(served))
        assert growth is not None
        if sum(growth.finished.values()) == REQUESTS:
            break  # otherwise the load took so long that the agent asked for its own token meanwhile
    board = board_of(served, began)
    shown = board["shown"]
    assert (sum(growth.finished.values()), growth.counters["generation_tokens"]) == (REQUESTS, tokens)
    assert shown["requests"] == REQUESTS
    for name in ("prompt_tokens", "generation_tokens"):
        assert shown[name] == pytest.approx(growth.counters[name], rel=0.01), name
    for name in ("time_to_first_token", "inter_token_latency", "e2e_latency"):
        assert shown[f"{name}.p95"] == pytest.approx(growth.histograms[name].quantile(0.95), rel=0.01), name
    assert board["span"]["step"] == 1
    lines = board["groups"][0]["values"]

    def summed(line: str) -> float:
        return sum(value for value in lines[line] if value is not None)

    # A slot lasts about a second; what was counted during one that came late is in the next one's rate.
    for line in ("prompt_tokens", "generation_tokens"):
        assert summed(line) == pytest.approx(growth.counters[line], rel=0.1), line
    by_reason = {reason: count for reason, count in growth.finished.items() if count}
    for reason, count in by_reason.items():
        assert summed(f"finished.{reason}") == pytest.approx(count, rel=0.1, abs=1), reason
    share = growth.counters["prefix_cache_hits"] / growth.counters["prefix_cache_queries"]
    assert max(value for value in lines["prefix_cache_hit_share"] if value is not None) >= share * 0.99
    assert 0 < max(value for value in lines["kv_cache_usage"] if value is not None) <= 1
    assert max(value for value in lines["requests_running"] if value is not None) >= 1
    empty = board["empty"]
    assert "Speculative" in empty["speculation"]
    assert "time_to_first_token" not in empty


def test_kill_9_of_the_agent_leaves_the_engine_serving_and_a_new_agent_adopts_it(served: Served) -> None:
    pid, agent = served.engine_pid(), served.console.children()["agent"]
    os.kill(agent, signal.SIGKILL)
    assert served.answers()
    wait_for("a new agent runs", lambda: served.console.children().get("agent") not in (None, agent), seconds=30)
    wait_for("the host is online again", served.console.host_is_online, seconds=30)
    assert served.answers()
    assert (served.engine_pid(), served.attempts(), served.state()) == (pid, 1, "ready")


def test_kill_9_of_broker_and_all_console_processes_loses_nothing(served: Served) -> None:
    pid = served.engine_pid()
    events = served.console.rows("select job_id, seq from jobs_event order by id")
    before = served.console.children()
    assert {"web", "worker", "ingest", "broker", "agent"} <= set(before)
    served.console.post(
        f"/copies/{served.console.one('select id from catalog_copy')}/verify/", {"reason": "while all dies"}
    )
    job = served.console.one("select id from jobs_job where kind = 'verify' order by id desc")
    for child in before.values():
        os.kill(child, signal.SIGKILL)
    assert served.answers()
    wait_for(
        "all are back",
        lambda: set(before) <= set(now := served.console.children()) and not set(now.values()) & set(before.values()),
        seconds=60,
    )
    wait_for("the console answers", served.console._answers, seconds=60)
    wait_for("the host is online again", served.console.host_is_online, seconds=60)
    assert served.answers()
    assert (served.engine_pid(), served.attempts(), served.state()) == (pid, 1, "ready")
    after = served.console.rows("select job_id, seq from jobs_event order by id")
    assert after[: len(events)] == events
    assert len(set(after)) == len(after)
    served.console.wait_job(job, seconds=120)


def test_kill_9_of_vllms_main_process_leaves_no_child_and_the_instance_comes_back(served: Served) -> None:
    engine = set(served.console.instance_processes(served.instance)) - _shims(served)
    assert len(engine) >= 3, "the API server, EngineCore and Worker"
    os.kill(served.engine_pid(), signal.SIGKILL)
    wait_for(
        "every process of the old engine is gone",
        lambda: not engine & set(served.console.instance_processes(served.instance)),
        seconds=10,
    )
    wait_for("a second attempt runs", lambda: served.attempts() == 2, seconds=20)
    wait_for("it is ready again", lambda: served.state() == "ready", seconds=180)
    assert served.answers()
    first = "select exit_code from deployments_attempt where instance_id = ? and number = 1"
    assert served.console.one(first, served.value("id")) in (-9, 137)


def _shims(served: Served) -> set[int]:
    """Processes of the instance that are its shim: they outlive an engine and start the next one."""
    found = set()
    for pid in served.console.instance_processes(served.instance):
        with suppress(OSError):
            if b"workers.host.shim" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


def test_stop_leaves_no_process(served: Served) -> None:
    deployment = served.console.one("select id from deployments_deployment where name = 'life'")
    served.console.post(f"/deployments/{deployment}/stop/", {"reason": "end of the tests"})
    wait_for("it is stopped", lambda: served.state() == "stopped", seconds=60)
    wait_for("no process is left", lambda: not served.console.instance_processes(served.instance), seconds=10)
    assert served.console.one("select state from deployments_deployment where name = 'life'") == "stopped"

"""LoRA adapters of a running engine: loaded, unloaded, refused, found again. The stand-in has the engine's own endpoints."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.host.conftest import API_KEY, STANDIN, Console, HostUnderTest, wait_for
from tests.ports import free_port
from workers.contracts import AdapterOrder, AdaptersObserved, InstanceOrder
from workers.host.adapters import Adapters, check_files, link_name
from workers.host.engine_client import EngineClient, EngineError
from workers.host.failures import StepFailedError
from workers.host.instance_files import InstanceFiles
from workers.weights.verification import verify_directory

LORA = ["--enable-lora", "--max-lora-rank", "16"]


def adapter_in(folder: Path, *, rank: int = 8) -> Path:
    """A directory that the stand-in takes for an adapter; what a real one looks like is `tests.weights`' matter."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "peft_type": "LORA"}))
    header = json.dumps({}).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


def ordered(name: str, folder: Path, *, load: int = 1) -> AdapterOrder:
    manifest = verify_directory(folder).manifest()
    return AdapterOrder.model_validate({"name": name, "path": str(folder), "files": manifest, "load": load})


class RunningEngine:
    """A stand-in engine, and the adapters that an agent keeps of it."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.home, self.arguments = home, arguments or tuple(LORA)
        self.port = free_port()
        model = home / "model"
        model.mkdir(exist_ok=True)
        command = [sys.executable, "-I", "-S", str(STANDIN), "serve", str(model), "--host", "127.0.0.1", "--port",
                   str(self.port), "--served-model-name", "base", *self.arguments]  # fmt: skip
        environment = {"VLLM_API_KEY": API_KEY, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "STANDIN_READY_SECONDS": "0"}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
        self.client = EngineClient(self.port, API_KEY)
        self.instance = uuid4()
        self.told: list[AdaptersObserved] = []
        wait_for(self.client.is_healthy, what="the stand-in")

    def agent(self) -> Adapters:
        """As a new agent begins."""
        order = InstanceOrder(
            instance=self.instance, deployment="d", spec=1, engine="e", model_path="/m", served_model_names=["base"],
            arguments=list(self.arguments), port=self.port, run=True,
        )  # fmt: skip
        files = InstanceFiles.of(self.home, self.instance)
        files.attempt_directory(1).mkdir(parents=True, exist_ok=True)
        return Adapters(files, 1, order, API_KEY, files.directory / "adapters")

    def keep(self, adapters: Adapters, *wanted: AdapterOrder, until: str = "") -> dict[str, str]:
        """Let it work until every state is `until` (loaded), and return the states by name."""
        with ThreadPoolExecutor(1) as threads:

            def done() -> bool:
                adapters.go_on(wanted, threads)
                adapters.tell(self.told.append)
                return (
                    self._idle(adapters)
                    and self.states().keys() == {one.name for one in wanted}
                    and not adapters._failures
                )

            end = time.monotonic() + 30
            while time.monotonic() < end and not done():
                if until in self.states().values() and len(self.states()) == len(wanted) and self._idle(adapters):
                    break
                time.sleep(0.01)
            return self.states()

    def _idle(self, adapters: Adapters) -> bool:
        return adapters._future is None or adapters._future.done()

    def states(self) -> dict[str, str]:
        return {one.name: one.state for one in self.told[-1].adapters} if self.told else {}

    def loaded(self) -> dict[str, str]:
        return {name: one["root"] for name, one in self.client.models().items() if name != "base"}

    def end(self) -> None:
        self.client.__exit__(None, None, None)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[RunningEngine]:
    one = RunningEngine(tmp_path)
    yield one
    one.end()


def failure_of(engine: RunningEngine, name: str) -> Any:
    return next(one.failure for one in engine.told[-1].adapters if one.name == name)


def test_adapters_are_loaded_and_those_that_are_not_wanted_any_more_are_unloaded(engine: RunningEngine) -> None:
    agent = engine.agent()
    first, second = (ordered(name, adapter_in(engine.home / name)) for name in ("polite", "terse"))
    assert engine.keep(agent, first, second) == {"polite": "loaded", "terse": "loaded"}
    assert engine.client.chat("polite", "Hello?", max_tokens=5).text.startswith("As polite says:")
    assert engine.keep(agent, second) == {"terse": "loaded"}
    assert set(engine.loaded()) == {"terse"}
    with pytest.raises(EngineError, match="does not exist"):
        engine.client.chat("polite", "Hello?", max_tokens=5)


def test_a_new_agent_finds_what_the_one_before_loaded_and_loads_nothing_twice(engine: RunningEngine) -> None:
    wanted = ordered("polite", adapter_in(engine.home / "polite"))
    engine.keep(engine.agent(), wanted)
    roots = engine.loaded()
    engine.told.clear()
    assert engine.keep(engine.agent(), wanted) == {"polite": "loaded"}
    assert engine.loaded() == roots
    assert [one.adapters[0].state for one in engine.told] == ["loaded"]


def test_asked_to_load_it_anew_it_has_another_path_and_never_a_moment_without_it(engine: RunningEngine) -> None:
    agent, folder = engine.agent(), adapter_in(engine.home / "polite")
    engine.keep(agent, ordered("polite", folder))
    before = engine.loaded()["polite"]
    assert engine.keep(agent, ordered("polite", folder, load=2)) == {"polite": "loaded"}
    assert engine.loaded()["polite"] != before
    assert not Path(before).is_symlink()
    assert Path(engine.loaded()["polite"]).resolve() == folder


def test_files_that_were_touched_since_they_were_verified_are_not_loaded_and_not_kept(engine: RunningEngine) -> None:
    agent, folder = engine.agent(), adapter_in(engine.home / "polite")
    wanted = ordered("polite", folder)
    engine.keep(agent, wanted)
    adapter_in(folder, rank=4)
    assert engine.keep(engine.agent(), wanted, until="failed") == {"polite": "failed"}
    failure = failure_of(engine, "polite")
    assert failure.code == "adapter.changed"
    assert "adapter_config.json" in failure.message
    assert engine.loaded() == {}
    assert engine.keep(engine.agent(), ordered("polite", folder)) == {"polite": "loaded"}


def test_what_the_engine_refuses_is_said_in_its_words(engine: RunningEngine) -> None:
    wanted = ordered("wide", adapter_in(engine.home / "wide", rank=64))
    assert engine.keep(engine.agent(), wanted, until="failed") == {"wide": "failed"}
    failure = failure_of(engine, "wide")
    assert (failure.code, "LoRA rank 64 is greater than max_lora_rank 16" in failure.message) == (
        "adapter.refused",
        True,
    )
    assert "--max-lora-rank" in failure.next


def test_a_failing_one_does_not_hold_the_others(engine: RunningEngine) -> None:
    bad = ordered("wide", adapter_in(engine.home / "wide", rank=64))
    good = ordered("polite", adapter_in(engine.home / "polite"))
    agent = engine.agent()
    engine.keep(agent, bad, good, until="failed")
    assert engine.states() == {"wide": "failed", "polite": "loaded"}


def test_adapters_that_others_loaded_are_left_alone(engine: RunningEngine) -> None:
    by_hand = adapter_in(engine.home / "by-hand")
    engine.client.load_adapter("by-hand", str(by_hand), replace=False)
    agent = engine.agent()
    engine.keep(agent, ordered("polite", adapter_in(engine.home / "polite")))
    engine.keep(agent)
    assert set(engine.loaded()) == {"by-hand"}


def test_an_engine_without_lora_is_not_asked_and_the_reason_is_said(tmp_path: Path) -> None:
    one = RunningEngine(tmp_path, "--enforce-eager")
    try:
        wanted = ordered("polite", adapter_in(tmp_path / "polite"))
        assert one.keep(one.agent(), wanted, until="failed") == {"polite": "failed"}
        assert failure_of(one, "polite").code == "adapter.lora_off"
    finally:
        one.end()


def test_what_was_never_verified_or_is_gone_is_refused(tmp_path: Path) -> None:
    unverified = AdapterOrder(name="a", path=str(adapter_in(tmp_path / "a")), files=[])
    gone = AdapterOrder(name="a", path=str(tmp_path / "nowhere"), files=[])
    for order, code in ((unverified, "adapter.unverified"), (gone, "adapter.gone")):
        with pytest.raises(StepFailedError) as refused:
            check_files(order)
        assert refused.value.failure.code == code


def test_other_files_or_another_load_give_another_link(tmp_path: Path) -> None:
    folder = adapter_in(tmp_path / "a")
    first = link_name(ordered("a", folder))
    assert link_name(ordered("a", folder)) == first
    assert link_name(ordered("a", folder, load=2)) != first
    adapter_in(folder, rank=4)
    assert link_name(ordered("a", folder)) != first


def test_the_agent_loads_adapters_again_into_each_new_process(host: HostUnderTest, console: Console) -> None:
    host.start_agent()
    wanted = ordered("polite", adapter_in(host.config.models_dir / "polite"))
    order = host.order(arguments=LORA, adapters=[wanted])
    console.want(order)
    seen = console.wait("instance.adapters", adapters=[_seen("loaded")])
    assert seen["attempt"] == 1
    started = console.wait("attempt.started", number=1)
    assert started["environment"]["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    os.kill(started["pid"], signal.SIGKILL)
    console.wait("instance.adapters", attempt=2, adapters=[_seen("loaded")])
    url = f"http://127.0.0.1:{order.port}/v1/chat/completions"
    body = {"model": "polite", "messages": [{"role": "user", "content": "Hello?"}]}
    answer = httpx2.post(url, json=body, headers={"Authorization": f"Bearer {API_KEY}"}, trust_env=False).json()
    assert answer["choices"][0]["message"]["content"].startswith("As polite says:")


def test_only_engines_that_take_adapters_get_the_endpoints(host: HostUnderTest, console: Console) -> None:
    host.start_agent()
    console.want(host.order())
    started = console.wait("attempt.started")
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in started["environment"]


def _seen(state: str) -> dict[str, Any]:
    return {"name": "polite", "load": 1, "state": state, "failure": None}

"""A LoRA adapter beside a real model: added by its page, loaded by the agent, asked for through the gateway.

The adapter is made here: random halves of small rank for the query and value projections, strong enough to change answers.
"""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.gateway.backend import Engine, Running, key_of, route_of, target_of
from tests.host.test_adapters import ordered
from tests.live.conftest import ENGINE, MODEL, engine_cache
from tests.live.gateway_clients import serve
from tests.live.harness import LiveConsole, wait_for
from tests.live.test_gateway_conformance import KEY as ENGINE_KEY
from tests.live.test_gateway_conformance import vllm
from workers.contracts import AdapterOrder, AdaptersObserved, InstanceOrder
from workers.host.adapters import Adapters
from workers.host.engine_client import EngineClient
from workers.host.instance_files import InstanceFiles
from workers.vllm.lora import RUNTIME_VARIABLE

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(1500)]

NAME = "chat-with-lora"
RANK = 8
ARGUMENTS = "--enforce-eager --max-model-len 1024 --max-num-seqs 4 --enable-lora --max-lora-rank 16"
QUESTION = {"messages": [{"role": "user", "content": "Name three colours."}], "temperature": 0, "max_tokens": 16}


def make_adapter(
    folder: Path, config: dict[str, Any], *, rank: int = RANK, base: str = f"HuggingFaceTB/{MODEL}"
) -> Path:
    """A directory as PEFT saves it."""
    folder.mkdir(parents=True)
    dice = np.random.default_rng(7)
    hidden, kv = (
        config["hidden_size"],
        config["num_key_value_heads"] * (config["hidden_size"] // config["num_attention_heads"]),
    )
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module, out in (("q_proj", hidden), ("v_proj", kv)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{at}.lora_A.weight"] = dice.normal(0, 0.05, (rank, hidden)).astype(np.float32)
            tensors[f"{at}.lora_B.weight"] = dice.normal(0, 0.05, (out, rank)).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": rank, "bias": "none",
        "lora_alpha": 2 * rank, "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj"],
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def add_model(console: LiveConsole, name: str, path: Path) -> int:
    host = console.one("select id from fleet_host where name = 'local'")
    console.post("/models/new/", {"name": name, "host": host, "path": str(path)})
    wanted = f"select state from catalog_copy where path = '{path}'"
    wait_for(f"{name} is verified", lambda: console.one(wanted) == "verified", seconds=180)
    return int(console.one(f"select revision_id from catalog_copy where path = '{path}'"))


def is_loaded(console: LiveConsole, attempt: int) -> bool:
    """By the process of this number."""
    wanted = "select 1 from deployments_adapterload where state = 'loaded' and attempt = ?"
    return bool(console.rows(wanted, attempt))


def own_address(console: LiveConsole) -> tuple[str, str]:
    """The engine's own, and its key."""
    code = (
        "from console.deployments.services import endpoints; from console.deployments.models import Deployment;"
        f"found = endpoints(Deployment.objects.get(name={NAME!r}))[0]; print(found.url, found.key)"
    )
    url, key = console.manage("shell", "-v", "0", "-c", code).split()[-2:]
    return url, key


def client(url: str, key: str) -> httpx2.Client:
    return httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=120, trust_env=False)


def ask(through: httpx2.Client, model: str) -> httpx2.Response:
    return through.post("/v1/chat/completions", json={"model": model, **QUESTION})


def said(answer: httpx2.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def test_an_adapter_answers_by_its_own_name_as_the_engine_itself_does_and_after_a_crash_again(
    live_console: LiveConsole, copy_of_the_model: int, tmp_path: Path
) -> None:
    console = live_console
    console.sign_in("ada")
    config = json.loads((engine_cache() / "models" / MODEL / "config.json").read_text())
    fits = add_model(console, "sailor-lora", make_adapter(tmp_path / "sailor", config))
    wide = add_model(console, "wide-lora", make_adapter(tmp_path / "wide", config, rank=64))
    served = serve(console, NAME, ENGINE, copy_of_the_model, ARGUMENTS)
    page = f"/deployments/{served.deployment}"
    try:
        refused = console.post(f"{page}/adapters/add/", {"revision": wide, "name": "wide"})
        assert "rank 64; the engines take 16 at most" in refused.text
        console.post(f"{page}/adapters/add/", {"revision": fits, "name": "sailor"})
        wait_for("the adapter is loaded", lambda: is_loaded(console, 1), seconds=120)
        gateway, direct = client(served.url, served.secret), client(*own_address(console))
        wait_for("the gateway knows it", lambda: "sailor" in gateway.get("/v1/models").text, seconds=30)
        wait_for("it answers", lambda: ask(gateway, "sailor").status_code == 200, seconds=60)
        with_it, without = said(ask(gateway, "sailor")), said(ask(gateway, NAME))
        assert with_it != without
        assert said(ask(direct, "sailor")) == with_it
        assert "loaded in 1 of 1" in console.get(f"{page}/").text
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters"):
            assert gateway.post(path, json={"lora_name": "sailor"}).status_code == 404

        os.kill(int(console.one("select pid from deployments_attempt order by id desc limit 1")), signal.SIGKILL)
        wait_for("it is loaded into the next process", lambda: is_loaded(console, 2), seconds=900)
        wait_for("it answers again", lambda: ask(gateway, "sailor").status_code == 200, seconds=120)
        assert said(ask(gateway, "sailor")) == with_it

        adapter = console.one("select id from deployments_adapter")
        console.post(f"{page}/adapters/{adapter}/remove/", {"reason": "seen"})
        wait_for("its name is unknown", lambda: ask(gateway, "sailor").status_code == 404, seconds=30)
        wait_for("it is unloaded", lambda: "sailor" not in direct.get("/v1/models").text, seconds=30)
        assert said(ask(gateway, NAME)) == without
    finally:
        console.post(f"{page}/stop/", {"reason": "seen"})


def test_a_real_engine_loads_replaces_and_refuses_as_the_agent_asks_and_the_gateway_sends_it_the_rest(
    tmp_path: Path,
) -> None:
    config = json.loads((engine_cache() / "models" / MODEL / "config.json").read_text())
    sailor, wide = make_adapter(tmp_path / "sailor", config), make_adapter(tmp_path / "wide", config, rank=64)
    with vllm(tmp_path, "--enable-lora", "--max-lora-rank", "16", environment={RUNTIME_VARIABLE: "1"}) as port:
        kept = Kept(tmp_path, port)
        assert kept.bring(ordered("sailor", sailor), ordered("wide", wide)) == {"sailor": "loaded", "wide": "failed"}
        assert "rank 64" in kept.failure("wide").lower()
        first = kept.root("sailor")
        target = target_of(Engine(port=port, key=ENGINE_KEY))
        adapter = route_of(replace(target, adapter=3), names=("sailor",), adapter=3, base="chat")
        running = Running(tmp_path / "gateway")
        try:
            running.start(routes=(route_of(target), adapter), keys=(key_of("secret"),))
            gateway, direct = client(running.url, "secret"), client(f"http://127.0.0.1:{port}", ENGINE_KEY)
            wait_for("the gateway sends it on", lambda: ask(gateway, "sailor").status_code == 200, seconds=60)
            with_it, without = said(ask(gateway, "sailor")), said(ask(gateway, "chat"))
            assert with_it != without
            assert said(ask(direct, "sailor")) == with_it
            for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters"):
                assert gateway.post(path, json={"lora_name": "sailor"}).status_code == 404
            assert kept.bring(ordered("sailor", sailor, load=2)) == {"sailor": "loaded"}
            assert kept.root("sailor") != first
            assert said(ask(gateway, "sailor")) == with_it
            assert kept.bring() == {}
            assert ask(direct, "sailor").status_code == 404
        finally:
            running.stop()


class Kept:
    """The adapters of a real engine, as an agent keeps them."""

    def __init__(self, home: Path, port: int) -> None:
        order = InstanceOrder(
            instance=uuid4(), deployment="d", spec=1, engine=ENGINE, model_path="/m", served_model_names=["chat"],
            arguments=["--enable-lora"], port=port, run=True,
        )  # fmt: skip
        files = InstanceFiles.of(home, order.instance)
        files.attempt_directory(1).mkdir(parents=True)
        self._adapters = Adapters(files, 1, order, ENGINE_KEY, files.directory / "adapters")
        self._client = EngineClient(port, ENGINE_KEY)
        self._told: list[AdaptersObserved] = []

    def bring(self, *wanted: AdapterOrder) -> dict[str, str]:
        """Let it work once; the states by name."""
        with ThreadPoolExecutor(1) as threads:
            self._adapters.go_on(wanted, threads)
        self._adapters.tell(self._told.append)
        return {one.name: one.state for one in self._told[-1].adapters}

    def failure(self, name: str) -> str:
        return next(one.failure.message for one in self._told[-1].adapters if one.name == name and one.failure)

    def root(self, name: str) -> str:
        return str(self._client.models()[name]["root"])

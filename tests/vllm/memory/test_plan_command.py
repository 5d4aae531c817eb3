"""`slipway plan`: one JSON object on stdout whatever happens."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.memory.models import HERE, config
from workers.cli import main

LLAMA = str(HERE / "configs" / "llama-gqa.json")
KEYS = {
    "weights_bytes", "weights_bytes_per_device", "kv_bytes_per_token", "block_size", "bytes_per_block", "num_blocks",
    "kv_cache_tokens", "max_concurrency", "min_kv_bytes_for_one_request", "overhead_bytes", "fits", "reasons",
    "suggestions",
}  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["plan", *words, "--json"])
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, printed


def test_the_answer_has_every_promised_key(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run(capsys, LLAMA, "--platform", "cpu", "--kv-cache-memory", str(256 * 2**20), "--max-model-len", "2048",
                       "--max-num-batched-tokens", "512")  # fmt: skip
    assert code == 0
    assert set(answer) >= KEYS
    assert answer["kv_cache_tokens"] == 174_720
    assert answer["fits"] is True
    assert all(isinstance(text, str) for text in answer["reasons"] + answer["suggestions"])


def test_every_option_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run(
        capsys, LLAMA, "--device", "L40S", "--count", "4", "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2",
        "--gpu-memory-utilization", "0.5", "--kv-cache-memory", "1GiB", "--kv-cache-dtype", "fp8", "--max-model-len",
        "1024", "--max-num-seqs", "8", "--max-num-batched-tokens", "1024", "--block-size", "32", "--platform", "cuda",
        "--engine-version", "0.20.2",
    )  # fmt: skip
    assert code == 0
    assert answer["fits"] is True
    assert (answer["tensor_parallel_size"], answer["pipeline_parallel_size"], answer["block_size"]) == (2, 2, 32)
    assert answer["kv_cache_bytes"] == 2**30
    assert answer["kv_bytes_per_token"] == 2 * 1 * 32 * 1 * 3
    assert answer["engine_version"] == "0.20.2"


@pytest.mark.parametrize("device", ["4090", "rtx 4090", "25265000000"])
def test_a_device_is_a_name_or_bytes(capsys: pytest.CaptureFixture[str], device: str) -> None:
    code, answer = run(capsys, LLAMA, "--device", device)
    assert code == 0
    assert answer["device_bytes"] == pytest.approx(25_265_000_000, rel=0.01)


def test_without_device_and_kv_size_there_is_no_verdict_but_the_cost_of_a_token(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, answer = run(capsys, LLAMA)
    assert code == 0
    assert answer["fits"] is None
    assert answer["kv_bytes_per_token"] == 1536
    assert answer["num_blocks"] is None


def test_the_cpu_of_this_machine_can_be_planned_for(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run(capsys, LLAMA, "--device", "cpu")
    assert code == 0
    assert answer["platform"] == "cpu"
    assert answer["device_bytes"] > 2**28


@pytest.mark.parametrize(("words", "code"), [
    ((LLAMA, "--device", "H900"), 2), ((LLAMA, "--engine-version", "latest"), 2), ((LLAMA, "--max-model-len", "0"), 2),
    (("/nowhere",), 1), ((str(HERE / "models.py"),), 1),
])  # fmt: skip
def test_what_cannot_be_planned_is_one_json_object_too(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int
) -> None:
    returned, answer = run(capsys, *words)
    assert returned == code
    assert answer["error"]
    assert answer["reasons"] == [answer["error"]]


@pytest.mark.parametrize("words", [
    ("--max-model-len", "many"), ("--kv-cache-memory", "lots"), ("--platform", "tpu"), ("--count", "x"), ("--nope",),
])  # fmt: skip
def test_a_usage_error_has_the_same_key_as_every_other_error(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["plan", LLAMA, *words, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert left.value.code == 2
    assert answer["reasons"] == [answer["error"]]
    assert answer["fits"] is None
    assert "invalid" not in answer["error"] or words[0] in ("--platform", "--count")


def test_tokens_are_written_as_vllm_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    _code, answer = run(capsys, LLAMA, "--max-model-len", "4K", "--max-num-batched-tokens", "2k")
    assert (answer["max_model_len"], answer["max_num_batched_tokens"]) == (4096, 2000)


def test_devices_that_are_split_wrongly_are_not_replaced_by_larger_ones(capsys: pytest.CaptureFixture[str]) -> None:
    _code, answer = run(capsys, LLAMA, "--device", "H100", "--pipeline-parallel-size", "99")
    assert answer["fits"] is False
    assert answer["suggestions"][-1].startswith("1 × NVIDIA H100 80GB SXM fits")


def test_a_directory_without_weights_still_has_its_kv_cache(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config("gemma3-swa")))
    code, answer = run(capsys, str(tmp_path), "--platform", "cpu", "--kv-cache-memory", "268435456", "--max-model-len",
                       "2048", "--max-num-batched-tokens", "512")  # fmt: skip
    assert code == 0
    assert answer["kv_cache_tokens"] == 91_180
    assert any("weights incomplete" in reason for reason in answer["reasons"])


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", LLAMA, "--device", "T4"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("verdict      fits\n")
    assert "  try: utilisation" in printed


def test_nothing_heavy_is_imported() -> None:
    heavy = "torch", "pydantic", "celery", "django", "redis", "huggingface_hub", "safetensors"
    script = f"import sys, workers.commands.plan; print([name for name in {heavy!r} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert shown.stdout.strip() == "[]"


def test_a_warm_plan_takes_under_50_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", str(HERE / "configs" / "qwen3-next-gdn.json"), "--device", "H100", "--json"]
    main(words)
    took = []
    for _ in range(5):
        started = time.perf_counter()
        main(words)
        took.append(time.perf_counter() - started)
    capsys.readouterr()
    assert min(took) < 0.05

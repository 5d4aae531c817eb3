"""Files that anybody may have written: each ends in a plan or in one sentence, never in a traceback or an endless sum."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.vllm.memory.models import HERE, llama, llama_tensors, write_safetensors
from workers.cli import main
from workers.vllm.memory import PlanRequest, plan, read_model, read_shape

CONFIGS = [json.loads(file.read_text()) for file in sorted((HERE / "configs").glob("*.json"))]
SMALL = llama(hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2)
WRONG = [
    None,
    0,
    -1,
    1e400,
    float("nan"),
    1.5,
    "",
    "12",
    [],
    {},
    [1, 2],
    [None],
    {"a": 1},
    True,
    10**30,
    "sliding_attention",
]
REQUESTS = [
    PlanRequest(kv_cache_memory=2**28, platform="cpu"), PlanRequest(kv_cache_memory=2**30, engine_version="0.17.0"),
    PlanRequest(kv_cache_memory=2**30, tensor_parallel=4, pipeline_parallel=2),
]  # fmt: skip


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_value_of_any_kind_at_any_place_is_planned_or_refused_in_words(data: st.DataObject) -> None:
    config: dict[str, Any] = dict(data.draw(st.sampled_from(CONFIGS)))
    for _ in range(data.draw(st.integers(1, 3))):
        config[data.draw(st.sampled_from(sorted(config)))] = data.draw(st.sampled_from(WRONG))
    request = data.draw(st.sampled_from(REQUESTS))
    with contextlib.suppress(ValueError):  # a refusal in words; anything else fails
        json.dumps(plan(read_shape(config), request).as_json(), allow_nan=False)


@pytest.mark.parametrize(("name", "value", "words"), [
    ("num_hidden_layers", "four", "num_hidden_layers = 'four'; a whole number from 1"), ("num_hidden_layers", 0, "from 1"),
    ("num_attention_heads", -8, "num_attention_heads = -8"), ("head_dim", [64, None], "head_dim"),
    ("max_position_embeddings", 0, "a context of 0 tokens"), ("hidden_size", 10**30, "hidden_size = 1000"),
])  # fmt: skip
def test_a_wrong_value_is_named(name: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_shape(SMALL | {name: value})


def problems(directory: Path) -> str:
    (directory / "config.json").write_text(json.dumps(SMALL))
    made = plan(read_model(directory), PlanRequest(kv_cache_memory=2**30))
    assert made.kv_cache_tokens
    return " ".join(reason.text for reason in made.reasons if reason.code == "weights.incomplete")


def test_an_index_does_not_lead_out_of_its_directory(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "../secret.safetensors", "b": "/etc/hostname"}, "metadata": {"total_size": -5}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "the index names ../secret.safetensors, which is not in the directory" in problems(tmp_path)


def test_weights_that_can_not_be_read_leave_the_kv_cache(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    assert "can't be read" in problems(tmp_path)


@pytest.mark.parametrize("entry", [
    {"dtype": "BF16", "shape": [-4], "data_offsets": [0, 8]}, {"dtype": "BF16", "shape": [4], "data_offsets": [8, 0]},
    {"dtype": "F99", "shape": [4], "data_offsets": [0, 8]}, {"dtype": "BF16", "shape": [1e400], "data_offsets": [0, 8]}, None,
])  # fmt: skip
def test_a_header_that_is_none_is_said_so(tmp_path: Path, entry: object) -> None:
    text = json.dumps({"model.norm.weight": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    assert "weights incomplete" in problems(tmp_path)


def test_brackets_without_end_are_no_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_safetensors(tmp_path / "model.safetensors", llama_tensors(1, 64, 128, 128, 32))
    (tmp_path / "config.json").write_text("[" * 200_000)
    assert main(["plan", str(tmp_path), "--json"]) == 1
    assert "not JSON" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize("option", ["--tensor-parallel-size", "--max-model-len", "--count"])
def test_sizes_without_bound_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    assert main(["plan", str(tmp_path), "--kv-cache-memory", "1GiB", option, "1" + "0" * 22, "--json"]) == 2
    assert "at most" in json.loads(capsys.readouterr().out)["error"]

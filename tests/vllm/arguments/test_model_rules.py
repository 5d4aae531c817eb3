"""What arguments say about a model's configuration, and about one another."""

import json
from pathlib import Path
from typing import Any

import pytest

from workers.vllm.arguments import (
    CheckedArguments,
    ModelConfigError,
    Surroundings,
    check_arguments,
    model_limits,
    read_model_config,
    schema_for,
)

LLAMA = {"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192}


def check(
    words: list[str], config: dict[str, Any] | None, environment: dict[str, str] | None = None
) -> CheckedArguments:
    return check_arguments(schema_for("0.32.0"), words, Surroundings(model_config=config, environment=environment))


def codes(answer: CheckedArguments) -> list[str]:
    return [finding.code for finding in answer.findings]


def test_a_context_beyond_the_model_is_an_error_and_is_cut_to_the_models() -> None:
    answer = check(["M", "--max-model-len", "16384"], LLAMA)
    assert codes(answer) == ["context.exceeds_model"]
    assert answer.findings[0].severity == "error"
    assert "8,192" in answer.findings[0].message
    assert answer.argv == ("M", "--max-model-len", "8192")


@pytest.mark.parametrize("words", [["M", "--max-model-len", "8192"], ["M", "--max-model-len", "auto"], ["M"]])
def test_a_context_within_the_model_is_fine(words: list[str]) -> None:
    assert codes(check(words, LLAMA)) == []


def test_the_environment_may_allow_a_longer_context_and_then_it_is_a_warning() -> None:
    answer = check(["M", "--max-model-len", "16384"], LLAMA, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    assert [(finding.code, finding.severity) for finding in answer.findings] == [("context.exceeds_model", "warning")]
    assert answer.argv == ("M", "--max-model-len", "16384")


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"n_positions": 1024, "num_attention_heads": 12}, 1024),
        ({"max_position_embeddings": 8192, "seq_length": 2048}, 2048),
        ({"max_position_embeddings": 4096, "model_max_length": 131072}, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        ({"max_position_embeddings": 8192, "rope_parameters": {"full": {"rope_type": "dynamic", "factor": 2.0}}}, 16384),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "max_position_embeddings": 131072,
          "rope_scaling": {"rope_type": "linear", "factor": 8.0}}}, 131072),
        ({"text_config": {"max_position_embeddings": 40960}, "max_position_embeddings": 1}, 40960),
        ({"thinker_config": {"text_config": {"max_position_embeddings": 32768}}}, 32768),
        ({"num_attention_heads": 8}, None),
    ],
)  # fmt: skip
def test_the_context_follows_the_key_and_the_rope_scaling_that_vllm_reads(
    config: dict[str, Any], context: int | None
) -> None:
    assert model_limits(config).context == context


def test_overrides_on_the_line_count() -> None:
    words = ["M", "--max-model-len", "16384", "--hf-overrides.max_position_embeddings", "16384"]
    assert codes(check(words, LLAMA)) == []


@pytest.mark.parametrize(
    ("config", "size", "fits"),
    [
        (LLAMA, 8, True),
        (LLAMA, 3, False),
        (LLAMA, 16, True),  # 8 KV heads are copied to two GPUs each
        ({"num_attention_heads": 4}, 3, False),
        ({"num_attention_heads": 24, "num_key_value_heads": 8}, 12, False),  # 24 heads divide, 8 KV heads don't
        ({"num_attention_heads": 64, "num_key_value_heads": 5, "kv_lora_rank": 512}, 16, True),
        ({"text_config": {"num_attention_heads": 10}}, 4, False),
        ({"n_head": 12}, 5, False),
        ({"model_type": "mamba"}, 7, True),
        ({"num_attention_heads": None, "block_configs": []}, 3, True),
    ],
)
def test_heads_must_divide_among_the_gpus(config: dict[str, Any], size: int, *, fits: bool) -> None:
    answer = check(["M", "-tp", str(size)], config)
    assert codes(answer) == ([] if fits else ["parallelism.heads_not_divisible"])
    if not fits:
        assert codes(check(list(answer.argv), config)) == [], "the corrected size divides"


def test_a_step_shorter_than_the_context_needs_chunked_prefill() -> None:
    words = ["M", "--max-model-len", "1024", "--max-num-batched-tokens", "512"]
    assert codes(check(words, None)) == []
    answer = check([*words, "--no-enable-chunked-prefill"], None)
    assert codes(answer) == ["scheduler.batched_tokens_below_context"]
    assert answer.values["max_num_batched_tokens"] == 1024


def test_the_models_own_context_bounds_the_step_when_none_is_asked_for() -> None:
    answer = check(["M", "--max-num-batched-tokens", "512", "--no-enable-chunked-prefill"], LLAMA)
    assert codes(answer) == ["scheduler.batched_tokens_below_context"]


def test_a_taken_port_is_an_error() -> None:
    taken = Surroundings(port_taken=lambda port: port == 8001)
    schema = schema_for("0.32.0")
    assert "port.in_use" in codes(check_arguments(schema, ["M", "--port", "8001"], taken))
    assert "port.in_use" not in codes(check_arguments(schema, ["M", "--port", "8002"], taken))


def test_a_model_directory_is_read_or_the_reason_is_given(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "none", "path.not_found"), (tmp_path, "config.missing")):
        with pytest.raises(ModelConfigError) as failed:
            read_model_config(path)
        assert failed.value.code == code
    (tmp_path / "config.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(ModelConfigError, match="no JSON object"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelConfigError, match="as JSON"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert read_model_config(tmp_path) == LLAMA

"""Weights: what the engine loads, and what the fullest rank holds."""

import json
from pathlib import Path

import pytest

from tests.vllm.memory.models import config, llama, llama_tensors, public_config, public_shape, write_safetensors
from workers.vllm.memory import PlanRequest, plan, read_model, read_shape, record_of, shape_from
from workers.vllm.weights_size import pipeline_stages

HIDDEN, INNER, VOCABULARY, KV, LAYERS = 64, 128, 1000, 32, 4
CONFIG = llama(hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=4,
               num_key_value_heads=2, vocab_size=VOCABULARY)  # fmt: skip
HEAD = {"lm_head.weight": ("BF16", (VOCABULARY, HIDDEN))}
PADDED = 1024  # 1,000 rows to a multiple of 64
PER_LAYER = HIDDEN * 2 * (1 + 2 * HIDDEN + 2 * KV + 3 * INNER)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def tensors() -> dict[str, tuple[str, tuple[int, ...]]]:
    return llama_tensors(LAYERS, HIDDEN, INNER, VOCABULARY, KV)


def per_device(directory: Path, **sizes: int) -> int:
    return plan(read_model(directory), PlanRequest(**sizes)).weights_bytes_per_device


def test_headers_are_summed(directory: Path) -> None:
    total = write_safetensors(directory / "model.safetensors", tensors() | HEAD)
    made = plan(read_model(directory), PlanRequest())
    assert (made.weights_bytes, made.weights_source) == (total, "headers")
    assert not any(reason.code == "weights.incomplete" for reason in made.reasons)


def test_a_tied_head_counts_once_even_when_it_is_stored(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps(CONFIG | {"tie_word_embeddings": True}))
    total = write_safetensors(directory / "model.safetensors", tensors() | HEAD)
    assert read_model(directory).weights.total_bytes == total - VOCABULARY * HIDDEN * 2


def test_without_the_setting_a_head_in_the_file_is_an_untied_one(directory: Path) -> None:
    silent = {key: value for key, value in CONFIG.items() if key != "tie_word_embeddings"} | {"model_type": "new_one"}
    (directory / "config.json").write_text(json.dumps(silent))
    total = write_safetensors(directory / "model.safetensors", tensors() | HEAD)
    assert read_model(directory).weights.total_bytes == total


def test_copies_in_the_authors_own_format_are_ignored(directory: Path) -> None:
    total = write_safetensors(directory / "model.safetensors", tensors() | HEAD)
    (directory / "original").mkdir()
    write_safetensors(directory / "original" / "model.safetensors", tensors())
    write_safetensors(directory / "consolidated.safetensors", tensors())
    assert read_model(directory).weights.total_bytes == total


def test_adapters_are_named_and_not_counted(directory: Path) -> None:
    total = write_safetensors(directory / "model.safetensors", tensors() | HEAD)
    write_safetensors(directory / "adapter_model.safetensors", {"base.lora_A.weight": ("BF16", (8, 64))})
    made = plan(read_model(directory), PlanRequest())
    assert made.weights_bytes == total
    assert any(reason.code == "weights.adapters" for reason in made.reasons)


def test_draft_layers_stay_on_disk(directory: Path) -> None:
    draft = {
        f"model.layers.{LAYERS}.mlp.up_proj.weight": ("BF16", (INNER, HIDDEN)),
        "mtp.fc.weight": ("BF16", (64, 64)),
    }
    total = write_safetensors(directory / "model.safetensors", tensors() | HEAD | draft)
    made = plan(read_model(directory), PlanRequest())
    assert made.weights_bytes == total - INNER * HIDDEN * 2 - 64 * 64 * 2
    assert any(reason.code == "weights.draft_layers" for reason in made.reasons)


def test_towers_keep_their_own_layer_numbers(directory: Path) -> None:
    tower = {f"vision_tower.encoder.layers.{number}.mlp.fc1.weight": ("BF16", (64, 64)) for number in range(20)}
    total = write_safetensors(directory / "model.safetensors", tensors() | HEAD | tower)
    weights = read_model(directory).weights
    assert weights.total_bytes == total
    assert weights.outside.sharded == 20 * 64 * 64 * 2


def test_a_float32_checkpoint_is_loaded_at_sixteen_bits(directory: Path) -> None:
    wide = {name: ("F32", axes) for name, (_, axes) in (tensors() | HEAD).items()}
    total = write_safetensors(directory / "model.safetensors", wide)
    assert read_model(directory).weights.total_bytes == total // 2


def test_scales_of_a_quantised_checkpoint_stay_as_they_are(directory: Path) -> None:
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (directory / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": quantization}))
    total = write_safetensors(directory / "model.safetensors", {
        "model.layers.0.mlp.up_proj.weight": ("F8_E4M3", (INNER, HIDDEN)),
        "model.layers.0.mlp.up_proj.weight_scale_inv": ("F32", (1, 1)),
    })  # fmt: skip
    assert read_model(directory).weights.total_bytes == total


def test_tensor_parallelism_divides_matrices_pads_the_vocabulary_and_repeats_norms(directory: Path) -> None:
    write_safetensors(directory / "model.safetensors", tensors() | HEAD)
    matrices = HIDDEN * 2 * (2 * HIDDEN + 3 * INNER)
    vocabulary = 2 * PADDED * HIDDEN * 2
    norms = (LAYERS + 1) * HIDDEN * 2
    keys = 2 * KV * HIDDEN * 2
    assert per_device(directory, tensor_parallel=1) == LAYERS * (matrices + keys) + vocabulary + norms
    # Two key/value heads can be divided over two ranks, not over four.
    assert per_device(directory, tensor_parallel=2) == (LAYERS * (matrices + keys) + vocabulary) // 2 + norms
    assert (
        per_device(directory, tensor_parallel=4) == (LAYERS * matrices + vocabulary) // 4 + LAYERS * keys // 2 + norms
    )


def test_pipeline_stages_hold_their_layers_and_the_ends_the_vocabulary(directory: Path) -> None:
    write_safetensors(directory / "model.safetensors", tensors() | HEAD)
    half = LAYERS // 2 * PER_LAYER + PADDED * HIDDEN * 2
    assert (
        per_device(directory, pipeline_parallel=2) == half + HIDDEN * 2
    )  # the first stage also has what is in no layer


def test_a_tied_matrix_is_on_both_end_stages(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps(CONFIG | {"tie_word_embeddings": True}))
    write_safetensors(directory / "model.safetensors", tensors())
    weights = read_model(directory).weights
    stages = weights.on_fullest_rank(tensor_parallel=1, pipeline_parallel=4, kv_heads=2)
    assert stages == PER_LAYER + PADDED * HIDDEN * 2 + HIDDEN * 2
    assert weights.head.total == 0


@pytest.mark.parametrize(("layers", "stages", "split"), [
    (32, 4, [8, 8, 8, 8]), (6, 4, [1, 2, 2, 1]), (61, 4, [15, 15, 16, 15]), (78, 8, [9, 10, 10, 10, 10, 10, 10, 9]),
    (5, 1, [5]),
])  # fmt: skip
def test_layers_are_split_as_vllm_splits_them(layers: int, stages: int, split: list[int]) -> None:
    ranges = pipeline_stages(layers, stages)
    assert [len(stage) for stage in ranges] == split
    assert [index for stage in ranges for index in stage] == list(range(layers))


def index(directory: Path, total: int) -> None:
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    text = {"metadata": {"total_size": total}, "weight_map": names}
    (directory / "model.safetensors.index.json").write_text(json.dumps(text))


def test_a_missing_shard_leaves_the_total_of_the_index_and_a_reason(directory: Path) -> None:
    write_safetensors(directory / "model-00001-of-00002.safetensors", tensors())
    index(directory, 123_456_789)
    made = plan(read_model(directory), PlanRequest(kv_cache_memory=2**30))
    assert made.weights_bytes == pytest.approx(123_456_789, rel=0.001)
    assert made.weights_source == "index"
    assert "weights incomplete: model-00002-of-00002.safetensors is missing" in made.as_json()["reasons"]
    assert made.kv_cache_tokens > 0  # type: ignore[operator]


def test_only_the_files_that_the_index_names_are_read(directory: Path) -> None:
    total = write_safetensors(directory / "model-00001-of-00002.safetensors", tensors())
    total += write_safetensors(directory / "model-00002-of-00002.safetensors", HEAD)
    write_safetensors(directory / "leftover.safetensors", tensors())
    index(directory, total)
    assert read_model(directory).weights.total_bytes == total


@pytest.mark.parametrize("damage", ["truncated", "pointer", "empty", "nothing"])
def test_unreadable_weights_are_estimated_and_named(directory: Path, damage: str) -> None:
    file = directory / "model.safetensors"
    if damage == "truncated":
        write_safetensors(file, tensors() | HEAD, cut=100)
    elif damage == "pointer":
        file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1000\n")
    elif damage == "empty":
        file.write_bytes(b"")
    made = plan(read_model(directory), PlanRequest(kv_cache_memory=2**30))
    assert made.weights_source == "estimated"
    assert any("weights incomplete" in text for text in made.as_json()["reasons"])
    assert made.kv_bytes_per_token == 2 * 2 * 16 * 2 * LAYERS


def test_the_estimate_is_close_to_the_headers(directory: Path) -> None:
    estimated = read_model(directory).weights.total_bytes
    total = write_safetensors(directory / "model.safetensors", tensors() | HEAD)
    assert estimated == pytest.approx(total, rel=0.01)


@pytest.mark.parametrize(("name", "parameters"), [
    ("llama-3-8b", 8.03e9), ("qwen3-30b-a3b-fp8", 30.5e9), ("glm-5-fp8", 744e9),
])  # fmt: skip
def test_estimates_of_public_models_match_their_published_parameters(name: str, parameters: float) -> None:
    plain = {key: value for key, value in public_config(name).items() if key != "quantization_config"}
    assert read_shape(plain).weights.total_bytes / 2 == pytest.approx(parameters, rel=0.01)


def test_gemma_4_31b_has_30_7_billion_parameters_beside_its_tower() -> None:
    text = public_config("gemma-4-31b-fp8-block")["text_config"]
    assert read_shape(text).weights.total_bytes / 2 == pytest.approx(30.7e9, rel=0.005)


def test_llama_3_8b_takes_what_a_public_log_says() -> None:
    assert public_shape("llama-3-8b").weights.total_bytes / 2**30 == pytest.approx(14.9888, rel=0.01)


LATENT = llama(
    architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", hidden_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=4, vocab_size=1024, kv_lora_rank=32, q_lora_rank=None, qk_rope_head_dim=16,
    qk_nope_head_dim=16, v_head_dim=16, first_k_dense_replace=2,
)  # fmt: skip
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
PROJECTION = 4 * (16 + 16) * 32
"""Elements of one layer's `kv_b_proj`."""


def latent_tensors(dtype: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    names = [f"model.layers.{number}.self_attn.kv_b_proj.weight" for number in range(2)]
    return {"model.embed_tokens.weight": ("BF16", (1024, 64))} | dict.fromkeys(names, (dtype, (128, 32)))


@pytest.mark.parametrize(("config", "dtype", "copies"), [
    (LATENT, "BF16", 0), (LATENT | {"quantization_config": FP8}, "F8_E4M3", 2),
    (LATENT | {"quantization_config": FP8}, "BF16", 0),
])  # fmt: skip
def test_a_quantised_latent_projection_is_kept_a_second_time_unfolded(
    directory: Path, config: dict[str, object], dtype: str, copies: int
) -> None:
    (directory / "config.json").write_text(json.dumps(config))
    total = write_safetensors(directory / "model.safetensors", latent_tensors(dtype))
    made = plan(read_model(directory), PlanRequest())
    assert made.weights_bytes == total
    assert made.weights_bytes_per_device == total + copies * 2 * PROJECTION
    assert any(reason.code == "weights.unfolded" for reason in made.reasons) is bool(copies)
    assert shape_from(record_of(directory)) == read_model(directory)
    with_two = plan(read_model(directory), PlanRequest(tensor_parallel=2)).weights_bytes_per_device
    assert with_two == 1024 * 64 + (total - 1024 * 128 + copies * 2 * PROJECTION) // 2


def test_an_estimate_unfolds_what_the_configuration_does_not_leave_out() -> None:
    def unfolds(**more: object) -> bool:
        made = plan(read_shape(LATENT | {"quantization_config": FP8 | more}), PlanRequest())
        return any(reason.code == "weights.unfolded" for reason in made.reasons)

    assert unfolds(modules_to_not_convert=["lm_head"])
    assert not unfolds(modules_to_not_convert=["model.layers.0.self_attn.kv_b_proj"])


def test_equal_keys_and_values_are_stored_once_and_loaded_twice() -> None:
    # A launch of these files held 16,805,888 bytes of parameters; 24 bytes of theirs are no parameters to the engine.
    shape = read_shape(config("gemma4-swa"))
    keys = 2 * 256 * 128 * 2
    assert plan(shape, PlanRequest()).weights_bytes_per_device == shape.weights.total_bytes + keys

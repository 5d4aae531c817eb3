"""Types and stored forms: what a model's tensors can't be, and a scheme that names another method than the weights have."""

import json

import pytest

from tests.weights import build
from workers.weights.findings import Severity
from workers.weights.verification import verify_directory

ONE = "model.safetensors"
LAYER = "model.layers.1."


def errors(folder):
    found = verify_directory(folder, hash_files=False).findings
    return {(item.code, item.file) for item in found if item.severity is Severity.ERROR}


def rewrite(folder, tensors, name, dtype):
    """Store one tensor in another type."""
    changed = {**tensors, name: build.tensor(name, dtype, *tensors[name][1])}
    (folder / ONE).write_bytes(build.safetensors_bytes(changed))


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("qwen2", f"{LAYER}self_attn.q_proj.bias"),
        ("deepseek-v3", f"{LAYER}mlp.gate.e_score_correction_bias"),
        ("qwen3-next", f"{LAYER}linear_attn.A_log"),
        ("gpt-oss", f"{LAYER}self_attn.sinks"),
        ("gpt-oss", f"{LAYER}mlp.experts.down_proj"),
        ("gemma4-moe", f"{LAYER}layer_scalar"),
    ],
)
def test_what_is_learned_is_stored_as_floats(tmp_path, architecture, name):
    build.make_model(tmp_path, architecture)
    rewrite(tmp_path, build.tensors_of(architecture), name, "I64")
    assert ("weights.dtype_unexpected", ONE) in errors(tmp_path)


@pytest.mark.parametrize(
    ("scheme", "name", "dtype"),
    [
        ("awq", f"{LAYER}mlp.up_proj.qweight", "I64"),
        ("gptq", f"{LAYER}mlp.up_proj.qzeros", "F32"),
        ("ct-int4", f"{LAYER}mlp.up_proj.weight_packed", "I64"),
        ("fp8-block", f"{LAYER}input_layernorm.weight", "F8_E4M3"),
        ("awq", "model.embed_tokens.weight", "I32"),
    ],
)
def test_a_quantised_model_has_its_types_too(tmp_path, scheme, name, dtype):
    build.make_quantised(tmp_path, scheme)
    rewrite(tmp_path, build.quantised(scheme)[0], name, dtype)
    assert ("weights.dtype_unexpected", ONE) in errors(tmp_path)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ("bnb-4bit", "awq"), ("bnb-4bit", "gptq"), ("bnb-4bit", "fp8-block"), ("bnb-4bit", "bnb-8bit"),
        ("bnb-8bit", "bnb-4bit"), ("ct-block", "bnb-4bit"), ("ct-channel", "ct-int8"), ("ct-int8", "ct-channel"),
        ("ct-int4", "nvfp4"), ("ct-nvfp4", "ct-int4"),
    ],
)  # fmt: skip
def test_a_scheme_of_another_method_is_a_contradiction(tmp_path, stored, said):
    build.make_quantised(tmp_path, stored)
    config = json.loads((tmp_path / "config.json").read_text())
    _, quantization = build.quantised(said)
    build.write_json(tmp_path / "config.json", {**config, "quantization_config": quantization})
    assert ("quantization.config_conflict", "config.json") in errors(tmp_path)


def test_four_bit_weights_may_be_packed_into_bfloat16(tmp_path):
    build.make_quantised(tmp_path, "bnb-4bit")
    packed, quantization = build.quantised("bnb-4bit")
    tensors = {
        name: build.tensor(name, "BF16", shape[0] // 2, 1) if name.endswith("_proj.weight") else (dtype, shape, data)
        for name, (dtype, shape, data) in packed.items()
    }
    (tmp_path / ONE).write_bytes(build.safetensors_bytes(tensors))
    config = json.loads((tmp_path / "config.json").read_text())
    scheme = {**quantization, "bnb_4bit_quant_storage": "bfloat16"}
    build.write_json(tmp_path / "config.json", {**config, "quantization_config": scheme})
    assert errors(tmp_path) == set()


@pytest.mark.parametrize("architecture", ["gemma3", "gemma4", "qwen2.5-vl", "qwen3-vl"])
def test_a_known_tower_of_two_layers_lacks_nothing(tmp_path, architecture):
    build.make_model(tmp_path, architecture)
    whole = build.tensors_of(architecture)
    name = next(name for name in whole if ".1." in name and ("vision" in name or "visual" in name))
    (tmp_path / ONE).write_bytes(build.safetensors_bytes({key: value for key, value in whole.items() if key != name}))
    assert errors(tmp_path) == {("weights.tensor_missing", ONE)}


def test_an_embedding_is_missed_although_its_layers_have_taller_matrices(tmp_path):
    build.make_model(tmp_path, "bamba")
    whole = build.tensors_of("bamba")
    del whole["model.embed_tokens.weight"]
    (tmp_path / ONE).write_bytes(build.safetensors_bytes(whole))
    assert ("weights.tensor_missing", ONE) in errors(tmp_path)

"""Every code has a checkpoint that is broken in just that way, and the finding names the right file."""

import json
import os

import pytest

from tests.weights import build
from workers.weights.findings import CODES, Severity
from workers.weights.verification import verify_directory

ONE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LOST = "model.layers.2.mlp.down_proj.weight"


@pytest.fixture
def model(tmp_path):
    """A sound model to break."""
    return build.make_model(tmp_path / "model")


def found(folder, **options):
    """(code, file) of every error and warning."""
    findings = verify_directory(folder, **options).findings
    return [(item.code, item.file) for item in findings if item.severity is not Severity.INFO]


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    build.write_json(folder / "config.json", {**config, **changes})


def rewrite(folder, change, architecture="qwen3"):
    """Write the weights again after `change` has altered the table of tensors."""
    tensors = build.tensors_of(architecture)
    change(tensors)
    (folder / ONE).write_bytes(build.safetensors_bytes(tensors))


# The path itself


def test_a_path_that_does_not_exist(tmp_path):
    assert found(tmp_path / "nowhere") == [("path.not_found", None)]


def test_a_file_names_its_directory(model):
    (finding,) = verify_directory(model / ONE).findings
    assert (finding.code, finding.file) == ("path.not_model_directory", ONE)
    assert str(model) in finding.fix


def test_a_parent_names_the_model_below_it(model):
    (finding,) = verify_directory(model.parent).findings
    assert (finding.code, finding.file) == ("path.not_model_directory", "model")
    assert str(model) in finding.fix


def test_a_hub_cache_folder_names_the_snapshot_of_main(tmp_path):
    for commit in ("a" * 40, "b" * 40):
        build.make_model(tmp_path / "models--o--n" / "snapshots" / commit)
    (tmp_path / "models--o--n" / "refs").mkdir()
    (tmp_path / "models--o--n" / "refs" / "main").write_text("b" * 40)
    (finding,) = verify_directory(tmp_path).findings
    assert finding.code == "path.not_model_directory"
    assert finding.fix.endswith("b" * 40 + " instead.")


def test_an_empty_directory_lacks_everything(tmp_path):
    assert {"config.missing", "weights.missing", "tokenizer.missing"} <= {code for code, _ in found(tmp_path)}


# Configuration


def test_config_missing(model):
    (model / "config.json").unlink()
    assert found(model) == [("config.missing", "config.json")]


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b"", b'{"a":' * 100_000])
def test_config_invalid(model, content):
    (model / "config.json").write_bytes(content)
    assert ("config.invalid_json", "config.json") in found(model)


def test_an_architecture_that_the_engine_lacks(model):
    assert found(model, supported_architectures=["LlamaForCausalLM"]) == [("arch.unsupported", "config.json")]
    assert found(model, supported_architectures=["LlamaForCausalLM", "Qwen3ForCausalLM"]) == []


def test_remote_code(model):
    change_config(model, auto_map={"AutoModelForCausalLM": "modeling_x.XForCausalLM"})
    assert found(model) == [("code.remote_required", "config.json")]


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64}},
        {"rope_scaling": {"rope_type": "yarn", "type": "linear", "factor": 2}},
        {"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 4096}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8}},
        {"rope_scaling": {"type": "spiral"}},
        {"rope_theta": 0},
        {"rope_theta": 10000, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
    ],
)
def test_context_that_contradicts_itself(model, changes):
    change_config(model, **changes)
    assert set(found(model)) == {("context.rope_inconsistent", "config.json")}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 128}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}},
        {"rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [1, 1, 2]}},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_scaling": None},
        {
            "max_position_embeddings": 131072,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
    ],
)
def test_context_of_real_models(model, changes):
    change_config(model, **changes)
    assert found(model) == []


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"temperature": -1}', '{"top_p": 2}', '{"eos_token_id": 96}', '{"top_k": "a"}']
)
def test_generation_config_invalid(model, content):
    (model / "generation_config.json").write_text(content)
    assert found(model) == [("generation_config.invalid", "generation_config.json")]


# Weight files


def test_weights_missing(model):
    (model / ONE).unlink()
    assert found(model) == [("weights.missing", ONE)]


@pytest.mark.parametrize("left", [0, 5, 8, 100, -4096, -1])
def test_weights_truncated(model, left):
    size = (model / ONE).stat().st_size
    os.truncate(model / ONE, left if left >= 0 else size + left)
    assert found(model) == [("weights.truncated", ONE)]


def test_trailing_bytes(model):
    with (model / ONE).open("ab") as file:
        file.write(b"\0" * 512)
    assert found(model) == [("weights.trailing_bytes", ONE)]


def test_lfs_pointer(model):
    (model / ONE).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n")
    assert found(model) == [("weights.lfs_pointer", ONE)]


def test_header_length_of_garbage(model):
    with (model / ONE).open("r+b") as file:
        file.write(b"\xff" * 8)
    assert found(model) == [("weights.header_invalid", ONE)]


def test_overlapping_offsets(model):
    tensors = build.tensors_of("qwen3")
    raw = build.safetensors_bytes(tensors)
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    first, second = list(header)[3:5]
    size = header[second]["data_offsets"][1] - header[second]["data_offsets"][0]
    begin = header[first]["data_offsets"][0]
    header[second]["data_offsets"] = [begin, begin + size]
    (model / ONE).write_bytes(build.raw_safetensors(json.dumps(header).encode(), raw[8 + length :]))
    assert ("weights.overlapping_offsets", ONE) in found(model)


def test_shard_missing(tmp_path):
    files = build.make_sharded(tmp_path)
    (tmp_path / files[1]).unlink()
    assert found(tmp_path) == [("weights.shard_missing", files[1])]


def test_shard_missing_without_an_index(tmp_path):
    files = build.make_sharded(tmp_path)
    (tmp_path / files[2]).unlink()
    (tmp_path / INDEX).unlink()
    assert found(tmp_path) == [("weights.shard_missing", files[2]), ("weights.index_absent", INDEX)]


def test_an_index_for_other_shards(tmp_path):
    build.make_sharded(tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"] = dict.fromkeys(index["weight_map"], "model-00009-of-00009.safetensors")
    build.write_json(tmp_path / INDEX, index)
    assert set(found(tmp_path)) == {
        ("weights.shard_missing", "model-00009-of-00009.safetensors"),
        ("weights.index_mismatch", INDEX),
    }


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": []}'])
def test_an_index_that_is_none(tmp_path, content):
    build.make_sharded(tmp_path)
    (tmp_path / INDEX).write_text(content)
    assert found(tmp_path) == [("weights.index_mismatch", INDEX)]


def test_an_index_that_swaps_two_tensors(tmp_path):
    files = build.make_sharded(tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())
    name = next(name for name, file in index["weight_map"].items() if file == files[0])
    index["weight_map"][name] = files[1]
    build.write_json(tmp_path / INDEX, index)
    assert set(found(tmp_path)) == {("weights.index_mismatch", INDEX)}


def test_an_index_that_leads_out_of_the_directory_is_not_followed(tmp_path):
    build.make_sharded(tmp_path / "model")
    index = json.loads((tmp_path / "model" / INDEX).read_text())
    name = next(iter(index["weight_map"]))
    index["weight_map"][name] = "../other.safetensors"
    build.write_json(tmp_path / "model" / INDEX, index)
    assert set(found(tmp_path / "model")) == {("weights.index_mismatch", INDEX)}


def test_a_tensor_in_two_files_without_an_index(model):
    (model / "extra.safetensors").write_bytes(build.safetensors_bytes({LOST: build.tensors_of("qwen3")[LOST]}))
    assert found(model) == [("weights.tensor_duplicate", ONE)]


def test_tensor_missing(model):
    rewrite(model, lambda tensors: tensors.pop(LOST))
    verification = verify_directory(model)
    assert found(model) == [("weights.tensor_missing", ONE)]
    assert LOST in verification.findings[0].message


def test_tensor_missing_in_a_shard_names_the_shard_that_should_hold_it(tmp_path):
    files = build.make_sharded(tmp_path)
    tensors = build.tensors_of("qwen3")
    index = json.loads((tmp_path / INDEX).read_text())
    own = {name: tensors[name] for name, file in index["weight_map"].items() if file == index["weight_map"][LOST]}
    del own[LOST]
    (tmp_path / index["weight_map"][LOST]).write_bytes(build.safetensors_bytes(own))
    assert set(found(tmp_path)) == {
        ("weights.tensor_missing", index["weight_map"][LOST]),
        ("weights.index_mismatch", INDEX),
    }
    assert index["weight_map"][LOST] in files


def test_tensor_missing_from_shard_and_index_names_the_index(tmp_path):
    build.make_model(tmp_path)
    tensors = build.tensors_of("qwen3")
    del tensors[LOST]
    build.write_shards(tmp_path, tensors, 3)
    assert found(tmp_path) == [("weights.tensor_missing", INDEX)]


def test_tensor_unexpected(model):
    rewrite(model, lambda tensors: tensors.update({"model.layers.0.foo.weight": build.tensor("f", "BF16", 4)}))
    assert found(model) == [("weights.tensor_unexpected", ONE)]


def test_shape_mismatch(model):
    change_config(model, hidden_size=40)
    assert found(model) == [("weights.shape_mismatch", ONE)]


@pytest.mark.parametrize("dtype", ["F64", "I64", "U8", "BOOL"])
def test_dtype_unexpected(model, dtype):
    rewrite(model, lambda tensors: tensors.update({LOST: build.tensor(LOST, dtype, 32, 48)}))
    assert ("weights.dtype_unexpected", ONE) in found(model)


def test_pickle_only(model):
    (model / ONE).rename(model / "pytorch_model.bin")
    assert found(model) == [("weights.pickle_only", "pytorch_model.bin")]


def test_duplicate_formats(model):
    (model / "pytorch_model.bin").write_bytes(b"\x80\x02")
    assert found(model) == [("weights.duplicate_formats", "pytorch_model.bin")]


def test_a_layer_that_is_gone(model):
    def cut(tensors):
        for name in [name for name in tensors if ".layers.3." in name]:
            del tensors[name]

    rewrite(model, cut)
    assert found(model) == [("weights.tensor_missing", ONE)]


@pytest.mark.parametrize(("name", "value"), [("num_hidden_layers", 10**9), ("num_experts", 10**9)])
def test_numbers_that_cannot_be(tmp_path, name, value):
    build.make_model(tmp_path, "qwen3-moe")
    change_config(tmp_path, **{name: value})
    assert ("weights.tensor_missing", "config.json") in found(tmp_path)


# Tokenizer and chat template


def test_tokenizer_missing(model):
    (model / "tokenizer.json").unlink()
    assert found(model) == [("tokenizer.missing", "tokenizer.json")]


def test_merges_missing(model):
    (model / "tokenizer.json").unlink()
    build.write_json(model / "vocab.json", {"a": 0})
    assert ("tokenizer.missing", "merges.txt") in found(model)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"model": {"vocab": {}}}',
        '{"model": {"vocab": {"a": "b"}}}',
        '{"model": {"type": "BPE", "vocab": {"a": 95}, "merges": ["a b"]}}',
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    ],
)
def test_tokenizer_invalid(model, content):
    (model / "tokenizer.json").write_text(content)
    assert found(model) == [("tokenizer.invalid", "tokenizer.json")]


def test_tokenizer_config_invalid(model):
    (model / "tokenizer_config.json").write_text("{")
    assert found(model) == [("tokenizer.invalid", "tokenizer_config.json")]


@pytest.mark.parametrize("size", [97, 40])
def test_a_tokenizer_of_another_model(model, size):
    build.write_json(model / "tokenizer.json", build.tokenizer_json(size))
    assert found(model) == [("tokenizer.vocab_mismatch", "tokenizer.json")]


def test_a_padded_embedding_is_usual(model):
    build.write_json(model / "tokenizer.json", build.tokenizer_json(90))
    assert found(model) == []


def sentencepiece(pieces):
    """The outer shape of a SentencePiece model: field 1 once per piece."""
    body = b"".join(b"\x0a" + bytes([len(piece) + 2]) + b"\x0a" + bytes([len(piece)]) + piece for piece in pieces)
    return body + b"\x12\x02\x08\x01"


def test_sentencepiece_is_counted(model):
    (model / "tokenizer.json").unlink()
    (model / "tokenizer.model").write_bytes(sentencepiece([b"a"] * 96))
    assert found(model) == []
    (model / "tokenizer.model").write_bytes(sentencepiece([b"a"] * 97))
    assert found(model) == [("tokenizer.vocab_mismatch", "tokenizer.model")]
    (model / "tokenizer.model").write_bytes(sentencepiece([b"a"] * 96)[:-3])
    assert found(model) == [("tokenizer.invalid", "tokenizer.model")]


def test_chat_template_missing(model):
    (model / "chat_template.jinja").unlink()
    assert found(model) == [("chat_template.missing", "chat_template.jinja")]
    assert verify_directory(model).ok


@pytest.mark.parametrize("where", ["chat_template.jinja", "tokenizer_config.json", "chat_template.json"])
def test_chat_template_invalid(model, where):
    broken = "{% for m in messages %}{{ m['content' }}{% endfor %}"
    if where.endswith(".jinja"):
        (model / where).write_text(broken)
    else:
        build.write_json(model / where, {"chat_template": broken})
    assert found(model) == [("chat_template.invalid", where)]


# Quantisation


def test_quantisation_unknown(model):
    change_config(model, quantization_config={"quant_method": "magic"})
    assert found(model) == [("quantization.unknown", "config.json")]


def test_a_config_that_claims_fp8_for_plain_weights(model):
    change_config(model, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert found(model) == [("quantization.config_conflict", "config.json"), ("quantization.scale_missing", ONE)]


@pytest.mark.parametrize("scheme", build.SCHEMES)
def test_a_quantised_model_whose_config_lost_its_scheme(tmp_path, scheme):
    build.make_quantised(tmp_path, scheme)
    build.write_json(tmp_path / "config.json", build.config_of("llama"))
    assert ("quantization.config_conflict", "config.json") in found(tmp_path)


def test_two_files_that_disagree_about_the_scheme(tmp_path):
    build.make_quantised(tmp_path, "nvfp4")
    build.write_json(tmp_path / "hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}})
    assert found(tmp_path) == [("quantization.config_conflict", "config.json")]
    build.make_quantised(tmp_path / "gptq", "gptq")
    build.write_json(tmp_path / "gptq" / "quantize_config.json", {"bits": 8, "group_size": 16})
    assert found(tmp_path / "gptq") == [("quantization.config_conflict", "config.json")]


def test_awq_weights_under_a_gptq_config(tmp_path):
    tensors, _ = build.quantised("awq")
    build.make_quantised(tmp_path, "gptq")
    (tmp_path / ONE).write_bytes(build.safetensors_bytes(tensors))
    assert ("quantization.config_conflict", "config.json") in found(tmp_path)


def needed(scheme):
    """The companion tensors of one quantised weight whose loss must be found."""
    leaves = set(build._COMPANIONS[scheme](32, 32)) - {"weight", "qweight", "weight_packed"}
    return [(scheme, leaf) for leaf in sorted(leaves)]


@pytest.mark.parametrize(("scheme", "leaf"), [pair for scheme in build.SCHEMES for pair in needed(scheme)])
def test_scale_missing(tmp_path, scheme, leaf):
    build.make_quantised(tmp_path, scheme)
    tensors, _ = build.quantised(scheme)
    del tensors[f"model.layers.1.self_attn.o_proj.{leaf}"]
    (tmp_path / ONE).write_bytes(build.safetensors_bytes(tensors))
    assert found(tmp_path) == [("quantization.scale_missing", ONE)]


@pytest.mark.parametrize(
    ("scheme", "leaf", "wrong"),
    [
        ("fp8-tensor", "weight_scale", ("F32", 4)),
        ("fp8-block", "weight_scale_inv", ("F32", 2, 4)),
        ("ct-block", "weight_scale", ("BF16", 4, 3)),
        ("ct-channel", "weight_scale", ("BF16", 31, 1)),
        ("ct-int8", "weight_scale", ("BF16", 1)),
        ("ct-int4", "weight_scale", ("BF16", 32, 4)),
        ("ct-int4", "weight_zero_point", ("I32", 2, 2)),
        ("ct-nvfp4", "weight_scale", ("F8_E4M3", 32, 1)),
        ("ct-int4", "weight_shape", ("I64", 3)),
        ("ct-nvfp4", "weight_global_scale", ("F32", 2)),
        ("ct-mxfp4", "weight_scale", ("U8", 32, 2)),
        ("nvfp4", "weight_scale", ("F8_E4M3", 16, 2)),
        ("awq", "scales", ("F16", 1, 32)),
        ("awq", "qzeros", ("I32", 2, 2)),
        ("gptq", "scales", ("F16", 2, 16)),
        ("gptq", "g_idx", ("I32", 16)),
        ("bnb-4bit", "weight.absmax", ("U8", 17)),
        ("bnb-8bit", "SCB", ("F32", 16)),
        ("fp8-block", "weight_scale_inv", ("I64", 4, 2)),
    ],
)
def test_scale_shape(tmp_path, scheme, leaf, wrong):
    build.make_quantised(tmp_path, scheme)
    tensors, _ = build.quantised(scheme)
    name = f"model.layers.1.self_attn.o_proj.{leaf}"
    tensors[name] = build.tensor(name, *wrong)
    (tmp_path / ONE).write_bytes(build.safetensors_bytes(tensors))
    # Where the numbers are as many as in the other layers, that is said as well.
    codes = found(tmp_path)
    assert ("quantization.scale_shape", ONE) in codes
    assert set(codes) <= {("quantization.scale_shape", ONE), ("weights.shape_mismatch", ONE)}


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (build.quant_state(32, 32)[:-1], "isn't valid JSON in its"),
        (build.quant_state(32, 32) + b"\0", "isn't valid JSON in its"),
        (b"[" * 5000, "isn't valid JSON in its"),
        (b"[1]", "isn't a JSON object"),
        (build.quant_state(32, 48), "says shape [32, 48] for 512 bytes"),
        (build.quant_state(32, 32, shape=[-32, -32]), "gives no shape"),
        (build.quant_state(32, 32, quant_type="fp4"), "says fp4"),
        (build.quant_state(32, 32, blocksize=128), "says blocksize 128, but absmax has 16 entries"),
        (build.quant_state(32, 32, nested_blocksize=4), "says nested_blocksize 4, but nested_absmax has 1 entries"),
        (b"{}" + b" " * (64 << 10), "is U8 of 65,538 bytes"),
    ],
)
def test_a_quantisation_state_that_does_not_describe_its_weight(tmp_path, state, said):
    build.make_quantised(tmp_path, "bnb-4bit")
    assert found(tmp_path) == []
    tensors, _ = build.quantised("bnb-4bit")
    tensors["model.layers.1.self_attn.o_proj.weight.quant_state.bitsandbytes__nf4"] = ("U8", (len(state),), state)
    (tmp_path / ONE).write_bytes(build.safetensors_bytes(tensors))
    finding = next(item for item in verify_directory(tmp_path).findings if item.code == "quantization.scale_shape")
    assert finding.file == ONE
    assert said in finding.message


@pytest.mark.parametrize("scheme", ["fp8-block", "ct-channel", "awq", "nvfp4"])
def test_one_layer_left_unquantised_by_mistake(tmp_path, scheme):
    build.make_quantised(tmp_path, scheme)
    tensors, quantization = build.quantised(scheme)
    at = "model.layers.1.self_attn.o_proj."
    for name in [name for name in tensors if name.startswith(at)]:
        del tensors[name]
    tensors[at + "weight"] = build.tensor(at, "BF16", 32, 32)
    (tmp_path / ONE).write_bytes(build.safetensors_bytes(tensors))
    # Three of four quantised layers are too few to be sure; eight of nine are not.
    assert ("weights.dtype_unexpected", ONE) not in found(tmp_path)
    grown = dict(tensors)
    for copy in range(4, 9):
        for name in [name for name in tensors if ".layers.0." in name]:
            grown[name.replace(".layers.0.", f".layers.{copy}.")] = tensors[name]
    (tmp_path / ONE).write_bytes(build.safetensors_bytes(grown))
    change_config(tmp_path, num_hidden_layers=9)
    assert found(tmp_path) == [("weights.dtype_unexpected", ONE)]
    key = "modules_to_not_convert" if scheme in {"fp8-block", "awq"} else "ignore"
    change_config(tmp_path, quantization_config={**quantization, key: ["model.layers.1.self_attn.o_proj", "lm_head"]})
    assert found(tmp_path) == []


def test_a_packed_weight_of_another_size(tmp_path):
    build.make_quantised(tmp_path, "awq")
    tensors, _ = build.quantised("awq")
    at = "model.layers.0.mlp.up_proj."
    for leaf, size in {"qweight": ("I32", 48, 6), "qzeros": ("I32", 3, 6), "scales": ("F16", 3, 48)}.items():
        tensors[at + leaf] = build.tensor(leaf, *size)
    (tmp_path / ONE).write_bytes(build.safetensors_bytes(tensors))
    assert found(tmp_path) == [("weights.shape_mismatch", ONE)]


def test_the_dtype_field_alone_is_not_believed(tmp_path):
    build.make_quantised(tmp_path, "ct-block")
    change_config(tmp_path, torch_dtype="float16", dtype="float16")
    assert found(tmp_path) == []
    assert verify_directory(tmp_path).summary["quantization"] == "compressed-tensors"


def test_the_severities_are_those_of_the_contract():
    warnings = {
        "chat_template.missing",
        "weights.duplicate_formats",
        "code.remote_required",
        "generation_config.invalid",
        "context.rope_inconsistent",
    }
    fixed = list(CODES)[: list(CODES).index("path.unreadable")]
    assert len(fixed) == 33
    assert {code for code in fixed if CODES[code] is Severity.WARNING} == warnings
    assert {code for code in fixed if CODES[code] is Severity.ERROR} == set(fixed) - warnings

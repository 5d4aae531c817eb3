"""Sound models of every architecture and quantisation give no error."""

import shutil

import pytest

from tests.weights import build
from workers.weights.findings import Severity
from workers.weights.verification import verify_directory


def loud(folder, **options):
    """Codes of all findings that are more than a note."""
    found = verify_directory(folder, **options).findings
    return [(item.code, item.file, item.message) for item in found if item.severity is not Severity.INFO]


@pytest.mark.parametrize("architecture", sorted(build.DATA))
def test_what_transformers_saves_is_sound(tmp_path, architecture):
    build.make_model(tmp_path, architecture)
    if not build.config_of(architecture)["architectures"][0].endswith(("CausalLM", "Generation", "LMHeadModel")):
        (tmp_path / "chat_template.jinja").unlink()
    assert loud(tmp_path, read_values=True) == []


@pytest.mark.parametrize("scheme", build.SCHEMES)
def test_quantised_models_are_sound(tmp_path, scheme):
    build.make_quantised(tmp_path, scheme)
    assert loud(tmp_path) == []


@pytest.mark.parametrize("scheme", ["fp8-block", "ct-block", "ct-channel", "nvfp4"])
def test_quantised_experts_are_sound(tmp_path, scheme):
    build.make_quantised(tmp_path, scheme, "deepseek-v3")
    assert loud(tmp_path) == []


def test_shards_with_an_index_are_sound(tmp_path):
    build.make_sharded(tmp_path, "qwen3-moe", 5)
    build.write_sums(tmp_path)
    assert loud(tmp_path) == []


def test_a_hub_snapshot_of_links_into_blobs_is_sound_and_its_blobs_are_hashed(tmp_path):
    source = build.make_model(tmp_path / "source")
    hub = tmp_path / "models--org--name"
    snapshot = hub / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    (hub / "blobs").mkdir()
    for path in source.iterdir():
        content = path.read_bytes()
        digest = build.hashlib.sha256(content).hexdigest()
        if path.suffix != ".safetensors":
            digest = build.hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        (hub / "blobs" / digest).write_bytes(content)
        (snapshot / path.name).symlink_to(f"../../blobs/{digest}")
    assert loud(snapshot) == []
    blob = (snapshot / "model.safetensors").resolve()
    damaged = bytearray(blob.read_bytes())
    damaged[-1] ^= 1
    blob.write_bytes(damaged)
    assert [item[:2] for item in loud(snapshot)] == [("checksum.mismatch", "model.safetensors")]


def test_a_tied_model_may_keep_its_output_head(tmp_path):
    build.make_model(tmp_path, "gemma2")
    tensors = build.tensors_of("gemma2")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    (tmp_path / "model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    assert loud(tmp_path) == []


@pytest.mark.parametrize(
    "architecture", ["gemma3", "gemma4-text", "qwen3", "qwen3-next", "glm4-moe", "gpt-oss", "mistral"]
)
def test_a_config_that_leaves_out_its_class_defaults_is_no_false_alarm(tmp_path, architecture):
    build.make_model(tmp_path, architecture)
    config = build.config_of(architecture)
    text = config.get("text_config", config)
    for name in (
        "head_dim",
        "num_key_value_heads",
        "num_attention_heads",
        "vocab_size",
        "tie_word_embeddings",
        "per_layer_config",
    ):
        text.pop(name, None)
    build.write_json(tmp_path / "config.json", config)
    assert loud(tmp_path) == []


def test_old_buffers_are_no_strangers(tmp_path):
    build.make_model(tmp_path, "llama")
    tensors = build.tensors_of("llama")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = build.tensor("x", "F32", 4)
    (tmp_path / "model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    assert loud(tmp_path) == []


def draft(architecture, layer):
    """The draft layer as DeepSeek publishes it, made from the last layer."""
    tensors = build.tensors_of(architecture)
    start, new = f"model.layers.{layer - 1}.", f"model.layers.{layer}."
    for name in [name for name in tensors if name.startswith(start)]:
        tensors[new + name.removeprefix(start)] = tensors[name]
    for name, shape in {
        "eh_proj.weight": (32, 64), "enorm.weight": (32,), "hnorm.weight": (32,), "shared_head.norm.weight": (32,),
        "shared_head.head.weight": (96, 32), "embed_tokens.weight": (96, 32),
    }.items():  # fmt: skip
        tensors[new + name] = build.tensor(name, "BF16", *shape)
    return tensors


@pytest.mark.parametrize("architecture", ["deepseek-v3", "glm4-moe", "glm-moe-dsa"])
def test_draft_layers_are_whole_or_absent(tmp_path, architecture):
    build.make_model(tmp_path, architecture)
    config = {**build.config_of(architecture), "num_nextn_predict_layers": 1}
    build.write_json(tmp_path / "config.json", config)
    assert loud(tmp_path) == []
    tensors = draft(architecture, 4)
    (tmp_path / "model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    assert loud(tmp_path) == []
    for lost in ("eh_proj.weight", "mlp.experts.2.up_proj.weight", "self_attn.o_proj.weight", "hnorm.weight"):
        left = {name: value for name, value in tensors.items() if name != f"model.layers.4.{lost}"}
        (tmp_path / "model.safetensors").write_bytes(build.safetensors_bytes(left))
        (finding,) = loud(tmp_path)
        assert finding[0] == "weights.tensor_missing"
        assert f"model.layers.4.{lost}" in finding[2]


def test_gpt_oss_as_published_in_mxfp4_is_sound(tmp_path):
    tensors = build.tensors_of("gpt-oss")
    for layer in range(4):
        for name, out, into in (("gate_up_proj", 96, 32), ("down_proj", 32, 48)):
            at = f"model.layers.{layer}.mlp.experts.{name}"
            del tensors[at]
            tensors[f"{at}_blocks"] = build.tensor(f"{at}_blocks", "U8", 4, out, into // 32, 16)
            tensors[f"{at}_scales"] = build.tensor(f"{at}_scales", "U8", 4, out, into // 32)
    config = build.config_of("gpt-oss")
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    build.make_model(tmp_path, "gpt-oss")
    build.write_json(tmp_path / "config.json", config)
    (tmp_path / "model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    assert loud(tmp_path) == []
    del tensors["model.layers.2.mlp.experts.down_proj_scales"]
    (tmp_path / "model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    codes = {item[0] for item in loud(tmp_path)}
    assert codes == {"weights.tensor_missing", "quantization.scale_missing"}


def test_stacked_fp8_experts_keep_their_scales(tmp_path):
    tensors = build.tensors_of("qwen3-vl-moe")
    experts = [name for name in tensors if ".experts." in name]
    for name in experts:
        count, rows, columns = tensors[name][1]
        tensors[name] = build.tensor(name, "F8_E4M3", count, rows, columns)
        tensors[f"{name}_scale_inv"] = build.tensor(name + "s", "F32", count, -(-rows // 16), -(-columns // 16))
    config = build.config_of("qwen3-vl-moe")
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    build.make_model(tmp_path, "qwen3-vl-moe")
    build.write_json(tmp_path / "config.json", config)
    (tmp_path / "model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    assert loud(tmp_path) == []
    del tensors[f"{experts[0]}_scale_inv"]
    (tmp_path / "model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    assert {item[0] for item in loud(tmp_path)} == {"quantization.scale_missing"}


def adapter(folder, **left_out):
    tensors = {}
    for layer in range(4):
        at = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{at}.lora_A.weight"] = build.tensor("a", "F32", 4, 32)
        tensors[f"{at}.lora_B.weight"] = build.tensor("b", "F32", 32, 4)
    build.write_json(
        folder / "adapter_config.json",
        {"r": 4, "target_modules": ["q_proj"], "peft_type": "LORA", "base_model_name_or_path": "org/base"},
    )
    return tensors


def test_an_adapter_needs_no_model_beside_it(tmp_path):
    tensors = adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    assert loud(tmp_path) == []
    summary = verify_directory(tmp_path).summary
    assert summary["kind"] == "adapter"
    modules = {"q_proj": [32, 32]}
    assert summary["adapter"] == {"base_model": "org/base", "rank": 4, "modules": modules, "layers": 4}
    half = "base_model.model.model.layers.2.self_attn.q_proj.lora_B.weight"
    broken = {name: value for name, value in tensors.items() if name != half}
    (tmp_path / "adapter_model.safetensors").write_bytes(build.safetensors_bytes(broken))
    (finding,) = loud(tmp_path)
    assert finding[:2] == ("weights.tensor_missing", "adapter_model.safetensors")
    assert half in finding[2]


def test_an_adapter_of_another_rank_is_refused(tmp_path):
    tensors = adapter(tmp_path)
    build.write_json(tmp_path / "adapter_config.json", {"r": 8})
    (tmp_path / "adapter_model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    assert {item[:2] for item in loud(tmp_path)} == {("weights.shape_mismatch", "adapter_model.safetensors")}


def test_mistrals_own_format_needs_no_config(tmp_path):
    build.write_json(tmp_path / "params.json", {"dim": 32, "n_layers": 4})
    build.write_json(tmp_path / "tekken.json", {"config": {"default_vocab_size": 96}, "vocab": []})
    tensors = {f"layers.{n}.attention.wq.weight": build.tensor("w", "BF16", 32, 32) for n in range(4)}
    (tmp_path / "consolidated.safetensors").write_bytes(build.safetensors_bytes(tensors))
    assert loud(tmp_path) == []


def test_a_path_with_odd_letters_is_read(tmp_path):
    folder = tmp_path / "mo dèl\n✓"
    build.make_model(folder)
    shutil.copy(folder / "chat_template.jinja", folder / "odd\udcff.txt")
    assert loud(folder) == []

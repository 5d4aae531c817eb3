"""Any single flipped, cut, added or renamed piece of a sound checkpoint with checksums is found."""

import json
import math
import re
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.weights import build
from workers.weights.verification import verify_directory


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound") / "model"
    files = build.make_sharded(folder, "llama", 2)
    build.write_sums(folder)
    assert verify_directory(folder).ok
    return folder, [*files, "config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors.index.json"]


def broken_copy(sound, tmp_path_factory):
    folder = tmp_path_factory.mktemp("broken") / "model"
    shutil.copytree(sound, folder)
    return folder


def errors(folder):
    return {(item.code, item.file) for item in verify_directory(folder).findings if item.severity == "error"}


def about(found, name):
    return any(file == name for _, file in found)


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_flipped_bit_is_found(sound, tmp_path_factory, data):
    source, files = sound
    folder = broken_copy(source, tmp_path_factory)
    name = data.draw(st.sampled_from(files))
    content = bytearray((folder / name).read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    (folder / name).write_bytes(content)
    assert ("checksum.mismatch", name) in errors(folder)


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_cut_or_grown_file_is_found(sound, tmp_path_factory, data):
    source, files = sound
    folder = broken_copy(source, tmp_path_factory)
    name = data.draw(st.sampled_from(files))
    content = (folder / name).read_bytes()
    cut = data.draw(st.integers(0, len(content) - 1))
    grow = data.draw(st.booleans())
    (folder / name).write_bytes(content + content[:cut] + b"x" if grow else content[:cut])
    found = errors(folder)
    assert ("checksum.mismatch", name) in found
    if name.endswith(".safetensors"):
        assert ("weights.trailing_bytes" if grow else "weights.truncated", name) in found


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_renamed_or_removed_file_is_found(sound, tmp_path_factory, data):
    source, files = sound
    folder = broken_copy(source, tmp_path_factory)
    name = data.draw(st.sampled_from(files))
    if data.draw(st.booleans()):
        (folder / name).unlink()
    else:
        (folder / name).rename(folder / f"{name}.renamed")
    assert ("checksum.mismatch", name) in errors(folder)


@given(
    name=st.sampled_from(
        ["extra.safetensors", "model-00003-of-00002.safetensors", "modeling_x.py", "evil.bin", "a.json"]
    )
)
@settings(max_examples=10, deadline=None)
def test_an_added_file_is_found(sound, tmp_path_factory, name):
    folder = broken_copy(sound[0], tmp_path_factory)
    (folder / name).write_bytes(build.safetensors_bytes({"x": build.tensor("x", "F32", 2)}))
    found = {(item.code, item.file) for item in verify_directory(folder).findings}
    assert ("checksum.file_unlisted", name) in found
    if name.endswith(".safetensors"):
        assert ("weights.index_mismatch", "model.safetensors.index.json") in found


ALL = [(name, tensor) for name in ("llama", "qwen3-moe", "deepseek-v3", "gemma4-e", "qwen3-next", "gpt-oss", "phi")
       for tensor in build.tensors_of(name)]  # fmt: skip


@given(which=st.sampled_from(ALL), how=st.sampled_from(["remove", "rename", "reshape", "add"]))
@settings(max_examples=40, deadline=None)
def test_a_lost_renamed_reshaped_or_added_tensor_is_found_without_checksums(tmp_path_factory, which, how):
    architecture, name = which
    folder = build.make_model(tmp_path_factory.mktemp("model"), architecture)
    tensors = build.tensors_of(architecture)
    dtype, shape, data = tensors[name]
    expected, at = {"weights.tensor_missing"}, name.rpartition(".")[0] or name
    if how == "remove":
        del tensors[name]
    elif how == "rename":
        tensors[f"{name}2"] = tensors.pop(name)
        expected = {"weights.tensor_missing", "weights.tensor_unexpected"}
    elif how == "reshape":
        tensors[name] = (dtype, (*shape, 1), data)
        expected = {"weights.shape_mismatch"}
    else:
        tensors[f"{at}.added"] = tensors[name]
        expected = {"weights.tensor_unexpected"}
    (folder / "model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    found = errors(folder)
    assert found == {(code, "model.safetensors") for code in expected}
    messages = json.dumps(verify_directory(folder).as_json())
    assert (name if how != "add" else f"{at}.added") in messages


GENERIC = ("gpt2", "opt", "gpt-neox", "stablelm", "nemotron", "falcon", "hunyuan", "llama4-text", "olmoe")
LAYERED = [
    (name, tensor) for name in GENERIC for tensor in build.tensors_of(name) if ".1." in tensor or ".2." in tensor
]


@given(which=st.sampled_from(LAYERED))
@settings(max_examples=40, deadline=None)
def test_a_tensor_that_all_other_layers_have_is_missed_in_an_architecture_without_a_table(tmp_path_factory, which):
    architecture, name = which
    folder = build.make_model(tmp_path_factory.mktemp("model"), architecture)
    tensors = build.tensors_of(architecture)
    del tensors[name]
    (folder / "model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    assert errors(folder) == {("weights.tensor_missing", "model.safetensors")}


CONFUSED = {"BF16": "F16", "F8_E4M3": "F8_E5M2", "I32": "F32", "F16": "BF16"}


@pytest.mark.parametrize("scheme", ["", "fp8-block", "ct-block", "awq", "gptq"])
def test_a_type_of_the_same_size_in_a_single_layer_is_found(tmp_path, scheme):
    folder = build.make_quantised(tmp_path, scheme) if scheme else build.make_model(tmp_path, "llama")
    tensors = build.quantised(scheme)[0] if scheme else build.tensors_of("llama")
    layers = sum(name.endswith("input_layernorm.weight") for name in tensors)
    assert layers >= 4
    for name in [name for name in tensors if ".layers.1." in name and tensors[name][0] in CONFUSED]:
        dtype, shape, data = tensors[name]
        changed = {**tensors, name: (CONFUSED[dtype], shape, data)}
        (folder / "model.safetensors").write_bytes(build.safetensors_bytes(changed))
        found = errors(folder)
        assert found, name
        assert name in json.dumps(verify_directory(folder).as_json())


IN_QUANTISED = [
    (scheme, name) for scheme in build.SCHEMES for name in build.quantised(scheme)[0] if ".layers.1." in name
]
WIDTHS = {1: ("U8", "I8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 2: ("F16", "BF16", "I16", "U16"),
          4: ("F32", "I32", "U32"), 8: ("F64", "I64", "U64")}  # fmt: skip


def other_types(dtype):
    return [one for types in WIDTHS.values() if dtype in types for one in types if one != dtype]


def other_shapes(shape):
    return sorted({(*shape, 1), (1, *shape), (math.prod(shape),), tuple(reversed(shape))} - {tuple(shape)})


@given(which=st.sampled_from(IN_QUANTISED), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_changed_type_or_shape_of_whatever_a_quantisation_stores_is_found(tmp_path_factory, which, data):
    scheme, name = which
    folder = build.make_quantised(tmp_path_factory.mktemp("model"), scheme)
    tensors = build.quantised(scheme)[0]
    dtype, shape, content = tensors[name]
    kinds = [(other, shape) for other in other_types(dtype)] + [(dtype, other) for other in other_shapes(shape)]
    changed, size = data.draw(st.sampled_from(kinds))
    (folder / "model.safetensors").write_bytes(build.safetensors_bytes({**tensors, name: (changed, size, content)}))
    assert errors(folder), (name, changed, size)
    assert name in json.dumps(verify_directory(folder).as_json())


OF_TOWERS = re.compile(r"(?!.*(?:layers|blocks)[.][0-9]).*(?:vision|visual|projector)")
TOWERS = [
    (architecture, name)
    for architecture in ("gemma3", "gemma4", "qwen2.5-vl", "qwen3-vl", "qwen3.5-vl")
    for name in build.tensors_of(architecture)
    if OF_TOWERS.match(name)
]


@pytest.mark.parametrize(("architecture", "name"), TOWERS)
@pytest.mark.parametrize("how", ["remove", "rename"])
def test_a_lost_single_tensor_of_a_tower_is_found(tmp_path, architecture, name, how):
    folder = build.make_model(tmp_path / "model", architecture)
    tensors = build.tensors_of(architecture)
    lost = tensors.pop(name)
    if how == "rename":
        tensors[f"{name}2"] = lost
    (folder / "model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    assert ("weights.tensor_missing", "model.safetensors") in errors(folder)
    assert name in json.dumps(verify_directory(folder).as_json())


def test_a_multimodal_configuration_beside_the_language_model_alone_is_no_false_alarm(tmp_path):
    folder = build.make_model(tmp_path / "model", "gemma3")
    tensors = {name: one for name, one in build.tensors_of("gemma3").items() if not re.search("vision|projector", name)}
    (folder / "model.safetensors").write_bytes(build.safetensors_bytes(tensors))
    assert errors(folder) == set()

"""Nothing that a directory can hold makes the verification crash, hang or leave the directory."""

import contextlib
import json
import os
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.weights import build
from workers.weights.findings import MOST_FINDINGS_PER_CODE, Findings
from workers.weights.layout import Entry
from workers.weights.safetensors import HeaderError, header_length, parse_header
from workers.weights.scan import Job, scan_files
from workers.weights.verification import verify_directory

ONE = "model.safetensors"


@pytest.fixture
def model(tmp_path):
    return build.make_model(tmp_path / "model")


def codes(folder, **options):
    return {(item.code, item.file) for item in verify_directory(folder, **options).findings}


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b" ",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe{}",
        b'{"a":' * 50_000,
        b"[" * 1_000_000,
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b'{"\\u0061":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,' + b"9" * 5000 + b"]}}",
        json.dumps({"a": entry(offsets=(-4, 0))}).encode(),
        json.dumps({"a": entry(offsets=(4, 0))}).encode(),
        json.dumps({"a": entry(offsets=(0.0, 4.0))}).encode(),
        json.dumps({"a": entry(offsets=(False, True))}).encode(),
        json.dumps({"a": entry(offsets=(0, 4, 8))}).encode(),
        json.dumps({"a": entry(shape=(-1, -1))}).encode(),
        json.dumps({"a": entry(shape=(1.0,))}).encode(),
        json.dumps({"a": entry(shape=[2**62] * 60)}).encode(),
        json.dumps({"a": entry(shape=[1] * 100_000)}).encode(),
        json.dumps({"a": entry(dtype="F99")}).encode(),
        json.dumps({"a": entry(dtype=["F32"])}).encode(),
        json.dumps({"a": entry(shape=(2,))}).encode(),
        json.dumps({"a": None, "b": [], "c": "d"}).encode(),
        json.dumps({"a": {**entry(), "shape": {"0": 1}}}).encode(),
        json.dumps({"a": entry(offsets=(4, 8))}).encode(),
        json.dumps({"__metadata__": {"format": 1}}).encode(),
        json.dumps({"__metadata__": []}).encode(),
    ],
)
def test_headers_that_lie(model, header):
    (model / ONE).write_bytes(build.raw_safetensors(header, b"\0" * 8))
    assert ("weights.header_invalid", ONE) in codes(model)


@pytest.mark.parametrize("length", [100_000_001, 2**40, 2**63, 2**64 - 1])
def test_impossible_header_lengths_are_not_allocated(model, length):
    (model / ONE).write_bytes(build.raw_safetensors(b"{}", length=length))
    assert ("weights.header_invalid", ONE) in codes(model)


def test_a_header_length_within_the_limit_but_beyond_the_file(model):
    (model / ONE).write_bytes(build.raw_safetensors(b"{}", length=100_000_000))
    assert ("weights.truncated", ONE) in codes(model)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_as_a_header_give_a_header_or_its_error(raw):
    with contextlib.suppress(HeaderError):
        header_length(raw, file_bytes=len(raw))
    with contextlib.suppress(HeaderError):
        assert parse_header(raw, file="x", file_bytes=len(raw)).data_bytes >= 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = (
    "num_hidden_layers", "hidden_size", "num_experts", "layer_types", "rope_scaling", "rope_parameters", "vocab_size",
    "quantization_config", "text_config", "architectures", "auto_map", "eos_token_id", "per_layer_config", "head_dim",
    "tie_word_embeddings", "intermediate_size", "model_type", "max_position_embeddings",
)  # fmt: skip


@given(changes=st.dictionaries(st.sampled_from(KEYS), json_values, min_size=1, max_size=3), scheme=json_values)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_configuration_is_survived(model, changes, scheme):
    config = {**build.config_of("qwen3"), **changes}
    if isinstance(scheme, dict):
        config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": {"g": scheme}, **scheme}
    build.write_json(model / "config.json", config)
    json.dumps(verify_directory(model, hash_files=False).as_json())


@given(
    name=st.sampled_from(["tokenizer.json", "tokenizer_config.json", "generation_config.json", "block_index_map.json"]),
    content=json_values,
)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_in_the_small_files_is_survived(model, name, content):
    before = (model / name).read_bytes() if (model / name).exists() else None
    build.write_json(model / name, content)
    verify_directory(model, hash_files=False)
    if before is None:
        (model / name).unlink()
    else:
        (model / name).write_bytes(before)


def test_links_out_of_the_directory_are_not_opened(model, tmp_path):
    secret = tmp_path / "secret.safetensors"
    (model / ONE).rename(secret)
    (model / ONE).symlink_to(secret)
    (model / "config.json").unlink()
    (model / "config.json").symlink_to("/etc/passwd")
    found = codes(model)
    assert {("path.symlink_outside", ONE), ("path.symlink_outside", "config.json")} <= found
    assert {("weights.missing", ONE), ("config.missing", "config.json")} <= found
    assert "root:" not in json.dumps(verify_directory(model).as_json())


def test_dangling_and_circular_links_and_folders_are_survived(model):
    (model / "a.safetensors").symlink_to(model / "gone")
    (model / "b.safetensors").symlink_to(model / "b.safetensors")
    (model / "c.safetensors").mkdir()
    (model / "loop").symlink_to(model)
    found = codes(model)
    assert {("path.symlink_outside", "a.safetensors"), ("path.symlink_outside", "b.safetensors")} <= found


def test_a_link_within_the_directory_is_followed(model):
    (model / ONE).rename(model / "real.bin.data")
    (model / ONE).symlink_to("real.bin.data")
    assert codes(model) == set()


def test_a_pipe_in_a_weight_files_place_does_not_hang(model):
    (model / ONE).unlink()
    os.mkfifo(model / ONE)
    assert ("path.not_regular_file", ONE) in codes(model)
    # The same pipe put there after the listing.
    job = Job(Entry(ONE, str(model / ONE), 10, 0, 0), frozenset({"sha256"}))
    assert scan_files([job])[ONE].problems == [("path.not_regular_file", "is no plain file")]


def test_ten_thousand_files(tmp_path):
    build.make_model(tmp_path)
    tiny = build.safetensors_bytes({})
    for number in range(10_000):
        (tmp_path / f"x{number}.safetensors").write_bytes(tiny)
    started = time.process_time()
    verification = verify_directory(tmp_path, hash_files=False)
    assert verification.summary["files"] == 10_000 + 6
    assert time.process_time() - started < 10


def test_a_million_broken_tensors_make_a_short_report(tmp_path):
    build.make_model(tmp_path)
    weight_map = {f"t{number}": f"shard-{number}.safetensors" for number in range(100_000)}
    build.write_json(tmp_path / "model.safetensors.index.json", {"weight_map": weight_map})
    verification = verify_directory(tmp_path, hash_files=False)
    assert len(verification.findings) <= 3 * MOST_FINDINGS_PER_CODE
    assert verification.summary["codes"]["weights.shard_missing"] == 100_000
    assert len(json.dumps(verification.as_json())) < 100_000


def test_names_with_control_characters_are_shown_harmless(model):
    tensors = build.tensors_of("qwen3")
    tensors["model.layers.1.\x1b[2Jevil\n" + "x" * 10_000] = build.tensor("e", "BF16", 1)
    (model / ONE).write_bytes(build.safetensors_bytes(tensors))
    (finding,) = verify_directory(model).findings
    assert "\x1b" not in finding.message
    assert "\n" not in finding.message
    assert len(finding.message) < 600


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = tmp_path / ONE
    path.write_bytes(build.safetensors_bytes({"a": build.tensor("a", "F32", 4_000_000)}))
    status = path.stat()
    reached = threading.Event()

    def progress(_done, _total, _file):
        if not reached.is_set():
            os.truncate(path, 3_000_000)
            reached.set()

    job = Job(
        Entry(ONE, str(path), status.st_size, status.st_mtime_ns, status.st_ino), frozenset({"sha256"}), values=True
    )
    scan = scan_files([job], progress=progress)[ONE]
    assert [code for code, _ in scan.problems] == ["file.changed"]


def test_an_unreadable_file_is_a_finding(model, monkeypatch):
    real = os.open

    def refuse(path, flags, *arguments):
        if str(path).endswith(ONE):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *arguments)

    monkeypatch.setattr("workers.weights.scan.os.open", refuse)
    assert ("file.unreadable", ONE) in codes(model)


def test_a_findings_message_is_reported_once():
    findings = Findings()
    for _ in range(3):
        findings.add("weights.truncated", "a", "is short", "fetch it")
    assert len(findings.sorted()) == 1


def test_a_key_that_stands_twice_in_the_configuration_is_noted(tmp_path):
    folder = build.make_model(tmp_path, "llama")
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text[:-1] + ', "model_type": "llama"}')
    found = [item for item in verify_directory(folder).findings if item.code == "config.duplicate_keys"]
    assert [(item.severity, item.file) for item in found] == [("warning", "config.json")]
    assert "model_type" in found[0].message

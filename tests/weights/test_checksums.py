"""Checksums of every source are compared, and sources that contradict each other are named."""

import hashlib
import json

import pytest

from tests.weights import build
from workers.weights.digests import ChecksumFileError, Expected, parse_checksums, read_checksum_file
from workers.weights.verification import FileRecord, changed_files, verify_directory

ONE = "model.safetensors"
WRONG = "0" * 64


@pytest.fixture
def model(tmp_path):
    return build.make_model(tmp_path / "model")


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def found(folder, **options):
    return [(item.code, item.file) for item in verify_directory(folder, **options).findings]


def test_a_damaged_file_is_found_by_any_kind_of_sum(model):
    content = (model / ONE).read_bytes()
    for name, algorithm in {
        "SHA256SUMS": "sha256",
        "MD5SUMS": "md5",
        f"{ONE}.sha256": "sha256",
        f"{ONE}.md5": "md5",
    }.items():
        (model / name).write_text(f"{hashlib.new(algorithm, content).hexdigest()} *{ONE}\n")
        assert found(model) == []
        (model / ONE).write_bytes(content[:-1] + bytes([content[-1] ^ 4]))
        assert found(model) == [("checksum.mismatch", ONE)]
        (model / ONE).write_bytes(content)
        (model / name).unlink()


def test_a_file_with_nothing_but_a_digest_speaks_of_its_namesake(model):
    (model / f"{ONE}.sha256").write_text(sha256(model / ONE).upper() + "\n")
    assert found(model) == []
    (model / f"{ONE}.sha256").write_text(WRONG)
    assert found(model) == [("checksum.mismatch", ONE)]


def test_a_listed_file_that_is_gone(model):
    build.write_sums(model)
    (model / "generation_config.json").unlink()
    assert found(model) == [("checksum.mismatch", "generation_config.json")]


def test_sources_that_disagree_are_both_named(model):
    build.write_sums(model)
    other = Expected(ONE, "sha256", WRONG, "the hub")
    verification = verify_directory(model, checksums=[other])
    disagree = next(item for item in verification.findings if item.code == "checksum.sources_disagree")
    assert disagree.file == ONE
    assert "SHA256SUMS" in disagree.message
    assert "the hub" in disagree.message
    assert "agrees with SHA256SUMS" in disagree.message
    assert not verification.ok


def test_several_sources_of_one_sum_make_one_finding(model):
    said = [Expected(ONE, "sha256", WRONG, source) for source in ("the hub", "a mirror", "the hub")]
    mismatches = [item for item in verify_directory(model, checksums=said).findings if item.code == "checksum.mismatch"]
    assert [item.message for item in mismatches] == [
        f"{ONE} has sha256 {sha256(model / ONE)}, but the hub and a mirror say {WRONG}."
    ]


def test_sources_that_disagree_are_found_without_hashing(model):
    build.write_sums(model)
    codes = found(model, checksums=[Expected(ONE, "sha256", WRONG, "the hub")], hash_files=False)
    assert codes == [("checksum.sources_disagree", ONE), ("checksum.not_checked", None)]


def test_a_sha256_and_an_md5_that_cannot_both_be_right(model):
    build.write_sums(model)
    (model / "MD5SUMS").write_text(f"{'0' * 32}  {ONE}\n")
    assert ("checksum.sources_disagree", ONE) in found(model)


def test_the_previous_manifest_is_a_source(model):
    before = verify_directory(model)
    assert found(model, previous_manifest=before.files) == []
    content = bytearray((model / ONE).read_bytes())
    content[-1] ^= 1
    (model / ONE).write_bytes(content)
    assert found(model, previous_manifest=before.files) == [("checksum.mismatch", ONE)]


def test_a_manifest_survives_being_stored(model):
    stored = json.loads(json.dumps(verify_directory(model).manifest()))
    records = [FileRecord(**record) for record in stored]
    assert changed_files(model, records) == ()
    assert {record.sha256 for record in records} >= {sha256(model / ONE)}


def test_a_touched_replaced_new_or_lost_file_is_seen_before_a_launch(model):
    files = verify_directory(model).files
    content = (model / ONE).read_bytes()
    (model / "copy").write_bytes(content)
    (model / "copy").replace(model / ONE)
    (model / "new.safetensors").write_bytes(content)
    (model / "generation_config.json").unlink()
    assert changed_files(model, files) == ("generation_config.json", ONE, "new.safetensors")


def test_what_a_local_download_noted_is_a_source(model):
    records = model / ".cache" / "huggingface" / "download"
    records.mkdir(parents=True)
    (records / f"{ONE}.metadata").write_text(f"{'a' * 40}\n{sha256(model / ONE)}\n1700000000.0\n")
    assert found(model) == []
    (records / f"{ONE}.metadata").write_text(f"{'a' * 40}\n{WRONG}\n1700000000.0\n")
    assert found(model) == [("checksum.mismatch", ONE)]


@pytest.mark.parametrize(
    "text",
    [
        f"{WRONG}  a.bin",
        f"{WRONG} *a.bin\n",
        f"{WRONG}  ./a.bin\r\n# comment\n\n",
        f"SHA256 (a.bin) = {WRONG}",
        json.dumps({"files": [{"path": "a.bin", "sha256": WRONG}, {"path": "b", "sha256": None}]}),
        json.dumps({"a.bin": WRONG}),
    ],
)
def test_ways_to_write_a_sum(text):
    assert parse_checksums(text, source="s") == [Expected("a.bin", "sha256", WRONG, "s")]


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "hello", f"{WRONG[:-1]}  a", "{", '{"a": 1}', '{"files": 3}', WRONG]
)
def test_a_file_of_sums_that_is_none(tmp_path, text):
    (tmp_path / "sums").write_text(text)
    with pytest.raises(ChecksumFileError, match="s "):
        read_checksum_file(tmp_path / "sums", source="s ")


def test_a_broken_sum_file_in_the_directory_is_an_error(model):
    (model / "SHA256SUMS").write_text("<html>not found</html>")
    assert found(model) == [("checksum.file_invalid", "SHA256SUMS")]

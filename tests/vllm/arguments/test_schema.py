"""The shipped schemas, what lies between them, and what an engine prints itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from workers.vllm.argument_table import main as build_table
from workers.vllm.argument_table import pack, unpack, version_key
from workers.vllm.arguments import SchemaError, load_schema, schema_for, schema_from_dump, shipped_versions

DUMP: dict[str, Any] = {
    "vllm": "0.9.9",
    "args": [
        {"dest": "model_tag", "flags": [], "kind": "_StoreAction", "type": "str", "nargs": "?"},
        {"dest": "seed", "flags": ["--seed", "-s"], "kind": "_StoreAction", "type": "optional:int", "default": 0},
        {
            "dest": "lora",
            "flags": ["--lora", "--no-lora"],
            "kind": "BooleanOptionalAction",
            "nargs": 0,
            "default": False,
        },
        {"dest": "eager", "flags": ["--eager"], "kind": "_StoreTrueAction", "nargs": 0, "default": False},
        {"dest": "extra", "flags": ["--extra"], "kind": "_StoreAction", "type": "json:ExtraConfig", "keys": ["a", "b"]},
        {"dest": "old", "flags": ["--old"], "kind": "DeprecatedThingAction", "help": "gone soon"},
    ],
}


def test_the_shipped_schemas_have_as_many_arguments_as_the_engines_showed() -> None:
    counts = {version: len(schema_for(version).arguments) for version in shipped_versions()}
    # the positional model isn't counted; 0.8.5 lists none
    assert counts == {"0.8.5": 136, "0.10.2": 176, "0.11.2": 200, "0.16.0": 212, "0.20.2": 239, "0.32.0": 316}


def test_a_version_may_be_written_in_many_ways() -> None:
    assert schema_for("v0.32.0") is schema_for("0.32.0+cpu") or schema_for("v0.32.0") == schema_for("0.32.0+cpu")
    assert schema_for("0.32.0+cpu").between is None
    assert version_key("0.9.0rc1") == (0, 9, 0)


@pytest.mark.parametrize("text", ["", "latest", "1", "0.x"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(SchemaError, match=r"such as 0\.32\.0"):
        schema_for(text)


@pytest.mark.parametrize(
    ("version", "between"),
    [
        ("0.9.1", ("0.8.5", "0.10.2")),
        ("0.31.0", ("0.20.2", "0.32.0")),
        ("0.40.0", ("0.32.0", "0.32.0")),
        ("0.5", ("0.8.5", "0.8.5")),
    ],
)
def test_other_versions_are_interpolated_and_say_so(version: str, between: tuple[str, str]) -> None:
    schema = schema_for(version)
    assert schema.version == version
    assert schema.between == between


def test_between_two_versions_what_only_one_has_is_uncertain() -> None:
    schema = schema_for("0.18.0")
    assert not schema.by_flag["--swap-space"].certain
    assert schema.by_flag["--swap-space"].seen_in == "0.16.0"
    assert schema.by_flag["--moe-backend"].seen_in == "0.20.2"
    assert schema.has("--max-model-len")
    assert not schema.has("--swap-space")
    kept = {"fp8", *(schema_for("0.16.0").by_flag["--kv-cache-dtype"].choices or ())}
    assert kept <= set(schema.by_flag["--kv-cache-dtype"].choices or ())


def test_a_dump_of_an_engine_becomes_a_schema(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(DUMP), encoding="utf-8")
    schema = load_schema(file)
    assert (schema.version, schema.source, schema.between) == ("0.9.9", "engine", None)
    seed, lora, eager, extra, old = schema.arguments
    assert (seed.type, seed.nullable, seed.flags) == ("int", True, ("--seed", "-s"))
    assert (lora.kind, lora.negative, eager.kind, eager.negative) == ("switch", "--no-lora", "flag", None)
    assert (extra.type, extra.keys) == ("json", ("a", "b"))
    assert old.deprecated
    assert schema.abbreviations("--se") == ["--seed"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"vllm": "0.9"}', '{"vllm": "0.9", "args": []}', '{"vllm": "1", "args": 3}']
)
def test_a_file_that_is_no_schema_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "schema.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SchemaError):
        load_schema(file)
    with pytest.raises(SchemaError):
        load_schema(tmp_path / "missing.json")


def test_the_table_holds_every_argument_once_and_gives_back_each_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = {**DUMP, "vllm": "0.10.0", "args": DUMP["args"][:3]}
    table = pack([newer, DUMP])
    assert list(table["versions"]) == ["0.9.9", "0.10.0"]
    assert len(table["arguments"]) == len(DUMP["args"])
    assert [record["dest"] for record in unpack(table, "0.10.0")] == ["model_tag", "seed", "lora"]
    assert schema_from_dump({"vllm": "x", "args": unpack(table, "0.9.9")}).arguments[0].nullable
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, dump in zip(files, (newer, DUMP), strict=True):
        file.write_text(json.dumps(dump), encoding="utf-8")
    assert build_table([str(file) for file in files]) == 0
    assert json.loads(capsys.readouterr().out) == table

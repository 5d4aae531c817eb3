"""Form values to a command line and back, for every argument of every shipped version."""

import argparse
import json
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.vllm.arguments.samples import round_trippable, samples, values_of
from workers.vllm.arguments import (
    Argument,
    RefusedValueError,
    argv_from_values,
    check_arguments,
    schema_for,
    shipped_versions,
    values_from_argv,
)

VERSIONS = shipped_versions()
QUICK = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_argument_of_every_version_goes_to_a_command_line_and_back(version: str) -> None:
    schema = schema_for(version)
    for argument in round_trippable(schema):
        for value in samples(argument):
            argv = argv_from_values(schema, {argument.dest: value}, model="org/model")
            model, values = values_from_argv(schema, argv)
            assert (model, values) == ("org/model", {argument.dest: value}), argv


@pytest.mark.parametrize("version", VERSIONS)
@QUICK
@given(data=st.data())
def test_any_values_of_any_arguments_together_go_to_a_command_line_and_back(version: str, data: st.DataObject) -> None:
    schema = schema_for(version)
    chosen = data.draw(
        st.lists(st.sampled_from(round_trippable(schema)), max_size=6, unique_by=lambda found: found.dest)
    )
    values = {argument.dest: data.draw(values_of(argument), label=argument.flag) for argument in chosen}
    argv = argv_from_values(schema, values, model="org/model")
    assert values_from_argv(schema, argv) == ("org/model", values), argv


@pytest.mark.parametrize("version", VERSIONS)
@QUICK
@given(data=st.data())
def test_argparse_reads_the_same_values_from_the_command_line(version: str, data: st.DataObject) -> None:
    schema = schema_for(version)
    plain = [
        argument
        for argument in round_trippable(schema)
        if argument.type in ("int", "text", "json") or argument.boolean
        if argument.dest not in ("optimization_level",) and argument.nargs != "?"
    ]
    chosen = data.draw(st.lists(st.sampled_from(plain), max_size=6, unique_by=lambda found: found.dest))
    values = {argument.dest: data.draw(values_of(argument), label=argument.flag) for argument in chosen}
    argv = argv_from_values(schema, values, model="org/model")
    read = vars(_argparse_of(version).parse_args(argv))
    assert read.pop("model_tag") == "org/model"
    assert {dest: value for dest, value in read.items() if dest in values} == values, argv


@lru_cache
def _argparse_of(version: str) -> argparse.ArgumentParser:
    """Build argparse's own parser from a schema, as the engine does from its configuration classes."""
    schema = schema_for(version)
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("model_tag", nargs="?")
    for argument in schema.arguments:
        if argument.kind == "switch":
            flags = [flag for flag in argument.flags if not flag.startswith("--no-")]
            parser.add_argument(*flags, dest=argument.dest, action=argparse.BooleanOptionalAction)
        elif argument.kind == "flag":
            parser.add_argument(*argument.flags, dest=argument.dest, action="store_true")
        elif argument.kind == "append":
            parser.add_argument(*argument.flags, dest=argument.dest, action="append", type=_converter(argument))
        else:
            parser.add_argument(
                *argument.flags,
                dest=argument.dest,
                nargs=argument.nargs,
                type=_converter(argument),
                choices=argument.choices,
            )
    return parser


def _converter(argument: Argument) -> Any:
    convert = {"int": int, "json": json.loads}.get(argument.type, str)
    if not argument.nullable:
        return convert
    return lambda word: None if word in ("", "None") else convert(word)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_corrected_line_is_its_own_correction(version: str) -> None:
    schema = schema_for(version)
    line = ["org/model", "-tp", "2", "--max_model_len", "4k", "--served-model-name", "a", "b", "--swap-space", "4"]
    once = check_arguments(schema, line)
    twice = check_arguments(schema, once.argv)
    assert twice.argv == once.argv
    assert twice.ok


def test_a_value_that_begins_with_a_dash_is_joined_to_its_flag_because_argparse_would_read_an_option() -> None:
    schema = schema_for("0.32.0")
    argv = argv_from_values(schema, {"watermark": 0.5, "chat_template": "--bad", "seed": -5})
    assert argv == ["--watermark", "0.5", "--chat-template=--bad", "--seed", "-5"]


def test_a_list_whose_items_begin_with_a_dash_is_refused_because_argparse_cannot_carry_it() -> None:
    with pytest.raises(RefusedValueError, match="reads as another argument"):
        argv_from_values(schema_for("0.32.0"), {"served_model_name": ["fine", "--not"]})


def test_switches_without_a_no_form_are_left_out_when_they_are_off() -> None:
    assert argv_from_values(schema_for("0.8.5"), {"enforce_eager": False, "enable_prefix_caching": False}) == [
        "--no-enable-prefix-caching"
    ]

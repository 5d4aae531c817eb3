"""What the deploy form shows: it must hold for every shipped version."""

import pytest

from workers.vllm.argument_history import note
from workers.vllm.argument_knowledge import _form
from workers.vllm.arguments import (
    argv_from_values,
    changed,
    check_arguments,
    essentials,
    groups,
    guarded,
    guarded_names,
    presets,
    reserved,
    schema_for,
    search,
    shipped_versions,
    value_range,
)

VERSIONS = shipped_versions()
EVERY_NAME = {argument.dest for version in VERSIONS for argument in schema_for(version).arguments}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_has_the_ten_essentials_each_with_two_sentences(version: str) -> None:
    found = essentials(schema_for(version))
    assert [essential.argument.dest for essential in found] == [
        "served_model_name",
        "max_model_len",
        "tensor_parallel_size",
        "gpu_memory_utilization",
        "dtype",
        "quantization",
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_prefix_caching",
        "enable_chunked_prefill",
    ]
    assert all(essential.cost.endswith(".") and essential.change.endswith(".") for essential in found)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_preset_is_a_line_that_its_version_takes(version: str) -> None:
    schema = schema_for(version)
    found = presets(schema)
    assert [preset.name for preset in found] == ["chat", "long-documents", "throughput", "latency", "first-start"]
    for preset in found:
        assert len(preset.values) >= 3
        answer = check_arguments(schema, argv_from_values(schema, preset.values, model="M"))
        assert answer.findings == (), preset.name
    assert found[-1].environment == {"VLLM_LOGGING_LEVEL": "DEBUG"}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_argument_stands_in_exactly_one_group_but_what_slipway_sets(version: str) -> None:
    schema = schema_for(version)
    shown = [argument.dest for group in groups(schema) for argument in group.arguments]
    assert sorted(shown) == sorted(
        argument.dest for argument in schema.arguments if argument.dest != "model" and argument.dest not in reserved()
    )
    assert groups(schema)[0].title == "Model"


def test_all_names_in_the_data_are_arguments_of_some_version() -> None:
    named = {entry["dest"] for entry in _form()["essentials"]}
    named |= {dest for preset in _form()["presets"] for dest in preset["values"]}
    named |= {*guarded_names(), *reserved()}
    assert named <= EVERY_NAME
    engine_groups = {argument.group for version in VERSIONS for argument in schema_for(version).arguments}
    assert engine_groups <= {name for group in _form()["groups"] for name in group["engine_groups"]}


def test_every_removed_argument_of_the_shipped_versions_is_explained() -> None:
    newest = schema_for(VERSIONS[-1]).by_flag
    gone = {argument.flag for version in VERSIONS for argument in schema_for(version).arguments} - newest.keys()
    assert len(gone) > 40
    for flag in gone:
        assert note(flag)["why"]
        assert note(flag)["fix"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"trust_remote_code": True}, [("trust_remote_code", "safety")]),
        ({"trust_remote_code": False, "max_model_len": 4096}, []),
        ({"host": "0.0.0.0"}, [("host", "safety")]),
        ({"host": "127.0.0.1"}, []),
        ({"load_format": "dummy"}, [("load_format", "truth")]),
        ({"load_format": "safetensors"}, []),
        ({"worker_cls": "auto", "tool_parser_plugin": "/x.py"}, [("tool_parser_plugin", "safety")]),
        ({"allowed_local_media_path": "/data"}, [("allowed_local_media_path", "safety")]),
        ({"hf_overrides": {}}, []),
        ({"distributed_executor_backend": "ray"}, []),
        ({"distributed_executor_backend": "own.module.Executor"}, [("distributed_executor_backend", "safety")]),
        ({"structured_outputs_config": {"backend": "xgrammar"}}, []),
        (
            {"structured_outputs_config": {"reasoning_parser_plugin": "/x.py"}},
            [("structured_outputs_config", "safety")],
        ),
        ({"hf_overrides": {"rope_theta": 1}}, [("hf_overrides", "truth")]),
    ],
)
def test_what_weakens_safety_or_truth_is_marked(values: dict[str, object], expected: list[tuple[str, str]]) -> None:
    assert [(found.dest, found.weakens) for found in guarded(schema_for("0.32.0"), values)] == expected


def test_search_finds_by_name_and_prefers_it() -> None:
    schema = schema_for("0.32.0")
    assert search(schema, "prefix_cach")[0].dest == "enable_prefix_caching"
    assert {argument.dest for argument in search(schema, "kv cache")} >= {"kv_cache_dtype", "kv_cache_memory_bytes"}
    assert search(schema, "  ") == []


def test_only_values_that_differ_from_the_default_are_changed() -> None:
    values = {"seed": 0, "max_logprobs": 5}
    assert changed(schema_for("0.32.0"), values) == {"max_logprobs": 5}


def test_limits_are_known_for_a_form() -> None:
    assert value_range("gpu_memory_utilization") == {"gt": 0, "le": 1}
    assert value_range("chat_template") == {}

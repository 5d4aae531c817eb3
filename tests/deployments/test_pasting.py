"""Pasted command lines: what holds goes to its field, what doesn't is explained with a fix that one click takes."""

import pytest

from console.deployments import pasting
from workers.vllm.arguments import schema_for

SCHEMA = schema_for("0.32.0")
WRONG = [
    ("--model-name chat", "never existed", {}, "chat"),
    ("--dtype fp8", "isn't the type that is computed in", {"dtype": "auto"}, ""),
    ("--rope-theta 1000000", "config.json", None, ""),
    ("--swap-space 16", "never swaps them", {"kv_offloading_size": 16.0}, ""),
    ("--num-scheduler-steps 8", "Multi-step scheduling", None, ""),
    ("--enable-chunked-prefill=false", "takes no value", {"enable_chunked_prefill": False}, ""),
    ("--max-prefix-cache-length 100", "no size of its own", None, ""),
    ("--speculative-model x/y", "one JSON argument",
     {"speculative_config": {"model": "x/y", "num_speculative_tokens": 3}}, ""),
    ("--log-level debug", "Did you mean DEBUG", {"log_level": "DEBUG"}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("words", "explained", "fix", "name"), WRONG)
def test_each_wrong_argument_of_the_guides_is_explained_and_has_its_fix(
    words: str, explained: str, fix: dict[str, object] | None, name: str
) -> None:
    taken = pasting.take(f"vllm serve org/model --max-model-len 4096 {words}", SCHEMA)
    assert taken.values == {"max_model_len": 4096}, "what holds is taken over all the same"
    [kept] = taken.kept
    assert kept.text == words
    assert explained in " ".join(f"{one.message} {one.fix}" for one in kept.findings)
    assert (kept.values or None, kept.name) == (fix or None, name)


def test_the_demo_server_is_explained_and_its_model_is_found() -> None:
    taken = pasting.take("python -m vllm.entrypoints.api_server --model /m --port 8000", SCHEMA)
    assert taken.model == "/m"
    assert any("never had the OpenAI API" in note.message for note in taken.notes)
    assert any(note.flag == "--port" and "free port" in note.message for note in taken.notes)


def test_a_second_model_is_taken_for_the_name_that_was_meant() -> None:
    taken = pasting.take("vllm serve /path/model --model chat", SCHEMA)
    assert (taken.model, taken.names) == ("/path/model", ["chat"])
    assert any("given twice" in note.message for note in taken.notes)


def test_a_container_s_line_becomes_arguments_and_its_secrets_stay_out() -> None:
    line = (
        "docker run --gpus all -e HF_TOKEN=hf_x -e VLLM_LOGGING_LEVEL=DEBUG -p 8000:8000 vllm/vllm-openai:latest "
        "--model org/x --max-model-len 32k --api-key sk --served-model-name a b"
    )
    taken = pasting.take(line, SCHEMA)
    assert taken.model == "org/x"
    assert taken.names == ["a", "b"]
    assert taken.values == {"max_model_len": 32_000}
    assert taken.environment == {"VLLM_LOGGING_LEVEL": "DEBUG"}
    assert {note.flag for note in taken.notes} == {"HF_TOKEN", "--api-key", "--served-model-name"}
    assert "hf_x" not in repr(taken.notes)


def test_what_vllm_takes_in_its_own_way_is_written_out() -> None:
    taken = pasting.take_words(["--max_model_len", "4k", "-tp", "2", "--no-enable-prefix-caching"], SCHEMA)
    assert taken.values == {"max_model_len": 4000, "tensor_parallel_size": 2, "enable_prefix_caching": False}
    assert not taken.kept


def test_objects_given_in_pieces_become_one() -> None:
    taken = pasting.take_words(["--hf-overrides.a.b", "1", "--hf-overrides.c", "x"], SCHEMA)
    assert taken.values == {"hf_overrides": {"a": {"b": 1}, "c": "x"}}


def test_negative_numbers_belong_to_the_argument_before_them() -> None:
    assert pasting.chunks(["m", "--seed", "-5", "--x=-1.5", "-O3"]) == [
        ("m",), ("--seed", "-5"), ("--x=-1.5",), ("-O3",),
    ]  # fmt: skip

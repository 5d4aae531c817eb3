"""What a check finds in a line, and the line it answers."""

import shlex
import time
from collections.abc import Sequence

import pytest

from workers.vllm.arguments import CheckedArguments, Finding, Surroundings, check_arguments, check_words, schema_for

NEWEST = "0.32.0"


def check(line: str, version: str = NEWEST, surroundings: Surroundings | None = None) -> CheckedArguments:
    return check_words(shlex.split(line), schema_for(version), surroundings)


def codes(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    return [(finding.code, finding.flag) for finding in findings]


GUIDES = [
    ("M --model-name chat", "args.unrecognized", "--model-name", "M --served-model-name chat"),
    ("M --dtype fp8", "args.invalid_choice", "--dtype", "M --dtype auto"),
    ("M --rope-theta 500000", "args.removed", "--rope-theta", "M"),
    ("M --swap-space 4", "args.removed", "--swap-space", "M --kv-offloading-size 4"),
    ("M --num-scheduler-steps 8", "args.removed", "--num-scheduler-steps", "M"),
    (
        "M --enable-chunked-prefill=false",
        "args.invalid_value",
        "--enable-chunked-prefill",
        "M --no-enable-chunked-prefill",
    ),
    (
        "python -m vllm.entrypoints.api_server --model M",
        "args.removed",
        "vllm.entrypoints.api_server",
        "M",
    ),
    ("serve /models/m --model chat", "args.conflict", "--model", "/models/m --served-model-name chat"),
    ("/models/m --model chat", "args.conflict", "--model", "/models/m --served-model-name chat"),
    ("M --max-prefix-cache-length 8192", "args.unrecognized", "--max-prefix-cache-length", "M"),
    (
        "M --speculative-model draft",
        "args.removed",
        "--speculative-model",
        """M --speculative-config '{"model": "draft", "num_speculative_tokens": 3}'""",
    ),
    ("M --log-level debug", "args.invalid_choice", "--log-level", "M --log-level DEBUG"),
]


@pytest.mark.parametrize(("line", "code", "flag", "corrected"), GUIDES)
def test_wrong_commands_of_popular_guides_are_explained_and_corrected(
    line: str, code: str, flag: str, corrected: str
) -> None:
    answer = check(line)
    assert codes(answer.findings) == [(code, flag)]
    assert answer.findings[0].severity == "error"
    assert answer.findings[0].message
    assert answer.findings[0].fix
    assert not answer.ok
    assert list(answer.argv) == shlex.split(corrected)
    assert check_arguments(schema_for(NEWEST), answer.argv).findings == ()


LIBERTIES = [
    "M --max_model_len 4096 --gpu_memory_utilization=0.9",
    "M -O3",
    "M -O 2",
    "M -O=1",
    "M --hf-overrides.a.b=1 --speculative-config.method ngram --speculative-config.num_speculative_tokens 3",
    "M --max-model-len 32k --max-num-batched-tokens 8K --kv-cache-memory-bytes 1.5g",
    "M --max-model-len auto",
    "M --max-model-len -1 --seed -7",
    "M --dtype auto --quantization None",
    "M -tp 2 -pp=2 -qawq",
    "M --served-model-name a b --allowed-media-domains x.org",
    "--max-model-len 4096 M",
    "--tensor-parallel-size 2",
    'M --compilation-config \'{"cudagraph_capture_sizes": [1, 2], "max_cudagraph_capture_size": 1k}\'',
    "M --compilation_config.cudagraph_capture_sizes+ 1,2",
    "M --moe-backend Deep-Gemm --attention-backend FLASH_ATTN",
    "M --middleware a.b --middleware c.d --hf-overrides.a 1 --hf-overrides.b 2",
    "M --max-num-batched-tokens 2048 --max-model-len 32768",
    "M --trust-remote-code --device-memory-utilization 0.8",
    "vllm serve M --lora-modules sql=/a other=/b --enable-lora",
]


@pytest.mark.parametrize("line", LIBERTIES)
def test_what_vllm_takes_is_no_finding(line: str) -> None:
    answer = check(line)
    assert answer.findings == ()
    assert answer.ok


@pytest.mark.parametrize(
    ("line", "code", "flag", "severity", "corrected"),
    [
        ("M --no-such-thing 3", "args.unrecognized", "--no-such-thing", "error", "M"),
        ("M --max-model-length 4096", "args.unrecognized", "--max-model-length", "error", "M --max-model-len 4096"),
        ("M --max-num 3", "args.unrecognized", "--max-num", "error", "M"),
        ("M other", "args.unrecognized", "other", "error", "M"),
        ("M --task embed", "args.removed", "--task", "error", "M --runner pooling --convert embed"),
        ("M --override-pooler-config {}", "args.renamed", "--override-pooler-config", "error", "M --pooler-config {}"),
        ("M --cuda-graph-sizes 1 2", "args.renamed", "--cuda-graph-sizes", "error", "M --cudagraph-capture-sizes 1 2"),
        ("M -O.level=3", "args.renamed", "-O", "error", "M --compilation-config '{\"mode\": 3}'"),
        ("M --kv-cache-dtype int3", "args.invalid_choice", "--kv-cache-dtype", "error", "M"),
        ("M --dtype bf16", "args.invalid_choice", "--dtype", "error", "M --dtype bfloat16"),
        ("M --max-lora-rank 7", "args.invalid_choice", "--max-lora-rank", "error", "M"),
        ("M --tensor-parallel-size two", "args.invalid_value", "--tensor-parallel-size", "error", "M"),
        ("M --tensor-parallel-size 0", "args.invalid_value", "--tensor-parallel-size", "error", "M"),
        ("M --gpu-memory-utilization 90", "args.invalid_value", "--gpu-memory-utilization", "error", None),
        ("M --gpu-memory-utilization 1.5", "args.invalid_value", "--gpu-memory-utilization", "error", "M"),
        ("M --gpu-memory-utilization nan", "args.invalid_value", "--gpu-memory-utilization", "error", "M"),
        ("M --max-num-batched-tokens 1.5K", "args.invalid_value", "--max-num-batched-tokens", "error", None),
        ("M --max-num-seqs 1k", "args.invalid_value", "--max-num-seqs", "error", "M --max-num-seqs 1000"),
        ("M --max-model-len", "args.invalid_value", "--max-model-len", "error", "M"),
        ("M --optimization-level 5", "args.invalid_value", "--optimization-level", "error", "M"),
        ("M --speculative-config {bad", "args.invalid_value", "--speculative-config", "error", "M"),
        (
            "M --allowed-origins '*'",
            "args.invalid_value",
            "--allowed-origins",
            "error",
            "M --allowed-origins '[\"*\"]'",
        ),
        ("M --limit-mm-per-prompt image=2", "args.invalid_value", "--limit-mm-per-prompt", "error", None),
        ("M --compilation-config.level=3", "args.invalid_value", "--compilation-config", "error", None),
        ("M --max-model-len.x=1", "args.invalid_value", "--max-model-len", "error", "M"),
        ("M --enforce-eager true", "args.invalid_value", "--enforce-eager", "error", "M --enforce-eager"),
        ("M --no-enable-prefix-caching=false", "args.invalid_value", "--enable-prefix-caching", "error", None),
        ("M --chat-template -0.5", "args.invalid_value", "--chat-template", "error", "M --chat-template=-0.5"),
        ("M --hf-overrides.a", "args.invalid_value", "--hf-overrides", "error", "M"),
        ("M --hf-overrides '{\"a\": 80k}'", "args.invalid_value", "--hf-overrides", "error", None),
        ("M --lora-modules name", "args.invalid_value", "--lora-modules", "error", "M"),
        ("M --seed 1 --seed 2", "args.duplicate", "--seed", "warning", "M --seed 2"),
        ("M -tp 2 --tensor-parallel-size 4", "args.duplicate", "--tensor-parallel-size", "warning", None),
        ("M --hf-overrides.a=1 --hf-overrides.a=2", "args.duplicate", "--hf-overrides.a", "warning", None),
        ("M --hf-overrides {} --hf-overrides.a=2", "args.duplicate", "--hf-overrides", "warning", None),
        ("M --enable-lora --no-enable-lora", "args.conflict", "--enable-lora", "error", "M --no-enable-lora"),
        ("M --enable-auto-tool-choice", "args.conflict", "--enable-auto-tool-choice", "error", "M"),
        ("M --max-num-seqs 512 --max-num-batched-tokens 256", "args.conflict", "--max-num-seqs", "error", None),
        ("M --spec-model d --speculative-config.model e", "args.conflict", "--spec-model", "error", None),
        ("M --enable-per-request-metrics --disable-log-stats", "args.conflict", "--disable-log-stats", "error", None),
        ("M --headless --api-server-count 2", "args.conflict", "--api-server-count", "error", "M"),
        ("M --log-config-file a.json", "args.deprecated", "--log-config-file", "warning", None),
        ("M --disable-cascade-attn", "args.deprecated", "--disable-cascade-attn", "warning", None),
        ("--model M", "args.deprecated", "--model", "warning", "M"),
        ("M --enable-chunked-prefil", "args.abbreviated", "--enable-chunked-prefil", "warning", None),
        ("M --host 0.0.0.0", "args.reserved", "--host", "warning", "M"),
        ("M --port 8001", "args.reserved", "--port", "warning", "M"),
        ("M --api-key secret", "args.reserved", "--api-key", "error", "M"),
        ("M --ssl-keyfile k.pem", "args.reserved", "--ssl-keyfile", "error", "M"),
    ],
)
def test_each_kind_of_fault_has_its_code(line: str, code: str, flag: str, severity: str, corrected: str | None) -> None:
    answer = check(line)
    assert (code, flag, severity) in [(found.code, found.flag, found.severity) for found in answer.findings]
    if corrected is not None:
        assert list(answer.argv) == shlex.split(corrected)
    again = check_arguments(schema_for(NEWEST), answer.argv)
    assert again.ok, "a corrected line starts"


def test_the_reserved_secret_is_not_repeated_in_the_answer() -> None:
    assert "sk-very-secret" not in str(check("M --api-key sk-very-secret --hf-token hf_secret").as_dict())


def test_each_fault_of_a_line_is_found_at_once() -> None:
    answer = check("M --swap-space 4 --dtype fp8 --max-model-len 4k --max-model-len 8k --enable-chunked-prefil -tp 2")
    assert [finding.code for finding in answer.findings] == [
        "args.removed",
        "args.invalid_choice",
        "args.duplicate",
        "args.abbreviated",
    ]
    assert shlex.join(answer.argv) == (
        "M --dtype auto --max-model-len 8000 --enable-chunked-prefill --tensor-parallel-size 2 --kv-offloading-size 8"
    )


def test_swap_space_counted_per_gpu_and_its_successor_for_all_ranks() -> None:
    assert check("M --swap-space 4 -tp 4").values["kv_offloading_size"] == 16
    assert "kv_offloading_size" not in check("M --swap-space 0").values


def test_removed_says_since_when() -> None:
    message = check("M --swap-space 4").findings[0].message
    assert "0.16.0" in message
    assert "0.20.2" in message


def test_all_speculative_flags_of_old_guides_become_one_object() -> None:
    line = "M --speculative-model '[ngram]' --num-speculative-tokens 5 --ngram-prompt-lookup-max 4"
    answer = check(line)
    assert {finding.code for finding in answer.findings} == {"args.removed"}
    assert answer.values["speculative_config"] == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_max": 4,
    }


def test_a_flag_that_is_yet_to_come_names_the_version_that_has_it() -> None:
    finding = check("M --log-level DEBUG", "0.20.2").findings[0]
    assert finding.code == "args.unrecognized"
    assert "0.32.0" in finding.message
    assert "VLLM_LOGGING_LEVEL" in finding.message


@pytest.mark.parametrize(
    ("line", "version", "expected"),
    [
        ("M --swap-space 4", "0.16.0", []),
        ("M --rope-theta 10000", "0.10.2", []),
        ("M --num-scheduler-steps 8", "0.8.5", []),
        ("M -O.level=3", "0.11.2", []),
        ("M -O3", "0.8.5", []),
        ("M --max-num-batched-tokens 8k", "0.8.5", [("args.invalid_value", "--max-num-batched-tokens")]),
        ("M --guided-decoding-backend xgrammar", "0.10.2", []),
        ("M --guided-decoding-backend xgrammar", "0.11.2", [("args.deprecated", "--guided-decoding-backend")]),
        ("M --guided-decoding-backend xgrammar", "0.16.0", [("args.removed", "--guided-decoding-backend")]),
        ("M --no-enforce-eager", "0.8.5", [("args.unrecognized", "--no-enforce-eager")]),
        ("M --no-enforce-eager", "0.32.0", []),
        ("M --device cpu", "0.32.0", [("args.removed", "--device")]),
    ],
)
def test_the_same_line_is_judged_by_the_version(line: str, version: str, expected: list[tuple[str, str]]) -> None:
    assert codes(check(line, version).findings) == expected


def test_a_version_in_between_says_that_it_is_interpolated_and_only_warns() -> None:
    answer = check("M --swap-space 4 --max-model-len 4k", "0.18.0")
    assert [(found.code, found.severity) for found in answer.findings] == [
        ("schema.interpolated", "info"),
        ("args.removed", "warning"),
    ]
    assert "0.16.0" in answer.findings[0].message
    assert answer.ok
    assert "--swap-space" in answer.argv


def test_the_level_is_taken_by_versions_in_between_too() -> None:
    assert [finding.code for finding in check("M -O3", "0.13.0").findings] == ["schema.interpolated"]


def test_a_switch_named_twice_the_same_way_is_only_a_duplicate() -> None:
    assert codes(check("M --enable-lora --enable-lora").findings) == [("args.duplicate", "--enable-lora")]


def test_a_module_start_may_name_the_model_by_argument() -> None:
    answer = check("python3 -m vllm.entrypoints.openai.api_server --model M --max-model-len 4096", "0.16.0")
    assert answer.findings == ()
    assert list(answer.argv) == ["M", "--max-model-len", "4096"]


def test_dtype_fp8_for_a_model_known_to_be_unquantised_becomes_quantisation_at_load() -> None:
    answer = check("M --dtype fp8", surroundings=Surroundings(model_config={"num_attention_heads": 8}))
    assert answer.values == {"dtype": "auto", "quantization": "fp8"}


def test_the_answer_has_the_fixed_keys() -> None:
    answer = check("M --swap-space 4").as_dict()
    assert list(answer) == ["ok", "engine_version", "findings", "argv"]
    assert list(answer["findings"][0]) == ["code", "severity", "flag", "message", "fix"]


def test_a_check_takes_less_than_50_ms_with_a_cached_schema() -> None:
    line = (
        " ".join(f"--unknown-thing-{number} 1" for number in range(5)) + " --max-model-length 4k --swap-space 4 -tp 2"
    )
    check(line)
    times = []
    for _ in range(5):
        start = time.process_time()
        check(line)
        times.append(time.process_time() - start)
    assert min(times) < 0.05

"""Plans against the numbers that real engines logged, to the token."""

from dataclasses import replace
from typing import Any

import pytest

from tests.vllm.memory.models import GIB, MIB, public_shape, shape
from workers.vllm.memory import PlanRequest, find_device, plan, read_shape

ON_CPU = PlanRequest(
    platform="cpu", kv_cache_memory=256 * MIB, max_model_len=2048, max_num_batched_tokens=512, engine_version="0.32.0"
)

LAUNCHES = [
    ("llama-gqa", ON_CPU, 174_720),
    ("gemma3-swa", ON_CPU, 91_180),
    ("gemma4-swa", ON_CPU, 91_180),
    ("deepseek-mla", ON_CPU, 77_664),
    ("qwen3-moe", ON_CPU, 65_536),
    ("qwen3-next-gdn", ON_CPU, 190_650),
    ("llama-gqa", replace(ON_CPU, tensor_parallel=2, kv_cache_memory=128 * MIB), 174_720),
    ("tiny-qwen3", replace(ON_CPU, kv_cache_memory=GIB, max_model_len=1024, max_num_batched_tokens=2048), 524_288),
    # The same tiny Qwen3 in this project's recorded logs: 0.12 GiB, context 1,024.
    ("tiny-qwen3", replace(ON_CPU, kv_cache_memory=GIB // 8, max_model_len=1024, max_num_batched_tokens=None), 65_536),
]


@pytest.mark.parametrize(("name", "request_", "logged"), LAUNCHES)
def test_the_tokens_of_a_cpu_launch_are_planned_exactly(name: str, request_: PlanRequest, logged: int) -> None:
    made = plan(shape(name), request_)
    assert made.kv_cache_tokens == logged
    assert made.fits is True


def test_a_uniform_window_launched_on_0_32_holds_399360_tokens() -> None:
    mistral = read_shape({
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096,
        "sliding_window": 256, "max_position_embeddings": 4096, "tie_word_embeddings": False, "dtype": "bfloat16",
    })  # fmt: skip
    made = plan(mistral, ON_CPU)
    assert (made.kv_cache_tokens, made.max_concurrency, made.num_blocks) == (399_360, 195.0, 1365)
    assert made.weights_bytes_per_device == pytest.approx(7_736_832, rel=0.01)  # the engine's own parameters


def test_smollm2_with_one_gibibyte_holds_46592_tokens() -> None:
    smollm2 = read_shape({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
        "max_position_embeddings": 8192, "tie_word_embeddings": True, "dtype": "bfloat16",
    })  # fmt: skip
    made = plan(smollm2, PlanRequest(platform="cpu", kv_cache_memory=GIB, max_model_len=2048))
    assert made.kv_cache_tokens == 46_592
    assert made.kv_bytes_per_token == 2 * 3 * 64 * 2 * 30
    assert smollm2.weights.total_bytes == pytest.approx(
        269_000_000, rel=0.01
    )  # the file is 269 MB, head and embedding one


def test_the_public_h200_card_of_gemma_4_31b_with_fp8_kv() -> None:
    made = plan(
        public_shape("gemma-4-31b-fp8-block"),
        PlanRequest(
            device=find_device("H200"), kv_cache_memory=int(55.22 * GIB), kv_cache_dtype="fp8", max_model_len=32_768,
            max_num_batched_tokens=8192, block_size=16, engine_version="0.20.0",
        ),
    )  # fmt: skip
    assert made.kv_cache_tokens == 120_624
    assert made.max_concurrency == pytest.approx(11.57, abs=0.005)


@pytest.mark.parametrize(("gib", "logged", "concurrency"), [(5.98, 567_978, 4.33), (6.01, 569_878, 4.35)])
def test_a_public_5090_log_of_qwen36_35b_a3b(gib: float, logged: int, concurrency: float) -> None:
    made = plan(
        public_shape("qwen3.6-35b-a3b-nvfp4"),
        PlanRequest(
            device=find_device("5090"), kv_cache_memory=int(gib * GIB), kv_cache_dtype="fp8", max_model_len=131_072,
            max_num_batched_tokens=8192, enable_prefix_caching=True, engine_version="0.24.0",
        ),
    )  # fmt: skip
    assert made.kv_cache_tokens == logged
    assert made.max_concurrency == pytest.approx(concurrency, abs=0.005)


def test_a_public_log_of_qwen38_27b_on_two_cards() -> None:
    request = PlanRequest(
        tensor_parallel=2, kv_cache_memory=int(4.99 * GIB), kv_cache_dtype="fp8_e4m3", max_model_len=131_072,
        max_num_batched_tokens=8192, enable_prefix_caching=True,
    )  # fmt: skip
    made = plan(public_shape("qwen3.8-27b-fp8"), request)
    assert (made.kv_cache_tokens, made.block_size) == (302_921, 1568)
    assert made.max_concurrency == pytest.approx(2.31, abs=0.005)
    # One card keeps twice the heads and twice the state, so the block is the same (logged there too).
    assert plan(public_shape("qwen3.8-27b-fp8"), replace(request, tensor_parallel=1)).block_size == 1568


def test_recurrent_states_enlarge_the_block_as_a_public_log_of_qwen35_4b_says() -> None:
    qwen = read_shape({
        "model_type": "qwen3_5_text", "hidden_size": 2560, "intermediate_size": 9216, "num_hidden_layers": 32,
        "full_attention_interval": 4, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144,
        "vocab_size": 248320, "dtype": "bfloat16",
    })  # fmt: skip
    made = plan(qwen, PlanRequest(kv_cache_memory=GIB, max_model_len=1024, engine_version="0.19.1"))
    assert made.block_size == 528  # github.com/vllm-project/vllm/issues/40696


def test_glm5_keeps_an_indexer_row_per_layer_in_blocks_of_64() -> None:
    made = plan(public_shape("glm-5-fp8"), PlanRequest(device=find_device("H200"), count=8, kv_cache_dtype="fp8"))
    assert made.block_size == 64
    assert made.kv_bytes_per_token == 78 * (656 + 132)  # LMCache issue 3339: pages of 64 x 132 beside the latents


@pytest.mark.parametrize(("block", "kv_dtype"), [(64, "auto"), (128, "auto"), (128, "fp8"), (64, "fp8_e5m2")])
def test_tokens_follow_block_size_and_kv_dtype(block: int, kv_dtype: str) -> None:
    made = plan(shape("llama-gqa"), replace(ON_CPU, block_size=block, kv_cache_dtype=kv_dtype))
    page = 2 * 2 * 32 * (2 if kv_dtype == "auto" else 1) * block * 6
    assert made.bytes_per_block == page
    assert made.num_blocks == 256 * MIB // page
    assert made.kv_cache_tokens == int(made.num_blocks / (2048 // block) * 2048)


@pytest.mark.parametrize(("version", "tokens"), [("0.20.0", 2048 // 6 * 128), ("0.20.2", 91_180), ("0.32.0", 91_180)])
def test_the_token_line_of_a_hybrid_changed_with_0_20_1(version: str, tokens: int) -> None:
    assert plan(shape("gemma3-swa"), replace(ON_CPU, engine_version=version)).kv_cache_tokens == tokens


def test_the_one_block_that_serves_nobody_decides_at_the_edge() -> None:
    least = plan(shape("llama-gqa"), ON_CPU).min_kv_bytes_for_one_request
    assert least == (2048 // 128 + 1) * 196_608
    assert plan(shape("llama-gqa"), replace(ON_CPU, kv_cache_memory=least)).fits is True
    refused = plan(shape("llama-gqa"), replace(ON_CPU, kv_cache_memory=least - 1))
    assert refused.fits is False
    assert "one request of 2,048 tokens needs" in refused.reasons[0].text


@pytest.mark.parametrize(("platform", "block", "version", "starts"), [
    ("cpu", 16, "0.32.0", False), ("cpu", 16, "0.28.0", True), ("cpu", 96, "0.32.0", True),
    ("cuda", 16, "0.32.0", True), ("cuda", 24, "0.32.0", False),
])  # fmt: skip
def test_blocks_that_no_kernel_takes_stop_the_engine(platform: Any, block: int, version: str, starts: bool) -> None:
    # A recorded launch with --block-size 16 on a CPU: "No common block size for 16 (CPU_ATTN: [MultipleOf(32)])".
    request = replace(ON_CPU, platform=platform, block_size=block, engine_version=version)
    made = plan(shape("tiny-qwen3"), request)
    assert made.fits is starts
    if not starts:
        assert made.reasons[0].code == "attention.block_size_unsupported"
